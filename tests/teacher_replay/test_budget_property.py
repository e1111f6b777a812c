"""The cap by the provider's own meter: never passed, whatever prices, latencies, failures and numbers of calls are."""

from __future__ import annotations

import asyncio
import random
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from teacher_replay.metered_replays import growing_states, read_ledger, spec_of

from composer_replication.teacher_replay.ledger import Answer, Attempt, Ledger, NoRoom
from composer_replication.teacher_replay.prices import Tokens
from composer_replication.teacher_replay.records import TeacherCallResult
from composer_replication.teacher_replay.schedule import replay_trace
from composer_replication.traces import TraceState

# isort: split
from metered_billing import Teacher
from metered_server import MeteredServer
from misbehaviour import KINDS, Chances
from usage_dialects import DIALECTS

# Everything that ends by itself.
FAILURES = sorted(set(KINDS) - {"hang", "hang_after_billing", "swallowed", "slow_headers", "slow_body", "message"})
SETTINGS = {"huge": {"size": 10_000}}
# These count every kind of token once, so nothing is charged that was not billed.
EXACT = ("openrouter", "openrouter_cost")


@dataclass(frozen=True)
class Scenario:
    """`cap` is in nano-dollars; `sharing` replays use one ledger at once."""

    teachers: list[Teacher]
    states: list[TraceState] = field(repr=False)
    cap: int
    concurrency: int
    total_concurrency: int | None
    max_output_tokens: int
    failures: dict[str, float]
    sharing: int
    gate: str
    seed: int


