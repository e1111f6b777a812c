"""Compact files of pairs: JSON lines in which every message stands once, so that a file grows as the traces do.

    {"begin": "pairs"}                    a file begins
    {"trace": "t"}                        a trace begins; its messages are numbered from 0
    {"message": {"role": "user", ...}}    a message, before the first pair that needs it
    {"tools": [...]}                      tool definitions, numbered from 0 over the whole file
    {"state_id": "t::0004", "state_messages": [[0, 1], [5, 9]], "tools": 0, ...}
                                          a pair; its history is ranges of message numbers, their ends excluded
    {"pairs": 1}                          the end: the number of pairs above

A side of a pair is the turn's object, or its text. A pair that holds its messages and tools itself may be a line of
such a file, too: one reader reads both forms.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from composer_replication.histories import History
from composer_replication.teacher_replay.records import Pair
from composer_replication.traces import Message, dump_json

Row = Mapping[str, Any]


def compact_rows(pairs: Iterable[Pair | Row]) -> Iterator[Row]:
    """Return the rows of a compact file of pairs, or of normalised rows.

    Traces are told apart by what `state_id` starts with. Pairs of a trace belong together: messages are numbered anew
    where another trace begins.

    Raises:
        ValueError: a message or the tools of a pair are of the wrong type.
    """
    yield {"begin": "pairs"}
    writer = _Writer()
    for pair in pairs:
        yield from writer.rows(pair.row(msgspec.to_builtins) if isinstance(pair, Pair) else pair)
    yield {"pairs": writer.pairs}


def stored_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Return the rows of a JSONL file of pairs with the numbers of their lines.

    Where messages stand once, `state_messages` is a `History`: rows share messages and tools, and must not change them.

    Raises:
        ValueError: a line is not JSON or refers to a missing line, or the file was cut; names the file and the line.
    """
    reader = _Reader()
    number = 0
    for number, given in json_lines(path):
        try:
            row = reader.row(given)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
        if row is not None:
            yield number, row
    if reader.is_open:
        raise ValueError(f"{path}, line {number}: the last line is missing: the file was cut; make it again")


