"""What is believed of a provider's report, and what a call counts as."""

from __future__ import annotations

import pytest

from composer_replication.teacher_replay.bills import Reserved, UsageReport, believed, bill
from composer_replication.teacher_replay.prices import Price, Tokens
from composer_replication.teacher_replay.prompts import Prompt, PromptWriter, token_bound

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
