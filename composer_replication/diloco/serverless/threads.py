"""Several waits at once, in threads that never keep the process from ending."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_THREADS = 8


def run_all(function: Callable[[Item], Result], items: Iterable[Item], stop: threading.Event) -> list[Result]:
    """Call a function for every item, several at once, and return the results in their order.

    The first error is raised at once; `stop` is set then, for the calls that still wait.
    """
    waiting = list(enumerate(items))
    results: list[Any] = [None] * len(waiting)
    ended: queue.SimpleQueue[tuple[int, Any, BaseException | None]] = queue.SimpleQueue()
    todo = iter(waiting)
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                index, item = next(todo, (-1, None))
            if index < 0 or stop.is_set():
                return
            try:
                ended.put((index, function(item), None))  # type: ignore[arg-type]
            except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
                ended.put((index, None, error))

    for number in range(min(_THREADS, len(waiting))):
        threading.Thread(target=work, name=f"exchange_{number}", daemon=True).start()
    try:
        for _ in waiting:
            index, results[index], error = ended.get()
            if error is not None:
                raise error
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
