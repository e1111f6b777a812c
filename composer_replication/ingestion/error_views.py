"""Views of marked traces: error sites, counts of errors, traces turn by turn, and the hints that training gives."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypedDict, cast

from composer_replication.hint_generator.classifier import classify, first_line, telling_line
from composer_replication.hint_generator.envelope import open_envelope
from composer_replication.hint_generator.layers import LayeredHints, as_collator_hint
from composer_replication.ingestion.loose_json import nanoseconds
from composer_replication.traces import ToolCall, Trace, Turn, Usage, dump_json

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
        """Every kind of error at this site; empty if there is none."""
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
    """Yield every call of a trace, and every error without a call. Copies of another file's turns are left out."""
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
    """Selects the error sites of some kinds and tools; empty means all."""

    def __init__(self, kinds: Collection[str] = (), tools: Collection[str] = ()) -> None:
        self._kinds, self._tools = set(kinds), set(tools)
        self._seen: dict[str, Counter[str]] = {"kind": Counter(), "tool": Counter()}

    def sites(self, trace: Trace) -> list[CallSite]:
        """Return the selected sites of a trace."""
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
        """Check the selection after all traces were seen.

        Raises:
            ValueError: no error is of a kind or tool that was asked for.
        """
        for what, asked in (("kind", self._kinds), ("tool", self._tools)):
            seen = self._seen[what]
            if missing := sorted(asked - set(seen)):
                there = ", ".join(f"{name} ({count:,})" for name, count in seen.most_common()) or "none at all"
                raise ValueError(f"no error of {what} {', '.join(missing)} here; there are {there}")


Side: TypeAlias = Literal["project", "tool", "model"]
SIDES: tuple[Side, ...] = ("project", "tool", "model")
FIGURES = ("calls", "failed", "outcomes", "charged", "masked", "hints")


class ErrorTable:
    """Counts of calls by project, tool and model.

    `failed` calls have an error as their result. Some of these are `outcomes` (right actions that report on earlier
    work; `charged` if their cause is known) or `masked` (the command hid its failure). `hints` are given for calls of
    the row. `kinds` counts the failed calls by kind.
    """

    def __init__(self) -> None:
        self._cells: dict[tuple[str, ...], tuple[Counter[str], Counter[str]]] = {}

    def add(self, trace: Trace) -> None:
        """Count a trace."""
        project = project_of(trace)
        for site in call_sites(trace):
            cell = (project, site.tool, site.turn.model or trace.model or "?")
            figures, kinds = self._cells.setdefault(cell, (Counter(), Counter()))
            figures.update(_figures(site))
            if site.failed_as is not None:
                kinds[site.failed_as] += 1

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per project, tool and model."""
        return _rows(SIDES, self._cells)

    def by(self, side: Side) -> list[dict[str, Any]]:
        """Return one row per value of one side, summed over the others."""
        summed: dict[tuple[str, ...], tuple[Counter[str], Counter[str]]] = {}
        for cell, (figures, kinds) in self._cells.items():
            sums = summed.setdefault((cell[SIDES.index(side)],), (Counter(), Counter()))
            sums[0].update(figures)
            sums[1].update(kinds)
        return _rows((side,), summed)


def project_of(trace: Trace) -> str:
    """The name of the folder that the agent worked in; where the log does not say, of the folder that the log is in."""
    parts = [part for part in re.split(r"[/\\]", trace.cwd or trace.source.file) if part]
    return parts[-1 if trace.cwd else -2] if len(parts) > (not trace.cwd) else "?"


def _figures(site: CallSite) -> dict[str, int]:
    answer = site.answer
    return {
        "calls": int(site.call is not None),
        "failed": int(site.failed_as is not None),
        "outcomes": int(answer is not None and answer.outcome),
        "charged": int(answer is not None and bool(answer.charged_to)),
        "masked": int(answer is not None and answer.masked),
        "hints": int(site.hint is not None),
    }


def _rows(
    names: tuple[Side, ...], cells: dict[tuple[str, ...], tuple[Counter[str], Counter[str]]]
) -> list[dict[str, Any]]:
    rows = [
        {
            **dict(zip(names, cell, strict=True)),
            **{name: figures[name] for name in FIGURES},
            "kinds": dict(kinds.most_common()),
        }
        for cell, (figures, kinds) in cells.items()
    ]
    return sorted(rows, key=lambda row: (-row["failed"], -row["calls"], *(row[name] for name in names)))


_LONGEST = 240


class ExplainedTokens(TypedDict):
    """The tokens of a turn's model call; `input` is the whole prompt, the cached part included."""

    input: int
    output: int
    cached: int


class ExplainedTurn(TypedDict, total=False):
    """A turn as `--explain` shows it.

    Of a result, `text` is the line that tells most, `lines` and `characters` are the size of the whole. `seconds` is
    the time since the last turn with a timestamp. `charged_to` and `reported_by` are indices of turns.
    """

    index: int
    role: str
    origin: str
    line: int
    text: str
    thinking: str
    calls: list[str]
    tool: str
    lines: int
    characters: int
    model: str
    tokens: ExplainedTokens
    timestamp: str
    seconds: float
    context_begins: bool
    error_kind: str
    masked: bool
    outcome: bool
    charged_to: list[int]
    tool_error: str
    students_mistake: bool
    reported_by: int
    hint: str


