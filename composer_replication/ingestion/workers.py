"""Sources read in several processes, which end with the process that started them, however it ends."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.connection import wait as wait_for_end
from pathlib import Path
from typing import TypeAlias

from composer_replication.ingestion.formats import LogFormat, added_readers, register_reader
from composer_replication.ingestion.source import IngestOptions, Outcome, ingest_source
from composer_replication.ingestion.store import ManifestEntry, TraceStore

# Bytes of logs in one task: small files go together, because handing out a task costs as much as reading a small file.
_TASK_BYTES = 8_000_000

Task: TypeAlias = list[tuple[Path, ManifestEntry | None]]
"""Sources, each with what an earlier run knew of it."""


def ingest_sources(
    work: Task, store: TraceStore, options: IngestOptions, processes: int | None
) -> Generator[Outcome, None, None]:
    """The outcome of every source, in the order in which they are done. Close it to stop.

    Args:
        processes: how many read at once; as many as there are cores if None.
    """
    tasks = _split(work)
    processes = min(processes or _cores(), len(tasks))
    if processes <= 1:
        for task in tasks:
            with _without_collector():
                for file, earlier in task:
                    yield ingest_source(file, earlier, store, options)
        return
    others = set(active_children())
    # Started afresh: a forked copy of a process that has threads (a progress bar, torch) may hang.
    pool = ProcessPoolExecutor(processes, get_context("spawn"), _set_up, (_readers(),))
    try:
        pending: set[Future[list[Outcome]]] = {pool.submit(_run_task, task, store, options) for task in tasks}
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                yield from future.result()
    except BaseException:
        # Nobody wants the rest; a large log would keep its process busy for long.
        for process in set(active_children()) - others:
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _split(work: Task) -> list[Task]:
    """The sources in tasks of about the same size, large files first, so that no process is left with a large one."""
    tasks: list[Task] = []
    filled = _TASK_BYTES
    for size, _, item in sorted(((size_of(item[0]), number, item) for number, item in enumerate(work)), reverse=True):
        if filled >= _TASK_BYTES:
            tasks.append([])
            filled = 0
        tasks[-1].append(item)
        filled += size
    return tasks


def size_of(file: Path) -> int:
    """Its bytes; 0 if it is gone."""
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _readers() -> list[LogFormat]:
    readers = added_readers()
    for one in readers:
        try:
            pickle.dumps(one)
        except Exception as error:
            raise TypeError(
                f"the reader {one.name!r} cannot be handed to other processes ({error}): define its functions at the "
                "top of a module, or read with processes=1"
            ) from error
    return readers


def _set_up(readers: list[LogFormat]) -> None:
    # Ctrl-C reaches every process of a terminal; the first one decides what becomes of the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for one in readers:
        register_reader(one.name, one.sniff, one.read, flags_errors=one.flags_errors, unique_ids=one.unique_ids)


def _end_with_parent() -> None:
    """A process whose parent was killed would wait for its next task for ever."""
    parent = parent_process()
    if parent is not None:
        wait_for_end([parent.sentinel])
        os._exit(1)


def _run_task(task: Task, store: TraceStore, options: IngestOptions) -> list[Outcome]:
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


def _cores() -> int:
    """The cores this process may use, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
