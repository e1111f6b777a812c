"""Where a trace went wrong: one walk over its calls, which all views of errors share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from composer_replication.hint_generator.layers import LayeredHints, as_collator_hint
from composer_replication.traces import ToolCall, Trace, Turn

_hint = as_collator_hint(LayeredHints())


@dataclass(frozen=True)
class CallSite:
    """A call, the turn that made it and the turn that answers it, with their indices.

    `charged_as` is the turn's `tool_error`, if it is about this call. The call's own result shows it, or the later turn
    `reported_by`. Without a call: a turn that the harness could not parse, or an error that answers no known call and
    is then its own `turn`.
    """

    index: int
    turn: Turn
    call: ToolCall | None
    answer_index: int | None
    answer: Turn | None
    charged_as: str | None
    reported_by: int | None = None

    @property
    def tool(self) -> str:
        """The name of the tool; "?" if no call is known."""
        return self.call.name if self.call is not None else "?"

    @property
    def failed_as(self) -> str | None:
        """The kind of error that the call's own result is."""
        return self.answer.error_kind if self.answer is not None else None

    @property
    def kinds(self) -> set[str]:
        """Every kind of error that stands here; empty where nothing went wrong."""
        return {kind for _, kind in self.failures}

    @property
    def failures(self) -> list[tuple[int, str]]:
        """The turns that show an error, and its kind: that is the same for a result and the turn it is charged to."""
        own = self.index if self.answer_index is None else self.answer_index
        found = [(own, self.failed_as), (own if self.reported_by is None else self.reported_by, self.charged_as)]
        return [(index, kind) for index, kind in found if kind is not None]

    @property
    def turns(self) -> list[int]:
        """The indices of the turns that show what went wrong."""
        answer_index = self.answer_index if self.failed_as is not None else None
        return [index for index in (self.index, answer_index, self.reported_by) if index is not None]

    @property
    def hint(self) -> str | None:
        """The hint that the turn gets for this call, as training gives it."""
        return hint_of(self.turn) if self.charged_as is not None else None


def hint_of(turn: Turn) -> str | None:
    """The hint for a turn that is charged with an error, if there is one."""
    return _hint(turn.tool_error, turn.error_meta) if turn.tool_error is not None else None


def call_sites(trace: Trace) -> Iterator[CallSite]:
    """Every call of a trace, and every error without one. Copies of another file's turns are left out."""
    turns = trace.turns
    answers = {turn.tool_call_id: index for index, turn in enumerate(turns) if turn.role == "tool"}
    unclaimed = dict(answers)
    for index, turn in enumerate(turns):
        meta = turn.error_meta or {}
        reported_by = answers.get(meta.get("reported_by", ""))
        charged = next((call for call in turn.tool_calls if call.id == meta.get("tool_call_id")), turn.tool_call)
        for call in turn.tool_calls:
            answer_index = unclaimed.pop(call.id, None)
            if turn.repeats:
                continue
            answer = turns[answer_index] if answer_index is not None else None
            if call is charged and turn.tool_error is not None:
                yield CallSite(index, turn, call, answer_index, answer, turn.tool_error, reported_by)
            else:
                yield CallSite(index, turn, call, answer_index, answer, None)
        if charged is None and turn.tool_error is not None:
            yield CallSite(index, turn, None, None, None, turn.tool_error, reported_by)
    for index in unclaimed.values():
        if turns[index].error_kind is not None:
            yield CallSite(index, turns[index], None, index, turns[index], None)


class SiteFilter:
    """The sites of some kinds and tools (empty: of all), where something went wrong."""

    def __init__(self, kinds: Collection[str] = (), tools: Collection[str] = ()) -> None:
        self._kinds, self._tools = set(kinds), set(tools)
        self._seen: dict[str, Counter[str]] = {"kind": Counter(), "tool": Counter()}

    def sites(self, trace: Trace) -> list[CallSite]:
        """A trace's sites that are wanted."""
        wanted = []
        failures: dict[tuple[int, str], None] = {}
        for site in call_sites(trace):
            if not site.kinds:
                continue
            failures.update(dict.fromkeys(site.failures))
            self._seen["tool"][site.tool] += 1
            if (not self._kinds or self._kinds & site.kinds) and (not self._tools or site.tool in self._tools):
                wanted.append(site)
        self._seen["kind"].update(kind for _, kind in failures)
        return wanted

    def check(self) -> None:
        """Call it when all traces were seen.

        Raises:
            ValueError: a kind or a tool was asked for that has no error in any of them.
        """
        for what, asked in (("kind", self._kinds), ("tool", self._tools)):
            seen = self._seen[what]
            if missing := sorted(asked - set(seen)):
                there = ", ".join(f"{name} ({count:,})" for name, count in seen.most_common()) or "none at all"
                raise ValueError(f"no error of {what} {', '.join(missing)} here; there are {there}")
