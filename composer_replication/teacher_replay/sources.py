"""What can be replayed: the traces that `ingest` wrote, or a file of states."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from composer_replication.ingestion import SYSTEM_PROMPT
from composer_replication.ingestion.loose_json import objects
from composer_replication.ingestion.shell_commands import PROTOCOLS
from composer_replication.ingestion.store import load_traces
from composer_replication.teacher_replay.records import check_state
from composer_replication.teacher_replay.replay import TraceToReplay
from composer_replication.teacher_replay.tool_schemas import complete_tools, offered_tools
from composer_replication.traces import Step, Trace


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
        ValueError: a line of the file is no state, or the traces are damaged.
    """
    options = options or StateOptions()
    left = options.limit
    source = Path(path)
    if not source.exists():
        raise FileNotFoundError(f"{source}: there is no such folder of traces, or file of states")
    for trace in _from_file(source) if source.is_file() else _from_folder(source, options):
        if left is not None and len(trace.steps) > left:
            # With the tools of the whole trace: when more of it is replayed, these states are not asked again.
            tools = complete_tools(trace.tools, trace.steps)
            trace = replace(trace, steps=trace.steps[:left], tools=tools)
        if trace.steps:
            yield trace
        if left is not None:
            left -= len(trace.steps)
            if left <= 0:
                return


def trace_to_replay(trace: Trace, options: StateOptions) -> TraceToReplay:
    """One trace, with the tools of its agent and the models that its log names."""
    steps = list(trace.steps(system_prompt=options.system_prompt, max_history_tokens=options.max_history_tokens))
    named = [trace.model, *(turn.model for turn in trace.turns if turn.role == "assistant")]
    models = tuple(dict.fromkeys(name for name in named if name))
    protocol = trace.meta.get("text_protocol")
    known = protocol if protocol in PROTOCOLS else None
    return TraceToReplay(trace.trace_id, steps, offered_tools(trace), models, known)


def _from_folder(folder: Path, options: StateOptions) -> Iterator[TraceToReplay]:
    try:
        for trace in load_traces(folder):
            yield trace_to_replay(trace, options)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(f"{folder} holds damaged traces ({error}): ingest their logs again") from None


def _from_file(path: Path) -> Iterator[TraceToReplay]:
    """A file of states is one trace: its lines are taken to be the steps of one session."""
    steps: dict[str, Step] = {}
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            step = _step(line, f"{path}, line {number}")
            if step.state_id in steps:
                raise ValueError(f"{path}, line {number}: state_id {step.state_id!r} comes twice")
            steps[step.state_id] = step
    yield TraceToReplay(path.stem, list(steps.values()))


def _step(line: bytes, where: str) -> Step:
    try:
        state: Any = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{where}: not JSON ({error})") from None
    check_state(state, where)
    for message in state["messages"]:
        if problem := _problem(message):
            raise ValueError(f"{where}: {problem}")
    return Step.of(state)


def _problem(message: Any) -> str | None:
    """What is wrong with a message."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        return "every message needs a role"
    content = message.get("content")
    if content is not None and not isinstance(content, str) and objects(content) != content:
        return "the content of a message is a text, or a list of parts"
    calls = message.get("tool_calls")
    if calls is not None and (objects(calls) != calls or not all(isinstance(c.get("function"), dict) for c in calls)):
        return "the tool_calls of a message are a list of objects with a function"
    return None
