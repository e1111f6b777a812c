"""Gathers what arrives while work is under way into the next batch of work."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")

# Clients that were answered together ask again together. Without a moment's patience the first of them would be
# answered alone while the others wait, and so on in turns.
_PATIENCE_SECONDS = 0.05


class BatchQueue(Generic[Item]):
    """Runs batches one after another, in the order of arrival, in a thread that lives while there is work.

    Args:
        run: works on a batch. It must not raise.
        size: the largest batch.
        patience: for how many seconds a batch that follows one of several items waits to be full.
    """

    def __init__(self, run: Callable[[list[Item]], None], size: int, patience: float = _PATIENCE_SECONDS) -> None:
        self._run, self._size, self._patience = run, size, patience
        self._changed = threading.Condition()
        self._waiting: list[Item] = []
        self._is_running = False

    def put(self, item: Item) -> None:
        """Add an item; it is worked on at once if nothing else is."""
        with self._changed:
            self._waiting.append(item)
            self._changed.notify()
            if not self._is_running:
                self._is_running = True
                # Not a daemon: a process that ends in the middle of a computation may crash.
                threading.Thread(target=self._work, name="local-teacher").start()

    def discard(self, item: Item) -> None:
        """Take an item out again if it still waits."""
        with self._changed:
            if item in self._waiting:
                self._waiting.remove(item)

    def _work(self) -> None:
        patience = 0.0
        while batch := self._next(patience):
            self._run(batch)
            patience = self._patience if len(batch) > 1 else 0.0

    def _next(self, patience: float) -> list[Item]:
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting) >= self._size, patience)
            batch = self._waiting[: self._size]
            del self._waiting[: self._size]
            self._is_running = bool(batch)
            return batch