def is_compact(path: Path) -> bool:
    """Whether a file of pairs is a compact one, by its first line.

    Raises:
        ValueError: the line is not a JSON object.
    """
    return any(_kind(row) is not None for _, row in islice(json_lines(path), 1))


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Return the objects of a JSONL file with the numbers of their lines, from 1; blank lines are skipped.

    Raises:
        ValueError: a line is not a JSON object.
    """
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = _decoded(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path}, line {number}: not JSON ({error})") from None
            if not isinstance(row, dict):
                raise ValueError(f"{path}, line {number}: not an object, but a {type(row).__name__}")
            yield number, row


def encoded(value: Any) -> bytes:
    """Return JSON on one line."""
    try:
        return dump_json(value).encode()
    except UnicodeEncodeError:
        # Half a character, as a cut output leaves it: JSON can spell it, UTF-8 cannot.
        return json.dumps(value).encode()


def _decoded(line: bytes) -> Any:
    try:
        return msgspec.json.decode(line)
    except (ValueError, RecursionError):
        return json.loads(line)  # half a character, perhaps


def _kind(row: Row) -> str | None:
    """Return the kind of a line that rows refer to; None for a row."""
    name = next(iter(row)) if len(row) == 1 else None
    return name if name in ("begin", "trace", "message", "tools", "pairs") else None


def _holders_of_tools(row: Row) -> list[dict[str, Any]]:
    """Return the row, and what a normalised row keeps of its original pair: each may have `tools`."""
    metadata = row.get("metadata")
    original = metadata.get("pair") if isinstance(metadata, dict) else None
    return [row, original] if isinstance(original, dict) else [row]  # type: ignore[list-item]


class _Numbers:
    """The numbers of values in the order of their first use; the same by identity or by content.

    Without `keeps_objects`, only the last value is kept alive, for large values that may differ in every row.
    """

    def __init__(self, *, keeps_objects: bool = True) -> None:
        # The value is kept too: a new one must not get the id, and so the number, of one that is gone.
        self._by_identity: dict[int, tuple[Any, int]] = {}
        self._keeps_objects = keeps_objects
        self._by_content: dict[bytes, int] = {}

    def number(self, value: Any) -> tuple[int, bool]:
        """Return the number of a value, and whether it is new."""
        if id(value) in self._by_identity:
            return self._by_identity[id(value)][1], False
        count = len(self._by_content)
        number = self._by_content.setdefault(hashlib.blake2b(encoded(value), digest_size=16).digest(), count)
        if not self._keeps_objects:
            self._by_identity.clear()
        self._by_identity[id(value)] = value, number
        return number, number == count


class _Writer:
    def __init__(self) -> None:
        self.pairs = 0
        self._tools = _Numbers(keeps_objects=False)
        self._trace: str | None = None

    def rows(self, row: Row) -> Iterator[Row]:
        trace = row["state_id"].rpartition("::")[0]
        if trace != self._trace:
            self._trace, self._messages = trace, _Numbers()
            self._last: tuple[list[Message], list[list[int]]] = ([], [])
            yield {"trace": trace}
        messages = list(row["state_messages"])
        if not all(isinstance(message, dict) for message in messages):
            raise ValueError(f"{row['state_id']}: a message is not an object")
        ranges, new = self._ranges(messages)
        yield from ({"message": message} for message in new)
        row = {**row, "state_messages": ranges}
        if len(_holders_of_tools(row)) > 1:
            row["metadata"] = {**row["metadata"], "pair": {**row["metadata"]["pair"]}}
        for holder in _holders_of_tools(row):
            if (tools := holder.get("tools")) is not None:
                if not isinstance(tools, list):
                    raise ValueError(f"{row['state_id']}: 'tools' is not a list")
                holder["tools"], is_new = self._tools.number(tools)
                if is_new:
                    yield {"tools": tools}
        yield row
        self.pairs += 1

    def _ranges(self, messages: list[Message]) -> tuple[list[list[int]], list[Message]]:
        """Return a history as ranges of numbers, and the messages in it that are new."""
        known, ranges = self._last
        if messages[: len(known)] == known:  # mostly a history is the last one and a step more
            ranges = [[*one] for one in ranges]
        else:
            known, ranges = [], []
        new = []
        for message in messages[len(known) :]:
            number, is_new = self._messages.number(message)
            if is_new:
                new.append(message)
            if ranges and ranges[-1][1] == number:
                ranges[-1][1] += 1
            else:
                ranges.append([number, number + 1])
        self._last = messages, ranges
        return ranges, new


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

    def row(self, row: dict[str, Any]) -> dict[str, Any] | None:
        """Return the row that a line is, or None for a line that rows refer to."""
        kind = _kind(row)
        if kind is None:
            self._resolve(row)
            return row
        value = row[kind]
        if kind == "pairs":
            if value != self._pairs:
                raise ValueError(f"{value} pairs are said to stand above, and there are {self._pairs}")
            self._start()
            return None
        if kind == "begin" and self.is_open:
            raise ValueError("a file begins before the one above it has ended: that one was cut; make it again")
        if kind == "trace":
            self._start_trace()
        elif kind == "message":
            if not isinstance(value, dict):
                raise ValueError("'message' is not an object")
            self._messages.append(value)
        elif kind == "tools":
            if not isinstance(value, list):
                raise ValueError("'tools' is not a list")
            self._tools.append(value)
        self.is_open = True
        return None

    def _resolve(self, row: dict[str, Any]) -> None:
        history = row.get("state_messages")
        if isinstance(history, list) and history and isinstance(history[0], list):
            row["state_messages"] = self._history(history)
        for holder in _holders_of_tools(row):
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
