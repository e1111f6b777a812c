"""A log on disk: its lines, and the JSON values in them, however the lines were damaged.

Logs are written by programs that crash, by two programs at once, and by programs that are still running. So a line may
be cut, may hold several values glued together, or may carry bytes that are no UTF-8. Every value that can be recovered
is; what cannot is counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from composer_replication.ingestion.statistics import IngestionStats
from composer_replication.traces import Source

LONGEST_LINE = 512 * 1024 * 1024
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_PADDING = b"\x00 \t\r\n"
_SCANNER = json.JSONDecoder(strict=False)
_FAST = msgspec.json.Decoder()


class LogFile:
    """One file. The part of it that exists when it is opened is read; what is appended later is the next run's."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def stem(self) -> str:
        """The file's name without its last extension."""
        return self.path.stem

    @cached_property
    def size(self) -> int:
        """Bytes in the file when it was first asked for; reading stops there."""
        return self.path.stat().st_size

    def source(self, log_format: str, *, version: str | None = None, line: int = 1) -> Source:
        """The provenance of a trace of this file."""
        return Source(file=str(self.path), format=log_format, version=version, line=line)

    def lines(self, stats: IngestionStats) -> Iterator[tuple[int, bytes]]:
        """Line numbers (from 1) and lines that are not blank. A line beyond `LONGEST_LINE` is counted and passed."""
        left = self.size
        with self.path.open("rb", buffering=1 << 20) as file:
            number = 0
            while left > 0:
                line = file.readline(min(left, LONGEST_LINE))
                if not line:
                    return
                left -= len(line)
                number += 1
                if not line.endswith(b"\n") and left > 0:
                    stats.skipped_truncated_lines += 1
                    stats.skipped["line too long"] += 1
                    while left > 0 and not line.endswith(b"\n"):
                        line = file.readline(min(left, 1 << 20))
                        left -= len(line) or left
                    continue
                if number == 1 and line.startswith(_BYTE_ORDER_MARK):
                    line = line[len(_BYTE_ORDER_MARK) :]
                if line.strip(_PADDING):
                    yield number, line

    def records(self, stats: IngestionStats) -> Iterator[tuple[int, dict[str, Any]]]:
        """The JSON objects of a JSONL file, with the line each begins on. Other values are counted and passed."""
        for number, line in self.lines(stats):
            for value in values_in_line(line, stats):
                stats.n_records_total += 1
                if isinstance(value, dict):
                    yield number, value
                else:
                    stats.skip("not a JSON object")

    def document(self, stats: IngestionStats) -> Any:
        """The whole file as one JSON value; None, and counted, if it is not one."""
        with self.path.open("rb") as file:
            text = file.read(self.size).removeprefix(_BYTE_ORDER_MARK).strip(_PADDING)
        value = decode_value(text)
        if value is UNREADABLE:
            stats.skipped_truncated_lines += 1
            stats.skipped["not valid JSON"] += 1
            return None
        stats.n_records_total += 1
        return value


UNREADABLE: Any = object()
"""What `decode_value` returns for text that is not one JSON value."""


def decode_value(text: bytes) -> Any:
    """One JSON value, or `UNREADABLE`. Bytes that are no UTF-8 become replacement characters."""
    try:
        return _FAST.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return _SCANNER.decode(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return UNREADABLE


def values_in_line(line: bytes, stats: IngestionStats) -> list[Any]:
    """The JSON values of one line: normally one; several if lines were glued; what is left over is counted."""
    stripped = line.strip(_PADDING)
    value = decode_value(stripped)
    if value is not UNREADABLE:
        return [value]
    values, complete = recover_values(stripped.decode("utf-8", "replace"))
    if len(values) > 1:
        stats.recovered["glued"] += len(values) - 1
    if not complete:
        stats.skipped_truncated_lines += 1
        stats.skipped["broken line"] += 1
        stats.recovered["beside a broken part"] += len(values)
    return values


def recover_values(text: str) -> tuple[list[Any], bool]:
    """Every JSON object that can be found in a damaged line, and whether nothing but them was there.

    Objects are tried where one can begin; a piece that does not parse is passed over up to the next opening brace that
    stands where a record begins (`{"`).
    """
    values: list[Any] = []
    complete = True
    position = 0
    while position < len(text):
        if text[position] in "\x00 \t\r\n":
            position += 1
            continue
        try:
            value, position = _SCANNER.raw_decode(text, position)
        except (ValueError, RecursionError):
            complete = False
            position = text.find('{"', position + 1)
            if position < 0:
                break
            continue
        if isinstance(value, dict):
            values.append(value)
        else:
            complete = False
    return values, complete
