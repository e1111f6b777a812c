"""Several waits at once, in threads that never keep the process from ending."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_THREADS = 8


def run_all(
    function: Callable[[Item], Result], items: Iterable[Item], stop: threading.Event, *, at_most: int = _THREADS
) -> list[Result]:
    """Call a function for every item, several at once, and return the results in the order in which they end.

    One thread at a time asks `items` for the next one, so it may be a generator that waits for something. The first
    error, of either, is raised at once; `stop` is set then, for the calls that still wait.
    """
    ended: queue.SimpleQueue[tuple[list[Result], BaseException | None] | None] = queue.SimpleQueue()
    todo = iter(items)
    lock = threading.Lock()

    def work() -> None:
        try:
            while not stop.is_set():
                with lock:
                    upcoming = list(islice(todo, 1))
                if not upcoming:
                    break
                ended.put(([function(upcoming[0])], None))
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            ended.put(([], error))
        ended.put(None)

    running = min(_THREADS, at_most)
    for number in range(running):
        threading.Thread(target=work, name=f"exchange_{number}", daemon=True).start()
    results: list[Result] = []
    try:
        while running:
            if (one := ended.get()) is None:
                running -= 1
            elif one[1] is not None:
                raise one[1]
            else:
                results += one[0]
    except BaseException:
        stop.set()
        raise
    return results


def in_background(function: Callable[[], Result]) -> Future[Result]:
    """Call a function in a thread."""
    future: Future[Result] = Future()

    def work() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - raised by whoever asks for the result
            future.set_exception(error)

    threading.Thread(target=work, name="round", daemon=True).start()
    return future
