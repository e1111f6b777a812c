"""One log file to its output: found out what it is, read, redacted, written, and entered in the manifest."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from composer_replication.ingestion.duplicates import own_turns
from composer_replication.ingestion.formats import LogFormat, ReadOptions, find_format
from composer_replication.ingestion.log_file import LogFile
from composer_replication.ingestion.reading import read_as
from composer_replication.ingestion.statistics import IngestionStats
from composer_replication.ingestion.store import ManifestEntry, TraceStore, source_key
from composer_replication.traces import Trace

# Part of every entry: a reader that reads otherwise makes earlier outputs stale.
_READER_VERSION = 1


@dataclass(frozen=True)
class IngestOptions:
    """How logs become traces on disk."""

    subagents: bool = False
    redact: bool = True

    @property
    def settings(self) -> str:
        """What an output depends on besides its source."""
        return f"{_READER_VERSION}/subagents={self.subagents}/redact={self.redact}"


@dataclass
class Outcome:
    """What a task found out about a source."""

    entry: ManifestEntry
    stats: IngestionStats
    turn_ids: list[str]
    began: str
    unchanged: bool = False


def ingest_source(file: Path, earlier: ManifestEntry | None, store: TraceStore, options: IngestOptions) -> Outcome:
    """One file to its output. What goes wrong with it is its entry's `reason`."""
    key = source_key(file)
    stats = IngestionStats()
    outcome = Outcome(ManifestEntry(source_name(file), key, "failed", 0, 0, settings=options.settings), stats, [], "")
    entry = outcome.entry
    try:
        status = file.stat()
        entry.size, entry.modified_ns = status.st_size, status.st_mtime_ns
        log = LogFile(file)
        if earlier is not None and _has_same_content(earlier, log, options, store):
            earlier.size, earlier.modified_ns = entry.size, entry.modified_ns
            outcome.entry, outcome.unchanged = earlier, True
            return outcome
        log_format = find_format(log)
        if log_format is None:
            entry.status, entry.reason = "no log", "empty" if not entry.size else "no known log format"
        else:
            output = store.output_name(key, file.stem)
            entry.traces = store.write_traces(output, _finished(log_format, log, options, stats, outcome))
            entry.status, entry.format = "read", log_format.name
            entry.output = output if entry.traces else None
        entry.digest = log.digest()
    except Exception as error:  # noqa: BLE001 - one bad file must not end a run over thousands
        entry.status, entry.reason = "failed", f"{type(error).__name__}: {error}"
    entry.stats = stats.as_dict()
    return outcome


def is_current(entry: ManifestEntry, file: Path, options: IngestOptions, store: TraceStore) -> bool:
    """Whether a source is as it was, by its size and time; nothing is read."""
    try:
        status = file.stat()
    except OSError:
        return False
    same = (entry.size, entry.modified_ns) == (status.st_size, status.st_mtime_ns)
    return same and _is_usable(entry, options, store)


def _finished(
    log_format: LogFormat, log: LogFile, options: IngestOptions, stats: IngestionStats, outcome: Outcome
) -> Iterator[Trace]:
    """The traces of a log as they are written: with ids that are unique among sources, and redacted."""
    if options.redact:
        # Its pattern libraries take a while to load, in every process.
        from composer_replication.ingestion.redaction import redact_trace
    key = outcome.entry.key
    reading = ReadOptions(subagents=options.subagents, verbatim_results=not options.redact)
    for trace in read_as(log_format, log, reading, stats):
        outcome.turn_ids += own_turns(trace)
        outcome.began = outcome.began or next((turn.timestamp for turn in trace.turns if turn.timestamp), None) or ""
        trace.trace_id = f"{key}:{trace.trace_id}"
        if trace.parent is not None:
            trace.parent = f"{key}:{trace.parent}"
        if options.redact:
            stats.redactions.update(redact_trace(trace))
        stats.n_states_emitted += sum(turn.role == "assistant" for turn in trace.turns)
        yield trace


def _has_same_content(entry: ManifestEntry, log: LogFile, options: IngestOptions, store: TraceStore) -> bool:
    return entry.size == log.size and _is_usable(entry, options, store) and entry.digest == log.digest()


def _is_usable(entry: ManifestEntry, options: IngestOptions, store: TraceStore) -> bool:
    return entry.status != "failed" and entry.settings == options.settings and store.has(entry.output)


def source_name(file: Path) -> str:
    """How a source is called in the manifest."""
    return os.path.abspath(file)  # noqa: PTH100 - links in a path are kept, so that a source has the name it was given
