"""Usage reports in all their dialects, what is believed of them, and what a call counts as."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from teacher_replay.metered_replays import growing_states, read_ledger, spec_of

from composer_replication.teacher_replay import replay_trace
from composer_replication.teacher_replay.bills import Reserved, UsageReport, believed, bill, read_usage
from composer_replication.teacher_replay.prices import Price, Tokens
from composer_replication.teacher_replay.prompts import Prompt, PromptWriter, token_bound

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from metered_billing import Teacher
from metered_server import MeteredServer
from usage_dialects import DIALECTS

COUNTS = {"prompt_tokens": 10, "completion_tokens": 2}
# So that what is not counted plays no part.
NO_WRITES = {"cache_write_tokens": 0}
ALL_COUNTED = {"cached_tokens": 0, **NO_WRITES}


def readings(**usage: Any) -> set[Tokens]:
    return set(read_usage(usage).readings)


def billed(**usage: Any) -> float | None:
    return read_usage(usage).cost_usd


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 4, **NO_WRITES}}, Tokens(10, 2, cached=4)),
        ({"prompt_cache_hit_tokens": 4, **NO_WRITES}, Tokens(10, 2, cached=4)),
        ({"prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 3}}, Tokens(10, 2, 4, 3)),
        ({"prompt_tokens_details": ALL_COUNTED, "total_tokens": 12}, Tokens(10, 2)),
        # Of two counts of one thing, the higher one.
        ({"input_tokens": 11, **ALL_COUNTED}, Tokens(11, 2)),
        # Thinking within the completion, and beside it.
        (
            {"completion_tokens_details": {"reasoning_tokens": 2}, "total_tokens": 12, **ALL_COUNTED},
            Tokens(10, 2),
        ),
        (
            {"completion_tokens_details": {"reasoning_tokens": 5}, "total_tokens": 17, **ALL_COUNTED},
            Tokens(10, 7),
        ),
        ({"total_tokens": 17, **ALL_COUNTED}, Tokens(10, 7)),
        # More is cached than the prompt has: it stands beside it.
        ({"cache_read_input_tokens": 20, "cache_creation_input_tokens": 30}, Tokens(60, 2, 20, 30)),
        # The total says that it does.
        ({"cache_read_input_tokens": 4, "cache_creation_input_tokens": 3, "total_tokens": 19}, Tokens(17, 2, 4, 3)),
    ],
)
def test_a_report_with_one_meaning(usage: dict[str, Any], expected: Tokens) -> None:
    assert readings(**COUNTS, **usage) == {expected}


def test_openais_newer_names() -> None:
    details = {"input_tokens_details": {"cached_tokens": 4, **NO_WRITES}}
    assert readings(input_tokens=10, output_tokens=2, **details) == {Tokens(10, 2, cached=4)}


@pytest.mark.parametrize(
    "written",
    [
        "cache_creation_input_tokens",
        "cache_creation_tokens",
        "cached_creation_tokens",
        "prompt_cache_creation_tokens",
    ],
)
def test_what_anthropic_caches_may_stand_beside_the_prompt_or_in_it(written: str) -> None:
    both = {Tokens(10, 2, 4, 3), Tokens(17, 2, 4, 3)}
    assert readings(**COUNTS, cache_read_input_tokens=4, **{written: 3}) == both
    assert readings(**COUNTS, prompt_tokens_details={"cached_tokens": 4, written: 3}, total_tokens=12) == both


def test_writing_to_the_cache_without_reading_from_it() -> None:
    found = readings(input_tokens=6, output_tokens=2, cache_creation_input_tokens=4)
    assert Tokens(10, 2, 0, 4) in found
    assert {one.prompt for one in found} == {6, 10}


def test_writes_that_are_counted_by_how_long_they_last() -> None:
    by_age = {"ephemeral_5m_input_tokens": 2, "ephemeral_1h_input_tokens": 1}
    found = readings(input_tokens=10, output_tokens=2, cache_read_input_tokens=4, cache_creation=by_age)
    assert found == {Tokens(10, 2, 4, 3), Tokens(17, 2, 4, 3)}


def test_whole_numbers_with_a_point_are_whole_numbers() -> None:
    assert readings(prompt_tokens=10.0, completion_tokens=2.0, **ALL_COUNTED) == {Tokens(10, 2)}


@pytest.mark.parametrize("total", [{}, {"total_tokens": 12}])
def test_more_thinking_than_completion_stands_beside_it(total: dict[str, int]) -> None:
    assert readings(**COUNTS, reasoning_tokens=5000, **total, **ALL_COUNTED) == {Tokens(10, 5002)}


def test_thinking_that_no_total_places_is_read_both_ways() -> None:
    details = {"completion_tokens_details": {"reasoning_tokens": 1}}
    assert readings(**COUNTS, **details, **ALL_COUNTED) == {Tokens(10, 2), Tokens(10, 3)}


def test_what_is_not_counted_may_be_all_of_the_rest() -> None:
    assert readings(**COUNTS) == {Tokens(10, 2), Tokens(10, 2, cached=10), Tokens(10, 2, cache_write=10)}
    assert readings(**COUNTS, prompt_tokens_details={"cached_tokens": 4}) == {
        Tokens(10, 2, cached=4),
        Tokens(10, 2, cached=4, cache_write=6),
    }


@pytest.mark.parametrize(
    "usage",
    [
        {},
        {"prompt_tokens": 10},
        {**COUNTS, "prompt_tokens": "10"},
        {**COUNTS, "prompt_tokens": True},
        {**COUNTS, "completion_tokens": -1},
        {**COUNTS, "cache_creation_input_tokens": "5000"},
        {**COUNTS, "prompt_tokens_details": {"cached_tokens": 1.5}},
        {**COUNTS, "prompt_tokens": float("nan")},
        # More is cached than the prompt has, and nobody says what was written beside it.
        {**COUNTS, "prompt_tokens_details": {"cached_tokens": 11}},
        {**COUNTS, "total_tokens": "12"},
    ],
)
def test_counts_that_are_none_have_no_reading(usage: dict[str, Any]) -> None:
    assert readings(**usage) == set()


def test_details_that_are_null_are_not_there() -> None:
    assert readings(**COUNTS, prompt_tokens_details=None, total_tokens=None) == readings(**COUNTS)
    assert readings(**COUNTS, prompt_tokens_details={"cached_tokens": None}) == readings(**COUNTS)


def test_what_was_billed() -> None:
    assert billed(cost=0.5) == 0.5
    assert billed(cost_in_usd_ticks=37_756_000) == pytest.approx(0.0037756)
    assert billed(cost=0) == 0.0
    assert billed(cost={"total_cost": 0.006, "request_cost": 0.005}) == 0.006
    assert billed(cost={"request_cost": 0.005}) is None
    assert [billed(cost=wrong) for wrong in (None, True, -1, "free", float("nan"), 10**400)] == [None] * 6
    assert read_usage({}, {"x-litellm-response-cost": "0.25"}).cost_usd == 0.25


def test_the_vendors_bill_counts_beside_the_routers_fee() -> None:
    vendor = {"cost_details": {"upstream_inference_cost": 19}}
    assert billed(cost=0.95, is_byok=True, **vendor) == 19.95
    assert billed(cost=0.95, **vendor) == 19.95
    assert billed(cost=19, is_byok=False, **vendor) == 19
    assert billed(cost=0.95, cost_details={"upstream_inference_cost": None}) == 0.95


PRICE = Price(input=10**9, output=2 * 10**9, cached_input=10**8, cache_write=10**9)  # a thousand nano-dollars a token
SIZE = 1600
RESERVED = Reserved(1631 + 1024, 200, 50_000)


def prompt(letters: int = 1600) -> Prompt:
    return PromptWriter([], []).prompt([{"role": "user", "content": "y" * letters}])


def cost(*readings: Tokens, billed: float | None = None, price: Price = PRICE, worst_case: int = 50_000) -> int:
    """Of a short prompt and an empty answer."""
    reserved = Reserved(2000, 200, worst_case)
    return bill(price, UsageReport(readings, billed), prompt(4), 0, reserved).cost


@pytest.mark.parametrize(
    "usage",
    [
        Tokens(400, 400),
        Tokens(400, 400, cached=400),
        Tokens(400, 400, cached=300, cache_write=100),
        Tokens(110, 100),  # long words
        Tokens(5000, 4000),  # a provider that adds something, and one that thinks longer than it was told to
        Tokens(100 * (1631 + 1024), 160_000),
    ],
)
def test_a_usage_that_can_be_is_believed(usage: Tokens) -> None:
    assert believed([usage], prompt(), SIZE, RESERVED) == [usage]


@pytest.mark.parametrize(
    "usage",
    [
        Tokens(0, 400),
        Tokens(101, 400),  # of 1631 bytes
        Tokens(400, 0),
        Tokens(400, 83),  # of 1600 bytes
        Tokens(400, 400, cached=401),
        Tokens(400, 400, cached=300, cache_write=101),
        Tokens(100 * (1631 + 1024) + 1, 400),
        Tokens(400, 160_001),
    ],
)
def test_a_usage_that_cannot_be_is_not(usage: Tokens) -> None:
    assert (prompt().size, token_bound(prompt())) == (1631, 1631 + 1024)
    assert believed([usage], prompt(), SIZE, RESERVED) == []


def test_few_tokens_are_enough_for_a_short_answer_but_none_are_not() -> None:
    assert believed([Tokens(400, 0), Tokens(400, 1)], prompt(), 29, RESERVED) == [Tokens(400, 1)]
    assert believed([Tokens(400, 0)], prompt(), 0, RESERVED) == [Tokens(400, 0)]


def test_a_prompt_within_its_bound_rules_out_those_beyond() -> None:
    within, too_much, much_thought = Tokens(2655, 200), Tokens(2656, 200), Tokens(2655, 9000)
    assert believed([too_much, within, much_thought], prompt(), SIZE, RESERVED) == [within, much_thought]
    assert believed([too_much], prompt(), SIZE, RESERVED) == [too_much]


def test_the_dearest_reading_counts_unless_the_sum_says_which_it_is() -> None:
    readings = Tokens(10, 5), Tokens(40, 5)
    assert cost(*readings) == 50_000
    assert cost(*readings, billed=0.0000201) == 20_100
    assert cost(*readings, billed=0.00003) == 50_000
    assert cost(*readings, billed=0.000001) == 50_000  # a fee alone
    free_writes = Price(input=10**9, output=0, cached_input=0, cache_write=0)
    assert cost(Tokens(10, 5), Tokens(10, 5, cache_write=10), billed=0, price=free_writes) == 10_000  # no sum at all
    # A gateway may have left the thinking out of its sum.
    assert cost(Tokens(10, 5), Tokens(10, 15), billed=0.00002) == 40_000


def test_the_higher_of_tokens_and_bill_counts() -> None:
    assert cost(Tokens(10, 5)) == 20_000
    assert cost(Tokens(10, 5), billed=0.000001) == 20_000
    assert cost(Tokens(10, 5), billed=0.00003) == 30_000
    assert cost(Tokens(10, 5), billed=0.00006) == 60_000  # more than it should have been


def test_without_a_usage_a_call_counts_as_its_worst_case() -> None:
    assert cost() == 50_000
    assert cost(billed=0.000001) == 50_000
    assert cost(billed=0.00006) == 60_000


def test_a_bill_beyond_all_reason_is_a_mistake() -> None:
    assert cost(Tokens(10, 5), billed=100.0) == 100 * 10**9
    assert cost(Tokens(10, 5), billed=100.000001) == 20_000
    assert cost(billed=1e300) == 50_000
    assert cost(Tokens(10, 5), billed=0.5, price=Price(0, 0, 0, 0), worst_case=0) == 5 * 10**8  # free, but it bills


CLAUDE = {"cached_per_mtok": 0.5, "cache_write_per_mtok": 6.25, "cache": "explicit"}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_cap_holds_in_every_dialect(dialect: str, tmp_path: Path) -> None:
    # Most of what is billed is thinking, or writing to the cache: what a wrong reading overlooks.
    teacher = Teacher(
        input_per_mtok=5, output_per_mtok=25, thinking_tokens=1500, message_tokens=0, dialect=dialect, **CLAUDE
    )
    cap = 0.25
    ledger = tmp_path / "ledger.sqlite"
    with MeteredServer({"a": teacher}) as server:
        spec = spec_of(server, "a", teacher, max_output_tokens=2000)
        rows = asyncio.run(replay_trace(growing_states(12, letters=6000), [spec], cap, ledger=ledger, concurrency=1))
        spent, broken = server.meter.spent, server.meter.broken
    assert broken == []
    charged = sum(read_ledger(ledger, tmp_path / "copy").charged.values())
    assert spent <= charged <= cap * 10**9
    assert 0 < len(rows) < 12  # it was the cap that ended it
    assert charged >= cap * 10**9 / 3  # and not the fear of it


def test_a_teacher_that_is_thought_to_be_free_and_bills_comes_to_its_end(ledger: Path) -> None:
    # As a proxy on this machine that hands calls on: no price is known, and the report says what was billed.
    teacher = Teacher(input_per_mtok=20, output_per_mtok=100, dialect="openrouter_cost")
    free = {f"{name}_per_mtok": 0 for name in ("input", "output", "cached_input", "cache_write")}
    states = growing_states(40, letters=3000)
    with MeteredServer({"a": teacher}) as server:
        spec = {**spec_of(server, "a", teacher), **free}
        rows = asyncio.run(replay_trace(states, [spec], 0.5, ledger=ledger, concurrency=1))
        # Prompts that grow are dearer than those before them, so the last call may pass the cap.
        assert server.meter.spent <= 0.5 * 10**9 + server.meter.records[-1].billed
    assert 0 < len(rows) < 40
