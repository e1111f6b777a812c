"""What a call has cost, by what its provider says of it: believed where it can be true, and never below it.

A budget holds only if no call is counted too low. So of all that a report can mean the dearest counts; a usage that no
tokenizer can have counted is no usage, and the call counts as its worst case; of the tokens' price and the sum that a
provider says it billed, the higher one counts (a router that uses the caller's own account at the vendor bills its fee
alone).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from composer_replication.teacher_replay.known_prompts import LONGEST_TOKEN, token_bound
from composer_replication.teacher_replay.prices import NANO, Price, Tokens, to_nano
from composer_replication.teacher_replay.prompts import Prompt
from composer_replication.teacher_replay.usage_reports import UsageReport

# A provider that does not keep to a limit is believed so far beyond it; what is more is a mistake in its report.
_BELIEVED = 100
# Names and brackets that are in an action, and not in the tokens of the answer.
_AROUND_ACTION = 256
# How near a reading's price comes to the sum that was billed, if it is the right one: price lists differ a little.
_NEAR = 0.02


class Reserved(NamedTuple):
    """What a call may take at most: tokens of both kinds, and nano-dollars."""

    prompt: int
    completion: int
    cost: int


class Bill(NamedTuple):
    """What a call used, None if nobody knows, and what it cost, in nano-dollars."""

    usage: Tokens | None
    cost: int


def bill(price: Price, report: UsageReport, prompt: Prompt, size: int, reserved: Reserved) -> Bill:
    """The bill of a call that was answered with an action of `size` bytes."""
    billed = 0 if report.cost_usd is None else to_nano(report.cost_usd)
    if billed > _BELIEVED * max(reserved.cost, NANO):
        billed = 0
    priced = [(usage, price.cost(usage)) for usage in believed(report.readings, prompt, size, reserved)]
    # A sum that one reading of the prompt explains is no other's. It may have been made without the thinking.
    longest = max((usage.completion for usage, _ in priced), default=0)
    near = [one for one in priced if one[0].completion == longest and abs(one[1] - billed) <= _NEAR * billed]
    usage, counted = max((billed and near) or priced, key=lambda one: one[1], default=(None, reserved.cost))
    return Bill(usage, max(counted, billed))


def believed(readings: Iterable[Tokens], prompt: Prompt, size: int, reserved: Reserved) -> list[Tokens]:
    """The readings that can be of this prompt and of an answer of `size` bytes. Those whose prompt has no more tokens than
    it can have rule out those with more; thinking knows no such bound."""
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