class ExplainedTrace(TypedDict):
    """A trace as `--explain` shows it."""

    trace_id: str
    format: str
    version: str | None
    turns: list[ExplainedTurn]


def explain_trace(trace: Trace) -> ExplainedTrace:
    """Describe a trace turn by turn, shortened. Assistant turns with an error carry `tool_error`, and `hint` if any."""
    sites = list(call_sites(trace))
    answered = {site.answer_index: site for site in sites}
    reported = {site.index: site.reported_by for site in sites if site.reported_by is not None}
    turns: list[ExplainedTurn] = []
    before: int | None = None
    for index, turn in enumerate(trace.turns):
        explained = _explain_turn(index, turn, answered.get(index))
        if index in reported:
            explained["reported_by"] = reported[index]
        now = nanoseconds(turn.timestamp)
        if now is not None and before is not None and now >= before:
            explained["seconds"] = (now - before) / 1e9
        before = now or before
        turns.append(explained)
    return ExplainedTrace(
        trace_id=trace.trace_id, format=trace.source.format, version=trace.source.version, turns=turns
    )


def with_neighbours(indices: Iterable[int], around: int, count: int) -> list[int]:
    """Return these indices and their neighbours up to `around` away, in order, of `count` in all."""
    near = {near for index in indices for near in range(index - around, index + around + 1)}
    return sorted(near & set(range(count)))


def call_in_words(call: ToolCall) -> str:
    """A call in one line: the tool and its arguments, shortened."""
    given = call.raw_arguments if call.raw_arguments is not None else dump_json(call.arguments)
    return _shorten(f"{call.name} {given}")


def failing_line(turn: Turn) -> str:
    """The line that says what a turn is charged with, shortened."""
    return _shorten(str((turn.error_meta or {}).get("error_message", "")).partition("\n")[0])


def _explain_turn(index: int, turn: Turn, site: CallSite | None) -> ExplainedTurn:
    is_charged, is_result = turn.tool_error is not None, turn.role == "tool"
    known: dict[str, Any] = {
        "index": index,
        "role": turn.role,
        "text": _shorten(_telling_line(turn, site) if is_result else turn.content),
        "origin": turn.origin,
        "line": turn.line,
        "context_begins": True if turn.follows is not None else None,
        "thinking": _shorten(turn.thinking) if turn.thinking else None,
        "calls": [call_in_words(call) for call in turn.tool_calls] or None,
        "model": turn.model,
        "tokens": _tokens(turn.usage),
        "timestamp": turn.timestamp,
        "tool_error": turn.tool_error,
        "students_mistake": bool((turn.error_meta or {}).get("students_mistake", True)) if is_charged else None,
        "hint": hint_of(turn),
    }
    if is_result:
        known |= {
            "lines": len(turn.content.splitlines()),
            "characters": len(turn.content),
            "tool": site.call.name if site is not None and site.call is not None else None,
            "error_kind": turn.error_kind,
            "masked": turn.masked or None,
            "outcome": turn.outcome or None,
            "charged_to": turn.charged_to if turn.outcome else None,
        }
    return cast(ExplainedTurn, {name: value for name, value in known.items() if value is not None})


def _tokens(usage: Usage | None) -> ExplainedTokens | None:
    if usage is None:
        return None
    return ExplainedTokens(input=usage.input_tokens, output=usage.output_tokens, cached=usage.cached_tokens)


def _telling_line(turn: Turn, site: CallSite | None) -> str:
    body = open_envelope(turn.content).body
    if turn.error_kind is None:
        return first_line(body)
    if site is not None and site.charged_as == turn.error_kind and (line := failing_line(site.turn)):
        return line
    call = site.call if site is not None else None
    name, arguments = (call.name, call.arguments) if call is not None else ("", {})
    return str(classify(turn.content, tool_name=name, arguments=arguments)[1].get("error_line") or telling_line(body))


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


class ListedHint(TypedDict):
    """A hint, where it belongs, and what it was made of. `reported_by` is the turn whose result showed the error, if
    it is not the call's own."""

    trace: str
    file: str
    turn: int
    line: int | None
    kind: str
    tool: str
    call: str
    error: str
    reported_by: int | None
    hint: str


class HintList:
    """The hints of many traces, and the number of errors without one."""

    def __init__(self) -> None:
        self.hints: list[ListedHint] = []
        self.without_hint = 0
        self.outcomes_not_charged = 0

    def add(self, trace: Trace, sites: Iterable[CallSite]) -> None:
        """Add the hints of a trace's sites."""
        for site in sites:
            if site.answer is not None and site.answer.outcome and not site.answer.charged_to:
                self.outcomes_not_charged += 1
            if site.charged_as is None:
                continue
            if (hint := site.hint) is None:
                self.without_hint += 1
                continue
            self.hints.append(
                ListedHint(
                    trace=trace.trace_id,
                    file=trace.source.file,
                    turn=site.index,
                    line=site.turn.line,
                    kind=site.charged_as,
                    tool=site.tool,
                    call=call_in_words(site.call) if site.call is not None else "",
                    error=failing_line(site.turn),
                    reported_by=site.reported_by,
                    hint=hint,
                )
            )
