"""How many states of each trace are under way: a trace that is alone has all of them, several share."""

from __future__ import annotations

import asyncio
from collections import Counter


class Windows:
    """`size` states under way in all, shared evenly by the traces that are open."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._open: set[int] = set()
        self._inside: Counter[int] = Counter()
        self._changed = asyncio.Event()

    def open(self, trace: int) -> None:
        """A trace begins."""
        self._open.add(trace)

    def close(self, trace: int) -> None:
        """A trace has no more states to begin; those under way still count."""
        self._open.discard(trace)
        self._notify()

    async def enter(self, trace: int) -> None:
        """Wait until the next state of a trace may begin."""
        while self._inside.total() >= self._size or self._inside[trace] >= -(-self._size // max(1, len(self._open))):
            await self._changed.wait()
        self._inside[trace] += 1

    def leave(self, trace: int) -> None:
        """A state has ended."""
        self._inside[trace] -= 1
        if not self._inside[trace]:
            del self._inside[trace]
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
