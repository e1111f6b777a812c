"""A trace in words: each turn in a line or two, its error, and the hint that would be given before it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from composer_replication.hint_generator.classifier import classify, first_line, telling_line
from composer_replication.hint_generator.envelope import open_envelope
from composer_replication.ingestion.error_sites import CallSite, call_sites, hint_of
from composer_replication.ingestion.otel.spans import nanoseconds
from composer_replication.traces import ToolCall, Trace, Turn, dump_json

_LONGEST = 240


class ExplainedTokens(TypedDict):
    """The tokens of a turn's model call; `input` is the whole prompt, the cached part included."""

    input: int
    output: int
    cached: int


class ExplainedTurn(TypedDict, total=False):
    """What is shown of a turn.

    Of a result, `text` is the line that tells most, `lines` and `characters` are the size of the whole. `seconds` have
    passed since the last turn with a time. `charged_to` and `reported_by` are indices of turns.
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
    """What is shown of a trace."""

    trace_id: str
    format: str
    version: str | None
    turns: list[ExplainedTurn]


def explain_trace(trace: Trace) -> ExplainedTrace:
    """Turns in order, shortened; assistant turns that went wrong carry `tool_error` and, if there is one, `hint`."""
    sites = list(call_sites(trace))
    answered = {site.answer_index: site for site in sites}
    reported = {site.index: site.reported_by for site in sites if site.reported_by is not None}
    turns: list[ExplainedTurn] = []
    before: int | None = None
    for index, turn in enumerate(trace.turns):
        explained = _explain_turn(index, turn)
        if turn.role == "tool":
            _explain_result(explained, turn, answered.get(index))
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
    """These indices and those up to `around` away, in order, of `count` in all."""
    near = {near for index in indices for near in range(index - around, index + around + 1)}
    return sorted(near & set(range(count)))


def call_in_words(call: ToolCall) -> str:
    """A call in one line: the tool and its arguments, shortened."""
    given = call.raw_arguments if call.raw_arguments is not None else dump_json(call.arguments)
    return _shorten(f"{call.name} {given}")


def failing_line(turn: Turn) -> str:
    """The line that says what a turn is charged with, shortened."""
    return _shorten(str((turn.error_meta or {}).get("error_message", "")).partition("\n")[0])


def _explain_turn(index: int, turn: Turn) -> ExplainedTurn:
    explained = ExplainedTurn(index=index, role=turn.role, text=_shorten(turn.content))
    if turn.origin is not None:
        explained["origin"] = turn.origin
    if turn.line is not None:
        explained["line"] = turn.line
    if turn.follows is not None:
        explained["context_begins"] = True
    if turn.thinking:
        explained["thinking"] = _shorten(turn.thinking)
    if turn.tool_calls:
        explained["calls"] = [call_in_words(call) for call in turn.tool_calls]
    if turn.model is not None:
        explained["model"] = turn.model
    if (usage := turn.usage) is not None:
        explained["tokens"] = ExplainedTokens(
            input=usage.input_tokens, output=usage.output_tokens, cached=usage.cached_tokens
        )
    if turn.timestamp is not None:
        explained["timestamp"] = turn.timestamp
    if turn.tool_error is not None:
        explained["tool_error"] = turn.tool_error
        explained["students_mistake"] = bool((turn.error_meta or {}).get("students_mistake", True))
        hint = hint_of(turn)
        if hint is not None:
            explained["hint"] = hint
    return explained


def _explain_result(explained: ExplainedTurn, turn: Turn, site: CallSite | None) -> None:
    explained["text"] = _shorten(_telling_line(turn, site))
    explained["lines"] = len(turn.content.splitlines())
    explained["characters"] = len(turn.content)
    if site is not None and site.call is not None:
        explained["tool"] = site.call.name
    if turn.error_kind is not None:
        explained["error_kind"] = turn.error_kind
    if turn.masked:
        explained["masked"] = True
    if turn.outcome:
        explained["outcome"] = True
        explained["charged_to"] = turn.charged_to


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
