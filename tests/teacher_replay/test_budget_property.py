"""The cap by the provider's own meter: never passed, whatever prices, latencies, failures and numbers of calls are."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from teacher_replay.metered_replays import growing_states, read_ledger, spec_of

from composer_replication.teacher_replay.ledger import Answer, Attempt, Ledger, NoRoom
from composer_replication.teacher_replay.prices import Tokens
from composer_replication.teacher_replay.records import TeacherCallResult
from composer_replication.teacher_replay.replay import replay_trace

# isort: split
from metered_billing import Teacher
from metered_server import MeteredServer
from misbehaviour import KINDS, Chances

# Everything that ends by itself.
FAILURES = sorted(set(KINDS) - {"hang", "hang_after_billing", "swallowed", "slow_headers", "slow_body", "message"})
SETTINGS = {"huge": {"size": 10_000}}

# Dollars per million tokens, with and without digits beyond a nano-dollar per token.
prices = st.integers(0, 30_000).map(lambda thousandths: thousandths / 1000) | st.sampled_from(
    [0.0675, 1 / 3, 1e-5, 75.0]
)
teachers = st.builds(
    Teacher,
    input_per_mtok=prices,
    output_per_mtok=prices,
    cached_per_mtok=st.none() | prices,
    cache_write_per_mtok=st.none() | prices,
    cache=st.sampled_from(["automatic", "explicit", "none"]),
    cache_minimum=st.sampled_from([16, 256, 1024]),
    cache_unit=st.sampled_from([1, 128]),
    bytes_per_token=st.sampled_from([1.0, 2.5, 4.0]),
    message_tokens=st.integers(0, 12),
    thinking_tokens=st.sampled_from([0, 20, 500]),
    latency=st.sampled_from([0.0, 0.001, 0.005]),
    latency_spread=st.sampled_from([0.0, 1.0]),
    reports_cost=st.booleans(),
)


@dataclass(frozen=True)
class Scenario:
    """`cap` is a part of what every call may cost at most, in all. `sharing` replays use one ledger at once."""

    teachers: list[Teacher]
    states: int
    letters: int
    cap: float
    concurrency: int
    total_concurrency: int | None
    max_output_tokens: int
    failures: dict[str, float]
    sharing: int
    gate: str
    seed: int


scenarios = st.builds(
    Scenario,
    teachers=st.lists(teachers, min_size=1, max_size=3),
    states=st.integers(1, 7),
    letters=st.sampled_from([30, 300, 3000]),
    cap=st.floats(0, 0.5) | st.just(2.0),
    concurrency=st.integers(1, 5),
    total_concurrency=st.none() | st.integers(1, 3),
    max_output_tokens=st.sampled_from([1, 40, 300]),
    failures=st.dictionaries(st.sampled_from(FAILURES), st.sampled_from([0.05, 0.15]), max_size=5),
    sharing=st.integers(1, 2),
    gate=st.sampled_from(["none", "sequential"]),
    seed=st.integers(0, 2**20),
)


def replays(scenario: Scenario, server: MeteredServer, ledger: Path, cap: int) -> list[list[TeacherCallResult]]:
    states = growing_states(scenario.states, letters=scenario.letters)
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
            *(replay_trace(states, specs, cap / 10**9, **options) for _ in range(scenario.sharing))
        )

    return asyncio.run(at_once())


def worst_cases(scenario: Scenario) -> int:
    """Nano-dollars, about: every state with every teacher, a byte a token, at the dearest price."""
    size = sum(
        len(message["content"])
        for state in growing_states(scenario.states, letters=scenario.letters)
        for message in state["messages"]
    )
    dearest = [
        max(one.input_per_mtok, one.cached_per_mtok or 0, one.cache_write_per_mtok or 0) for one in scenario.teachers
    ]
    outputs = [scenario.states * scenario.max_output_tokens * one.output_per_mtok for one in scenario.teachers]
    return int(1000 * (sum(dearest) * (size + 1024 * scenario.states) + sum(outputs)))


@given(scenarios)
def test_the_meter_never_passes_the_cap(scenario: Scenario) -> None:
    cap = int(scenario.cap * worst_cases(scenario))
    served = {f"m{number}": teacher for number, teacher in enumerate(scenario.teachers)}
    chances = Chances(scenario.failures, seed=scenario.seed, settings=SETTINGS)
    with (
        tempfile.TemporaryDirectory() as folder,
        MeteredServer(served, script=chances, seed=scenario.seed) as server,
    ):
        ledger = Path(folder) / "ledger.sqlite"
        for _ in range(2):  # the second run has what the first one answered, and the rest of the money
            rows = replays(scenario, server, ledger, cap)
            server.wait_until_left()
            found = read_ledger(ledger, Path(folder) / "copy")
            charged = sum(found.charged.values())
            assert server.meter.spent <= min(charged, cap)
            if not any(kind.startswith("usage") for kind in scenario.failures):
                assert charged <= cap  # a teacher that says it billed more is believed
            assert charged == sum(charge for *_, charge in found.attempts)
            assert found.in_state("open") == 0
            asked = {question: count.asked for question, count in server.meter.counts.items()}
            if not scenario.failures:
                assert set(asked.values()) <= {1}
                assert found.in_state("doubt") == 0
            if not scenario.failures and scenario.cap > 1 and scenario.gate == "none":
                assert [len(some) for some in rows] == [scenario.states * len(served)] * scenario.sharing
            assert all(asked.get(question, 0) >= 1 for question in found.stored)
        assert server.meter.broken == []


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
