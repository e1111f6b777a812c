"""One paid call: reserved, made, retried where that is safe, and stored before anybody sees the answer."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import json
import logging
import os
import random
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from composer_replication.teacher_replay.bills import Bill, Reserved, UsageReport, bill
from composer_replication.teacher_replay.client import CallFailedError, Reply, TeacherClient
from composer_replication.teacher_replay.ledger import Answer, Attempt, Busy, Ledger, NoRoom
from composer_replication.teacher_replay.prices import Tokens
from composer_replication.teacher_replay.prompts import KnownPrompts, Prompt, token_bound
from composer_replication.teacher_replay.teachers import RemoteTeacher
from composer_replication.traces import render_action

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
# Interval for checking whether another process has given money back.
_POLL_SECONDS = 0.2
_LONGEST_BACKOFF = 60.0


class _Job(NamedTuple):
    work: Callable[[], Any]
    done: Future[Any]


class LedgerThread:
    """A ledger on a thread of its own: waiting for a lock or for the disk holds up no call.

    Submitted work is done in order, even if the task that waits for it is cancelled. Work that arrives while the disk
    is busy is done in one transaction: with many calls in flight, one disk wait per call would limit the replay.
    Results are returned only once they are on disk.
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
        return await asyncio.shield(self._submit(work, *arguments, **options))

    async def begin(self, *arguments: Any, **options: Any) -> Answer | Attempt | Busy | NoRoom:
        """`Ledger.begin`; a call that is begun while its task is cancelled is given back."""
        future = self._submit(self.ledger.begin, *arguments, **options)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            begun = await future
            if isinstance(begun, Attempt):
                await self.do(self.ledger.fail, begun, "cancelled before it was sent", "no")
            raise

    def close(self) -> None:
        """Close the ledger after all submitted work."""
        self._thread.submit(self.ledger.close).result()
        self._thread.shutdown()

    def _submit(self, work: Callable[..., _T], *arguments: Any, **options: Any) -> asyncio.Future[_T]:
        done: Future[_T] = Future()
        self._waiting.append(_Job(functools.partial(work, *arguments, **options), done))
        self._thread.submit(self._do_waiting)
        return asyncio.wrap_future(done)

    def _do_waiting(self) -> None:
        """On the thread: do all waiting work. There may be none left, if an earlier turn did it."""
        jobs = []
        while self._waiting:
            job = self._waiting.popleft()
            if job.done.set_running_or_notify_cancel():
                jobs.append(job)
        if len(jobs) > 1:
            # If one fails, nothing is kept, and each is done again alone, so that only that one fails.
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


@dataclass(frozen=True)
class CallRules:
    """Settings of calls. The cap is in nano-dollars, and applies to all calls under one `budget` name of a ledger.

    `max_retries` are tries after the first. `backoff` is the upper bound of the first pause in seconds; it doubles, and
    pauses are random up to it. An endpoint that asks for a pause longer than `longest_wait` seconds is not waited for.
    """

    cap: int
    budget: str = "replay"
    max_retries: int = 4
    backoff: float = 1.0
    longest_wait: float = 300.0


@dataclass(frozen=True)
class Called:
    """The outcome of a call. Without an answer, `error` says why; `no_room`: the budget did not allow it; `too_long`:
    the prompt does not fit the teacher; `stopped`: it was not made, or not retried, because the run is ending."""

    answer: Answer | None = None
    stored: bool = False
    error: str | None = None
    no_room: bool = False
    too_long: bool = False
    stopped: bool = False
    hopeless: bool = False
    tries: int = 0


