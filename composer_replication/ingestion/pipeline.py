"""Logs to traces: many to a folder (in several processes, without reading again what did not change), or in memory
(one file, or everything that some paths lead to)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from composer_replication.ingestion.formats import ReadOptions, find_format, format_names, read_as
from composer_replication.ingestion.log_file import LogFile, find_files, printable
from composer_replication.ingestion.source import (
    IngestOptions,
    find_owners,
    has_orphans,
    ingest_source,
    is_current,
    mark_repeats,
    own_turns,
    settle,
    source_name,
)
from composer_replication.ingestion.statistics import IngestionStats
from composer_replication.ingestion.store import (
    ManifestEntry,
    TraceStore,
    holds_traces,
    load_traces,
    source_key,
    written_paths,
)
from composer_replication.ingestion.workers import ingest_sources, size_of
from composer_replication.traces import Trace


@dataclass
class IngestReport:
    """The result of a run: the entry of every file found, and their counts together. Files that did not change and were
    not read again are included.

    `gone` counts sources that are no longer there, and `other_settings` those that the paths do not lead to and that
    were read with other settings: the traces of both are kept. A folder that could not be listed is a failed source.
    """

    sources: list[ManifestEntry] = field(default_factory=list)
    stats: IngestionStats = field(default_factory=IngestionStats)
    unchanged: int = 0
    gone: int = 0
    other_settings: int = 0
    seconds: float = 0.0

    @property
    def copied_turns(self) -> int:
        """Turns that are there only as context, because another file holds them too."""
        return sum(len(entry.copies) for entry in self.with_status("read"))

    def with_status(self, status: str) -> list[ManifestEntry]:
        """The entries of one status."""
        return [entry for entry in self.sources if entry.status == status]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        read = self.with_status("read")
        return {
            "files": {
                "logs": len(read),
                "unchanged": self.unchanged,
                "no_log": len(self.with_status("no log")),
                "failed": len(self.with_status("failed")),
                "gone": self.gone,
                "other_settings": self.other_settings,
            },
            "bytes": sum(entry.size for entry in read),
            "traces": sum(entry.traces for entry in read),
            "copied_turns": self.copied_turns,
            "seconds": round(self.seconds, 3),
            "formats": dict(Counter(entry.format or "" for entry in read)),
            "failures": {entry.source: entry.reason for entry in self.with_status("failed")},
            "stats": self.stats.as_dict(),
        }


def ingest_logs(
    paths: Iterable[str | Path],
    folder: str | Path,
    options: IngestOptions | None = None,
    *,
    processes: int | None = None,
    on_start: Callable[[int, int], None] = lambda files, size: None,
    on_progress: Callable[[int], None] = lambda size: None,
) -> IngestReport:
    """Read every log that `paths` lead to, and write its traces to `folder`.

    A second run reads only what changed. Turns that several files hold belong to the one that began first. A file that
    cannot be read, or that is not a log, is reported and does not affect the others.

    Args:
        processes: how many read at once; as many as there are cores if None. They import the module that runs: a
            script needs the usual `if __name__ == "__main__"`.
        on_start: called with the number of files to look at, and their bytes.
        on_progress: called with the bytes of every source that is done.

    Raises:
        NoSuchPathError: a path is neither a file nor a folder nor a glob that matches anything.
        OutputError: the folder cannot be written, or another run is writing there.
    """
    started = time.perf_counter()
    options = options or IngestOptions()
    report = IngestReport()
    files = find_files(
        paths, leave_out=written_paths(folder), on_error=lambda error: report.sources.append(_failed_folder(error))
    )
    store = TraceStore(folder)
    with store.locked():
        known = store.entries()
        looked_at: list[str] = []
        work: list[tuple[Path, ManifestEntry | None]] = []
        for file in files:
            key = source_key(file)
            looked_at.append(key)
            entry = known.get(key)
            if entry is not None and is_current(entry, file, options, store):
                entry.source = source_name(file)
                report.unchanged += 1
            else:
                work.append((file, entry))
        on_start(len(work), sum(size_of(file) for file, _ in work))
        just_read: set[str] = set()
        with closing(ingest_sources(work, store, options, processes)) as outcomes:
            for outcome in outcomes:
                _take(outcome.entry, known, store)
                report.unchanged += outcome.unchanged
                if outcome.is_new:
                    just_read.add(outcome.entry.key)
                on_progress(outcome.entry.size)
        _settle_repeats(known, just_read, store, options)
        _forget(known, set(looked_at), options, report)
        store.write_manifest(known.values())
    report.sources += [known[key] for key in looked_at]
    report.sources.sort(key=lambda entry: entry.source)
    for entry in report.with_status("read"):
        report.stats.merge(IngestionStats.from_dict(entry.stats))
    report.seconds = time.perf_counter() - started
    return report


def _take(entry: ManifestEntry, known: dict[str, ManifestEntry], store: TraceStore) -> None:
    """Replace the earlier entry of a source.

    An output that the source no longer gives is removed first: if the run stops in between, the earlier entry misses
    its output, and the source is read again.
    """
    before = known.get(entry.key)
    if before is not None and before.output is not None and before.output != entry.output:
        store.remove(before.output)
    known[entry.key] = entry
    store.note(entry)


def _settle_repeats(
    known: dict[str, ManifestEntry], just_read: set[str], store: TraceStore, options: IngestOptions
) -> None:
    """Assign every turn that several sources hold to one of them.

    This looks at all sources of the folder, not only at this run's: an earlier run may have read the other copy, or
    may have been stopped before it came to this.
    """
    tried = set(just_read)
    owners = find_owners(known.values(), just_read)
    while orphaned := [
        entry
        for key, entry in known.items()
        if key not in tried and has_orphans(entry, owners) and Path(entry.source).is_file()
    ]:
        for entry in orphaned:
            tried.add(entry.key)
            outcome = ingest_source(Path(entry.source), None, store, options)
            if outcome.is_new:
                _take(outcome.entry, known, store)
                just_read.add(entry.key)
        owners = find_owners(known.values(), just_read)
    for entry in known.values():
        if settle(entry, owners, store):
            store.note(entry)


def _forget(known: dict[str, ManifestEntry], looked_at: set[str], options: IngestOptions, report: IngestReport) -> None:
    """Of sources that are gone keep those that gave traces, and count what is kept though this run did not make it."""
    for key, entry in list(known.items()):
        if key in looked_at:
            continue
        is_gone = not Path(entry.source).exists()
        if entry.output is not None:
            report.gone += is_gone
            report.other_settings += entry.settings != options.settings
        elif is_gone:
            del known[key]


def _failed_folder(error: OSError) -> ManifestEntry:
    name = printable(str(error.filename))
    return ManifestEntry(name, "", "failed", 0, 0, reason=f"{type(error).__name__}: {error.strerror}")


class UnknownFormatError(ValueError):
    """A file is not in any format that is known."""

    def __init__(self, path: Path) -> None:
        known = ", ".join(format_names())
        super().__init__(f"{path} is not in a recognized log format ({known}); register_reader adds one")


def read_traces(
    path: str | Path, options: ReadOptions | None = None, stats: IngestionStats | None = None
) -> Iterator[Trace]:
    """Yield the traces of a log file with their errors classified. The format is found by the file's content.

    Raises:
        UnknownFormatError: the file is not in a known format.
        OSError: the file cannot be read.
    """
    log = LogFile(path)
    log_format = find_format(log)
    if log_format is None:
        raise UnknownFormatError(log.path)
    yield from read_as(log_format, log, options or ReadOptions(), IngestionStats() if stats is None else stats)


class EveryTrace:
    """The traces of logs, and of folders that `ingest` wrote. Iterate to read them, one at a time.

    Of turns that several files hold, all but the first are marked as copies. `files` are the files found, `logs` counts
    those that were logs (a folder of traces counts once), and `failures` says why a file could not be read. `on_file`
    is called after each of `sources`.

    Raises:
        NoSuchPathError: a path is neither a file nor a folder nor a glob that matches anything.
    """

    def __init__(self, paths: Collection[str | Path], options: IngestOptions | None = None) -> None:
        self.failures: dict[str, str] = {}
        self.on_file: Callable[[], None] = lambda: None
        self._options = options or IngestOptions()
        self._folders = [Path(path).expanduser() for path in paths if holds_traces(path)]
        logs = [path for path in paths if not holds_traces(path)]
        self.files = find_files(logs, on_error=lambda error: self._fail(Path(str(error.filename)), error))
        self.logs = len(self._folders)
        self._seen: set[str] = set()

    def __iter__(self) -> Iterator[Trace]:
        if self._options.redact:
            # Its pattern libraries take a while to load.
            from composer_replication.ingestion.redaction import redact_trace
        readers = [*((path, load_traces) for path in self._folders), *((path, self._read) for path in self.files)]
        for path, read in readers:
            try:
                for trace in read(path):
                    if self._options.redact:
                        redact_trace(trace)
                    yield trace
            except Exception as error:  # noqa: BLE001 - one bad file must not hide the others
                self._fail(path, error)
            self.on_file()

    @property
    def sources(self) -> int:
        """The number of files and folders of traces to read."""
        return len(self._folders) + len(self.files)

    def _read(self, path: Path) -> Iterator[Trace]:
        log = LogFile(path)
        log_format = find_format(log)
        if log_format is None:
            return
        self.logs += 1
        for trace in read_as(log_format, log, ReadOptions(subagents=self._options.subagents), IngestionStats()):
            if log_format.unique_ids:
                own = list(own_turns(trace))
                mark_repeats(trace, self._seen)
                self._seen.update(own)
            yield trace

    def _fail(self, path: Path, error: Exception) -> None:
        self.failures[printable(str(path))] = f"{type(error).__name__}: {error}"
