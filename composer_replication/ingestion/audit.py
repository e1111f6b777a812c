"""A second opinion on Claude Code files: count the raw lines with nothing but `json`, and compare.

This shares no code with the reader, on purpose. A state is a distinct `message.id` of the assistant records that are
neither synthetic nor a sub-agent's (a record without an id counts by itself); a result is a block that names the call
it answers: a `tool_result` of a user record, or what a tool of the provider's gave inside the assistant's own record.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_DECODER = json.JSONDecoder(strict=False)


@dataclass
class RawCount:
    """Counts over the raw lines of a file."""

    states: set[str] = field(default_factory=set)
    results: Counter[str] = field(default_factory=Counter)
    calls: set[str] = field(default_factory=set)
    is_session: bool = False


@dataclass
class Audit:
    """One file: what its lines hold, what the reader gave, and every difference in words."""

    path: Path
    raw_states: int
    read_states: int
    raw_results: int
    read_results: int
    duplicate_results: int
    unpaired_results: int
    differences: list[str]

    @property
    def holds(self) -> bool:
        """Whether both counts agree."""
        return not self.differences


def audit_file(path: Path) -> Audit | None:
    """Compare a Claude Code file's raw lines with what its reader gives; None if the file is not such a log."""
    from composer_replication.ingestion.claude_code import ClaudeCodeIngester

    raw = count_raw(path)
    if not raw.is_session:
        return None
    ingester = ClaudeCodeIngester()
    states: set[str] = set()
    read_states = 0
    results: Counter[str] = Counter()
    for trace in ingester.traces(path):
        read_states += sum(1 for _ in trace.states())
        for turn in trace.turns:
            if turn.role == "assistant":
                states.add(turn.id or f"line {turn.line}")
            elif turn.role == "tool":
                results[turn.tool_call_id or ""] += 1
    stats = ingester.last_stats
    differences = [f"state lost: {one}" for one in sorted(raw.states - states)]
    differences += [f"state that is not in the file: {one}" for one in sorted(states - raw.states)]
    if read_states != len(states):
        differences.append(f"{read_states} states from {len(states)} turns")
    differences += [f"result lost: {one}" for one in sorted(raw.results.keys() - results.keys())]
    differences += [f"result that is not in the file: {one}" for one in sorted(results.keys() - raw.results.keys())]
    copies = sum(raw.results.values()) - len(raw.results)
    if copies != stats.duplicate_results:
        differences.append(f"{copies} copies of results in the file, {stats.duplicate_results} counted")
    unpaired = len(raw.results.keys() - raw.calls)
    if unpaired != stats.results_without_call:
        differences.append(f"{unpaired} results without a call in the file, {stats.results_without_call} counted")
    return Audit(
        path=path,
        raw_states=len(raw.states),
        read_states=read_states,
        raw_results=sum(raw.results.values()),
        read_results=sum(results.values()),
        duplicate_results=stats.duplicate_results,
        unpaired_results=stats.results_without_call,
        differences=differences,
    )


def count_raw(path: Path) -> RawCount:
    """Count states and results over the raw lines."""
    count = RawCount()
    unnamed: dict[Any, str] = {}
    is_agent_file = path.name.startswith("agent-")
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            for record in _objects(line):
                message = record.get("message")
                if "sessionId" in record or "leafUuid" in record or "snapshot" in record:
                    count.is_session = True
                if is_agent_file or record.get("isSidechain") or not isinstance(message, dict):
                    continue
                kind = record.get("type")
                if kind == "assistant":
                    if message.get("model") == "<synthetic>" or record.get("isApiErrorMessage"):
                        continue
                    own_name = record.get("uuid") or number
                    count.states.add(_name(message.get("id")) or unnamed.setdefault(own_name, f"line {number}"))
                if kind in ("assistant", "user"):
                    _count_blocks(message.get("content"), kind, number, count)
    return count


def _count_blocks(content: Any, kind: str, line: int, count: RawCount) -> None:
    for block in content if isinstance(content, list) else []:
        if not isinstance(block, dict):
            continue
        answered = _name(block.get("tool_use_id"))
        if kind == "assistant" and str(block.get("type")).endswith("tool_use"):
            count.calls.add(_name(block.get("id")) or f"line {line}")
        elif block.get("type") == "tool_result" if kind == "user" else answered:
            count.results[answered or f"line {line}"] += 1


def _name(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _objects(line: bytes) -> list[dict[str, Any]]:
    """The objects of a line: one, or several glued together; after a broken part, those that name a session."""
    text = line.decode("utf-8", "replace").strip("\x00 \t\r\n\ufeff")
    objects = []
    position = 0
    broken = False
    while 0 <= position < len(text):
        try:
            value, end = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError):
            broken = True
            position = text.find('{"', position + 1)
            continue
        if isinstance(value, dict) and (not broken or "sessionId" in value):
            objects.append(value)
            position, broken = end, False
        else:
            position = text.find('{"', position + 1)
        while position < len(text) and text[position] in "\x00 \t\r\n":
            position += 1
    return objects
