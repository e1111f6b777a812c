"""What is believed of a provider's report, and what a call counts as."""

from __future__ import annotations

import pytest

from composer_replication.teacher_replay.bills import believed, cost_of
from composer_replication.teacher_replay.known_prompts import token_bound
from composer_replication.teacher_replay.prices import Price, Tokens
from composer_replication.teacher_replay.prompts import Prompt, PromptWriter

PRICE = Price(input=10**9, output=2 * 10**9, cached_input=10**8, cache_write=10**9)  # a thousand nano-dollars a token
TEXT = "x" * 1600


def prompt() -> Prompt:
    return PromptWriter([], []).prompt([{"role": "user", "content": "y" * 1600}])


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
    assert believed(usage, prompt(), TEXT, max_output_tokens=200) is usage


@pytest.mark.parametrize(
    "usage",
    [
        None,
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
def test_a_usage_that_cannot_be_is_not(usage: Tokens | None) -> None:
    assert (prompt().size, token_bound(prompt())) == (1631, 1631 + 1024)
    assert believed(usage, prompt(), TEXT, max_output_tokens=200) is None


def test_few_tokens_are_enough_for_a_short_answer_but_none_are_not() -> None:
    assert believed(Tokens(400, 1), prompt(), "[TOOL_USE] name=Bash input={}", 200) is not None
    assert believed(Tokens(400, 0), prompt(), "[TOOL_USE] name=Bash input={}", 200) is None
    assert believed(Tokens(400, 0), prompt(), "", 200) is not None


def test_the_higher_of_tokens_and_bill_counts() -> None:
    assert cost_of(PRICE, Tokens(10, 5), None, worst_case=50_000) == 20_000
    assert cost_of(PRICE, Tokens(10, 5), 0.000001, worst_case=50_000) == 20_000
    assert cost_of(PRICE, Tokens(10, 5), 0.00003, worst_case=50_000) == 30_000
    assert cost_of(PRICE, Tokens(10, 5), 0.00006, worst_case=50_000) == 60_000  # more than it should have been


def test_without_a_usage_a_call_counts_as_its_worst_case() -> None:
    assert cost_of(PRICE, None, None, worst_case=50_000) == 50_000
    assert cost_of(PRICE, None, 0.000001, worst_case=50_000) == 50_000
    assert cost_of(PRICE, None, 0.00006, worst_case=50_000) == 60_000


def test_a_bill_beyond_all_reason_is_a_mistake() -> None:
    assert cost_of(PRICE, Tokens(10, 5), 100.0, worst_case=50_000) == 100 * 10**9
    assert cost_of(PRICE, Tokens(10, 5), 100.000001, worst_case=50_000) == 20_000
    assert cost_of(PRICE, None, 1e300, worst_case=50_000) == 50_000
    assert cost_of(Price(0, 0, 0, 0), Tokens(10, 5), 0.5, worst_case=0) == 5 * 10**8  # free, but it bills
