"""Work that is gathered into batches: its order, its size, and the thread that does it."""

from __future__ import annotations

import threading
from queue import Empty, SimpleQueue

import pytest

from composer_replication.teacher_replay.serving.decoding import BatchQueue


class Worker:
    """Notes the batches that it is given, and is busy with the first one until it is let go."""

    def __init__(self, size: int) -> None:
        self.batches: list[list[int]] = []
        self.started, self.go_on = threading.Event(), threading.Event()
        self.threads: set[threading.Thread] = set()
        self.queue = BatchQueue(self._run, size, patience=0.0)

    def _run(self, batch: list[int]) -> None:
        self.batches.append(batch)
        self.threads.add(threading.current_thread())
        self.started.set()
        self.go_on.wait()

    def finish(self) -> None:
        self.go_on.set()
        for thread in self.threads:
            thread.join()


def test_what_arrives_during_work_is_the_next_batch_in_order() -> None:
    worker = Worker(size=3)
    worker.queue.put(0)
    worker.started.wait()
    for item in range(1, 8):
        worker.queue.put(item)
    worker.queue.discard(4)
    worker.queue.discard(0)
    worker.queue.discard(99)
    worker.finish()
    assert worker.batches == [[0], [1, 2, 3], [5, 6, 7]]
    assert len(worker.threads) == 1


def test_its_thread_ends_with_the_work_and_begins_with_it() -> None:
    worker = Worker(size=3)
    for item in (1, 2):
        worker.queue.put(item)
        worker.started.wait()
        worker.finish()
        worker.started.clear()
    assert worker.batches == [[1], [2]]
    assert len(worker.threads) == 2


def test_clients_that_were_answered_together_are_waited_for() -> None:
    batches: SimpleQueue[list[int]] = SimpleQueue()
    started, go_on = threading.Event(), threading.Event()

    def run(batch: list[int]) -> None:
        started.set()
        go_on.wait()
        batches.put(batch)

    queue = BatchQueue(run, size=2, patience=3600)
    queue.put(0)
    started.wait()
    queue.put(1)
    queue.put(2)
    go_on.set()
    assert [batches.get(), batches.get()] == [[0], [1, 2]]
    queue.put(3)
    with pytest.raises(Empty):
        batches.get(timeout=0.1)
    queue._patience = 0.0  # so that the thread ends after the next batch
    queue.put(4)
    assert batches.get() == [3, 4]