def scenario_of(seed: int) -> Scenario:
    """Drawn evenly, so that dear caches, dense tokens and tight caps meet often; Hypothesis prefers what is simple."""
    draw = random.Random(seed)

    def price() -> float:
        # Dollars per million tokens, with and without digits beyond a nano-dollar per token.
        return draw.choice([draw.randrange(30_000) / 1000, 0.0675, 1 / 3, 1e-5, 75.0, 0.0])

    def teacher() -> Teacher:
        return Teacher(
            input_per_mtok=price(),
            output_per_mtok=price(),
            cached_per_mtok=draw.choice([None, price()]),
            cache_write_per_mtok=draw.choice([None, price()]),
            cache=draw.choice(["automatic", "explicit", "none"]),
            cache_minimum=draw.choice([16, 1024]),
            cache_unit=draw.choice([1, 128]),
            bytes_per_token=draw.choice([1.0, 1.0, 1.0, 2.5, 4.0]),
            bytes_per_symbol=draw.choice([None, 1.0]),
            message_tokens=draw.randrange(13),
            thinking_tokens=draw.choice([0, 500, 500]),
            latency=draw.choice([0.0, 0.001, 0.005]),
            latency_spread=draw.choice([0.0, 1.0]),
            dialect=draw.choice(list(DIALECTS)),
        )

    teachers = [teacher() for _ in range(draw.randrange(1, 4))]
    count = draw.randrange(1, 8)
    states = growing_states(count, letters=draw.choice([30, 3000, 10_000]), restart=draw.choice([None, count // 2]))
    max_output_tokens = draw.choice([1, 40, 300])
    each = [[about(one, state, max_output_tokens) for state in states] for one in teachers]
    # Enough for some worst cases and for a part of what will be spent.
    cap = draw.uniform(1.1, 2.0) * max(map(max, each)) + draw.random() * sum(map(sum, each)) / 2
    return Scenario(
        teachers=teachers,
        states=states,
        cap=int(cap * draw.choice([1, 1, 1, 1, 1, 1, 10, 0.1, 0])),
        concurrency=draw.randrange(1, 7),
        total_concurrency=draw.choice([None, None, 1, 3]),
        max_output_tokens=max_output_tokens,
        failures={draw.choice(FAILURES): draw.choice([0.05, 0.15]) for _ in range(draw.choice([0, 0, 2, 5]))},
        sharing=draw.choice([1, 1, 2]),
        gate=draw.choice(["none", "sequential"]),
        seed=seed,
    )


def about(teacher: Teacher, state: TraceState, max_output_tokens: int) -> int:
    """What a call costs at most, more or less: nano-dollars."""
    size = 1024 + sum(len(message["content"]) for message in state["messages"])
    dearest = max(teacher.input_per_mtok, teacher.cached_per_mtok or 0, teacher.cache_write_per_mtok or 0)
    return int(1000 * (dearest * size + teacher.output_per_mtok * max_output_tokens))


def replays(scenario: Scenario, server: MeteredServer, ledger: Path) -> list[list[TeacherCallResult]]:
    specs = [
        spec_of(server, f"m{number}", teacher, max_output_tokens=scenario.max_output_tokens)
        for number, teacher in enumerate(scenario.teachers)
    ]
    options: dict[str, Any] = {
        "ledger": ledger,
        "gate": scenario.gate,
        "agreement": "exact",
        "concurrency": scenario.concurrency,
        "total_concurrency": scenario.total_concurrency,
        "backoff": 0.0,
        "max_retries": 2,
    }

    async def at_once() -> list[list[TeacherCallResult]]:
        return await asyncio.gather(
            *(replay_trace(scenario.states, specs, scenario.cap / 10**9, **options) for _ in range(scenario.sharing))
        )

    return asyncio.run(at_once())


@given(st.integers(0, 2**32).map(scenario_of))
def test_the_meter_never_passes_the_cap(scenario: Scenario) -> None:
    served = {f"m{number}": teacher for number, teacher in enumerate(scenario.teachers)}
    chances = Chances(scenario.failures, seed=scenario.seed, settings=SETTINGS)
    with (
        tempfile.TemporaryDirectory() as folder,
        MeteredServer(served, script=chances, seed=scenario.seed) as server,
    ):
        ledger = Path(folder) / "ledger.sqlite"
        for _ in range(2):  # the second run has what the first one answered, and the rest of the money
            rows = replays(scenario, server, ledger)
            server.wait_until_left()
            found = read_ledger(ledger, Path(folder) / "copy")
            charged = sum(found.charged.values())
            assert server.meter.spent <= min(charged, scenario.cap)
            if not any(kind.startswith("usage") for kind in scenario.failures):
                assert charged <= scenario.cap  # a teacher that says it billed more is believed
            assert charged == sum(charge for *_, charge in found.attempts)
            assert found.in_state("open") == 0
            asked = {question: count.asked for question, count in server.meter.counts.items()}
            assert all(asked.get(question, 0) >= 1 for question in found.stored)
            if not scenario.failures:
                assert set(asked.values()) <= {1}
                if all(teacher.dialect in EXACT for teacher in scenario.teachers):
                    # A price with more digits than a ledger has is rounded up.
                    assert 0 <= charged - server.meter.spent <= server.meter.requests
                assert all(row["error"] is None or "cut at" in row["error"] for some in rows for row in some)
        assert server.meter.broken == []


DENSE = {"bytes_per_token": 1.0, "message_tokens": 12}


@pytest.mark.parametrize(
    "teacher",
    [
        Teacher(input_per_mtok=1, cache_write_per_mtok=30, cache="explicit", **DENSE),
        Teacher(input_per_mtok=1, cached_per_mtok=30, cache="automatic", **DENSE),
        Teacher(input_per_mtok=30, output_per_mtok=1, **DENSE),
        Teacher(output_per_mtok=100, thinking_tokens=10_000, **DENSE),
        Teacher(input_per_mtok=30, bytes_per_token=4.0, bytes_per_symbol=1.0),
    ],
    ids=["writing to the cache is dear", "reading from it is dear", "input", "output", "tokens of other texts"],
)
def test_a_cap_that_is_short_by_a_nano_dollar_is_not_passed(teacher: Teacher, tmp_path: Path) -> None:
    states = growing_states(6, letters=4000, restart=3)

    def bills(cap: int) -> list[int]:
        with MeteredServer({"a": teacher}) as server:
            spec = spec_of(server, "a", teacher, max_output_tokens=2000)
            asyncio.run(replay_trace(states, [spec], cap / 10**9, concurrency=1))
            return [record.billed for record in server.meter.records]

    billed = bills(10**12)
    assert len(billed) == 6
    for count in range(1, 7):
        cap = sum(billed[:count]) - 1
        assert sum(bills(cap)) <= cap


def test_a_call_begins_if_its_worst_case_fits_to_the_nano_dollar() -> None:
    with Ledger() as ledger:
        first = ledger.begin("first", "a", 70, cap=100, budget="b")
        assert isinstance(first, Attempt)
        assert ledger.begin("second", "a", 31, cap=100, budget="b") == NoRoom(charged=70, in_flight=70, in_doubt=0)
        second = ledger.begin("second", "a", 30, cap=100, budget="b")
        assert isinstance(second, Attempt)
        ledger.fail(second, "cut", "maybe")
        ledger.settle(first, "a", Answer("x", "stop", Tokens(1, 1), cost=20, latency=0.1), worst_repeat=60)
        assert ledger.begin("third", "a", 51, cap=100, budget="b") == NoRoom(charged=50, in_flight=0, in_doubt=30)
        assert isinstance(ledger.begin("third", "a", 51, cap=100, budget="another"), Attempt)
        assert isinstance(ledger.begin("fourth", "a", 50, cap=100, budget="b"), Attempt)
        assert isinstance(ledger.begin("fifth", "a", 0, cap=100, budget="b"), Attempt)
