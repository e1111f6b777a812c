"""A ledger on a thread of its own, for callers on an event loop."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from composer_replication.teacher_replay.ledger import Answer, Attempt, Busy, Ledger, NoRoom

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


class _Job(NamedTuple):
    work: Callable[[], Any]
    done: Future[Any]


class LedgerThread:
    """A ledger on a thread of its own: waiting for a lock or for the disk holds up no call.

    What was handed over is done even if the task that waits for it is cancelled, and in the order it was handed over.
    What came in while the disk was busy is done in one transaction: with many calls under way, waiting for the disk
    once for each of them would be what bounds a replay. Nobody learns of a result before it is on the disk.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self._waiting: deque[_Job] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ledger")
        try:
            self.ledger = self._thread.submit(Ledger, path).result()
        except BaseException:
            self._thread.shutdown()
            raise

    async def do(self, work: Callable[..., _T], *arguments: Any, **options: Any) -> _T:
        """Run a method of the ledger."""
        return await asyncio.shield(self._hand_over(work, *arguments, **options))

    async def begin(self, *arguments: Any, **options: Any) -> Answer | Attempt | Busy | NoRoom:
        """`Ledger.begin`; a call that is begun while its task is cancelled is given back."""
        future = self._hand_over(self.ledger.begin, *arguments, **options)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            begun = await future
            if isinstance(begun, Attempt):
                await self.do(self.ledger.fail, begun, "cancelled before it was sent", "no")
            raise

    def close(self) -> None:
        """Close the ledger, after what was handed over."""
        self._thread.submit(self.ledger.close).result()
        self._thread.shutdown()

    def _hand_over(self, work: Callable[..., _T], *arguments: Any, **options: Any) -> asyncio.Future[_T]:
        done: Future[_T] = Future()
        self._waiting.append(_Job(functools.partial(work, *arguments, **options), done))
        self._thread.submit(self._do_waiting)
        return asyncio.wrap_future(done)

    def _do_waiting(self) -> None:
        """On the thread: everything that waits by now. It may be nothing, if an earlier turn has done it."""
        jobs = []
        while self._waiting:
            job = self._waiting.popleft()
            if job.done.set_running_or_notify_cancel():
                jobs.append(job)
        if len(jobs) > 1:
            # If one fails, nothing is kept, and each is done alone: only that one fails then.
            try:
                with self.ledger.together():
                    results = [job.work() for job in jobs]
            except Exception as error:  # noqa: BLE001 - whatever it is, one of the jobs raises it again
                logger.debug("%d jobs of the ledger are done one by one: %s", len(jobs), error)
            else:
                for job, result in zip(jobs, results, strict=True):
                    job.done.set_result(result)
                return
        for job in jobs:
            try:
                result = job.work()
            except BaseException as error:  # noqa: BLE001 - it is raised again where the result is awaited
                job.done.set_exception(error)
            else:
                job.done.set_result(result)