class Caller:
    """Makes calls under one budget. Once `stop` is set, no request is sent any more; those under way are waited for."""

    def __init__(
        self, client: TeacherClient, ledger: LedgerThread, rules: CallRules, stop: asyncio.Event | None = None
    ) -> None:
        self._client = client
        self._ledger = ledger
        self._rules = rules
        self._stop = stop or asyncio.Event()
        self._changed = asyncio.Event()
        self._asking: dict[str, asyncio.Event] = {}
        self._pauses: dict[str, float] = {}
        self._windows: dict[str, int | None] = {}
        self._looking: dict[str, asyncio.Lock] = {}

    async def call(self, teacher: RemoteTeacher, prompt: Prompt, known: KnownPrompts) -> Called:
        """Return the ledger's answer, else the teacher's, else the reason why there is no answer."""
        key = call_key(teacher, prompt)
        while (other := self._asking.get(key)) is not None:  # the same call twice in one run is one call
            await other.wait()
        self._asking[key] = asyncio.Event()
        try:
            return await self._call(key, teacher, prompt, known)
        finally:
            self._asking.pop(key).set()

    async def stored(self, teacher: RemoteTeacher, prompt: Prompt) -> Called | None:
        """Return the ledger's answer, if it has one; no call is made."""
        answer = await self._ledger.do(self._ledger.ledger.answer, call_key(teacher, prompt))
        return None if answer is None else Called(answer=answer, stored=True)

    async def _call(self, key: str, teacher: RemoteTeacher, prompt: Prompt, known: KnownPrompts) -> Called:
        if (found := await self.stored(teacher, prompt)) is not None and found.answer is not None:
            known.add(prompt, found.answer.tokens.prompt)
            return found
        if (reason := known.too_long(prompt, await self._window(teacher))) is not None:
            return Called(error=reason, too_long=True)
        tries = 0
        while True:
            if (pause := self._pause_left(teacher)) > self._rules.longest_wait:
                return Called(error=f"the endpoint asked to be left alone for {pause:.0f} seconds", tries=tries)
            await self._sleep(pause)
            bound = known.token_bound(prompt)
            reserved = Reserved(bound, teacher.max_output_tokens, teacher.worst_case(bound))
            begun = await self._begin(key, teacher, reserved.cost)
            if begun is None:
                return Called(stopped=True, tries=tries)
            if isinstance(begun, Answer):
                known.add(prompt, begun.tokens.prompt)
                return Called(answer=begun, stored=True, tries=tries)
            if isinstance(begun, NoRoom):
                return Called(no_room=True, tries=tries)
            if self._pause_left(teacher) > 0:  # it asked for a pause while this call waited for room
                await self._ledger.do(self._ledger.ledger.fail, begun, "not sent: the endpoint asked to wait", "no")
                self._notify()
                continue
            tries += 1
            try:
                marks = known.marks(prompt) if teacher.cache_control else []
                body = prompt.request(teacher.request_settings, marks)
                reply = await self._client.ask(teacher, body)
            except CallFailedError as failure:
                error = str(failure)
                cost = None
                if failure.billed == "yes":
                    cost = self._bill(teacher, prompt, failure.report, 0, reserved).cost
                # Before the money is given back: the call that gets it has to wait as well.
                self._pause(teacher, failure.after)
                await self._ledger.do(self._ledger.ledger.fail, begun, error, failure.billed, cost)
                self._notify()
                if failure.too_long:
                    known.refuse(prompt, error)
                    return Called(error=error, too_long=True, tries=tries)
                if not failure.retry or tries > self._rules.max_retries:
                    return Called(error=error, hopeless=failure.hopeless, tries=tries)
                logger.info("%s: %s; trying again", teacher.slug, error)
                await self._sleep(_backoff(tries, self._rules.backoff))
                continue
            except BaseException:
                await self._ledger.do(self._ledger.ledger.fail, begun, "cancelled while it was under way", "maybe")
                self._notify()
                raise
            if reply.after is not None:  # only a guess of how long the limit lasts: the next call may find out
                self._pause(teacher, min(reply.after, self._rules.longest_wait))
            answer = self._priced(teacher, prompt, reply, reserved)
            repeat = teacher.worst_case(answer.tokens.prompt or token_bound(prompt))
            await self._ledger.do(self._ledger.ledger.settle, begun, teacher.slug, answer, repeat)
            self._notify()
            known.add(prompt, answer.tokens.prompt)
            return Called(answer=answer, tries=tries)

    async def _window(self, teacher: RemoteTeacher) -> int | None:
        """Return the context window of a teacher; its endpoint is asked once, if it is not known otherwise."""
        if teacher.context_window is not None:
            return teacher.context_window
        async with self._looking.setdefault(teacher.slug, asyncio.Lock()):
            if teacher.slug not in self._windows:
                self._windows[teacher.slug] = await self._client.context_window(teacher)
            return self._windows[teacher.slug]

    async def _begin(self, key: str, teacher: RemoteTeacher, worst_case: int) -> Answer | Attempt | NoRoom | None:
        """Begin a call as soon as there is room for it; None if the run ends first. Calls in flight give back what they
        do not need; `NoRoom` is returned only if that cannot be enough."""
        rules = self._rules
        while not self._stop.is_set():
            changed = self._changed
            begun = await self._ledger.begin(key, teacher.slug, worst_case, cap=rules.cap, budget=rules.budget)
            if isinstance(begun, NoRoom) and begun.charged - begun.in_flight + worst_case > rules.cap:
                return begun
            if not isinstance(begun, NoRoom | Busy):
                return begun
            try:
                await asyncio.wait_for(changed.wait(), _POLL_SECONDS)
            except asyncio.TimeoutError:
                await self._ledger.do(self._ledger.ledger.find_lost)
        return None

    async def _sleep(self, seconds: float) -> None:
        """Wait, at most until the run ends."""
        if seconds > 0:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stop.wait(), seconds)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _pause_left(self, teacher: RemoteTeacher) -> float:
        return max(0.0, self._pauses.get(teacher.slug, 0.0) - time.monotonic())

    def _pause(self, teacher: RemoteTeacher, seconds: float | None) -> None:
        """Send nothing to a teacher for this many seconds."""
        if seconds is not None:
            self._pauses[teacher.slug] = max(self._pauses.get(teacher.slug, 0.0), time.monotonic() + seconds)

    def _bill(self, teacher: RemoteTeacher, prompt: Prompt, report: UsageReport, size: int, reserved: Reserved) -> Bill:
        billed = bill(teacher.price, report, prompt, size, reserved)
        if billed.cost > reserved.cost:
            logger.warning("%s billed more than its worst case: its prices or its limits are others", teacher.slug)
        return billed

    def _priced(self, teacher: RemoteTeacher, prompt: Prompt, reply: Reply, reserved: Reserved) -> Answer:
        """Return the answer with its cost."""
        size = len(render_action(reply.turn).encode("utf-8", "replace"))
        usage, cost = self._bill(teacher, prompt, reply.report, size, reserved)
        if usage is None and reserved.cost > 0:
            logger.warning("%s reports no usage that can be believed; the call counts as its worst case", teacher.slug)
        return Answer(reply.turn, reply.finish, usage or Tokens(), cost, reply.latency)


def call_key(teacher: RemoteTeacher, prompt: Prompt) -> str:
    """Return the identity of a call: the teacher, the parameters, the tools and the messages."""
    identity = json.dumps([teacher.slug, teacher.settings, prompt.digest], sort_keys=True)
    return hashlib.sha256(identity.encode()).hexdigest()


def _backoff(tries: int, first: float) -> float:
    return float(random.uniform(0.5, 1.0) * min(_LONGEST_BACKOFF, first * 2.0 ** (tries - 1)))
