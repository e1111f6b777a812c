"""The log formats: which reader a file belongs to, found by its content, and how to add one.

A reader is two functions. `sniff(head)` says whether a file is of its format; `read(log, options, stats)` yields its
traces, counts in `stats` what it passes over, and leaves error kinds to the classifier: it sets `is_error` where the
log has a flag or an exit code. Ten lines add one:

    from composer_replication.ingestion import register_reader
    from composer_replication.traces import Trace, Turn

    def sniff(head):
        return any("my_app" in record for record in head.records)

    def read(log, options, stats):
        for line, record in log.records(stats):
            turns = [Turn(role="user", content=record["question"]), Turn(role="assistant", content=record["answer"])]
            yield Trace(trace_id=f"{log.stem}#{line}", turns=turns, source=log.source("my_app", line=line))

    register_reader("my_app", sniff, read)

A package that declares the entry point `composer_replication.readers` (its value: a function without arguments that
calls `register_reader`) is found by the command line too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from typing import Any, TypeAlias

from composer_replication.ingestion.log_file import (
    LONGEST_LINE,
    PADDING,
    UNREADABLE,
    LogFile,
    decode_value,
    values_in_line,
)
from composer_replication.ingestion.statistics import IngestionStats
from composer_replication.traces import Trace

_SNIFFED_RECORDS = 64
_SNIFFED_LINES = 2000


@dataclass(frozen=True)
class ReadOptions:
    """What a user may choose about reading, in any format."""

    subagents: bool = False
    """Read sub-agents as traces of their own; without it they are passed over and counted."""
    verbatim_results: bool = False
    """For whoever only writes traces out again: a reader may leave the JSON text of a result that did not fail as it
    stands in the log. The turn's `content` is then a `msgspec.Raw`, which the encoder copies."""


@dataclass(frozen=True)
class Head:
    """The beginning of a file: its first JSON objects, or the whole document if the file is one JSON value."""

    records: list[dict[str, Any]] = field(default_factory=list)
    document: Any = None


Sniff: TypeAlias = Callable[[Head], bool]
Read: TypeAlias = Callable[[LogFile, ReadOptions, IngestionStats], Iterator[Trace]]


@dataclass(frozen=True)
class LogFormat:
    """A format's name and its two functions.

    `flags_errors` says that the log itself marks failing results. Where it does not, results are judged by their text.
    """

    name: str
    sniff: Sniff
    read: Read
    flags_errors: bool = False


_ADDED: dict[str, LogFormat] = {}


def register_reader(name: str, sniff: Sniff, read: Read, *, flags_errors: bool = False) -> None:
    """Add a format, or replace one of the same name. Added formats are asked before the built-in ones."""
    _ADDED[name] = LogFormat(name, sniff, read, flags_errors)


def added_readers() -> list[LogFormat]:
    """The formats that were registered here, for handing them to other processes."""
    return list(_ADDED.values())


def formats() -> list[LogFormat]:
    """Every format, in the order in which they are asked."""
    _load_plugins()
    built_in = [one for one in _built_in() if one.name not in _ADDED]
    return [*_ADDED.values(), *built_in]


def find_format(log: LogFile) -> LogFormat | None:
    """The format of a file by its content, or None."""
    head = read_head(log)
    return next((one for one in formats() if one.sniff(head)), None)


def read_head(log: LogFile) -> Head:
    """Look at the beginning of a file, past damaged lines."""
    records: list[dict[str, Any]] = []
    unreadable_start = False
    stats = IngestionStats()
    for number, line in log.lines():
        values = values_in_line(line, stats)
        if not records and stats.skipped_truncated_lines and line.strip(PADDING)[:1] in (b"{", b"["):
            unreadable_start = True
            break
        if isinstance(values[0] if values else None, list) and not records:
            return Head(document=values[0])
        records += [value for value in values if isinstance(value, dict)]
        if len(records) >= _SNIFFED_RECORDS or number >= _SNIFFED_LINES:
            break
    if unreadable_start:
        if log.size <= LONGEST_LINE:
            with log.open() as file:
                document = decode_value(file.read().strip(PADDING))
            if document is not UNREADABLE:
                return Head(records=[document] if isinstance(document, dict) else [], document=document)
        return Head(records=_records_past_damage(log))
    return Head(records=records, document=records[0] if len(records) == 1 else None)


def _records_past_damage(log: LogFile) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    stats = IngestionStats()
    for number, line in log.lines():
        records += [value for value in values_in_line(line, stats) if isinstance(value, dict)]
        if len(records) >= _SNIFFED_RECORDS or (number >= _SNIFFED_LINES and records):
            break
    return records


@cache
def _built_in() -> tuple[LogFormat, ...]:
    from composer_replication.ingestion import claude_code

    return (LogFormat("claude_code", claude_code.sniff, claude_code.read, flags_errors=True),)


@cache
def _load_plugins() -> None:
    for plugin in entry_points(group="composer_replication.readers"):
        plugin.load()()
