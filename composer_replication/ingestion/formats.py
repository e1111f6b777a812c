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

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, TypeAlias

from composer_replication.ingestion.log_file import (
    LONGEST_LINE,
    PADDING,
    UNREADABLE,
    LogFile,
    decode_value,
    first_value,
    values_in_line,
)
from composer_replication.ingestion.statistics import IngestionStats
from composer_replication.traces import Trace

# The modules with the readers, and whether their logs flag errors. Whoever is stricter is asked first: plain chats come
# last, because other logs hold messages too.
_READER_MODULES = (
    ("claude_code", True),
    ("codex", False),
    ("atif", False),
    ("swe_agent", False),
    ("mini_swe_agent", False),
    ("openhands", False),
    ("otel", False),
    ("openai_chat", False),
)
# Elsewhere an id may be the number of a step, and every log has a first one.
_UNIQUE_IDS = {"claude_code"}
_SNIFFED_RECORDS = 64
_GLANCE = 64 * 1024
_LOOKED_THROUGH = 1024 * 1024
# Every log has an object near its beginning; what has none is not searched any further.
_OBJECT = re.compile(rb'\{\s*"')


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
    `unique_ids` says that no two turns in the world have one id: a turn that two files hold is then a copy.
    """

    name: str
    sniff: Sniff
    read: Read
    flags_errors: bool = False
    unique_ids: bool = False


_ADDED: dict[str, LogFormat] = {}


def register_reader(
    name: str, sniff: Sniff, read: Read, *, flags_errors: bool = False, unique_ids: bool = False
) -> None:
    """Add a format, or replace one of the same name. Added formats are asked before the built-in ones."""
    _ADDED[name] = LogFormat(name, sniff, read, flags_errors, unique_ids)


def added_readers() -> list[LogFormat]:
    """The formats that were registered here, for handing them to other processes."""
    return list(_ADDED.values())


def known_formats() -> list[LogFormat]:
    """Every format, in the order in which they are asked."""
    _load_plugins()
    built_in = [one for one in _built_in() if one.name not in _ADDED]
    return [*_ADDED.values(), *built_in]


def find_format(log: LogFile) -> LogFormat | None:
    """The format of a file by its content, or None."""
    asked = known_formats()
    for head in _heads(log):
        for one in asked:
            if one.sniff(head):
                return one
    return None


def read_head(log: LogFile) -> Head:
    """As much of a file's beginning as a reader is ever asked about."""
    return [Head(), *_heads(log)][-1]


def _heads(log: LogFile) -> Iterator[Head]:
    """More and more of a file's beginning, past damaged lines; most formats show in the first record or two."""
    records: list[dict[str, Any]] = []
    wanted = 1
    with log.open(_GLANCE) as file:
        if not _OBJECT.search(file.peek()) and not _OBJECT.search(_content(log, _LOOKED_THROUGH)):
            return
        at_start = True
        for line in file:
            stats = IngestionStats()
            values = values_in_line(line, stats)
            if at_start and stats.skipped_truncated_lines and line.lstrip(PADDING)[:1] in (b"{", b"["):
                # A document that is spread over lines, or damage.
                document = decode_value(_content(log)) if log.size <= LONGEST_LINE else UNREADABLE
                if document is not UNREADABLE:
                    yield Head(records=[document] if isinstance(document, dict) else [], document=document)
                    return
                if not values:
                    # Values over several lines each, one after another: the first tells what they are.
                    values = [first_value(_content(log, _LOOKED_THROUGH))]
            if at_start and len(values) == 1 and isinstance(values[0], list):
                yield Head(document=values[0])
            at_start = at_start and not line.strip(PADDING)
            records += [value for value in values if isinstance(value, dict)]
            if len(records) >= wanted:
                whole_file = len(records) == 1 and len(line) == log.size
                yield Head(records=records, document=records[0] if whole_file else None)
                wanted *= 4
            if len(records) >= _SNIFFED_RECORDS:
                return
    if records:
        yield Head(records=records, document=records[0] if len(records) == 1 else None)


def _content(log: LogFile, size: int = -1) -> bytes:
    with log.open() as file:
        return file.read(size).strip(PADDING)


@cache
def _built_in() -> tuple[LogFormat, ...]:
    return tuple(_reader_module(name, flags_errors) for name, flags_errors in _READER_MODULES)


def _reader_module(name: str, flags_errors: bool) -> LogFormat:
    """A format whose module is loaded when it is first asked: most folders hold logs of one kind."""
    path = f"composer_replication.ingestion.{name}"

    def sniff(head: Head) -> bool:
        return bool(import_module(path).sniff(head))

    def read(log: LogFile, options: ReadOptions, stats: IngestionStats) -> Iterator[Trace]:
        traces: Iterator[Trace] = import_module(path).read(log, options, stats)
        return traces

    return LogFormat(name, sniff, read, flags_errors, name in _UNIQUE_IDS)


@cache
def _load_plugins() -> None:
    for plugin in entry_points(group="composer_replication.readers"):
        plugin.load()()
