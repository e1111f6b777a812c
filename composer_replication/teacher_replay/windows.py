"""How many states of each trace are under way: a trace that is alone has all of them, several share."""

from __future__ import annotations

import asyncio
from collections import Counter


class Windows:
    """`size` states under way in all, shared evenly by the traces that are open. Those that wait take turns."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._open: set[int] = set()
        self._inside: Counter[int] = Counter()
        # In the order in which they came.
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def open(self, trace: int) -> None:
        """A trace begins."""
        self._open.add(trace)

    def close(self, trace: int) -> None:
        """A trace has no more states to begin; those under way still count."""
        self._open.discard(trace)
        self._admit()

    async def enter(self, trace: int) -> None:
        """Wait until the next state of a trace may begin."""
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = (trace, place)
        self._waiting.append(waiting)
        self._admit()
        try:
            await place
        except asyncio.CancelledError:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            else:
                self.leave(trace)
            raise

    def leave(self, trace: int) -> None:
        """A state has ended."""
        self._inside[trace] -= 1
        if not self._inside[trace]:
            del self._inside[trace]
        self._admit()

    def _admit(self) -> None:
        share = -(-self._size // max(1, len(self._open)))
        for waiting in list(self._waiting):
            trace, place = waiting
            if self._inside.total() < self._size and self._inside[trace] < share and not place.done():
                self._waiting.remove(waiting)
                self._inside[trace] += 1
                place.set_result(None)
