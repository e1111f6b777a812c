"""Blocking work beside an event loop, a thread for each piece.

Not the loop's own pool: that has a handful of threads on a small machine, and the interpreter waits for all of them
when it ends.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

Result = TypeVar("Result")


async def in_thread(work: Callable[[], Result]) -> Result:
    """Await the result of `work`, which runs in a thread of its own. It does not keep the process from ending.

    If the waiting is cancelled, the work goes on and its result is dropped.
    """
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - it is raised again where the result is awaited
            errors.append(error)
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(done.set)

    threading.Thread(target=run, daemon=True, name="local-teacher").start()
    await done.wait()
    if errors:
        raise errors[0]
    return results[0]
