"""Finds hint sites: the turns of a conversation that went wrong, the hint for each, and its place in the token ids.

Logged conversations and rollouts go through the same steps. Remarks say what is wrong with which turn (`error_remarks`
reads them off the turns of a trace, `remarks` takes those of environments and reward functions). `SiteFinder.hints`
picks a hint per turn, `SiteFinder.place` makes it a `HintSite`. What cannot be used is counted by reason:

- "not_the_students_mistake"; "outcome": a failing test and the like, charged to no turn
- "no_hint": the hint generator has nothing to say
- "no_next_turn": no recovery turn follows that has seen the failure
- "too_many": a failing turn after the first `max_turns`
- "no_such_turn": a remark about a turn that the conversation does not have
- "header_not_found", "hint_not_rendered" (the template refuses it), "too_long"
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, NamedTuple

from composer_replication.channels.hint_distillation import HintGenerator, SDPOTarget
from composer_replication.chat_templates import Tools
from composer_replication.hint_generator.attempts import Attempt
from composer_replication.hint_generator.errors import is_students_mistake
from composer_replication.rendering import Splice, TurnSpan, hint_message
from composer_replication.traces import Message, ToolCall, Turn

HintOrigin = Literal["tool", "environment", "reward", "sibling"]

_GIVERS: Mapping[HintOrigin, str] = {"environment": "an environment's feedback", "reward": "a reward function's hint"}


class Remark(NamedTuple):
    """What is wrong with a turn: a text, which is the hint itself, or an error's kind and `error_meta`.

    `turn` counts the conversation's assistant turns from 0; None: there is no such turn.
    """

    turn: int | None
    source: HintOrigin
    text: str | None = None
    kind: str = "feedback"
    meta: Mapping[str, Any] | None = None

    @property
    def is_students(self) -> bool:
        """Whether it is about a mistake of the student's."""
        return is_students_mistake(self.kind, self.meta)


class Hint(NamedTuple):
    """A hint for a turn, by its number among the conversation's assistant turns; `kind` and `source` as in a site."""

    turn: int
    kind: str
    source: HintOrigin
    text: str


@dataclass(frozen=True, kw_only=True)
class HintSite(Splice):
    """A hint in its place. `source` is who said that something was wrong, `kind` what ("feedback" if it came as a text,
    "sibling" for a sibling's solution). `role` is that of its message."""

    kind: str
    source: HintOrigin
    hint: str
    role: str = "system"

    def at(self, turn: TurnSpan) -> HintSite:
        """Return the same hint for one turn in other ids."""
        header = turn.start if turn.header is None else turn.header
        return replace(self, header=header, spans=((turn.start, turn.stop),))

    def to_json(self) -> dict[str, Any]:
        """Return plain values, for `json.dumps`."""
        return asdict(self)

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> HintSite:
        """Restore a site from `to_json`, also after a round trip through JSON, which has no tuples.

        Those of older checkpoints have other fields besides.
        """
        known = {one.name: given[one.name] for one in fields(cls) if one.name in given}
        spans = tuple((int(start), int(stop)) for start, stop in given["spans"])
        return cls(**{**known, "hint_ids": tuple(given["hint_ids"]), "spans": spans})


def is_erring(turn: Turn | None) -> bool:
    """Whether a turn is charged with a mistake of the student's."""
    return turn is not None and turn.tool_error is not None and is_students_mistake(turn.tool_error, turn.error_meta)


def error_remarks(turns: Iterable[Turn | None]) -> Iterator[Remark]:
    """Yield the errors that a trace's assistant turns are marked with."""
    for number, turn in enumerate(turns):
        if turn is not None and turn.tool_error is not None:
            yield Remark(number, "tool", kind=turn.tool_error, meta=turn.error_meta)


def remarks(given: Any, turns: int, source: HintOrigin) -> Iterator[Remark]:
    """Yield the remarks in what an environment or a reward function said of a conversation with this many turns.

    `given` is None (nothing to say), a text (about the last turn), a mapping from turn numbers (negative ones count
    from the end) to remarks, or a list of one remark per turn. A remark is a text, a pair of an error's kind and its
    meta, or None. Blank texts say nothing.

    Raises:
        ValueError: anything else.
    """
    giver = _GIVERS[source]
    if isinstance(given, str):
        given = {-1: given}
    if given is None:
        return
    if not isinstance(given, Mapping | Sequence):
        raise ValueError(
            f"{giver} must be a text, a mapping from turn numbers, a list of one per turn or None, got {given!r}"
        )
    for number, one in given.items() if isinstance(given, Mapping) else enumerate(given):
        if isinstance(number, bool) or not isinstance(number, int):
            raise ValueError(f"{giver} must name turns by whole numbers, got {number!r}")
        if one is None or (isinstance(one, str) and not one.strip()):
            continue
        turn = number + turns if number < 0 else number
        place = turn if 0 <= turn < turns else None
        if isinstance(one, str):
            yield Remark(place, source, text=one)
            continue
        kind, meta = one if isinstance(one, Sequence) and len(one) == 2 else (None, None)
        if not isinstance(kind, str) or not (meta is None or isinstance(meta, Mapping)):
            raise ValueError(f"{giver} of turn {number} must be a text, (kind, meta) or None, got {one!r}")
        yield Remark(place, source, kind=kind, meta=meta)


