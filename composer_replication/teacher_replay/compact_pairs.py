"""Pairs as lines in which every message stands once: a file of them grows as the traces do.

    {"begin": "pairs"}                    a file begins
    {"trace": "t"}                        a trace begins; its messages are numbered from 0
    {"message": {"role": "user", ...}}    a message, before the first pair that needs it
    {"tools": [...]}                      tool definitions, numbered from 0 over the whole file
    {"state_id": "t::0004", "state_messages": [[0, 1], [5, 9]], "tools": 0, ...}
                                          a pair; its history is ranges of message numbers, their ends excluded
    {"pairs": 1}                          the end: so many pairs stand above

A pair that holds its messages and tools itself may be a line of such a file, too: one reader reads both forms.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from composer_replication.histories import History
from composer_replication.traces import Message, dump_json


def compact_lines(rows: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    """The lines of a file of pairs, plain or normalised. Traces are told apart by what `state_id` begins with; pairs of
    a trace belong together, since what is not in one piece is written again for each.

    Raises:
        ValueError: a message or the tools of a pair are of the wrong type.
    """
    yield encoded({"begin": "pairs"}) + b"\n"
    writer = _Writer()
    for row in rows:
        for line in writer.lines(row):
            yield encoded(line) + b"\n"
    yield encoded({"pairs": writer.pairs}) + b"\n"


def stored_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a JSONL file of pairs with the numbers of their lines, from 1; blank lines are passed over.

    Where messages stand once, `state_messages` is a `History`: rows share messages and tools, and must not change them.

    Raises:
        ValueError: a line is not JSON, or names what is not there, or the file was cut; names the file and the line.
    """
    reader = _Reader()
    number = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                try:
                    row = reader.row(_decoded(line))
                except ValueError as error:
                    raise ValueError(f"{path}, line {number}: {error}") from None
                if row is not None:
                    yield number, row
    if reader.is_open:
        raise ValueError(f"{path}, line {number}: the last line is missing: the file was cut; make it again")


def is_compact(path: Path) -> bool:
    """Whether a file of pairs is one in which messages stand once, by its first line.

    Raises:
        ValueError: the line is not JSON.
    """
    with path.open("rb") as file:
        first = next((line for line in file if line.strip()), b"{}")
    return _kind(_decoded(first)) is not None


def encoded(value: Any) -> bytes:
    """JSON on one line."""
    try:
        return dump_json(value).encode()
    except UnicodeEncodeError:
        # Half a character, as a cut output leaves it: JSON can spell it, UTF-8 cannot.
        return json.dumps(value).encode()


def _decoded(line: bytes) -> Any:
    try:
        return msgspec.json.decode(line)
    except (ValueError, RecursionError):
        pass  # half a character, perhaps
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no JSON ({error})") from None


def _kind(row: Any) -> str | None:
    """What kind of line it is that rows refer to; None for a row."""
    if not isinstance(row, dict) or len(row) != 1:
        return None
    (name,) = row
    return name if name in ("begin", "trace", "message", "tools", "pairs") else None


def _digest(value: Any) -> bytes:
    return hashlib.blake2b(encoded(value), digest_size=16).digest()


