"""Small Claude Code sessions on disk, for tests of everything behind the reader."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def turn(name: str, *, result: str = "done", failed: bool = False, prompt: str | None = None) -> list[Record]:
    """A prompt, an answer with one call (its message id is `msg_<name>`), and the call's result."""
    return [
        _record("user", f"{name}-u", {"role": "user", "content": prompt or f"please do {name}"}),
        answer(name, [{"type": "text", "text": f"doing {name}"}, call(name)]),
        result_of(name, result, failed=failed),
    ]


def call(name: str) -> Record:
    return {"type": "tool_use", "id": f"call_{name}", "name": "Bash", "input": {"command": f"make {name}"}}


def answer(name: str, content: list[Record], **more: Any) -> Record:
    usage = {"input_tokens": 10, "output_tokens": 2, "cache_read_input_tokens": 5}
    message = {"id": f"msg_{name}", "role": "assistant", "model": "claude-x", "content": content, "usage": usage}
    return _record("assistant", f"{name}-a", message, **more)


def result_of(name: str, text: str, *, failed: bool = False) -> Record:
    block = {"type": "tool_result", "tool_use_id": f"call_{name}", "content": text, "is_error": failed}
    return _record("user", f"{name}-r", {"role": "user", "content": [block]})


def session(*names: str, began: str = "10:00") -> list[Record]:
    """A session of plain turns. Two sessions with a name in common hold copies of one turn."""
    return [{**record, "timestamp": f"2026-03-01T{began}:00.000Z"} for name in names for record in turn(name)]


def write(path: Path, records: Iterable[Record]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def append(path: Path, records: Iterable[Record]) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def names(folder: Path) -> list[str]:
    """What a folder holds, hidden files included."""
    return sorted(path.name for path in folder.iterdir())


def _record(kind: str, uuid: str, message: Record, **more: Any) -> Record:
    return {
        "type": kind,
        "uuid": uuid,
        "sessionId": "s1",
        "version": "2.1.0",
        "cwd": "/srv/project",
        "timestamp": "2026-03-01T10:00:00.000Z",
        "message": message,
        **more,
    }
