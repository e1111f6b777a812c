"""The time left, and the interval of progress lines, for commands that print progress without a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta


class Pace:
    """Measures from its construction on.

    Args:
        done: the amount that was done before.
        clock: returns seconds.
        every: seconds between two lines.
    """

    def __init__(self, done: int = 0, *, clock: Callable[[], float] = time.monotonic, every: float = 10.0) -> None:
        self._done, self._clock, self._every = done, clock, every
        self._start = self._last_line = clock()

    def left(self, done: int, total: int) -> str:
        """Return the time left as "4:10 left"; "" if it is unknown, or nothing is left."""
        since = done - self._done
        if since <= 0 or done >= total:
            return ""
        seconds = (self._clock() - self._start) / since * (total - done)
        return f"{timedelta(seconds=round(seconds))} left".removeprefix("0:").removeprefix("0")

    def is_due(self) -> bool:
        """Whether it is time for the next line; if so, the next one is due `every` seconds later."""
        now = self._clock()
        if now - self._last_line < self._every:
            return False
        self._last_line = now
        return True