@dataclass(frozen=True)
class SiteFinder:
    """Finds the hint sites of conversations.

    Args:
        tokenizer: renders as the conversations were rendered.
        hint_generator: asked about the student's mistakes; None: there are no hints.
        target: the hint goes before, and the loss applies to, the turn that went wrong or the one after it.
        hint_role: the role of the hint's message; "user" where the template refuses it.
        max_length: the longest hinted context in tokens; None: no limit.
        max_turns: the most turns of a conversation that get a hint: the first ones, as later failures often follow from
            them; None: no limit.
        strip_attempt: whether the failing call is taken out of its hint.
    """

    tokenizer: Any
    hint_generator: HintGenerator | None
    target: SDPOTarget = "erring_turn"
    hint_role: str = "system"
    max_length: int | None = None
    max_turns: int | None = None
    strip_attempt: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    """Sites under "sites", and what gave none by reason."""

    def by_turn(self, said: Iterable[Remark]) -> dict[int, list[Remark]]:
        """Group remarks by turn, in the order of the turns."""
        grouped: dict[int, list[Remark]] = {}
        for remark in said:
            if remark.turn is None:
                self.counts["no_such_turn"] += 1
            else:
                grouped.setdefault(remark.turn, []).append(remark)
        return dict(sorted(grouped.items()))

    def hints(
        self, said: Mapping[int, Sequence[Remark]], learned: Collection[int], calls: Sequence[Sequence[ToolCall]]
    ) -> Iterator[Hint]:
        """Yield at most one hint per turn that something is said about: of several remarks, the first with a hint.

        Place each before you ask for the next: one that has no place does not count for `max_turns`.

        Args:
            said: what `by_turn` gave.
            learned: the turns that the loss applies to here. An error that another conversation shows too is counted
                in the one where it is learned.
            calls: those of each turn.
        """
        if self.hint_generator is None:
            return
        placed = self.counts["sites"]
        for number, about in said.items():
            target = number
            if self.target == "recovery_turn":
                target = number + 1
                # The turn after one that is charged with a later failure has not seen that failure.
                about = [remark for remark in about if not (remark.meta or {}).get("reported_by")]
            if target not in learned or not about:
                if number in learned:
                    self.counts["no_next_turn"] += 1
                continue
            is_full = self.max_turns is not None and self.counts["sites"] - placed >= self.max_turns
            if is_full and any(remark.text or remark.is_students for remark in about):
                self.counts["too_many"] += 1
                continue
            attempt = Attempt(calls[number] if self.strip_attempt else ())
            for remark in about:
                text = remark.text
                if text is None and remark.is_students:
                    # Before it is asked, too: it may cut the error's text, and with it the call that is quoted there.
                    text = self.hint_generator(remark.kind, attempt.removed_from_meta(remark.meta or {}))
                text = attempt.removed_from(text or "")
                if text.strip():
                    yield Hint(target, remark.kind, remark.source, text)
                    break
            else:
                is_students = any(remark.is_students for remark in about)
                is_outcome = any((remark.meta or {}).get("outcome") for remark in about)
                self.counts["no_hint" if is_students else "outcome" if is_outcome else "not_the_students_mistake"] += 1

    def place(
        self, hint: Hint, spans: Sequence[TurnSpan], context: Sequence[Message], tools: Tools = None
    ) -> HintSite | None:
        """Place a hint before the first of these turns; the loss applies to all of them. `context` comes before it.

        None if there is no place for the hint: the reason is counted.
        """
        header, stop = spans[0].header, spans[-1].stop
        if header is None:
            self.counts["header_not_found"] += 1
            return None
        try:
            ids, role = hint_message(self.tokenizer, context, hint.text, role=self.hint_role, tools=tools)
        except ValueError:
            ids = []
        if not ids:
            self.counts["hint_not_rendered"] += 1
            return None
        if self.max_length is not None and stop + len(ids) > self.max_length:
            self.counts["too_long"] += 1
            return None
        self.counts["sites"] += 1
        scored = tuple((span.start, span.stop) for span in spans)
        return HintSite(tuple(ids), header, scored, kind=hint.kind, source=hint.source, hint=hint.text, role=role)
