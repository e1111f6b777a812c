"""Made-up Claude Code sessions, written record by record.

    session = Session()
    session.prompt("fix the bug")
    session.says("m1", "I look.")
    session.calls("m1", "c1", "Read", file_path="a.py")
    session.result("c1", "x = 1")
    session.write(folder)

Every method adds one record (a compaction adds two) behind the one before it, and returns it for changes that the
methods do not know. `m1` is the id of an assistant message, `c1` that of a tool call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from composer_replication.ingestion import IngestionStats, LogFile, ReadOptions
from composer_replication.ingestion.formats.claude_code import read
from composer_replication.traces import Message, Trace, Turn

Fields = dict[str, Any]
SESSION_ID = "0b5e55ed"
VERSION = "2.1.100"


class Session:
    """The records of one file, in order."""

    def __init__(self, *, version: str | None = VERSION, session_id: str = SESSION_ID) -> None:
        self.records: list[Fields] = []
        self._envelope: Fields = {"sessionId": session_id, "cwd": "/work", "gitBranch": "main", "isSidechain": False}
        if version is not None:
            self._envelope["version"] = version

    @property
    def then(self) -> _Chain:
        """The same methods, to be chained: `session.then.prompt("go").says("m1", "done")`."""
        return _Chain(self)

    def record(self, kind: str, **fields: Any) -> Fields:
        """A record of any type, with what every record has; fields of another name or value can be given."""
        number = len(self.records) + 1
        made: Fields = {
            "parentUuid": self.records[-1].get("uuid") if self.records else None,
            **self._envelope,
            "type": kind,
            "uuid": f"u{number}",
            "timestamp": f"2026-01-01T00:{number // 60:02d}:{number % 60:02d}.000Z",
            **fields,
        }
        self.records.append(made)
        return made

    def prompt(self, text: Any, **fields: Any) -> Fields:
        """A text of the user's side."""
        return self.record("user", message={"role": "user", "content": text}, **fields)

    def fragment(self, message: str | None, *blocks: Any, usage: Fields | None = None, **fields: Any) -> Fields:
        """A record of an assistant turn: the log has one for each block."""
        said: Fields = {"role": "assistant", "model": fields.pop("model", "claude-x"), "content": list(blocks)}
        if message is not None:
            said["id"] = message
        if usage is not None:
            said["usage"] = usage
        return self.record("assistant", message=said, **fields)

    def says(self, message: str, text: str, **fields: Any) -> Fields:
        return self.fragment(message, {"type": "text", "text": text}, **fields)

    def thinks(self, message: str, text: str, **fields: Any) -> Fields:
        return self.fragment(message, {"type": "thinking", "thinking": text, "signature": "c2lnbmVk"}, **fields)

    def calls(self, message: str, call: str, tool: str = "Read", **arguments: Any) -> Fields:
        return self.fragment(message, {"type": "tool_use", "id": call, "name": tool, "input": arguments})

    def result(self, call: str, content: Any = "done", *, is_error: bool | None = None, **fields: Any) -> Fields:
        """The answer to a call, with the copy of it that the log keeps beside the message."""
        block: Fields = {"type": "tool_result", "tool_use_id": call, "content": content}
        if is_error is not None:
            block["is_error"] = is_error
        fields.setdefault("toolUseResult", {"stdout": content})
        return self.record("user", message={"role": "user", "content": [block]}, **fields)

    def progress(self, **fields: Any) -> Fields:
        return self.record("progress", data={"type": "bash_progress", "output": "50 %"}, **fields)

    def agent_progress(self, agent: str, inner: Fields) -> Fields:
        """A sub-agent's record, embedded as the versions 2.1.12 to 2.1.81 do."""
        kept = {name: inner[name] for name in ("type", "message", "uuid", "timestamp") if name in inner}
        return self.record("progress", data={"type": "agent_progress", "message": kept, "agentId": agent})

    def compaction(self, summary: str, *, kept: Iterable[Fields] = ()) -> Fields:
        """The boundary and the summary; `kept` are records that stay in view behind it. Returns the summary."""
        metadata: Fields = {"trigger": "auto", "preTokens": 150_000}
        uuids = [one["uuid"] for one in kept]
        if uuids:
            metadata["preservedMessages"] = {"uuids": uuids}
        last = self.records[-1].get("uuid") if self.records else None
        boundary: Fields = {"subtype": "compact_boundary", "parentUuid": None, "logicalParentUuid": last}
        self.record("system", **boundary, content="Conversation compacted", compactMetadata=metadata)
        return self.prompt(summary, isCompactSummary=True)

    def microcompaction(self, *calls: str) -> Fields:
        metadata = {"trigger": "auto", "compactedToolIds": list(calls)}
        return self.record("system", subtype="microcompact_boundary", microcompactMetadata=metadata)

    def queued(self, prompt: Any) -> Fields:
        """What the user typed while the model worked."""
        return self.record("attachment", attachment={"type": "queued_command", "prompt": prompt})

    def summary(self, text: str = "A title") -> Fields:
        """The title of a session: it has no envelope."""
        self.records.append({"type": "summary", "summary": text, "leafUuid": "u0"})
        return self.records[-1]

    def lines(self) -> list[bytes]:
        """Every record as its line, without the line's end."""
        return [line_of(one) for one in self.records]

    def write(self, folder: Path, name: str = "session.jsonl") -> Path:
        return write_lines(folder / name, self.lines())


class _Chain:
    def __init__(self, session: Session) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Callable[..., _Chain]:
        def call(*values: Any, **fields: Any) -> _Chain:
            getattr(self._session, name)(*values, **fields)
            return self

        return call


def line_of(record: Fields) -> bytes:
    """A record as Claude Code writes it: compact, characters as they are."""
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def write_lines(path: Path, lines: Iterable[bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def read_file(path: Path, *, subagents: bool = False) -> tuple[list[Trace], IngestionStats]:
    """The traces of a file, and what the reader counted."""
    stats = IngestionStats()
    traces = list(read(LogFile(path), ReadOptions(subagents=subagents), stats))
    for trace in traces:
        stats.count(trace)
    return traces, stats


def read_turns(path: Path) -> list[Turn]:
    """The turns of a file that holds one conversation."""
    traces, _ = read_file(path)
    assert len(traces) == 1
    return traces[0].turns


def shape(trace: Trace) -> list[tuple[str, str]]:
    """The role and the text of every turn."""
    return [(turn.role, turn.content) for turn in trace.turns]


def contents(messages: Iterable[Message]) -> list[str]:
    return [message["content"] for message in messages]


def histories(path: Path) -> list[list[Message]]:
    """What the model saw, for every state of a file that holds one conversation."""
    traces, _ = read_file(path)
    assert len(traces) == 1
    return [list(state["messages"]) for state in traces[0].states()]


def without_places(turns: Iterable[Turn]) -> list[Fields]:
    """The turns as plain values, without the numbers of their lines: what a session says, wherever it stands."""
    shown = []
    for turn in turns:
        values = {name: getattr(turn, name) for name in turn.__struct_fields__ if name != "line"}
        if (turn.tool_call_id or "").startswith("line "):  # a result whose call the log does not name
            values["tool_call_id"] = "line"
        shown.append(values)
    return shown


def accounted_lines(stats: IngestionStats) -> int:
    """The lines that the counters account for: those with a record, glued ones once, and those that are broken."""
    beside = stats.recovered["glued to another record"] + stats.recovered["beside a broken part"]
    return stats.n_records_total - beside + stats.skipped_truncated_lines
