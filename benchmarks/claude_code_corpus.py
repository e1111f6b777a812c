"""A corpus of Claude Code sessions, made up, in the shape of real ones.

Real logs cannot be shipped, so their shape is: the mix of record types, fragments per turn, how often fragments are
interleaved with results, the share of failing results and their texts, and the lengths of lines, texts, results and
their `toolUseResult` duplicates, each as the quantiles seen in public sessions. Two corpora of one seed are equal.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

# Lengths at the quantiles 0, .1, .25, .5, .75, .9, .97 and 1, in characters.
_AT = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.97, 1.0)
_RESULT = (2, 37, 122, 466, 2556, 6989, 19388, 62202)
_DUPLICATE = (68, 95, 362, 1367, 5354, 16847, 44743, 61158)
_THINKING = (22, 61, 87, 193, 605, 1456, 3441, 6446)
_SIGNATURE = (260, 312, 348, 492, 1036, 2472, 7444, 13860)
_TEXT = (5, 45, 70, 115, 250, 580, 1480, 1950)
_CALL = (20, 60, 80, 110, 330, 1090, 4700, 18200)
_PROMPT = (3, 35, 61, 128, 245, 480, 7914, 17440)
_PROGRESS = (0, 10, 60, 300, 320, 360, 900, 3000)
_EMBEDDED = (700, 860, 1100, 1260, 1730, 6000, 20000, 33000)

# Records of a session, per 1000: 366 progress, 356 assistant, 214 user, the rest housekeeping.
_PROGRESS_PER_TURN = 2.17
_FRAGMENTS = ((1, 9407), (2, 18715), (3, 6115), (4, 2479))
_INTERLEAVED = 0.107
_THINKING_SHARE = 0.32
_TURNS_PER_PROMPT = 15
_ERROR_SHARE = 0.043
_AGENT_PROGRESS_SHARE = 0.09

_ERRORS = (
    (871, "Exit code 1\n{text}"),
    (235, "The user doesn't want to proceed with this tool use. The tool use was rejected."),
    (186, "<tool_use_error>Sibling tool call errored</tool_use_error>"),
    (182, "<tool_use_error>File has not been read yet. Read it first before writing to it.</tool_use_error>"),
    (88, "File does not exist."),
    (55, "<tool_use_error>String to replace not found in file.\nString: {text}</tool_use_error>"),
    (32, "<tool_use_error>Path does not exist: /repo/src/{text}</tool_use_error>"),
    (26, "<tool_use_error>Found 3 matches of the string to replace, but replace_all is false.</tool_use_error>"),
)
_WORDS = [
    "def",
    "return",
    "import",
    "class",
    "self",
    "None",
    "True",
    "value",
    "error",
    "config",
    "path",
    "file",
    "open",
    "read",
    "write",
    "result",
    "index",
    "token",
    "model",
    "request",
    "response",
    "handler",
    "session",
    "buffer",
    "cursor",
    "assert",
    "raise",
    "yield",
    "lambda",
    "async",
    "await",
    "const",
    "function",
    "export",
    "interface",
    "public",
    "static",
    "struct",
    "match",
    "enum",
    "impl",
    "match",
    '"quoted',
    'text"',
    "'single'",
    "{braces:",
    "[1,",
    "2,",
    "3]}",
    "<tag/>",
    "/home/developer/projects/service/src/handlers.py",
    "C:\\\\temp\\\\x",
    "\t",
    "indent",
    "naïve",
    "façade",
    "“quotes”",
    "→",
    "✓",
    "日本語",
]


class _Text:
    """Slices of one long made-up source text: fast to cut, and never the same twice in a row."""

    def __init__(self, random_source: random.Random) -> None:
        self._random = random_source
        lines = []
        size = 0
        while size < 1 << 20:
            line = "    " * random_source.randrange(4) + " ".join(random_source.choices(_WORDS[:-7], k=9))
            lines.append(line)
            size += len(line)
        plain = "\n".join(lines)
        self._plain = plain
        # Real results are about a sixth non-ASCII by count; one such character makes the whole text so.
        self._mixed = "\n".join(line + (" → ✓ 日本語" if n % 40 == 0 else "") for n, line in enumerate(lines))

    def of(self, quantiles: tuple[int, ...]) -> str:
        length = self._length(quantiles)
        source = self._mixed if self._random.random() < 0.15 else self._plain
        start = self._random.randrange(len(source) - length) if length < len(source) else 0
        return source[start : start + length]

    def _length(self, quantiles: tuple[int, ...]) -> int:
        at = self._random.random()
        upper = next(position for position, share in enumerate(_AT) if share >= at and position)
        low, high = _AT[upper - 1], _AT[upper]
        part = (at - low) / (high - low)
        return int(quantiles[upper - 1] + part * (quantiles[upper] - quantiles[upper - 1]))


class _Session:
    """One session file's records."""

    def __init__(self, random_source: random.Random, text: _Text, number: int) -> None:
        self._random, self._text = random_source, text
        self._ids = itertools.count(number << 24)
        self._session = self._uuid()
        self._parent: str | None = None
        self._base = {
            "isSidechain": False,
            "userType": "external",
            "cwd": "/home/developer/projects/service",
            "sessionId": self._session,
            "version": "2.1.41",
            "gitBranch": "feature/rate-limits",
            "slug": "gentle-jumping-lighthouse",
        }

    def records(self, turns: int) -> Iterator[dict[str, Any]]:
        yield {"type": "file-history-snapshot", "messageId": self._uuid(), "snapshot": {"trackedFileBackups": {}}}
        for number in range(turns):
            if number % _TURNS_PER_PROMPT == 0:
                yield self._user(self._text.of(_PROMPT))
            yield from self._turn()
            if number % 12 == 11:
                yield self._record("system", subtype="turn_duration", durationMs=8123, isMeta=False)
                yield {
                    "type": "file-history-snapshot",
                    "messageId": self._uuid(),
                    "snapshot": {"trackedFileBackups": {}},
                }

    def _turn(self) -> Iterator[dict[str, Any]]:
        message_id = f"msg_01{next(self._ids):022x}"
        sizes, weights = zip(*_FRAGMENTS, strict=True)
        count = self._random.choices(sizes, weights)[0]
        calls: list[tuple[str, str]] = []
        waiting: list[dict[str, Any]] = []
        for position in range(count):
            if position == 0 and count > 1 and self._random.random() < _THINKING_SHARE * 2:
                block = {
                    "type": "thinking",
                    "thinking": self._text.of(_THINKING),
                    "signature": "Eq" + self._text.of(_SIGNATURE).encode().hex()[: self._text._length(_SIGNATURE)],
                }
            elif position < count - 1 and position < 2 and not calls:
                block = {"type": "text", "text": self._text.of(_TEXT)}
            else:
                call_id = f"toolu_01{next(self._ids):022x}"
                name = self._random.choices(("Bash", "Read", "Edit", "Grep"), (45, 25, 18, 12))[0]
                calls.append((call_id, name))
                block = {"type": "tool_use", "id": call_id, "name": name, "input": self._input(name)}
            yield self._assistant(message_id, block)
            if block["type"] == "tool_use":
                for _ in range(self._random.choices((0, 1, 2, 4), (30, 25, 25, 20))[0]):
                    yield self._progress(calls[-1][0])
                result = self._result(*calls[-1])
                if self._random.random() < _INTERLEAVED * 2:
                    yield result
                else:
                    waiting.append(result)
        yield from waiting

    def _input(self, name: str) -> dict[str, Any]:
        if name == "Bash":
            return {"command": self._text.of(_CALL), "description": "Run the tests of the module"}
        if name == "Edit":
            old = self._text.of(_CALL)
            return {"file_path": "/home/developer/projects/service/src/a.py", "old_string": old, "new_string": old}
        if name == "Grep":
            return {"pattern": "def handle_", "path": "src", "output_mode": "content", "-n": True}
        return {"file_path": f"/home/developer/projects/service/src/{self._random.randrange(500)}.py"}

    def _result(self, call_id: str, name: str) -> dict[str, Any]:
        failing = self._random.random() < _ERROR_SHARE
        if failing:
            weights = [weight for weight, _ in _ERRORS]
            content = self._random.choices(_ERRORS, weights)[0][1].format(text=self._text.of(_TEXT))
            duplicate: Any = f"Error: {content}"
        else:
            content = self._text.of(_RESULT)
            duplicate = self._duplicate(name, content)
        block = {"tool_use_id": call_id, "type": "tool_result", "content": content, "is_error": failing}
        record = self._user([block])
        record["toolUseResult"] = duplicate
        record["sourceToolAssistantUUID"] = record["parentUuid"]
        return record

    def _duplicate(self, name: str, content: str) -> dict[str, Any]:
        if name == "Bash":
            return {"stdout": content, "stderr": "", "interrupted": False, "isImage": False}
        if name == "Edit":
            original = self._text.of(_DUPLICATE)
            patch = [{"oldStart": 1, "oldLines": 3, "newStart": 1, "newLines": 4, "lines": original[:400].split("\n")}]
            return {"filePath": "/home/developer/projects/service/src/a.py", "oldString": content[:200],
                    "newString": content[:220], "originalFile": original, "structuredPatch": patch,
                    "userModified": False, "replaceAll": False}  # fmt: skip
        if name == "Grep":
            return {"mode": "content", "numFiles": 0, "filenames": [], "content": content, "numLines": 12}
        file = {"filePath": "/home/developer/projects/service/src/a.py", "content": content, "numLines": 40,
                "startLine": 1, "totalLines": 40}  # fmt: skip
        return {"type": "text", "file": file}

    def _progress(self, call_id: str) -> dict[str, Any]:
        if self._random.random() < _AGENT_PROGRESS_SHARE:
            block = {"type": "tool_use", "id": f"toolu_02{next(self._ids):022x}", "name": "Read", "input": {}}
            inner = self._assistant(f"msg_02{next(self._ids):022x}", block)
            data: dict[str, Any] = {
                "message": {key: inner[key] for key in ("type", "timestamp", "message", "uuid")},
                "normalizedMessages": [],
                "type": "agent_progress",
                "prompt": self._text.of(_EMBEDDED),
                "agentId": "a1b2c3d",
            }
        else:
            output = self._text.of(_PROGRESS)
            data = {"type": "bash_progress", "output": output[-200:], "fullOutput": output, "elapsedTimeSeconds": 4,
                    "totalLines": 12, "timeoutMs": 120000}  # fmt: skip
        return self._record("progress", data=data, toolUseID="bash-progress-3", parentToolUseID=call_id)

    def _assistant(self, message_id: str, block: dict[str, Any]) -> dict[str, Any]:
        message = {
            "model": "claude-opus-4-6",
            "id": message_id,
            "type": "message",
            "role": "assistant",
            "content": [block],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {
                "input_tokens": 3,
                "cache_creation_input_tokens": 1204,
                "cache_read_input_tokens": 88213,
                "cache_creation": {"ephemeral_5m_input_tokens": 1204, "ephemeral_1h_input_tokens": 0},
                "output_tokens": self._random.randrange(900),
                "service_tier": "standard",
                "inference_geo": "not_available",
            },
        }
        return self._record("assistant", message=message, requestId=f"req_011{next(self._ids):021x}")

    def _user(self, content: str | list[dict[str, Any]]) -> dict[str, Any]:
        return self._record("user", message={"role": "user", "content": content})

    def _record(self, kind: str, **fields: Any) -> dict[str, Any]:
        record = {"parentUuid": self._parent, **self._base, "type": kind, **fields, "uuid": self._uuid(),
                  "timestamp": "2026-02-13T23:41:41.576Z"}  # fmt: skip
        self._parent = record["uuid"]
        return record

    def _uuid(self) -> str:
        value = f"{self._random.getrandbits(128):032x}"
        return f"{value[:8]}-{value[8:12]}-{value[12:16]}-{value[16:20]}-{value[20:]}"


def write_corpus(folder: Path, megabytes: float, *, seed: int = 0) -> int:
    """Write session files into a folder until it holds that much; returns the bytes written."""
    folder.mkdir(parents=True, exist_ok=True)
    random_source = random.Random(seed)
    text = _Text(random_source)
    written, number = 0, 0
    while written < megabytes * 1_000_000:
        turns = max(4, int(random_source.lognormvariate(4.0, 1.0)))
        session = _Session(random_source, text, number)
        lines = b"".join(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE) for record in session.records(turns))
        (folder / f"session-{seed}-{number:05d}.jsonl").write_bytes(lines)
        written += len(lines)
        number += 1
    return written
