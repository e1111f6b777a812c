"""What can be replayed: the traces that `ingest` wrote, or a file of states."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from composer_replication.ingestion import SYSTEM_PROMPT
from composer_replication.ingestion.store import load_traces
from composer_replication.teacher_replay.replay import TraceToReplay
from composer_replication.traces import Trace, TraceState


@dataclass(frozen=True)
class StateOptions:
    """How states are made of traces. Pairs must be made with the options of their replay."""

    system_prompt: str = SYSTEM_PROMPT
    max_history_tokens: int | None = None
    limit: int | None = None


def traces_to_replay(path: str | os.PathLike[str], options: StateOptions | None = None) -> Iterator[TraceToReplay]:
    """The traces of a folder that `ingest` wrote, or of a JSONL file of states, one at a time; empty ones are passed
    over. `limit` counts states over all traces.

    Raises:
        FileNotFoundError: nothing there, or no traces in it.
        ValueError: a line of the file is no state.
    """
    options = options or StateOptions()
    left = options.limit
    source = Path(path)
    if not source.exists():
        raise FileNotFoundError(f"{source}: there is no such folder of traces, or file of states")
    for trace in _from_file(source) if source.is_file() else _from_folder(source, options):
        states = trace.states if left is None else trace.states[:left]
        if states:
            yield TraceToReplay(trace.trace_id, states, trace.tools, trace.student_models)
        if left is not None:
            left -= len(states)
            if left <= 0:
                return


def trace_to_replay(trace: Trace, options: StateOptions) -> TraceToReplay:
    """One trace, with the models that its log names."""
    states = list(trace.states(system_prompt=options.system_prompt, max_history_tokens=options.max_history_tokens))
    named = [trace.model, *(turn.model for turn in trace.turns if turn.role == "assistant")]
    return TraceToReplay(trace.trace_id, states, trace.tools, tuple(dict.fromkeys(name for name in named if name)))


def _from_folder(folder: Path, options: StateOptions) -> Iterator[TraceToReplay]:
    for trace in load_traces(folder):
        yield trace_to_replay(trace, options)


def _from_file(path: Path) -> Iterator[TraceToReplay]:
    """A file of states is one trace: its lines are taken to be the steps of one session."""
    states: list[TraceState] = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                states.append(_state(line, f"{path}, line {number}"))
    yield TraceToReplay(path.stem, states)


def _state(line: bytes, where: str) -> TraceState:
    try:
        state: Any = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{where}: not JSON ({error})") from None
    if not isinstance(state, dict):
        raise ValueError(f"{where}: a state is an object, not {type(state).__name__}")
    for name, kind in (("state_id", str), ("messages", list), ("student_action", str)):
        if not isinstance(state.get(name), kind):
            raise ValueError(f"{where}: a state needs {name!r}, a {'list' if kind is list else 'text'}")
    if not all(isinstance(message, dict) and isinstance(message.get("role"), str) for message in state["messages"]):
        raise ValueError(f"{where}: every message needs a role")
    return TraceState(state_id=state["state_id"], messages=state["messages"], student_action=state["student_action"])
