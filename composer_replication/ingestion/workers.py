"""Read sources in several worker processes, which end when the process that started them ends.

Each worker has a pipe of its own and nothing is shared. So any worker can be stopped at any time, and a log that kills
its worker (it may not fit into memory) costs only that log. `concurrent.futures` gives neither: a process that is
stopped while it writes to the shared queue blocks the others, and one that dies ends the whole pool.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import threading
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeAlias

from composer_replication.ingestion.formats import LogFormat, added_readers, register_reader
from composer_replication.ingestion.source import IngestOptions, Outcome, failed_source, ingest_source
from composer_replication.ingestion.store import ManifestEntry, TraceStore

# Bytes of logs in one task: small files go together, because sending a task costs as much as reading a small file.
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
    tasks = deque(_split(work))
    processes = min(processes or _cores(), len(tasks))
    if processes > 1:
        yield from _in_processes(tasks, store, options, processes)
        return
    for task in tasks:
        with _without_collector():
            for file, earlier in task:
                yield ingest_source(file, earlier, store, options)


@dataclass
class _Worker:
    """A process, and its sources without an outcome so far."""

    process: BaseProcess
    connection: Connection[Any, Any]
    is_ready: bool = False
    task: deque[tuple[Path, ManifestEntry | None]] = field(default_factory=deque)


def _in_processes(
    tasks: deque[Task], store: TraceStore, options: IngestOptions, processes: int
) -> Generator[Outcome, None, None]:
    readers = _readers()
    workers: dict[Any, _Worker] = {}
    leaving: list[BaseProcess] = []
    try:
        while tasks or workers:
            while tasks and len(workers) < processes:
                worker = _start(readers, store, options)
                workers[worker.connection] = worker
            for connection in wait(list(workers)):
                worker = workers[connection]
                message = _receive(worker)
                if isinstance(message, BaseException):
                    raise message
                if message is None:
                    yield from _fail(worker, tasks, store, options)
                elif message is True:
                    worker.is_ready = True
                else:
                    worker.task.popleft()
                    yield message
                if message is not None and not worker.task and tasks:
                    worker.task = deque(tasks.popleft())
                    _send(worker)
                if not worker.task:
                    del workers[connection]
                    worker.connection.close()  # it goes when it sees this
                    leaving.append(worker.process)
    finally:
        for worker in workers.values():
            worker.process.terminate()
            worker.connection.close()
            leaving.append(worker.process)
        for process in leaving:
            process.join()


def _start(readers: list[LogFormat], store: TraceStore, options: IngestOptions) -> _Worker:
    # Started afresh: a forked copy of a process that has threads (a progress bar, torch) may hang.
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    resource_tracker.ensure_running()  # it would let interrupts through again
    with _interrupts_held():
        process = context.Process(target=_serve, args=(theirs, readers, store, options), daemon=True)
        process.start()
    theirs.close()
    return _Worker(process, ours)


def _receive(worker: _Worker) -> Any:
    """Receive a message: True (the worker is ready), an outcome, or an exception; None if the worker died."""
    try:
        return worker.connection.recv()
    except (EOFError, OSError):
        return None


def _send(worker: _Worker) -> None:
    with suppress(OSError):  # it has died; that is noticed when it is listened to
        worker.connection.send(list(worker.task))


def _fail(worker: _Worker, tasks: deque[Task], store: TraceStore, options: IngestOptions) -> Iterator[Outcome]:
    """Mark the source as failed if its worker died; the rest of its task goes to other workers."""
    worker.process.join()
    ending = f"exit code {worker.process.exitcode}"
    if not worker.is_ready:
        raise RuntimeError(
            f"a process that should read logs did not start ({ending}): "
            'a script needs `if __name__ == "__main__":`, or processes=1'
        )
    if worker.task:
        file, earlier = worker.task.popleft()
        reason = f"the process that read it died ({ending}); is there enough memory?"
        yield failed_source(file, earlier, reason, store, options)
    if worker.task:
        tasks.append(list(worker.task))
        worker.task.clear()


def _serve(
    connection: Connection[Any, Any], readers: list[LogFormat], store: TraceStore, options: IngestOptions
) -> None:
    """The loop of a worker: receive a task, send the outcomes of its sources, receive the next."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for one in readers:
        register_reader(one.name, one.sniff, one.read, flags_errors=one.flags_errors, unique_ids=one.unique_ids)
    try:
        connection.send(True)
        while True:
            for file, earlier in connection.recv():
                with _without_collector():
                    outcome = ingest_source(file, earlier, store, options)
                connection.send(outcome)
    except (EOFError, BrokenPipeError):
        return
    except Exception as error:  # noqa: BLE001 - it is raised where the run is
        connection.send(error)


def _end_with_parent() -> None:
    """Exit with the parent. Otherwise a worker whose parent was killed would first finish its log."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Block Ctrl-C while a process starts, which inherits the block: Ctrl-C reaches every process of a terminal, and
    the parent decides what happens to its workers."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _split(work: Task) -> list[Task]:
    """Split the sources into tasks of about the same size, large files first, so that none is left for the end."""
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
    """Return the size of a file in bytes; 0 if it is gone."""
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
                f"the reader {one.name!r} cannot be sent to other processes ({error}): define its functions at the "
                "top of a module, or read with processes=1"
            ) from error
    return readers


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
