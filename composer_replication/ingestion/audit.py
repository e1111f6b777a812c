"""A second opinion on Claude Code files: count the raw lines with nothing but `json`, and compare.

This shares no code with the reader, on purpose. A state is a distinct `message.id` of the assistant records that are
neither synthetic nor a sub-agent's (a record without an id counts by itself); a result is a `tool_result` block of a
user record that is no sub-agent's.
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
    """What the lines of a file hold."""

    states: set[str] = field(default_factory=set)
    results: Counter[str] = field(default_factory=Counter)
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
    differences: list[str]

    @property
    def holds(self) -> bool:
        """Whether nothing was lost and nothing was made up."""
        return not self.differences


def audit_file(path: Path) -> Audit | None:
    """Compare a Claude Code file's raw lines with what its reader gives; None if the file is no such log."""
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
    return Audit(
        path=path,
        raw_states=len(raw.states),
        read_states=read_states,
        raw_results=sum(raw.results.values()),
        read_results=sum(results.values()),
        duplicate_results=stats.duplicate_results,
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
                if record.get("type") == "assistant":
                    if message.get("model") != "<synthetic>" and not record.get("isApiErrorMessage"):
                        count.states.add(message.get("id") or unnamed.setdefault(record.get("uuid"), f"line {number}"))
                elif record.get("type") == "user" and isinstance(message.get("content"), list):
                    for block in message["content"]:
                        if isinstance(block, dict) and block.get("type") == "tool_result":
                            count.results[block.get("tool_use_id") or f"line {number}"] += 1
    return count


def _objects(line: bytes) -> list[dict[str, Any]]:
    """The objects of a line: one, or several glued together; behind a broken part, those that name a session."""
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
