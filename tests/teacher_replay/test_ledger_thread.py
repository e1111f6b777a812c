from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from composer_replication.teacher_replay.calls import LedgerThread
from composer_replication.teacher_replay.ledger import Answer, Attempt, Ledger, LedgerError, StoredAnswers
from composer_replication.teacher_replay.prices import Tokens, cap_of, to_nano
from composer_replication.traces import Turn

CALLS = 12


class Held:
    """A ledger's thread that is kept busy, so that what is handed over meanwhile waits; `sql` is what it executes."""

    def __init__(self, path: Path) -> None:
        self.thread = LedgerThread(path)
        self.sql: list[str] = []
        self.before_commit: Callable[[], None] = lambda: None

    async def together(self, *work: Any) -> list[Any]:
        """Hand over all of this while the thread is busy with something else; exceptions are results too."""
        await self.thread.do(lambda: self.thread.ledger._db.set_trace_callback(self._executes))
        started, go = threading.Event(), threading.Event()

        def wait() -> None:
            started.set()
            go.wait()

        busy = asyncio.create_task(self.thread.do(wait))
        await asyncio.to_thread(started.wait)
        tasks = [asyncio.create_task(one) for one in work]
        try:
            for _ in range(4):
                await asyncio.sleep(0)  # all tasks hand over what they want
            assert len(self.thread._waiting) == len(work)
        finally:
            go.set()
        await busy
        return await asyncio.gather(*tasks, return_exceptions=True)

    def begin(self, number: int) -> Any:
        return self.thread.begin(f"key {number}", "t", 5, cap=1_000, budget="b")

    def _executes(self, statement: str) -> None:
        self.sql.append(statement)
        if statement == "COMMIT":
            self.before_commit()


@pytest.fixture
def held(ledger: Path) -> Any:
    held = Held(ledger)
    yield held
    held.thread.close()


def test_what_waits_is_one_transaction(held: Held) -> None:
    begun = asyncio.run(held.together(*map(held.begin, range(CALLS))))
    assert [one.key for one in begun] == [f"key {number}" for number in range(CALLS)]
    assert [one.id for one in begun] == sorted(one.id for one in begun)
    assert held.sql.count("COMMIT") == held.sql.count("BEGIN IMMEDIATE") == 1
    assert sum(statement.startswith("INSERT INTO attempts") for statement in held.sql) == CALLS


def test_a_result_is_on_the_disk_before_anybody_has_it(held: Held, ledger: Path) -> None:
    seen: list[Any] = []
    early: list[int] = []

    async def begin(number: int) -> None:
        seen.append(await held.begin(number))

    async def run() -> None:
        loop = asyncio.get_running_loop()

        async def a_few_turns() -> None:
            for _ in range(5):
                await asyncio.sleep(0)

        def before_commit() -> None:
            asyncio.run_coroutine_threadsafe(a_few_turns(), loop).result()
            early.append(len(seen))

        held.before_commit = before_commit
        await held.together(*map(begin, range(CALLS)))

    asyncio.run(run())
    assert early == [0]
    assert len(seen) == CALLS
    with sqlite3.connect(ledger) as other:
        assert other.execute("SELECT COUNT(*), SUM(charge) FROM attempts").fetchone() == (CALLS, 5 * CALLS)


def test_one_that_fails_takes_nothing_from_the_others(held: Held, ledger: Path) -> None:
    settle = held.thread.ledger.settle
    nobody = Attempt(99, "key 99")
    answer = Answer(Turn("assistant", "text"), "stop", Tokens(1, 1), 3, 0.1)

    async def run() -> list[Any]:
        begun = await held.thread.begin("key 7", "t", 5, cap=1_000, budget="b")
        settled = held.thread.do(settle, begun, "t", answer, 5)
        failing = held.thread.do(settle, nobody, "t", answer, 5)
        return await held.together(held.begin(0), settled, failing, held.begin(1))

    first, settled, failed, second = asyncio.run(run())
    assert isinstance(first, Attempt)
    assert isinstance(second, Attempt)
    assert settled is None
    assert isinstance(failed, TypeError)
    held.thread.close()
    with Ledger(ledger) as reopened:
        assert reopened.answer("key 7") == answer
        assert reopened.answer("key 99") is None
        assert reopened.charged("b") == 3 + 5 + 5
    held.thread = LedgerThread(None)  # for the fixture to close


def test_a_group_that_only_reads_locks_nobody_out(held: Held) -> None:
    answer = Answer(Turn("assistant", "text"), "stop", Tokens(1, 1), 3, 0.1)

    async def run() -> list[Any]:
        begun = await held.begin(0)
        await held.thread.do(held.thread.ledger.settle, begun, "t", answer, 5)
        return await held.together(held.begin(0), held.begin(0))

    assert asyncio.run(run()) == [answer, answer]
    assert "BEGIN IMMEDIATE" not in held.sql


def test_a_call_that_is_cancelled_while_it_waits_is_given_back(held: Held) -> None:
    async def cancelled() -> None:
        task = asyncio.create_task(held.begin(1))
        await asyncio.sleep(0)
        task.cancel()
        await task

    first, second, third = asyncio.run(held.together(held.begin(0), cancelled(), held.begin(2)))
    assert isinstance(first, Attempt)
    assert isinstance(second, asyncio.CancelledError)
    assert isinstance(third, Attempt)
    assert asyncio.run(held.thread.do(held.thread.ledger.charged, "b")) == 5 + 5


def test_a_ledger_without_its_tables_is_named_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    Ledger(path).close()
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE attempts")
    with pytest.raises(LedgerError, match=r"ledger\.sqlite cannot be used as a replay ledger"):
        Ledger(path)
    assert list((tmp_path / "ledger.sqlite-owners").iterdir()) == []
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE answers")
    with pytest.raises(LedgerError, match=r"ledger\.sqlite cannot be used"):
        StoredAnswers(path)


def test_a_damaged_answer_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with Ledger(path) as ledger:
        attempt = ledger.begin("key", "a", 5, cap=9, budget="replay")
        assert isinstance(attempt, Attempt)
        ledger.settle(attempt, "a", Answer(Turn("assistant", "x"), "stop", Tokens(), 1, 0.1), 5)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE answers SET turn = CAST('{\"role\"' AS BLOB)")
    with Ledger(path) as ledger, pytest.raises(LedgerError, match=r"ledger\.sqlite: the answer key is damaged"):
        ledger.answer("key")


def test_a_cap_is_rounded_down_and_a_cost_up() -> None:
    assert (cap_of(0.0000000019), to_nano(0.0000000019)) == (1, 2)