def _original(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a normalised row keeps of its original pair."""
    metadata = row.get("metadata")
    pair = metadata.get("pair") if isinstance(metadata, dict) else None
    return pair if isinstance(pair, dict) else None


class _Writer:
    def __init__(self) -> None:
        self.pairs = 0
        self._trace: str | None = None
        self._messages = _MessageNumbers()
        self._tools: dict[bytes, int] = {}
        self._last_tools: tuple[Any, int] = (None, 0)

    def lines(self, row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        trace = row["state_id"].rpartition("::")[0]
        if trace != self._trace:
            self._trace, self._messages = trace, _MessageNumbers()
            yield {"trace": trace}
        messages = list(row["state_messages"])
        if not all(isinstance(message, dict) for message in messages):
            raise ValueError(f"{row['state_id']}: a message is no object")
        ranges, new = self._messages.ranges(messages)
        yield from ({"message": message} for message in new)
        row = {**row, "state_messages": ranges}
        original = _original(row)
        if original is not None:
            original = {**original}
            row["metadata"] = {**row["metadata"], "pair": original}
        for holder in (row, original or {}):
            if (tools := holder.get("tools")) is not None:
                if not isinstance(tools, list):
                    raise ValueError(f"{row['state_id']}: 'tools' is no list")
                number, is_new = self._tools_number(tools)
                if is_new:
                    yield {"tools": tools}
                holder["tools"] = number
        yield row
        self.pairs += 1

    def _tools_number(self, tools: list[Any]) -> tuple[int, bool]:
        last, number = self._last_tools
        if tools is last:  # those of a trace are one object
            return number, False
        known = len(self._tools)
        number = self._tools.setdefault(_digest(tools), known)
        self._last_tools = (tools, number)
        return number, number == known


class _MessageNumbers:
    """The messages of a trace that are written, by number; the same by identity or by content."""

    def __init__(self) -> None:
        # The message is kept too: a new one must not get the place, and so the number, of one that is gone.
        self._by_identity: dict[int, tuple[Message, int]] = {}
        self._by_content: dict[bytes, int] = {}
        self._last: list[Message] = []
        self._last_ranges: list[list[int]] = []

    def ranges(self, messages: list[Message]) -> tuple[list[list[int]], list[Message]]:
        """The ranges that a history is, and the messages in it that are new."""
        ranges: list[list[int]] = []
        known, new = 0, []
        if messages[: len(self._last)] == self._last:
            # Mostly a history is the last one and a step more.
            known, ranges = len(self._last), [[*one] for one in self._last_ranges]
        for message in messages[known:]:
            number, is_new = self._number(message)
            if is_new:
                new.append(message)
            if ranges and ranges[-1][1] == number:
                ranges[-1][1] += 1
            else:
                ranges.append([number, number + 1])
        self._last, self._last_ranges = messages, ranges
        return ranges, new

    def _number(self, message: Message) -> tuple[int, bool]:
        found = self._by_identity.get(id(message))
        if found is not None:
            return found[1], False
        known = len(self._by_content)
        number = self._by_content.setdefault(_digest(message), known)
        self._by_identity[id(message)] = (message, number)
        return number, number == known


class _Reader:
    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self.is_open = False  # whether an end has to come
        self._pairs = 0
        self._tools: list[list[Any]] = []
        self._start_trace()

    def _start_trace(self) -> None:
        self._messages: list[Message] = []
        # Histories of a trace mostly begin with the same ranges.
        self._lead: tuple[list[list[int]], list[Message]] = ([], [])

    def row(self, row: Any) -> dict[str, Any] | None:
        """The row that a line is, or None for a line that rows refer to."""
        if not isinstance(row, dict):
            raise ValueError(f"no pair, but a {type(row).__name__}")
        kind = _kind(row)
        if kind == "pairs":
            if row["pairs"] != self._pairs:
                raise ValueError(f"{row['pairs']} pairs are said to stand above, and there are {self._pairs}")
            self._start()
        elif kind == "begin":
            if self.is_open:
                raise ValueError("a file begins before the one above it has ended: that one was cut; make it again")
            self.is_open = True
        elif kind == "trace":
            self._start_trace()
            self.is_open = True
        elif kind == "message":
            if not isinstance(row["message"], dict):
                raise ValueError("'message' is no object")
            self._messages.append(row["message"])
            self.is_open = True
        elif kind == "tools":
            if not isinstance(row["tools"], list):
                raise ValueError("'tools' is no list")
            self._tools.append(row["tools"])
            self.is_open = True
        else:
            self._resolve(row)
            return row
        return None

    def _resolve(self, row: dict[str, Any]) -> None:
        history = row.get("state_messages")
        if isinstance(history, list) and history and isinstance(history[0], list):
            row["state_messages"] = self._history(history)
        for holder in (row, _original(row) or {}):
            if type(number := holder.get("tools")) is int:
                if not 0 <= number < len(self._tools):
                    raise ValueError(f"it names tools {number}, and {len(self._tools)} stand above")
                holder["tools"] = self._tools[number]
        self._pairs += self.is_open

    def _history(self, ranges: list[Any]) -> History:
        for one in ranges:
            if not isinstance(one, list) or [type(end) for end in one] != [int, int] or not 0 <= one[0] < one[1]:
                raise ValueError("'state_messages' are neither messages nor ranges of them")
            if one[1] > len(self._messages):
                raise ValueError(f"it names messages {one[0]} to {one[1] - 1}, and {len(self._messages)} stand above")
        *leading, (start, stop) = ranges
        if self._lead[0] != leading:
            self._lead = (leading, [message for begin, end in leading for message in self._messages[begin:end]])
        return History(self._lead[1], self._messages, start, stop)
