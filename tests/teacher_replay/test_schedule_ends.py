"""Ends of a replay: stopped, cancelled, closed or failed, nothing that was paid is lost."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from teacher_replay.loopback_teacher import (
    Asked,
    Held,
    LoopbackTeachers,
    Refusal,
    Said,
    Whole,
    echo,
    states_of,
    to_replay,
)
from teacher_replay.replays import OPTIONS, PRICES, balance, numbered, opened, replayed, report_of

from composer_replication.teacher_replay.ledger import Ledger
from composer_replication.teacher_replay.records import TeacherCallResult
from composer_replication.teacher_replay.replay_files import TraceToReplay
from composer_replication.teacher_replay.replay_report import ReplayReport
from composer_replication.teacher_replay.schedule import Replay, replay_trace


async def until_held(server: LoopbackTeachers, in_flight: int) -> None:
    await asyncio.to_thread(server.wait_until, lambda: server.in_flight == in_flight)


def test_a_stopped_replay_waits_for_what_is_under_way_and_begins_no_more(
    server: LoopbackTeachers, ledger: Path
) -> None:
    held = server.answer = Held(let_first=3)
    specs = [server.spec("a")]
    options = {"ledger": ledger, "concurrency": 2}
    states = numbered(20)

    async def run() -> tuple[ReplayReport, list[TeacherCallResult]]:
        stop = asyncio.Event()
        rows: list[TeacherCallResult] = []
        async with opened(specs, stop=stop, **options) as replay:

            async def read() -> None:
                traces = [to_replay("t", states), *(to_replay(str(n), states_of(f"of {n}")) for n in range(12))]
                async for some in replay.run(traces):
                    rows.extend(row.result() for row in some)

            reading = asyncio.create_task(read())
            await until_held(server, 2)
            stop.set()
            held.go.set()
            await reading
        return replay.report, rows

    report, rows = asyncio.run(run())
    answered = len(server.asked)
    assert report.stopped
    assert report.traces < 13
    assert report.states < 20
    assert (
        report.teachers["a"].answered == answered == len({row["state_id"] + str(row["response_text"]) for row in rows})
    )
    assert all(row["error"] is None for row in rows)
    assert 5 <= answered < 20
    assert (balance(ledger).answered, balance(ledger).in_doubt) == (answered, 0)
    again = replayed(states, specs, **options)
    assert [row["response_text"] for row in again] == [f"a on question {number}" for number in range(20)]
    asked = Counter(one.text for one in server.asked)
    assert max(asked.values()) == 1


def test_a_state_that_is_stopped_half_way_has_no_rows_but_its_answer_is_kept(
    server: LoopbackTeachers, ledger: Path
) -> None:
    held = server.answer = Held(let_first=0)
    specs = [server.spec(name, input_per_mtok=cost, output_per_mtok=1) for cost, name in enumerate("abc")]
    # With the student's own action from the first, the third could not matter any more without the second.
    states = states_of("question", student="a on question")
    options = {"gate": "sequential", "ledger": ledger, "max_total_usd": 1.0}

    async def run() -> list[list[TeacherCallResult]]:
        stop = asyncio.Event()
        async with opened(specs, stop=stop, **options) as replay:
            reading = asyncio.ensure_future(anext(replay.run([to_replay("t", states)])))
            await until_held(server, 1)
            stop.set()
            held.go.set()
            rows = [await reading]
        figures = replay.report.as_dict()
        assert (figures["calls"], figures["not_asked_by_gate"], figures["failed"]) == (1, 0, 0)
        return rows

    assert asyncio.run(run()) == [[]]
    assert balance(ledger).answered == 1
    assert [asked.model for asked in server.asked] == ["a"]


def test_a_stop_does_not_wait_for_pauses(server: LoopbackTeachers) -> None:
    server.answer = lambda _: Refusal(429, "slow down", {"Retry-After": "250"})

    async def run() -> ReplayReport:
        stop = asyncio.Event()
        async with opened([server.spec("a")], stop=stop) as replay:
            reading = asyncio.ensure_future(anext(replay.run([to_replay("t", numbered(3))])))
            await asyncio.to_thread(server.wait_until, lambda: len(server.asked) == 1 and server.in_flight == 0)
            stop.set()
            assert await reading == []
        return replay.report

    report = asyncio.run(asyncio.wait_for(run(), 60))
    assert len(server.asked) == 1
    assert report.stopped


def test_a_cancelled_replay_leaves_what_is_under_way_in_doubt_and_nothing_else(
    server: LoopbackTeachers, ledger: Path
) -> None:
    held = server.answer = Held(let_first=4)
    specs = [server.spec("a", **PRICES)]
    options: dict[str, Any] = {"ledger": ledger, "concurrency": 3, "max_total_usd": 1.0}
    states = numbered(10)

    async def run() -> None:
        replaying = asyncio.create_task(replay_trace(states, specs, **OPTIONS, **options))
        await until_held(server, 3)
        replaying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(replaying, 60)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())
    assert threads() == []
    assert len(server.asked) == 7
    after = balance(ledger)
    assert (after.answered, after.in_doubt, after.in_flight) == (4, 3, 0)
    assert after.in_doubt_reserved > 0
    held.go.set()
    rows = replayed(states, specs, **options)
    assert [row["response_text"] for row in rows] == [f"a on question {number}" for number in range(10)]
    asked = Counter(one.text for one in server.asked)
    assert sorted(asked.values()) == [1] * 7 + [2] * 3
    assert (balance(ledger).answered, balance(ledger).repeated) == (10, 3)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("ledger")]


def test_a_listener_that_fails_ends_the_replay_and_the_ledger_is_closed(
    server: LoopbackTeachers, ledger: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def third_fails(row: TeacherCallResult) -> None:
        heard.append(row)
        if len(heard) >= 3:
            raise RuntimeError("the listener has had enough")

    heard: list[TeacherCallResult] = []
    with pytest.raises(RuntimeError, match="the listener has had enough"):
        replayed(
            numbered(40), [server.spec("a"), server.spec("b")], ledger=ledger, on_result=third_fails, concurrency=2
        )
    assert threads() == []
    after = balance(ledger)
    assert after.in_flight == 0
    assert after.answered >= 3
    assert len(server.asked) < 24  # states that had not begun do not begin any more
    assert "never retrieved" not in caplog.text
    # What was stored is not asked again.
    texts = {(asked.model, asked.text) for asked in server.asked}
    replayed(numbered(40), [server.spec("a"), server.spec("b")], ledger=ledger)
    assert len(server.asked) == 80 + len(texts) - after.answered


def test_a_loop_that_is_left_early_ends_its_calls(
    server: LoopbackTeachers, ledger: Path, caplog: pytest.LogCaptureFixture
) -> None:
    held = server.answer = Held(let_first=1)

    async def run() -> Replay:
        async with opened([server.spec("a")], ledger=ledger) as replay:
            async for _ in replay.run([to_replay(str(n), states_of(f"of {n}")) for n in range(4)]):
                await until_held(server, 3)
                break
        assert len(asyncio.all_tasks()) == 1
        return replay

    replay = asyncio.run(run())
    held.go.set()
    assert replay.report.balance is not None
    assert (replay.report.balance.answered, replay.report.balance.in_doubt) == (1, 3)
    assert (balance(ledger).answered, balance(ledger).in_doubt) == (1, 3)
    assert caplog.text == ""


def test_a_replay_that_is_closed_ends_whoever_still_reads(server: LoopbackTeachers, ledger: Path) -> None:
    held = server.answer = Held(let_first=1)

    async def run() -> None:
        async with opened([server.spec("a")], ledger=ledger) as replay:
            reading = asyncio.ensure_future(anext(replay.run([to_replay("t", numbered(3))])))
            await until_held(server, 2)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(reading, 60)

    asyncio.run(run())
    held.go.set()
    assert (balance(ledger).answered, balance(ledger).in_doubt) == (1, 2)


def test_a_trace_that_cannot_be_read_ends_the_replay_and_keeps_the_answers(
    server: LoopbackTeachers, ledger: Path
) -> None:
    def traces() -> Iterator[TraceToReplay]:
        yield from (to_replay(str(number), states_of(f"of {number}")) for number in range(9))
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        report_of(traces(), [server.spec("a")], ledger=ledger)
    after = balance(ledger)
    # What was cut off on its way may never have arrived, and is in doubt all the same.
    assert 1 <= after.answered <= len(server.asked) <= after.answered + after.in_doubt


def test_a_proxy_of_the_environment_is_not_asked_for_teachers_on_this_machine(
    server: LoopbackTeachers, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    (row,) = replayed(states_of("a"), [server.spec("one")], max_retries=0)
    assert row["error"] is None


def test_a_stored_answer_is_given_while_its_endpoint_wants_to_be_left_alone(ledger: Path) -> None:

    def answer(asked: Asked) -> Said:
        return echo(asked) if asked.text == "a" else Refusal(429, headers={"Retry-After": "100000"})

    with LoopbackTeachers(answer) as server:
        specs = [server.spec("one", concurrency=1)]
        asyncio.run(replay_trace(states_of("a"), specs, ledger=ledger))
        rows = asyncio.run(replay_trace(states_of("b", "a")[:1] + states_of("a"), specs, ledger=ledger))
    assert [row["error"] is None for row in rows] == [False, True]
    assert rows[1]["stored"]


def test_a_failure_that_says_what_it_used_is_charged_for_that(ledger: Path) -> None:
    used = {"choices": [], "usage": {"prompt_tokens": 40, "completion_tokens": 3}}
    with LoopbackTeachers(lambda _: Whole(used)) as server:
        spec = server.spec("one", input_per_mtok=1, output_per_mtok=10)
        (row,) = asyncio.run(replay_trace(states_of("a"), [spec], ledger=ledger, gate="none"))
    assert row["error"] == "the endpoint answered without a message"
    with Ledger(ledger) as opened:
        assert opened.charged("replay") == 40 * 1000 + 3 * 10_000
