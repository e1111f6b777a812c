"""Prices of models in whole nano-dollars: sums of money are exact, whatever their order.

A price that is a fraction of a nano-dollar a token stays exact per million tokens; a call's cost is rounded up.
"""

from __future__ import annotations

import ipaddress
import math
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo

NANO = 10**9
_MILLION = 10**6


@dataclass(frozen=True)
class Tokens:
    """The usage of one call. `prompt` is the whole prompt; `cached` and `cache_write` are parts of it."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    cache_write: int = 0


@dataclass(frozen=True)
class Price:
    """Nano-dollars per million tokens of each kind."""

    input: int
    output: int
    cached_input: int
    cache_write: int

    def cost(self, tokens: Tokens) -> int:
        """Return the cost of a call in nano-dollars, rounded up."""
        cached = min(tokens.cached, tokens.prompt)
        written = min(tokens.cache_write, tokens.prompt - cached)
        fresh = tokens.prompt - cached - written
        millionths = (
            fresh * self.input
            + cached * self.cached_input
            + written * self.cache_write
            + tokens.completion * self.output
        )
        return -(-millionths // _MILLION)

    def worst_case(self, prompt_tokens: int, completion_tokens: int) -> int:
        """Return the highest possible cost of this many tokens: no part of the prompt is assumed to be cached."""
        highest = max(self.input, self.cached_input, self.cache_write)
        return -(-(prompt_tokens * highest + completion_tokens * self.output) // _MILLION)


def to_nano(usd: float | Decimal) -> int:
    """Return dollars as nano-dollars, rounded up."""
    return math.ceil(Decimal(str(usd)) * NANO)


def cap_of(usd: float) -> int:
    """Return a cap in dollars as nano-dollars, rounded down."""
    return math.floor(Decimal(str(usd)) * NANO)


def to_usd(nano: int) -> float:
    """Return nano-dollars as dollars."""
    return nano / NANO


def listed_price(model: str, base_url: str | None) -> Price:
    """Return a model's price in `genai-prices`, of its highest tier and most expensive hour; OpenRouter's if `base_url`
    is None. An endpoint on this machine is free.

    Raises:
        LookupError: the model is in no list.
    """
    from genai_prices import Usage

    if base_url is not None and _is_local(base_url):
        return Price(0, 0, 0, 0)
    listed = _listed(model, base_url)
    # Some prices depend on the hour of the day, in steps of half an hour; a run may extend into any of them.
    midnight = datetime.now(timezone.utc).replace(hour=0, minute=0, second=0, microsecond=0)
    through_the_day = [listed.get_prices(midnight + timedelta(minutes=30 * half)) for half in range(48)]
    prices = [price for index, price in enumerate(through_the_day) if price not in through_the_day[:index]]

    def million(output: int = 0, **parts: int) -> int:
        usage = Usage(input_tokens=_MILLION, output_tokens=output, **parts)
        costs = [price.calc_price(usage) for price in prices]
        return max(to_nano(cost["output_price"] if output else cost["input_price"]) for cost in costs)

    return Price(
        input=million(),
        output=million(output=_MILLION),
        cached_input=million(cache_read_tokens=_MILLION),
        cache_write=million(cache_write_tokens=_MILLION),
    )


def listed_window(model: str, base_url: str | None) -> int | None:
    """Return a model's context window in `genai-prices`, None if unknown."""
    try:
        return _listed(model, base_url).context_window
    except LookupError:
        return None


def _listed(model: str, base_url: str | None) -> ModelInfo:
    from genai_prices import Usage, calc_price

    if base_url is None:
        return calc_price(Usage(), model_ref=model, provider_id="openrouter").model
    return calc_price(Usage(), model_ref=model, provider_api_url=base_url).model


def _is_local(base_url: str) -> bool:
    host = urlsplit(base_url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        # A name that only begins like an address (127.0.0.1.example.org) is somewhere else.
        return host == "localhost" or host.endswith(".localhost")
