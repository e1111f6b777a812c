"""Log formats: find the one a file is in by its content, and read it to traces. Every module in this folder is one.

A reader is two functions. `sniff(head)` says whether a file is in its format. `read(log, options, stats)` yields the
file's traces and counts in `stats` what it skips. It sets `is_error` where the log has a flag or an exit code; error
kinds are left to the classifier. A module in this folder has both and `FORMAT = LogFormat(name, sniff, read)`; nothing
else has to be changed. Outside this package, ten lines add a format:

    from composer_replication.ingestion import register_reader
    from composer_replication.traces import Trace, Turn

    def sniff(head):
        return any("my_app" in record for record in head.records)

    def read(log, options, stats):
        for line, record in log.records(stats):
            turns = [Turn(role="user", content=record["question"]), Turn(role="assistant", content=record["answer"])]
            yield Trace(trace_id=f"{log.stem}#{line}", turns=turns, source=log.source("my_app", line=line))

    register_reader("my_app", sniff, read)

The command line finds it if its package declares the entry point `composer_replication.readers`: a function without
arguments that calls `register_reader`.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, TypeAlias

from composer_replication.hint_generator.marking import mark_errors
from composer_replication.ingestion.log_file import (
    LONGEST_LINE,
    PADDING,
    UNREADABLE,
    LogFile,
    decode_value,
    first_value,
    printable,
    values_in_line,
)
from composer_replication.ingestion.statistics import IngestionStats
from composer_replication.traces import Trace

_SNIFFED_RECORDS = 64
_GLANCE = 64 * 1024
_LOOKED_THROUGH = 1024 * 1024
# Every log has an object near its beginning; what has none is not searched any further.
_OBJECT = re.compile(rb'\{\s*"')


@dataclass(frozen=True)
class ReadOptions:
    """Options of reading, in any format."""

    subagents: bool = False
    """Read sub-agents as traces of their own. Otherwise they are skipped and counted."""
    verbatim_results: bool = False
    """Allow a reader to keep the JSON text of a result that did not fail, for callers that only write the traces. The
    turn's `content` is then a `msgspec.Raw`, which the encoder copies."""


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
    `unique_ids` says that ids of turns are globally unique: a turn that two files hold is then a copy.
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
    """Return the formats that were registered in this process, to pass them to other processes."""
    return list(_ADDED.values())


def format_names() -> list[str]:
    """Return the name of every format, in the order in which they are asked."""
    _load_plugins()
    return [*_ADDED, *(name for name in _built_in() if name not in _ADDED)]


def known_formats() -> list[LogFormat]:
    """Return every format, in the order in which they are asked."""
    return [_load(name) for name in format_names()]


def find_format(log: LogFile) -> LogFormat | None:
    """Return the format of a file by its content, or None."""
    names = format_names()
    for head in _heads(log):
        for name in names:
            if _load(name).sniff(head):
                return _load(name)
    return None


def read_as(log_format: LogFormat, log: LogFile, options: ReadOptions, stats: IngestionStats) -> Iterator[Trace]:
    """Yield the traces of a log in a known format, with their errors classified, and count them in `stats`."""
    for trace in log_format.read(log, options, stats):
        mark_errors(trace, flags_errors=log_format.flags_errors)
        trace.trace_id, trace.source.file = printable(trace.trace_id), printable(trace.source.file)
        trace.parent = printable(trace.parent) if trace.parent is not None else None
        stats.count(trace)
        yield trace


@cache
def _built_in() -> list[str]:
    """The modules of this folder. Claude Code's logs are the most common. Chats are last: other logs hold messages."""
    names = [module.name for module in pkgutil.iter_modules(__path__)]
    return sorted(names, key=lambda name: (name == "openai_chat", name != "claude_code", name))


def _load(name: str) -> LogFormat:
    """A format by its name. A module is imported when it is first asked: most folders hold logs of one format."""
    if name in _ADDED:
        return _ADDED[name]
    built_in: LogFormat = import_module(f"{__name__}.{name}").FORMAT
    return built_in


@cache
def _load_plugins() -> None:
    for plugin in entry_points(group="composer_replication.readers"):
        plugin.load()()


def read_head(log: LogFile) -> Head:
    """Return the longest beginning of a file that a reader is asked about."""
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
