"""One log file, of whatever format, to traces with their errors found and classified."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from composer_replication.hint_generator.marking import mark_errors
from composer_replication.ingestion.formats import LogFormat, ReadOptions, find_format, known_formats
from composer_replication.ingestion.log_file import LogFile
from composer_replication.ingestion.statistics import IngestionStats
from composer_replication.traces import Trace


class UnknownFormatError(ValueError):
    """A file is no log of any format that is known."""

    def __init__(self, path: Path) -> None:
        known = ", ".join(one.name for one in known_formats())
        super().__init__(f"{path} is no agent log of a known format ({known}); register_reader adds one")


def read_traces(
    path: str | Path, options: ReadOptions | None = None, stats: IngestionStats | None = None
) -> Iterator[Trace]:
    """The traces of a log file; its format is found by its content.

    Raises:
        UnknownFormatError: the file is no log of a known format.
        OSError: the file cannot be read.
    """
    log = LogFile(path)
    log_format = find_format(log)
    if log_format is None:
        raise UnknownFormatError(log.path)
    yield from read_as(log_format, log, options or ReadOptions(), IngestionStats() if stats is None else stats)


def read_as(log_format: LogFormat, log: LogFile, options: ReadOptions, stats: IngestionStats) -> Iterator[Trace]:
    """The traces of a log file of a known format, counted in `stats`."""
    for trace in log_format.read(log, options, stats):
        mark_errors(trace, flags_errors=log_format.flags_errors)
        trace.trace_id, trace.source.file = printable(trace.trace_id), printable(trace.source.file)
        trace.parent = printable(trace.parent) if trace.parent is not None else None
        stats.count(trace)
        yield trace


def printable(name: str) -> str:
    """A name that came from the file system, as text: bytes that are no UTF-8 are written out."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
