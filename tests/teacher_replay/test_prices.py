"""Prices: whole numbers, rounded up, as `genai-prices` lists them at their dearest."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from genai_prices import Usage, calc_price
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.teacher_replay.prices import NANO, Price, Tokens, listed_price, to_nano, to_usd
from composer_replication.teacher_replay.teachers import DEFAULT_TEACHERS

MILLION = 10**6
# The names and the fields of a usage that cost differently.
PARTS: dict[str, dict[str, int]] = {
    "input": {},
    "cached_input": {"cache_read_tokens": MILLION},
    "cache_write": {"cache_write_tokens": MILLION},
}
RATES = st.integers(0, 10**12)
COUNTS = st.integers(0, 10**7)


def listed(model: str, when: datetime | None = None, tokens: int = MILLION, **where: Any) -> dict[str, Decimal]:
    """Dollars per million tokens, asked of `genai-prices` itself."""
    where = where or {"provider_id": "openrouter"}

    def price(**usage: int) -> Any:
        return calc_price(Usage(input_tokens=tokens, **usage), model, genai_request_timestamp=when, **where)

    of_a_million = Decimal(MILLION) / tokens
    prices = {name: price(**dict.fromkeys(parts, tokens)).input_price * of_a_million for name, parts in PARTS.items()}
    return {**prices, "output": price(output_tokens=tokens).output_price * of_a_million}


def in_dollars(price: Price) -> dict[str, Decimal]:
    return {name: Decimal(getattr(price, name)) / NANO for name in (*PARTS, "output")}


@given(price=st.builds(Price, RATES, RATES, RATES, RATES), tokens=st.builds(Tokens, COUNTS, COUNTS, COUNTS, COUNTS))
def test_a_cost_is_the_exact_sum_rounded_up_once(price: Price, tokens: Tokens) -> None:
    cached = min(tokens.cached, tokens.prompt)
    written = min(tokens.cache_write, tokens.prompt - cached)
    exact = Fraction(
        (tokens.prompt - cached - written) * price.input
        + cached * price.cached_input
        + written * price.cache_write
        + tokens.completion * price.output,
        MILLION,
    )
    assert 0 <= price.cost(tokens) - exact < 1
    assert price.cost(tokens) <= price.worst_case(tokens.prompt, tokens.completion)


def test_every_part_of_a_prompt_has_its_own_price() -> None:
    price = Price(input=5 * NANO, output=25 * NANO, cached_input=NANO // 2, cache_write=6 * NANO)
    assert price.cost(Tokens(prompt=1_000, completion=10, cached=600, cache_write=100)) == (
        300 * 5_000 + 600 * 500 + 100 * 6_000 + 10 * 25_000
    )
    assert price.cost(Tokens(prompt=100, cached=500, cache_write=500)) == 100 * 500  # more than all is all
    assert price.worst_case(1_000, 10) == 1_000 * 6_000 + 10 * 25_000  # writing to the cache is the dearest here


def test_a_fraction_of_a_nano_dollar_is_a_whole_one() -> None:
    price = Price(input=1, output=0, cached_input=0, cache_write=0)
    assert price.cost(Tokens(prompt=1)) == 1
    assert price.cost(Tokens(prompt=MILLION)) == 1
    assert price.cost(Tokens(prompt=MILLION + 1)) == 2
    assert price.worst_case(MILLION + 1, 0) == 2


@pytest.mark.parametrize(
    ("usd", "nano"),
    [(0, 0), (0.1, 10**8), (1.91052, 1_910_520_000), (1e-9, 1), (1e-10, 1), (0.0833333333333333, 83333334)],
)
def test_dollars_become_nano_dollars_without_the_errors_of_floats(usd: float, nano: int) -> None:
    assert to_nano(usd) == nano
    assert to_usd(123_456_789) == 0.123456789


@pytest.mark.parametrize(
    "slug", ["anthropic/claude-opus-4.7", "openai/gpt-5", "deepseek/deepseek-v4-pro", "deepseek/deepseek-r1"]
)
def test_a_slug_of_openrouter_has_the_price_that_genai_prices_lists(slug: str) -> None:
    assert in_dollars(listed_price(slug, None)) == listed(slug)


def test_where_no_cache_price_is_listed_a_cached_token_costs_the_same() -> None:
    price = listed_price("deepseek/deepseek-r1", None)
    assert price.cached_input == price.cache_write == price.input > 0


def test_an_endpoint_is_known_by_its_address() -> None:
    where = "https://api.openai.com/v1"
    assert in_dollars(listed_price("gpt-5", where)) == listed("gpt-5", provider_api_url=where)


def test_of_several_tiers_the_highest_counts() -> None:
    model = "anthropic/claude-sonnet-4.5"
    price = in_dollars(listed_price(model, None))
    assert price == listed(model)
    assert price["input"] > listed(model, tokens=1_000)["input"]
    assert price["output"] > listed(model, tokens=1_000)["output"]


def test_of_several_hours_the_dearest_counts() -> None:
    where = {"provider_api_url": "https://api.deepseek.com/v1"}
    midnight = datetime.now(timezone.utc).replace(hour=0, minute=0, second=0, microsecond=0)
    by_hour = [listed("deepseek-v4-pro", midnight + timedelta(hours=hour), **where) for hour in range(24)]
    assert len({prices["output"] for prices in by_hour}) > 1, "this model's price is the same all day: take another"
    dearest = {name: max(prices[name] for prices in by_hour) for name in by_hour[0]}
    assert in_dollars(listed_price("deepseek-v4-pro", where["provider_api_url"])) == dearest


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000/v1", "http://127.8.9.1/v1", "http://localhost:11434/v1", "http://[::1]:80/v1"]
)
def test_an_endpoint_on_this_machine_is_free_whatever_it_serves(url: str) -> None:
    assert listed_price("openai/gpt-5", url) == Price(0, 0, 0, 0)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1.example.org/v1", "http://localhost.example.org/v1", "http://10.0.0.1/v1"]
)
def test_an_endpoint_elsewhere_is_not(url: str) -> None:
    with pytest.raises(LookupError):
        listed_price("openai/gpt-5", url)


def test_a_model_that_nobody_lists_is_an_error() -> None:
    with pytest.raises(LookupError, match="no-such/model"):
        listed_price("no-such/model", None)


def test_the_default_teachers_are_three_with_the_prices_of_genai_prices() -> None:
    assert [teacher["slug"] for teacher in DEFAULT_TEACHERS] == [
        "anthropic/claude-opus-4.7",
        "openai/gpt-5",
        "deepseek/deepseek-v4-pro",
    ]
    for teacher in DEFAULT_TEACHERS:
        prices = listed(teacher["slug"])
        assert {name: to_nano(teacher[f"{name}_per_mtok"]) for name in prices} == {
            name: to_nano(price) for name, price in prices.items()
        }
