"""The cost of a call, from what its endpoint reports: all readings of its usage, and the bill.

Endpoints agree on the names of two counts and on little else. Tokens that were read from a cache or written to it are
part of the prompt (OpenAI, OpenRouter, LiteLLM) or stand beside it (Anthropic, and gateways that pass its numbers
through under OpenAI's names); thinking is part of the completion (OpenAI), or only of the total (xAI, Gemini). So a
report has several readings.

A budget holds only if no call is counted too low. So the most expensive reading counts; a usage that no tokenizer can
have counted is ignored, and the call counts as its worst case; of the tokens' price and the sum that a provider says it
billed, the higher one counts (a router that uses the caller's own account at the vendor bills its fee alone).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from composer_replication.ingestion.loose_json import fields
from composer_replication.teacher_replay.prices import NANO, Price, Tokens, to_nano
from composer_replication.teacher_replay.prompts import LONGEST_TOKEN, Prompt, token_bound

_PROMPT = ("prompt_tokens", "input_tokens")
_COMPLETION = ("completion_tokens", "output_tokens")
_CACHED = ("cached_tokens", "prompt_cache_hit_tokens", "cache_read_tokens", "cache_read_input_tokens")
# Anthropic's counts, under whatever name they are passed through, may be beside the prompt.
_WRITTEN_BESIDE = (
    "cache_creation_input_tokens",
    "cache_creation_tokens",
    "cached_creation_tokens",
    "prompt_cache_creation_tokens",
)
_BESIDE = ("cache_read_input_tokens", *_WRITTEN_BESIDE)
_WRITTEN = ("cache_write_tokens", *_WRITTEN_BESIDE)
_THINKING = ("reasoning_tokens",)
_TOTAL = ("total_tokens",)
_TICKS_PER_USD = 10**10


@dataclass(frozen=True)
class UsageReport:
    """An endpoint's report of a call: every reading of its counts (none, if unreadable), and the sum it says it
    billed."""

    readings: tuple[Tokens, ...] = ()
    cost_usd: float | None = None


NO_REPORT = UsageReport()


class _UnreadableError(ValueError):
    """A count that is not a number of tokens."""


def read_usage(usage: Mapping[str, Any], headers: Mapping[str, str] = MappingProxyType({})) -> UsageReport:
    """Read the `usage` of a response; LiteLLM's proxy says in a header what it billed."""
    try:
        readings = tuple(dict.fromkeys(_readings(usage)))
    except _UnreadableError:
        readings = ()
    return UsageReport(readings, _cost(usage, headers.get("x-litellm-response-cost")))


def _readings(usage: Mapping[str, Any]) -> Iterator[Tokens]:
    inputs = {**usage, **_details(usage, "prompt_tokens_details"), **_details(usage, "input_tokens_details")}
    outputs = {**usage, **_details(usage, "completion_tokens_details"), **_details(usage, "output_tokens_details")}
    prompt, completion = _count(usage, _PROMPT), _count(usage, _COMPLETION)
    cached, written = _count(inputs, _CACHED), _count(inputs, _WRITTEN)
    if written is None and (by_age := fields(usage.get("cache_creation"))):
        written = sum(_count(by_age, [name]) or 0 for name in by_age)
    thinking, total = _count(outputs, _THINKING) or 0, _count(usage, _TOTAL)
    if prompt is None or completion is None:
        return
    apart = (cached or 0) + (written or 0)
    may_be_beside = any(name in inputs for name in (*_BESIDE, "cache_creation"))
    if apart > prompt and written is None and not may_be_beside:
        return  # tokens written to the cache are beside the prompt too, and their number is unknown
    adds_up = [one for one in (prompt, prompt + apart) if total in (one + completion, one + completion + thinking)]
    if apart > prompt or (apart and adds_up == [prompt + apart]):
        prompts = [prompt + apart]
    else:
        prompts = [prompt, prompt + apart] if may_be_beside else [prompt]
    for whole in prompts:
        for answer in _completions(completion, thinking, None if total is None else total - whole):
            yield Tokens(whole, answer, cached or 0, written or 0)
            # What is not counted may be all of the rest.
            if written is None:
                yield Tokens(whole, answer, cached or 0, whole - (cached or 0))
            if cached is None:
                yield Tokens(whole, answer, whole - (written or 0), written or 0)


