"""One conversation of a trace as a row of token ids, with the places in it that a hint would have helped."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from jinja2.exceptions import TemplateError

from composer_replication.channels.hint_distillation import HintGenerator, SDPOTarget
from composer_replication.hint_generator import is_students_mistake
from composer_replication.rendering import (
    AssistantTurn,
    accepted_hint_role,
    hint_message_ids,
    render_conversation,
)
from composer_replication.traces import Turn
from composer_replication.trainer.traces.conversations import Conversation


@dataclass(frozen=True)
class HintedTurn:
    """A turn that channel 2 learns from: `ids` are its context with the hint spliced in, and the turn itself, to its
    end. Its tokens stand at `[start, stop)` in the row, and in `ids` `shift` further to the right."""

    ids: Sequence[int]
    start: int
    stop: int
    shift: int


@dataclass(frozen=True)
class TraceRow:
    """A conversation as the student sees it. `response_mask` is 1 on the tokens that carry loss."""

    ids: Sequence[int]
    response_mask: Sequence[int]
    sites: list[HintedTurn]
    reward: float = 0.0

    @property
    def teaches(self) -> bool:
        """Whether a channel has something to learn from it."""
        return bool(self.sites) or any(self.response_mask)

    def compact(self) -> TraceRow:
        """The same in a fifth of the memory, for keeping many."""
        sites = [replace(site, ids=array("i", site.ids)) for site in self.sites]
        return replace(self, ids=array("i", self.ids), response_mask=array("b", self.response_mask), sites=sites)


class _Window(NamedTuple):
    """A part of a conversation's ids that makes a row."""

    first: int
    end: int

    def holds(self, turn: AssistantTurn) -> bool:
        """Whether a turn is in it, header and all; the first token of a row is not predicted by anything."""
        return self.first <= turn.header and self.first < turn.start and turn.stop <= self.end


@dataclass
class RowStats:
    """What became of the conversations.

    `sites` are turns with a hint. `sites_dropped` counts errors without one by reason: "not the student's mistake", "no
    recovery turn", "truncated" (it stands in the part of a long row that was cut), "too long" (hint and turn exceed the
    limit), "refused by the chat template". `hints_missing` are those that the hint generator had nothing to say about.
    `hint_role_used` counts the hints by the role they were given in. `truncated_rows`
    conversations were too long; `truncated_tokens` of them are in no row.
    """

    rows: int = 0
    sites: int = 0
    sites_dropped: Counter[str] = field(default_factory=Counter)
    hints_missing: int = 0
    hint_role_used: Counter[str] = field(default_factory=Counter)
    truncated_rows: int = 0
    truncated_tokens: int = 0


