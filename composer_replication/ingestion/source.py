"""Turn one log file into its output and manifest entry, and decide which file owns a turn that several files hold.

A session that was resumed or forked begins with a copy of the one it came from. Each turn belongs to one file. In the
others it stays as context, marked `repeats`, and is not a state of its own.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

from composer_replication.ingestion.formats import LogFormat, ReadOptions, find_format, format_names, read_as
from composer_replication.ingestion.log_file import LogFile, printable
from composer_replication.ingestion.statistics import IngestionStats
from composer_replication.ingestion.store import ManifestEntry, OutputError, TraceStore, source_key
from composer_replication.traces import Trace


@dataclass(frozen=True)
class IngestOptions:
    """Options of writing traces."""

    subagents: bool = False
    redact: bool = True

    @property
    def settings(self) -> str:
        """A text of everything that an output depends on besides its source."""
        return f"{_code_digest()}/subagents={self.subagents}/redact={self.redact}"

    @property
    def settings_without_log(self) -> str:
        """The same for a file that is not a log: a format that is added later may recognize it."""
        return f"{self.settings}/{','.join(format_names())}"


@cache
def _code_digest() -> str:
    """A hash of the code that makes traces: the output of another version is made again."""
    package = Path(__file__).parents[1]
    files = [package / name for name in ("traces.py", "coding_tools.py", "pattern_set.py")]
    files += [*(package / "ingestion").rglob("*.py"), *(package / "hint_generator").rglob("*.py")]
    content = b"".join(file.read_bytes() for file in sorted(files))
    return hashlib.sha256(content).hexdigest()[:12]


@dataclass
class Outcome:
    """The result of reading a source."""

    entry: ManifestEntry
    is_new: bool = False
    """The entry's output was written now; otherwise it is that of an earlier run, or there is none."""
    unchanged: bool = False


def ingest_source(file: Path, earlier: ManifestEntry | None, store: TraceStore, options: IngestOptions) -> Outcome:
    """Write one file's traces. If that fails, the entry has the `reason`, and traces of an earlier run stay.

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
    """Return the outcome of a source that could not be read. Earlier traces with the same settings are kept."""
    source = source_name(file)
    if earlier is not None and earlier.settings == options.settings and store.has(earlier.output):
        return Outcome(msgspec.structs.replace(earlier, source=source, status="failed", reason=reason))
    return Outcome(ManifestEntry(source, source_key(file), "failed", 0, 0, settings=options.settings, reason=reason))


def is_current(entry: ManifestEntry, file: Path, options: IngestOptions, store: TraceStore) -> bool:
    """Whether a source is unchanged, by its size and time. Nothing is read."""
    try:
        status = file.stat()
    except OSError:
        return False
    same = (entry.size, entry.modified_ns) == (status.st_size, status.st_mtime_ns)
    return same and _is_usable(entry, options, store)


def _finished(
    log_format: LogFormat, log: LogFile, options: IngestOptions, stats: IngestionStats, entry: ManifestEntry
) -> Iterator[Trace]:
    """Yield the traces of a log as they are written: redacted, and with ids that are unique among sources."""
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
    """Return the name of a source in the manifest."""
    absolute = os.path.abspath(file)  # noqa: PTH100 - links in a path are kept, so that a source has the name it was given
    return printable(absolute)


def own_turns(trace: Trace) -> Iterable[str]:
    """The ids of the assistant turns that are this trace's own."""
    return (turn.id for turn in trace.turns if turn.role == "assistant" and turn.id is not None and not turn.repeats)


def mark_repeats(trace: Trace, elsewhere: Collection[str]) -> int:
    """Mark the turns that another file owns, so that training ignores them here. Returns how many were marked."""
    marked = 0
    for turn in trace.turns:
        if turn.role == "assistant" and not turn.repeats and turn.id in elsewhere:
            turn.repeats = True
            turn.tool_error = turn.error_meta = None
            marked += 1
    return marked


def has_own_turns(trace: Trace) -> bool:
    """Whether the trace has a turn to train on."""
    return any(turn.role == "assistant" and not turn.repeats for turn in trace.turns)


def find_owners(entries: Iterable[ManifestEntry], just_read: Collection[str]) -> dict[str, str]:
    """The key of the source that each turn belongs to.

    A turn stays with the source that has it from an earlier run; else the first session to begin has it. Turns that
    are copies in every source are left out: the source they belonged to no longer has them.

    Args:
        just_read: the keys of the sources that were read in this run.
    """
    owners: dict[str, str] = {}
    for entry in sorted(entries, key=lambda entry: (entry.key in just_read, entry.began, entry.source)):
        copies = set(entry.copies)
        for turn in entry.turns:
            if turn not in copies:
                owners.setdefault(turn, entry.key)
    return owners


def has_orphans(entry: ManifestEntry, owners: Mapping[str, str]) -> bool:
    """Whether a source has copies of turns that no other source has any longer."""
    return any(turn not in owners for turn in entry.copies)


def settle(entry: ManifestEntry, owners: Mapping[str, str], store: TraceStore) -> bool:
    """Update a source's output and entry for the owners of its turns. Returns whether anything changed.

    Traces without a turn of their own are left out. Doing it again changes nothing.
    """
    copies = [turn for turn in entry.turns if owners.get(turn) != entry.key]
    if copies == entry.copies:
        return False
    entry.copies = copies
    if entry.output is None or not store.has(entry.output):
        return True
    traces = list(store.read(entry.output))
    elsewhere = set(copies)
    for trace in traces:
        mark_repeats(trace, elsewhere)
    kept = [trace for trace in traces if has_own_turns(trace)]
    stats = IngestionStats.from_dict(entry.stats)
    stats.skipped["trace that another file holds"] += entry.traces - len(kept)
    stats.recount(kept)
    stats.n_states_emitted = sum(turn.role == "assistant" and not turn.repeats for one in kept for turn in one.turns)
    entry.stats = stats.as_dict()
    entry.traces = store.write_traces(entry.output, kept)
    if not kept:
        entry.output = None
    return True
