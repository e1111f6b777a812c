"""Many logs to a folder of traces: in several processes, without reading again what did not change."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from composer_replication.ingestion.discovery import find_files
from composer_replication.ingestion.duplicates import has_own_turns, mark_repeats, own_turns
from composer_replication.ingestion.formats import LogFormat, added_readers, register_reader
from composer_replication.ingestion.source import IngestOptions, Outcome, ingest_source, is_current, source_name
from composer_replication.ingestion.statistics import IngestionStats
from composer_replication.ingestion.store import ManifestEntry, TraceStore

# Bytes of logs in one task: small files go together, because handing out a task costs as much as reading a small file.
_TASK_BYTES = 8_000_000


@dataclass
class IngestReport:
    """What a run found: the entry of every file behind the paths, and their counts together, those of files that did
    not change and were not read again included."""

    sources: list[ManifestEntry] = field(default_factory=list)
    stats: IngestionStats = field(default_factory=IngestionStats)
    unchanged: int = 0
    gone: int = 0
    copied_turns: int = 0
    seconds: float = 0.0

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
            },
            "bytes": sum(entry.size for entry in read),
            "traces": sum(entry.traces for entry in read),
            "copied_turns": self.copied_turns,
            "seconds": round(self.seconds, 3),
            "formats": _by_format(read),
            "failures": {entry.source: entry.reason for entry in self.with_status("failed")},
            "stats": self.stats.as_dict(),
        }


Progress = Callable[[int], None]
"""Called with the bytes of every source that is done."""


def ingest_logs(
    paths: Iterable[str | Path],
    folder: str | Path,
    options: IngestOptions | None = None,
    *,
    processes: int | None = None,
    on_start: Callable[[int, int], None] = lambda files, size: None,
    on_progress: Progress = lambda size: None,
) -> IngestReport:
    """Read every log behind `paths`, and write its traces to `folder`.

    A second run reads only what changed. Turns that several files hold belong to the one that began first. A file that
    cannot be read, or that is no log, is reported and does no harm to the others.

    Args:
        processes: how many read at once; as many as there are cores if None.
        on_start: called with the number of files to look at, and their bytes.
        on_progress: called with the bytes of every source that is done.

    Raises:
        FileNotFoundError: a path is neither a file nor a folder nor a glob that matches anything.
        OSError: the folder cannot be written.
    """
    started = time.perf_counter()
    options = options or IngestOptions()
    files = find_files(paths, leave_out=[Path(folder)])
    store = TraceStore(folder)
    known = store.entries()
    report = IngestReport()
    work = []
    for file in files:
        entry = known.get(source_name(file))
        if entry is not None and is_current(entry, file, options, store):
            report.unchanged += 1
            report.sources.append(entry)
        else:
            work.append((file, entry))
    sizes = {file: _size(file) for file, _ in work}
    on_start(len(work), sum(sizes.values()))
    outcomes = []
    for outcome in _run_tasks(_tasks(work, sizes), store, options, processes or os.cpu_count() or 1):
        store.note(outcome.entry)
        on_progress(outcome.entry.size)
        outcomes.append(outcome)
    _settle_repeats(outcomes, store, {entry.output for entry in report.sources if entry.output}, report)
    for outcome in outcomes:
        report.sources.append(outcome.entry)
        report.unchanged += outcome.unchanged
        known[outcome.entry.source] = outcome.entry
    report.gone = sum(not Path(source).exists() for source in known)
    report.sources.sort(key=lambda entry: entry.source)
    for entry in report.with_status("read"):
        report.stats.merge(IngestionStats.from_dict(entry.stats))
    store.write_manifest(known.values())
    report.seconds = time.perf_counter() - started
    return report


def _settle_repeats(
    outcomes: list[Outcome], store: TraceStore, unchanged_outputs: set[str], report: IngestReport
) -> None:
    """Give every turn that several sources hold to one of them: an output of an earlier run, else the first to begin.

    Only outputs that hold a copy are written again.
    """
    owned: set[str] = set()
    if any(outcome.turn_ids for outcome in outcomes):
        for earlier in unchanged_outputs:
            for trace in store.read(earlier):
                owned.update(own_turns(trace))
    for outcome in sorted(outcomes, key=lambda outcome: (outcome.began, outcome.entry.source)):
        output = outcome.entry.output
        elsewhere = owned.intersection(outcome.turn_ids)
        owned.update(outcome.turn_ids)
        if not elsewhere or output is None or outcome.unchanged:
            continue
        traces = list(store.read(output))
        report.copied_turns += sum(mark_repeats(trace, elsewhere) for trace in traces)
        kept = [trace for trace in traces if has_own_turns(trace)]
        outcome.entry.traces = store.write_traces(output, kept)
        outcome.entry.output = output if kept else None
        stats = outcome.stats
        stats.skipped["trace that another file holds"] += len(traces) - len(kept)
        stats.n_states_emitted -= sum(turn.repeats for trace in traces for turn in trace.turns)
        outcome.entry.stats = stats.as_dict()


def _run_tasks(
    tasks: list[list[tuple[Path, ManifestEntry | None]]], store: TraceStore, options: IngestOptions, processes: int
) -> Iterator[Outcome]:
    processes = min(processes, len(tasks))
    if processes <= 1:
        for task in tasks:
            with _without_collector():
                for file, earlier in task:
                    yield ingest_source(file, earlier, store, options)
        return
    # Started afresh: a forked copy of a process that has threads (a progress bar, torch) may hang.
    pool = ProcessPoolExecutor(processes, get_context("spawn"), _set_up, (added_readers(),))
    try:
        pending: set[Future[list[Outcome]]] = {pool.submit(_run_task, task, store, options) for task in tasks}
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                yield from future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _set_up(readers: list[LogFormat]) -> None:
    for one in readers:
        register_reader(one.name, one.sniff, one.read, flags_errors=one.flags_errors)


def _run_task(
    task: list[tuple[Path, ManifestEntry | None]], store: TraceStore, options: IngestOptions
) -> list[Outcome]:
    with _without_collector():
        return [ingest_source(file, earlier, store, options) for file, earlier in task]


@contextmanager
def _without_collector() -> Iterator[None]:
    """Traces are trees: the cycle collector would walk through millions of objects and find nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _tasks(
    work: list[tuple[Path, ManifestEntry | None]], sizes: dict[Path, int]
) -> list[list[tuple[Path, ManifestEntry | None]]]:
    """The files in tasks of about the same size, large files first, so that no process is left with a large one."""
    tasks: list[list[tuple[Path, ManifestEntry | None]]] = []
    filled = _TASK_BYTES
    for item in sorted(work, key=lambda item: -sizes[item[0]]):
        if filled >= _TASK_BYTES:
            tasks.append([])
            filled = 0
        tasks[-1].append(item)
        filled += sizes[item[0]]
    return tasks


def _by_format(entries: list[ManifestEntry]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for entry in entries:
        counts[entry.format or ""] = counts.get(entry.format or "", 0) + 1
    return counts


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0
