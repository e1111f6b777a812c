"""A trace in words: each turn in a line or two, its error, and the hint that would be given before it."""

from __future__ import annotations

from typing import TypedDict

from composer_replication.hint_generator.layers import LayeredHints, as_collator_hint
from composer_replication.traces import Trace, Turn, dump_json

_LONGEST = 240


class ExplainedTurn(TypedDict, total=False):
    """What is shown of a turn."""

    index: int
    role: str
    origin: str
    line: int
    text: str
    calls: list[str]
    context_begins: bool
    error_kind: str
    tool_error: str
    students_mistake: bool
    hint: str


class ExplainedTrace(TypedDict):
    """What is shown of a trace."""

    trace_id: str
    format: str
    turns: list[ExplainedTurn]


def explain_trace(trace: Trace) -> ExplainedTrace:
    """Turns in order, shortened; assistant turns that went wrong carry `tool_error` and, if there is one, `hint`."""
    turns = [_explain_turn(index, turn) for index, turn in enumerate(trace.turns)]
    return ExplainedTrace(trace_id=trace.trace_id, format=trace.source.format, turns=turns)


def _explain_turn(index: int, turn: Turn) -> ExplainedTurn:
    explained = ExplainedTurn(index=index, role=turn.role, text=_shorten(turn.content))
    if turn.origin is not None:
        explained["origin"] = turn.origin
    if turn.line is not None:
        explained["line"] = turn.line
    if turn.follows is not None:
        explained["context_begins"] = True
    if turn.tool_calls:
        explained["calls"] = [_shorten(f"{call.name} {dump_json(call.arguments)}") for call in turn.tool_calls]
    if turn.error_kind is not None:
        explained["error_kind"] = turn.error_kind
    if turn.tool_error is not None:
        meta = turn.error_meta or {}
        explained["tool_error"] = turn.tool_error
        explained["students_mistake"] = bool(meta.get("students_mistake", True))
        hint = as_collator_hint(LayeredHints())(turn.tool_error, meta)
        if hint is not None:
            explained["hint"] = hint
    return explained


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