def _completions(completion: int, thinking: int, rest: int | None) -> Iterator[int]:
    """Yield the possible tokens of an answer; `rest` is what the total leaves for it."""
    if thinking <= completion:
        yield max(completion, rest or 0)
    if thinking > completion or rest is None:
        yield max(completion + thinking, rest or 0)


def _details(usage: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in fields(usage.get(name)).items() if value is not None}


def _count(record: Mapping[str, Any], names: Iterable[str]) -> int | None:
    """Return the highest count under these names, None if all are absent.

    Raises:
        _UnreadableError: something else stands under one of them.
    """
    found = [record[name] for name in names if record.get(name) is not None]
    if any(type(count) not in (int, float) or count < 0 or count % 1 for count in found):
        raise _UnreadableError
    return max(map(int, found), default=None)


def _cost(usage: Mapping[str, Any], in_header: str | None) -> float | None:
    """Return what the endpoint says it billed, with what the vendor billed to the caller's own account there."""
    ticks = _amount(usage.get("cost_in_usd_ticks"))
    cost = usage.get("cost")
    said = (
        _amount(fields(cost).get("total_cost", cost)),
        _amount(in_header),
        None if ticks is None else ticks / _TICKS_PER_USD,
    )
    billed = [cost for cost in said if cost is not None]
    upstream = _amount(fields(usage.get("cost_details")).get("upstream_inference_cost"))
    if upstream is not None:
        # With an account of one's own at the vendor, the router's cost is its fee alone.
        billed = [max([*billed, upstream]) if usage.get("is_byok") is False else sum([*billed, upstream])]
    return max(billed, default=None)


def _amount(value: Any) -> float | None:
    """Return an amount of money, None if the value is not one."""
    try:
        number = float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and number >= 0 else None


# A report may exceed a limit by this factor; beyond it, the report is taken for a mistake.
_BELIEVED = 100
# Names and brackets that are in an action, and not in the tokens of the answer.
_AROUND_ACTION = 256
# Tolerance between a reading's price and the billed sum: price lists differ a little.
_NEAR = 0.02


class Reserved(NamedTuple):
    """The upper bounds of a call: tokens of both kinds, and nano-dollars."""

    prompt: int
    completion: int
    cost: int


class Bill(NamedTuple):
    """The usage of a call, None if unknown, and its cost in nano-dollars."""

    usage: Tokens | None
    cost: int


def bill(price: Price, report: UsageReport, prompt: Prompt, size: int, reserved: Reserved) -> Bill:
    """Return the bill of a call that was answered with an action of `size` bytes."""
    billed = 0 if report.cost_usd is None else to_nano(report.cost_usd)
    if billed > _BELIEVED * max(reserved.cost, NANO):
        billed = 0
    priced = [(usage, price.cost(usage)) for usage in believed(report.readings, prompt, size, reserved)]
    # A sum that one reading of the prompt explains belongs to that reading. It may leave out the thinking.
    longest = max((usage.completion for usage, _ in priced), default=0)
    near = [one for one in priced if one[0].completion == longest and abs(one[1] - billed) <= _NEAR * billed]
    usage, counted = max((billed and near) or priced, key=lambda one: one[1], default=(None, reserved.cost))
    return Bill(usage, max(counted, billed))


def believed(readings: Iterable[Tokens], prompt: Prompt, size: int, reserved: Reserved) -> list[Tokens]:
    """Return the readings that fit this prompt and an answer of `size` bytes. Readings within the bound of the prompt's
    tokens rule out those beyond it; thinking has no such bound."""
    possible = [
        usage
        for usage in readings
        if usage.cached + usage.cache_write <= usage.prompt <= token_bound(prompt) * _BELIEVED
        and usage.prompt * LONGEST_TOKEN >= prompt.size
        and usage.completion <= max(reserved.completion, size) * _BELIEVED
        and usage.completion * LONGEST_TOKEN + _AROUND_ACTION >= size
        and (usage.completion > 0 or not size)
    ]
    return [usage for usage in possible if usage.prompt <= reserved.prompt] or possible
