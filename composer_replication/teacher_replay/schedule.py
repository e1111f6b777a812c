"""The scheduler of a replay: every step of a trace with every teacher, as fast as limits allow, within a budget.

Calls are scheduled to use a provider's prompt cache: the steps of a trace go in order, the first call of a trace to a
teacher goes alone, and several traces share the calls in flight.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import os
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from composer_replication._arguments import check_keywords, keywords_of
from composer_replication.ingestion.shell_commands import PROTOCOLS
from composer_replication.teacher_replay.answers import (
    AnswerReader,
    GateChoice,
    Reading,
    SequentialGate,
    StepGate,
    gate_for,
)
from composer_replication.teacher_replay.calls import Called, Caller, CallRules, LedgerThread
from composer_replication.teacher_replay.client import TeacherClient
from composer_replication.teacher_replay.ledger import Answer
from composer_replication.teacher_replay.pairs import Agreement, comparer_for
from composer_replication.teacher_replay.prices import Tokens, cap_of, to_usd
from composer_replication.teacher_replay.prompts import KnownPrompts, Prompt, PromptWriter, new_redactor
from composer_replication.teacher_replay.records import (
    GateSettings,
    TeacherCallResult,
    TeacherRow,
    check_state,
    gate_settings,
)
from composer_replication.teacher_replay.replay_files import TraceToReplay
from composer_replication.teacher_replay.replay_report import ReplayReport
from composer_replication.teacher_replay.teachers import (
    DEFAULT_TEACHERS,
    RemoteTeacher,
    TeacherSpec,
    resolve_teachers,
    same_family,
)
from composer_replication.teacher_replay.tool_schemas import complete_tools
from composer_replication.traces import Step, TraceState, Turn

# Traces in progress at once: enough to keep every teacher busy while each trace proceeds almost in order. All of them
# are in memory; twice as many would save another 5 % of the cost.
_TRACES_AT_ONCE = 4
_NO_ANSWER = Answer(Turn("assistant"), "", Tokens(), 0, 0.0)


@dataclass(frozen=True)
class ReplayOptions:
    """Options of a replay.

    Args:
        max_total_usd: the cap on the total cost of the ledger's `budget`, earlier runs included.
        ledger: the SQLite file of calls and answers; None keeps them in memory, and a second run pays again.
        budget: the name of the account for spending; a new name starts from 0, answers are shared.
        gate: "none" asks every teacher at once; "sequential" asks the cheapest first, and stops when the outcome is
            decided; a callable decides before every teacher.
        agreement, agreement_threshold, min_margin: the rule of the sequential gate; rows keep it, and
            `extract_dpo_pairs` uses the same `agreement`, and warns if its threshold or margin differs.
        concurrency: calls in flight per teacher, unless its spec says otherwise.
        total_concurrency: calls in flight in all; None sets no further limit.
        timeout: seconds for one try.
        max_retries: tries after the first. backoff: seconds before the first of them.
        give_up_after: consecutive failed calls after which a teacher is not asked any more.
        redact: redact secrets in everything that is sent; False sends messages as they are.
        exclude_same_family: do not ask teachers of the student's model family.
        expected_output_tokens: for estimates only.
    """

    max_total_usd: float = 5.0
    ledger: str | os.PathLike[str] | None = None
    budget: str = "replay"
    gate: GateChoice = "none"
    agreement: Agreement = "action"
    agreement_threshold: int = 2
    min_margin: int = 0
    concurrency: int = 16
    total_concurrency: int | None = None
    timeout: float = 180.0
    max_retries: int = 4
    backoff: float = 1.0
    give_up_after: int = 8
    redact: bool = True
    exclude_same_family: bool = False
    expected_output_tokens: int = 400

    def __post_init__(self) -> None:
        if not math.isfinite(self.max_total_usd) or self.max_total_usd < 0:
            raise ValueError(f"max_total_usd must be an amount of 0 or more, not {self.max_total_usd}")
        for name in ("concurrency", "agreement_threshold", "give_up_after"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("max_retries", "min_margin", "backoff"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, not {getattr(self, name)}")
        if self.total_concurrency is not None and self.total_concurrency < 1:
            raise ValueError(f"total_concurrency must be at least 1, not {self.total_concurrency}")
        if not self.timeout > 0:
            raise ValueError(f"timeout must be positive, not {self.timeout}")


async def replay_trace(
    states: Iterable[TraceState],
    teachers: Sequence[TeacherSpec | str] = tuple(DEFAULT_TEACHERS),
    max_total_usd: float = 5.0,
    api_key: str | None = None,
    *,
    tools: Sequence[dict[str, Any]] = (),
    protocol: str | None = None,
    env_file: str | os.PathLike[str] | None = None,
    on_result: Callable[[TeacherCallResult], None] | None = None,
    **options: Any,
) -> list[TeacherCallResult]:
    """Ask every teacher what it would do at every state of a trace.

    A call starts only if its worst case fits in what is left of `max_total_usd`; with a `ledger`, answers are kept, and
    a second run asks only for what is missing. A call that fails leaves a row with its `error`.

    Args:
        states: the steps of one trace (`Trace.states()`, `ClaudeCodeIngester.ingest`).
        teachers: specs, or slugs that OpenRouter knows.
        max_total_usd: the cap.
        api_key: for OpenRouter; else OPENROUTER_API_KEY from the environment, `env_file` or ~/.hermes/.env.
        tools: the agent's tool definitions; without any, they are inferred from the calls in the trace.
        protocol: `Trace.meta.get("text_protocol")`: how an agent without tool calls writes its commands.
        env_file: a file of `NAME=value` lines that may hold keys.
        on_result: called with every row as it comes.
        options: see `ReplayOptions`.

    Returns:
        Rows in the order of the states, and of the teachers within each; none for calls that were not made because of
        the budget or the gate.

    Raises:
        MissingKeyError (a RuntimeError): a teacher's key was not found.
        ValueError: no states, or a state, a teacher or an option that is wrong.
        TypeError: an option that does not exist.
        LedgerError: the ledger cannot be used.
    """
    if protocol is not None and protocol not in PROTOCOLS:
        raise ValueError(f"protocol must be one of {', '.join(map(repr, PROTOCOLS))}, not {protocol!r}")
    steps, given = [], {}
    for number, state in enumerate(states):
        check_state(state, f"states[{number}]")
        steps.append(Step.of(state))
        given[state["state_id"]] = state
    if not steps:
        raise ValueError("there are no states: replay needs at least one turn of an assistant")
    check_keywords("replay_trace", options, keywords_of(ReplayOptions))
    settings = ReplayOptions(max_total_usd=max_total_usd, **options)
    gate = settings.gate
    if callable(gate) and not isinstance(gate, SequentialGate):
        # The caller's own states: they may have keys that a step has not.
        settings = replace(settings, gate=lambda state, *answers: gate(given[state["state_id"]], *answers))
    resolved = resolve_teachers(teachers, api_key=api_key, env_file=env_file)
    async with open_replay(resolved, settings, on_result=on_result) as replay:
        trace = TraceToReplay("trace", steps, tools, protocol=protocol)
        return [row.result() async for rows in replay.run([trace]) for row in rows]


@asynccontextmanager
async def open_replay(
    teachers: Sequence[RemoteTeacher],
    options: ReplayOptions,
    *,
    on_result: Callable[[TeacherCallResult], None] | None = None,
    stop: asyncio.Event | None = None,
) -> AsyncIterator[Replay]:
    """Open a replay with its ledger and connections, closed at the end; calls in flight at that point are in doubt.

    `stop` ends it early: no new call begins, those in flight are waited for and stored.
    """
    for teacher in teachers:
        teacher.require_key()
    # Before the ledger is made: a wrong gate must not leave a file.
    gate = gate_for(
        options.gate,
        lambda: comparer_for(options.agreement),
        threshold=options.agreement_threshold,
        min_margin=options.min_margin,
    )
    connections = sum(teacher.concurrency or options.concurrency for teacher in teachers)
    async with AsyncExitStack() as opened:
        ledger = LedgerThread(options.ledger)
        opened.callback(ledger.close)
        client = TeacherClient(timeout=options.timeout, connections=connections)
        opened.push_async_callback(lambda: asyncio.shield(client.close()))
        replay = Replay(teachers, options, client, ledger, gate, on_result=on_result, stop=stop)
        opened.push_async_callback(replay.close)
        yield replay


@dataclass
class _Running:
    """A trace in progress. By teacher: what it has seen of the prompts, and whether its first call has ended."""

    reader: AnswerReader
    known: defaultdict[str, KnownPrompts] = field(default_factory=lambda: defaultdict(KnownPrompts))
    first: dict[str, asyncio.Event] = field(default_factory=dict)


class _NotAsked(Enum):
    """The reason for a missing row."""

    NO_ROOM = "the cap"
    STOPPED = "the run is to end"


class Replay:
    """Replays traces; `report` has the figures, also of a stopped run, and the balance after `close`."""

    def __init__(
        self,
        teachers: Sequence[RemoteTeacher],
        options: ReplayOptions,
        client: TeacherClient,
        ledger: LedgerThread,
        gate: StepGate | None,
        *,
        on_result: Callable[[TeacherCallResult], None] | None = None,
        stop: asyncio.Event | None = None,
    ) -> None:
        self.report = ReplayReport()
        self._teachers = list(teachers)
        self._options = options
        self._ledger = ledger
        self._on_result = on_result
        self._stop = stop or asyncio.Event()
        rules = CallRules(
            cap=cap_of(options.max_total_usd),
            budget=options.budget,
            max_retries=options.max_retries,
            backoff=options.backoff,
        )
        self._caller = Caller(client, ledger, rules, self._stop)
        self._gate = gate
        self._gated_by = None
        if options.gate == "sequential":
            self._gated_by = gate_settings(options.agreement, options.agreement_threshold, options.min_margin)
        limits = {teacher.slug: teacher.concurrency or options.concurrency for teacher in teachers}
        self._slots = {slug: asyncio.Semaphore(limit) for slug, limit in limits.items()}
        self._all_slots = asyncio.Semaphore(options.total_concurrency or sum(limits.values()))
        self._windows = Windows(sum(limits.values()))
        self._failures_in_a_row: Counter[str] = Counter()
        self._runs: list[AsyncGenerator[list[TeacherRow], None]] = []
        self._tasks: set[asyncio.Task[list[TeacherRow]]] = set()

    def run(self, traces: Iterable[TraceToReplay]) -> AsyncGenerator[list[TeacherRow], None]:
        """Yield the rows of each trace as it finishes; only a few traces are in memory at once.

        A step that `stop` interrupted has no rows, as half of the votes would be a wrong result; its answers are in the
        ledger.
        """
        self._runs.append(self._run(traces))
        return self._runs[-1]

    async def close(self) -> None:
        """Cancel what still runs, as after a loop that was left early, and take the balance."""
        await _cancel(self._tasks)
        for run in self._runs:
            with suppress(RuntimeError):  # somebody is still waiting for its rows, and learns that it has ended
                await run.aclose()
        self.report.balance = await self._ledger.do(self._ledger.ledger.balance, self._options.budget)

    async def _run(self, traces: Iterable[TraceToReplay]) -> AsyncGenerator[list[TeacherRow], None]:
        waiting = iter(traces)
        running: set[asyncio.Task[list[TeacherRow]]] = set()
        done: set[asyncio.Task[list[TeacherRow]]] = set()
        try:
            while True:
                while len(running) < _TRACES_AT_ONCE and not self._stop.is_set():
                    trace = next(waiting, None)
                    if trace is None:
                        break
                    task = asyncio.create_task(self._trace(trace))
                    running.add(task)
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
                if not running:
                    break
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    yield task.result()
        finally:
            await _cancel(done | running)
            self.report.stopped = self._stop.is_set()

    async def _trace(self, trace: TraceToReplay) -> list[TeacherRow]:
        teachers = self._teachers_for(trace)
        tools = complete_tools(trace.tools, trace.steps)
        redactor = new_redactor() if self._options.redact else None
        writer = PromptWriter((step.messages for step in trace.steps), tools, redactor, trace.protocol)
        running = _Running(AnswerReader(tools, trace.protocol))
        self.report.traces += 1
        number = self.report.traces
        tasks: list[asyncio.Task[list[TeacherRow]]] = []
        self._windows.open(number)
        try:
            for step in trace.steps:
                await self._windows.enter(number)
                if self._stop.is_set() or any(task.done() and task.exception() for task in tasks):
                    self._windows.leave(number)
                    break
                prompt = writer.prompt(step.messages)
                self.report.states += 1
                tasks.append(asyncio.create_task(self._step(running, step, prompt, teachers)))
                tasks[-1].add_done_callback(lambda _: self._windows.leave(number))
            self._windows.close(number)
            return [row for rows in await asyncio.gather(*tasks) for row in rows]
        finally:
            self._windows.close(number)
            await _cancel(tasks)

    def _teachers_for(self, trace: TraceToReplay) -> list[RemoteTeacher]:
        """Return the teachers of a trace, and record those of its student's family."""
        related = same_family(self._teachers, trace.student_models)
        self.report.same_family.update(related)
        if not self._options.exclude_same_family:
            return self._teachers
        self.report.excluded.extend(slug for slug in related if slug not in self.report.excluded)
        return [teacher for teacher in self._teachers if teacher.slug not in related]

    async def _step(
        self, running: _Running, step: Step, prompt: Prompt, teachers: Sequence[RemoteTeacher]
    ) -> list[TeacherRow]:
        if self._gate is None:
            calls = [asyncio.create_task(self._ask(running, step, prompt, teacher)) for teacher in teachers]
            try:
                came = dict(zip((teacher.slug for teacher in teachers), await asyncio.gather(*calls), strict=True))
            finally:
                await _cancel(calls)
        else:
            came = await self._one_by_one(running, step, prompt, cheapest_first(teachers), self._gate)
        if _NotAsked.STOPPED in came.values():
            return []
        rows = (came.get(teacher.slug) for teacher in teachers)
        return [row for row in rows if row is not None and not isinstance(row, _NotAsked)]

    async def _one_by_one(
        self, running: _Running, step: Step, prompt: Prompt, teachers: Sequence[RemoteTeacher], gate: StepGate
    ) -> dict[str, TeacherRow | _NotAsked]:
        came: dict[str, TeacherRow | _NotAsked] = {}
        for index, teacher in enumerate(teachers):
            remaining = teachers[index:]
            rows = [row for row in came.values() if not isinstance(row, _NotAsked)]
            opened = gate(step, rows, [one.slug for one in remaining])
            if not (await opened if inspect.isawaitable(opened) else opened):
                for one in remaining:
                    self.report.count_gated(one, prompt, self._options.expected_output_tokens)
                break
            came[teacher.slug] = await self._ask(running, step, prompt, teacher)
            if came[teacher.slug] is _NotAsked.STOPPED:
                break
        return came

    async def _ask(
        self, running: _Running, step: Step, prompt: Prompt, teacher: RemoteTeacher
    ) -> TeacherRow | _NotAsked:
        """Return the row of a call, or why it was not made."""
        async with self._in_turn(running, teacher):
            called = await self._called(teacher, prompt, running.known[teacher.slug])
        reading = None if called.answer is None else running.reader.read(called.answer, teacher.max_output_tokens)
        self.report.count(teacher, called, reading)
        self._watch(teacher, called)
        if called.stopped:
            return _NotAsked.STOPPED
        if called.no_room:
            return _NotAsked.NO_ROOM
        row = _row(step, teacher, called, reading, self._gated_by)
        if self._on_result is not None:
            self._on_result(row.result())
        return row

    async def _called(self, teacher: RemoteTeacher, prompt: Prompt, known: KnownPrompts) -> Called:
        if self._stop.is_set():
            return Called(stopped=True)
        left_alone = self.report.use(teacher).left_alone
        if left_alone is None:
            return await self._caller.call(teacher, prompt, known)
        return await self._caller.stored(teacher, prompt) or Called(error=f"not asked: {left_alone}")

    @asynccontextmanager
    async def _in_turn(self, running: _Running, teacher: RemoteTeacher) -> AsyncIterator[None]:
        """Wait for the trace's first call to this teacher, which fills its prompt cache, and for a free slot."""
        first = running.first.get(teacher.slug)
        if first is None:
            running.first[teacher.slug] = asyncio.Event()
        else:
            await first.wait()
        try:
            async with self._slots[teacher.slug], self._all_slots:
                yield
        finally:
            running.first[teacher.slug].set()

    def _watch(self, teacher: RemoteTeacher, called: Called) -> None:
        """Give up a teacher that can only fail."""
        use = self.report.use(teacher)
        if called.too_long:  # it would answer another prompt
            return
        if called.error is None:
            self._failures_in_a_row[teacher.slug] = 0
            return
        self._failures_in_a_row[teacher.slug] += 1
        many = self._failures_in_a_row[teacher.slug]
        if use.left_alone is None and (called.hopeless or many >= self._options.give_up_after):
            use.left_alone = (
                called.error if called.hopeless else f"{many} calls in a row failed, the last: {called.error}"
            )


def _row(
    step: Step, teacher: RemoteTeacher, called: Called, reading: Reading | None, gated_by: GateSettings | None
) -> TeacherRow:
    answer = called.answer or _NO_ANSWER
    return TeacherRow(
        state_id=step.state_id,
        teacher_slug=teacher.slug,
        turn=None if reading is None else reading.turn,
        latency_s=answer.latency,
        prompt_tokens=answer.tokens.prompt,
        completion_tokens=answer.tokens.completion,
        cost_usd=to_usd(answer.cost),
        error=called.error if reading is None else reading.problem,
        cached_tokens=answer.tokens.cached,
        stored=called.stored,
        gated_by=gated_by,
    )


def cheapest_first(teachers: Sequence[RemoteTeacher]) -> list[RemoteTeacher]:
    """Return the order in which a gate asks."""
    # Prompts are much longer than answers.
    return sorted(teachers, key=lambda teacher: teacher.price.worst_case(20, 1))


async def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks; errors of finished ones are known, or follow from the cancellation."""
    listed = list(tasks)
    for task in listed:
        task.cancel()
    await asyncio.gather(*listed, return_exceptions=True)


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
