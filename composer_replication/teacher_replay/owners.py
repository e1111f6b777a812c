"""Which processes that share a ledger are alive: each holds a lock on a file of its own until it ends, however it ends.

The lock is the kernel's: a process that is killed lets go of it, one that is only slow does not, and no clock is asked.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path


class Owners:
    """This process among those that share a ledger; alone if there is no file."""

    def __init__(self, ledger: Path | None) -> None:
        self.mine = uuid.uuid4().hex
        self._folder = None if ledger is None else ledger.with_name(f"{ledger.name}-owners")
        self._descriptor: int | None = None
        if self._folder is not None:
            self._folder.mkdir(exist_ok=True)
            self._descriptor = os.open(self._folder / self.mine, os.O_CREAT | os.O_RDWR, 0o600)
            _lock(self._descriptor)

    def is_alive(self, owner: str) -> bool:
        """Whether the process behind an id still runs."""
        if owner == self.mine:
            return True
        if self._folder is None:
            return False
        path = self._folder / owner
        try:
            descriptor = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            if not _lock(descriptor):
                return True
            path.unlink(missing_ok=True)
            return False
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Let go of the lock."""
        if self._descriptor is not None and self._folder is not None:
            (self._folder / self.mine).unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None


def _lock(descriptor: int) -> bool:
    """Lock a file if nobody else has it."""
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        except OSError:
            return False
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
