"""One log file to its output: found out what it is, read, redacted, written, and entered in the manifest."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

from composer_replication.ingestion.duplicates import own_turns
from composer_replication.ingestion.formats import LogFormat, ReadOptions, find_format, known_formats
from composer_replication.ingestion.log_file import LogFile
from composer_replication.ingestion.reading import printable, read_as
from composer_replication.ingestion.statistics import IngestionStats
from composer_replication.ingestion.store import ManifestEntry, OutputError, TraceStore, source_key
from composer_replication.traces import Trace


@dataclass(frozen=True)
class IngestOptions:
    """How logs become traces on disk."""

    subagents: bool = False
    redact: bool = True

    @property
    def settings(self) -> str:
        """What an output depends on besides its source."""
        return f"{_code_digest()}/subagents={self.subagents}/redact={self.redact}"

    @property
    def settings_without_log(self) -> str:
        """What it depends on that a file is no log: a format that is added later may know it."""
        return f"{self.settings}/{','.join(one.name for one in known_formats())}"


@cache
def _code_digest() -> str:
    """A hash of the code that makes traces: what another version read, classified or redacted is read again."""
    package = Path(__file__).parents[1]
    files = [package / name for name in ("traces.py", "coding_tools.py", "pattern_set.py")]
    files += [*(package / "ingestion").rglob("*.py"), *(package / "hint_generator").rglob("*.py")]
    content = b"".join(file.read_bytes() for file in sorted(files))
    return hashlib.sha256(content).hexdigest()[:12]


@dataclass
class Outcome:
    """What a task found out about a source."""

    entry: ManifestEntry
    is_new: bool = False
    """The entry's output was written now; otherwise it is that of an earlier run, or there is none."""
    unchanged: bool = False


def ingest_source(file: Path, earlier: ManifestEntry | None, store: TraceStore, options: IngestOptions) -> Outcome:
    """One file to its output. What goes wrong with it is its entry's `reason`; traces of an earlier run then stay.

    Raises:
        OutputError: the output cannot be written.
    """
    stats = IngestionStats()
    entry = ManifestEntry(source_name(file), source_key(file), "failed", 0, 0, settings=options.settings)
    try:
        status = file.stat()
        entry.size, entry.modified_ns = status.st_size, status.st_mtime_ns
        log = LogFile(file)
        if earlier is not None and _has_same_content(earlier, log, options, store):
            earlier.source, earlier.size, earlier.modified_ns = entry.source, entry.size, entry.modified_ns
            return Outcome(earlier, unchanged=True)
        log_format = find_format(log)
        if log_format is None:
            entry.status, entry.reason = "no log", "empty" if not entry.size else "no known log format"
            entry.settings = options.settings_without_log
        else:
            output = store.output_name(entry.key, file.stem)
            entry.traces = store.write_traces(output, _finished(log_format, log, options, stats, entry))
            entry.status, entry.format = "read", log_format.name
            entry.output = output if entry.traces else None
        entry.digest = log.digest()
    except OutputError:
        raise
    except Exception as error:  # noqa: BLE001 - one bad file must not end a run over thousands
        return failed_source(file, earlier, f"{type(error).__name__}: {error}", store, options)
    entry.stats = stats.as_dict()
    return Outcome(entry, is_new=True)


def failed_source(
    file: Path, earlier: ManifestEntry | None, reason: str, store: TraceStore, options: IngestOptions
) -> Outcome:
    """The outcome of a source that could not be read. Earlier traces are kept if they are such as are wanted now."""
    source = source_name(file)
    if earlier is not None and earlier.settings == options.settings and store.has(earlier.output):
        return Outcome(msgspec.structs.replace(earlier, source=source, status="failed", reason=reason))
    return Outcome(ManifestEntry(source, source_key(file), "failed", 0, 0, settings=options.settings, reason=reason))


def is_current(entry: ManifestEntry, file: Path, options: IngestOptions, store: TraceStore) -> bool:
    """Whether a source is as it was, by its size and time; nothing is read."""
    try:
        status = file.stat()
    except OSError:
        return False
    same = (entry.size, entry.modified_ns) == (status.st_size, status.st_mtime_ns)
    return same and _is_usable(entry, options, store)


def _finished(
    log_format: LogFormat, log: LogFile, options: IngestOptions, stats: IngestionStats, entry: ManifestEntry
) -> Iterator[Trace]:
    """The traces of a log as they are written: with ids that are unique among sources, and redacted."""
    if options.redact:
        # Its pattern libraries take a while to load, in every process.
        from composer_replication.ingestion.redaction import redact_trace
    reading = ReadOptions(subagents=options.subagents, verbatim_results=not options.redact)
    turn_ids: list[str] = []
    own_traces: set[str] = set()
    for trace in read_as(log_format, log, reading, stats):
        if log_format.unique_ids:
            turn_ids += own_turns(trace)
        entry.began = entry.began or next((turn.timestamp for turn in trace.turns if turn.timestamp), None) or ""
        own_traces.add(trace.trace_id)
        trace.trace_id = f"{entry.key}:{trace.trace_id}"
        if trace.parent is not None:
            owner = entry.key if trace.parent in own_traces else _key_of_session(trace.parent, log.path) or entry.key
            trace.parent = f"{owner}:{trace.parent}"
        # The manifest knows the rest of the path by the key; it may say whose computer this is.
        trace.source.file = Path(trace.source.file).name
        if options.redact:
            stats.redactions.update(redact_trace(trace))
        stats.n_states_emitted += sum(turn.role == "assistant" and not turn.repeats for turn in trace.turns)
        yield trace
    entry.turns = turn_ids


def _key_of_session(session: str, agent_file: Path) -> str | None:
    """The key of the session that started the sub-agent of a file: beside it, or above its `<session>/subagents`."""
    for folder in (agent_file.parent, *agent_file.parents[2:3]):
        candidate = folder / f"{session}.jsonl"
        if candidate.is_file():
            return source_key(candidate)
    return None


def _has_same_content(entry: ManifestEntry, log: LogFile, options: IngestOptions, store: TraceStore) -> bool:
    return entry.size == log.size and _is_usable(entry, options, store) and entry.digest == log.digest()


def _is_usable(entry: ManifestEntry, options: IngestOptions, store: TraceStore) -> bool:
    settings = options.settings_without_log if entry.status == "no log" else options.settings
    return entry.status != "failed" and entry.settings == settings and store.has(entry.output)


def source_name(file: Path) -> str:
    """How a source is called in the manifest."""
    absolute = os.path.abspath(file)  # noqa: PTH100 - links in a path are kept, so that a source has the name it was given
    return printable(absolute)