@dataclass(frozen=True)
class RowMaker:
    """Makes rows of conversations; without a hint generator, rows have no sites."""

    tokenizer: Any
    max_length: int
    max_windows: int
    hint_generator: HintGenerator | None
    target: SDPOTarget
    hint_role: str
    train_on_errors: bool

    def rows(
        self,
        conversation: Conversation,
        turns: Sequence[Turn],
        tools: Sequence[dict[str, Any]] | None,
        stats: RowStats,
    ) -> list[TraceRow]:
        """Render one conversation of the trace that has these turns.

        One that is too long loses what follows the last turn that carries loss, then its beginning. Further windows, if
        they are allowed, end with the latest errors that would be lost, then with the latest turns.

        Raises:
            ValueError: the chat template refuses the conversation, or cannot be aligned.
        """
        try:
            rendered = render_conversation(self.tokenizer, conversation.messages, tools=tools)
        except (TemplateError, TypeError) as error:
            raise ValueError(f"the chat template refuses the conversation: {' '.join(str(error).split())}") from error
        ids = rendered.ids
        spans = {turn.message: turn for turn in rendered.turns}
        hints = [(spans[message], hint) for message, hint in self._hints(conversation, turns, stats)]
        windows = [_Window(0, len(ids))]
        if len(ids) > self.max_length:
            windows = self._windows([spans[message] for message in conversation.learned], [span for span, _ in hints])
            stats.truncated_rows += 1
            stats.truncated_tokens += len(ids) - len({at for window in windows for at in range(*window)})
        learned = [
            spans[message]
            for message in conversation.learned
            if self.train_on_errors or not is_erring(_turn_at(conversation, turns, message))
        ]
        masks = _masks(learned, windows, len(ids))
        sites: list[list[HintedTurn]] = [[] for _ in windows]
        for span, hint in hints:
            number = next((number for number, window in enumerate(windows) if window.holds(span)), None)
            site: HintedTurn | str = "truncated"
            if number is not None:
                site = self._site(conversation, ids, span, hint, tools, windows[number].first, stats)
            if isinstance(site, str):
                stats.sites_dropped[site] += 1
            elif number is not None:
                sites[number].append(site)
        stats.rows += len(windows)
        stats.sites += sum(map(len, sites))
        return [
            TraceRow(ids[first:end], mask[first:end], made)
            for (first, end), mask, made in zip(windows, masks, sites, strict=True)
        ]

    def _windows(self, learned: Sequence[AssistantTurn], hinted: Sequence[AssistantTurn]) -> list[_Window]:
        """What to keep of a conversation that is too long; later windows first."""
        wanted = [*reversed(hinted), *reversed(learned)]
        ends = [max(span.stop for span in learned), *(span.stop for span in wanted)]
        windows: list[_Window] = []
        for end, span in zip(ends, [None, *wanted], strict=True):
            window = _Window(max(0, end - self.max_length), end)
            lost = span is None or not any(one.holds(span) for one in windows)
            if lost and len(windows) < self.max_windows and (span is None or window.holds(span)):
                windows.append(window)
        return windows

    def _hints(self, conversation: Conversation, turns: Sequence[Turn], stats: RowStats) -> list[tuple[int, str]]:
        """The messages that get a hint, and the hint."""
        if self.hint_generator is None:
            return []
        learned = set(conversation.learned)
        spoken = [index for index, message in enumerate(conversation.messages) if message["role"] == "assistant"]
        hints = []
        for message, following in zip(spoken, [*spoken[1:], None], strict=True):
            turn = _turn_at(conversation, turns, message)
            target = message if self.target == "erring_turn" else following
            if turn is None or turn.tool_error is None:
                continue
            if target != message and (turn.error_meta or {}).get("reported_by"):
                target = None  # the turn after it did not see yet what went wrong
            if target is None or target not in learned:
                # An error that other conversations of the trace show as well is counted in the one where it is learned.
                if message in learned:
                    stats.sites_dropped["no recovery turn"] += 1
                continue
            if not is_erring(turn):
                stats.sites_dropped["not the student's mistake"] += 1
                continue
            hint = self.hint_generator(turn.tool_error, dict(turn.error_meta or {}))
            if hint is None or not hint.strip():
                stats.hints_missing += 1
                continue
            hints.append((target, hint))
        return hints

    def _site(
        self,
        conversation: Conversation,
        ids: list[int],
        span: AssistantTurn,
        hint: str,
        tools: Sequence[dict[str, Any]] | None,
        first: int,
        stats: RowStats,
    ) -> HintedTurn | str:
        """The hinted turn in a row that begins at `first`, or the reason why there is none."""
        context = conversation.messages[: span.message]
        try:
            role = accepted_hint_role(self.tokenizer, context, role=self.hint_role, tools=tools)
            hint_ids = hint_message_ids(self.tokenizer, context, hint, role=role, tools=tools)
        except (TemplateError, ValueError):
            return "refused by the chat template"
        room = self.max_length - len(hint_ids) - (span.stop - span.header)
        if room < 0:
            return "too long"
        begin = max(first, span.header - room)
        stats.hint_role_used[role] += 1
        return HintedTurn(
            ids=[*ids[begin : span.header], *hint_ids, *ids[span.header : span.stop]],
            start=span.start - first,
            stop=span.stop - first,
            shift=len(hint_ids) + first - begin,
        )


def _masks(learned: Sequence[AssistantTurn], windows: Sequence[_Window], length: int) -> list[list[int]]:
    """For each window, 1 on the tokens that carry loss there.

    A turn is learned once: in the latest window that has all of it, or else in one that has its end.
    """
    masks = [[0] * length for _ in windows]
    for span in learned:
        whole = [window.holds(span) for window in windows]
        ending = [window.first < span.stop <= window.end for window in windows]
        if any(ending):
            mask = masks[(whole if any(whole) else ending).index(True)]
            mask[span.start : span.stop] = [1] * (span.stop - span.start)
    return masks


def is_erring(turn: Turn | None) -> bool:
    """Whether a turn is charged with a mistake of the student's."""
    if turn is None or turn.tool_error is None:
        return False
    meta: Mapping[str, Any] = turn.error_meta or {}
    return is_students_mistake(turn.tool_error) and meta.get("students_mistake") is not False


def _turn_at(conversation: Conversation, turns: Sequence[Turn], message: int) -> Turn | None:
    index = conversation.turns[message]
    return None if index is None else turns[index]
