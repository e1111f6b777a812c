"""Windows: so many states under way, shared evenly, and nobody waits for ever."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.teacher_replay.schedule import Windows


async def settle() -> None:
    """Let every task go on until all of them wait for something."""
    for _ in range(20):
        await asyncio.sleep(0)


class Traffic:
    """Traces that begin their states as fast as they may; states end when they are told to."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.windows = Windows(size)
        self.inside: Counter[int] = Counter()
        self.begun: Counter[int] = Counter()
        self.under_way: list[int] = []

    async def trace(self, number: int, states: int) -> None:
        self.windows.open(number)
        for _ in range(states):
            await self.windows.enter(number)
            self.inside[number] += 1
            self.begun[number] += 1
            self.under_way.append(number)
            assert self.inside.total() <= self.size
        self.windows.close(number)

    def end_one(self, number: int) -> None:
        self.inside[number] -= 1
        self.under_way.remove(number)
        self.windows.leave(number)


def test_a_trace_that_is_alone_has_the_whole_window() -> None:
    async def alone() -> None:
        traffic = Traffic(5)
        task = asyncio.create_task(traffic.trace(0, 12))
        await settle()
        assert traffic.inside == {0: 5}
        traffic.end_one(0)
        await settle()
        assert (traffic.inside[0], traffic.begun[0]) == (5, 6)
        task.cancel()

    asyncio.run(alone())


@pytest.mark.parametrize(("size", "traces", "share"), [(12, 3, 4), (10, 3, 4), (2, 2, 1), (1, 1, 1)])
def test_traces_that_are_open_share_evenly(size: int, traces: int, share: int) -> None:
    async def together() -> None:
        traffic = Traffic(size)
        for number in range(traces):
            traffic.windows.open(number)
        tasks = [asyncio.create_task(traffic.trace(number, 50)) for number in range(traces)]
        await settle()
        assert traffic.inside.total() == size
        assert max(traffic.inside.values()) == share
        assert min(traffic.inside.values()) >= size // traces - 1
        for task in tasks:
            task.cancel()

    asyncio.run(together())


def test_what_a_trace_that_has_ended_leaves_is_taken_up() -> None:
    async def last_one() -> None:
        traffic = Traffic(6)
        for number in range(2):
            traffic.windows.open(number)
        tasks = [asyncio.create_task(traffic.trace(number, states)) for number, states in ((0, 3), (1, 50))]
        await settle()
        assert traffic.inside == {0: 3, 1: 3}  # the first has no more to begin, but its states are under way
        traffic.end_one(0)
        await settle()
        assert traffic.inside == {0: 2, 1: 4}
        tasks[1].cancel()

    asyncio.run(last_one())


def test_when_a_trace_begins_its_last_state_the_others_share_what_it_leaves() -> None:
    async def last_state() -> None:
        traffic = Traffic(6)
        for number in range(2):
            traffic.windows.open(number)
        long = asyncio.create_task(traffic.trace(1, 50))
        await settle()
        assert traffic.inside == {1: 3}
        await traffic.trace(0, 1)
        await settle()
        assert traffic.inside == {0: 1, 1: 5}
        long.cancel()

    asyncio.run(last_state())


def test_a_late_trace_gets_its_share_as_places_become_free() -> None:
    async def late() -> None:
        traffic = Traffic(4)
        tasks = [asyncio.create_task(traffic.trace(0, 50))]
        await settle()
        tasks.append(asyncio.create_task(traffic.trace(1, 50)))
        await settle()
        assert traffic.inside == {0: 4}
        for shares in ({0: 3, 1: 1}, {0: 2, 1: 2}):
            traffic.end_one(0)
            await settle()
            assert traffic.inside == shares
        traffic.end_one(0)
        await settle()
        assert traffic.inside == {0: 2, 1: 2}
        for task in tasks:
            task.cancel()

    asyncio.run(late())


def test_with_fewer_places_than_traces_they_take_turns() -> None:
    async def turns() -> None:
        traffic = Traffic(2)
        for number in range(6):
            traffic.windows.open(number)
        tasks = [asyncio.create_task(traffic.trace(number, 50)) for number in range(6)]
        for _ in range(60):
            await settle()
            traffic.end_one(traffic.under_way[0])
        assert min(traffic.begun.values()) >= 8
        for task in tasks:
            task.cancel()

    asyncio.run(turns())


@pytest.mark.parametrize("moment", ["while it waits", "as a place becomes free", "when it has a place"])
def test_a_trace_that_is_cancelled_holds_no_place(moment: str) -> None:
    async def cancelled() -> None:
        traffic = Traffic(1)
        await traffic.trace(0, 1)
        waiting = asyncio.create_task(traffic.windows.enter(1))
        await settle()
        if moment == "when it has a place":
            traffic.end_one(0)  # the place is given, but the trace has not gone on yet
            waiting.cancel()
        else:
            waiting.cancel()
            if moment == "while it waits":
                await settle()
            traffic.end_one(0)
        await settle()
        assert waiting.cancelled()
        await asyncio.wait_for(traffic.windows.enter(2), 10)

    asyncio.run(cancelled())


@given(
    size=st.integers(1, 9),
    traces=st.lists(st.integers(0, 9), min_size=1, max_size=7),
    order=st.lists(st.integers(0, 10**6), min_size=80, max_size=80),
)
def test_every_state_has_its_turn_and_no_window_is_too_large(size: int, traces: list[int], order: list[int]) -> None:
    async def all_of_them() -> Traffic:
        traffic = Traffic(size)
        tasks = [asyncio.create_task(traffic.trace(number, states)) for number, states in enumerate(traces)]
        await settle()
        for pick in order:
            waiting = sum(not task.done() for task in tasks)
            under_way = sorted(+traffic.inside)
            if not under_way:
                break
            # Whoever waits does so because all places are taken, or because it has its share.
            share = -(-size // max(1, waiting))
            if waiting and traffic.inside.total() < size:
                unfinished = [number for number, task in enumerate(tasks) if not task.done()]
                assert all(traffic.inside[number] >= share for number in unfinished)
            traffic.end_one(under_way[pick % len(under_way)])
            await settle()
        await asyncio.gather(*tasks)
        return traffic

    traffic = asyncio.run(all_of_them())
    assert [traffic.begun[number] for number in range(len(traces))] == traces
    assert not +traffic.inside
