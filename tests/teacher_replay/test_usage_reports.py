"""What an endpoint's usage can mean, in the words of every kind of endpoint."""

from __future__ import annotations

from typing import Any

import pytest

from composer_replication.teacher_replay.bills import read_usage
from composer_replication.teacher_replay.prices import Tokens

COUNTS = {"prompt_tokens": 10, "completion_tokens": 2}
# So that what is not counted plays no part.
NO_WRITES = {"cache_write_tokens": 0}
ALL_COUNTED = {"cached_tokens": 0, **NO_WRITES}


def readings(**usage: Any) -> set[Tokens]:
    return set(read_usage(usage).readings)


def cost(**usage: Any) -> float | None:
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
    assert cost(cost=0.5) == 0.5
    assert cost(cost_in_usd_ticks=37_756_000) == pytest.approx(0.0037756)
    assert cost(cost=0) == 0.0
    assert cost(cost={"total_cost": 0.006, "request_cost": 0.005}) == 0.006
    assert cost(cost={"request_cost": 0.005}) is None
    assert [cost(cost=wrong) for wrong in (None, True, -1, "free", float("nan"), 10**400)] == [None] * 6
    assert read_usage({}, {"x-litellm-response-cost": "0.25"}).cost_usd == 0.25


def test_the_vendors_bill_counts_beside_the_routers_fee() -> None:
    vendor = {"cost_details": {"upstream_inference_cost": 19}}
    assert cost(cost=0.95, is_byok=True, **vendor) == 19.95
    assert cost(cost=0.95, **vendor) == 19.95
    assert cost(cost=19, is_byok=False, **vendor) == 19
    assert cost(cost=0.95, cost_details={"upstream_inference_cost": None}) == 0.95
