"""What calls cost, in whole nano-dollars: sums of money are exact, whatever their order.

A price that is a fraction of a nano-dollar a token stays exact per million tokens; a call's cost is rounded up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from urllib.parse import urlsplit

NANO = 10**9
_MILLION = 10**6


@dataclass(frozen=True)
class Tokens:
    """What one call used. `prompt` is the whole prompt; `cached` and `cache_write` are parts of it."""

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
        """What a call costs, in nano-dollars, rounded up."""
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
        """The most that so many tokens can cost: no part of the prompt is taken to be cached."""
        dearest = max(self.input, self.cached_input, self.cache_write)
        return -(-(prompt_tokens * dearest + completion_tokens * self.output) // _MILLION)


def per_million(usd: float | Decimal) -> int:
    """Dollars per million tokens as nano-dollars per million tokens."""
    return int((Decimal(str(usd)) * NANO).to_integral_value())


def to_nano(usd: float) -> int:
    """Dollars as nano-dollars, rounded up."""
    return math.ceil(Decimal(str(usd)) * NANO)


def to_usd(nano: int) -> float:
    """Nano-dollars as dollars."""
    return nano / NANO


def listed_price(model: str, base_url: str | None) -> Price:
    """The price of a model by `genai-prices`, of its highest tier; OpenRouter's if there is no `base_url`.

    An endpoint on this machine costs nothing.

    Raises:
        LookupError: the model is in no list.
    """
    from genai_prices import Usage, calc_price

    if base_url is not None and _is_local(base_url):
        return Price(0, 0, 0, 0)

    def million(output: int = 0, **parts: int) -> Decimal:
        usage = Usage(input_tokens=_MILLION, output_tokens=output, **parts)
        if base_url is None:
            price = calc_price(usage, model_ref=model, provider_id="openrouter")
        else:
            price = calc_price(usage, model_ref=model, provider_api_url=base_url)
        return price.output_price if output else price.input_price

    return Price(
        input=per_million(million()),
        output=per_million(million(output=_MILLION)),
        cached_input=per_million(million(cache_read_tokens=_MILLION)),
        cache_write=per_million(million(cache_write_tokens=_MILLION)),
    )


def _is_local(base_url: str) -> bool:
    host = urlsplit(base_url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")
