"""What a call has cost, by what its provider says of it: believed where it can be true, and never below it.

A budget holds only if no call is counted too low. So a usage that no tokenizer can have counted is no usage, and the
call counts as its worst case; of the tokens' price and the sum that a provider says it billed, the higher one counts
(a router that uses the caller's own account at the vendor bills its fee alone).
"""

from __future__ import annotations

from composer_replication.teacher_replay.known_prompts import LONGEST_TOKEN, token_bound
from composer_replication.teacher_replay.prices import NANO, Price, Tokens, to_nano
from composer_replication.teacher_replay.prompts import Prompt

# A provider that does not keep to a limit is believed so far beyond it; what is more is a mistake in its report.
_BELIEVED = 100
# Names and brackets that are in an action, and not in the tokens of the answer.
_AROUND_ACTION = 256


def believed(usage: Tokens | None, prompt: Prompt, text: str, max_output_tokens: int) -> Tokens | None:
    """The usage that a provider reports, None if it cannot be that of this prompt and of an answer of this text."""
    if usage is None or usage.cached + usage.cache_write > usage.prompt:
        return None
    size = len(text.encode("utf-8", "replace"))
    is_enough = (
        usage.prompt * LONGEST_TOKEN >= prompt.size and usage.completion * LONGEST_TOKEN + _AROUND_ACTION >= size
    )
    is_sane = (
        usage.prompt <= token_bound(prompt) * _BELIEVED and usage.completion <= max(max_output_tokens, size) * _BELIEVED
    )
    return usage if is_enough and is_sane and (usage.completion > 0 or not text) else None


def cost_of(price: Price, usage: Tokens | None, billed_usd: float | None, worst_case: int) -> int:
    """What a call cost, in nano-dollars: `usage` is one that is believed, `billed_usd` what the provider says."""
    counted = worst_case if usage is None else price.cost(usage)
    billed = 0 if billed_usd is None else to_nano(billed_usd)
    return max(counted, billed) if billed <= _BELIEVED * max(worst_case, NANO) else counted
