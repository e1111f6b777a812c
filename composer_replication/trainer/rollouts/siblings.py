"""Successful rollouts of the same prompt, told to failed ones as the solution that they could have found."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

from composer_replication.ingestion.chat_messages import call_of, calls_in, text_of
from composer_replication.traces import dump_json
from composer_replication.trainer.rollouts.rollout import Rollout

SIBLING_CHARACTERS = 2000
"""How much of a sibling is told."""


def best_siblings(rewards: Sequence[float], groups: Sequence[Hashable], succeeded: Sequence[bool]) -> list[int | None]:
    """For each failed rollout, the successful one of its group with the best reward, the first of equals.

    None for those that succeeded, and where nobody did.
    """
    if not len(rewards) == len(groups) == len(succeeded):
        raise ValueError(
            f"one reward, group and success per rollout: got {len(rewards)}, {len(groups)} and {len(succeeded)}"
        )
    best: dict[Hashable, int] = {}
    for index, (group, success) in enumerate(zip(groups, succeeded, strict=True)):
        # One that nothing scored has nothing to show.
        if success and not math.isnan(rewards[index]) and (group not in best or rewards[index] > rewards[best[group]]):
            best[group] = index
    return [None if success else best.get(group) for group, success in zip(groups, succeeded, strict=True)]


def sibling_solutions(
    rollouts: Sequence[Rollout],
    *,
    rewards: Sequence[float],
    groups: Sequence[Hashable],
    succeeded: Sequence[bool],
    tokenizer: Any,
    max_characters: int = SIBLING_CHARACTERS,
) -> list[str]:
    """For each rollout the solution of its best sibling; empty for those that succeeded, and where nobody did."""
    siblings = best_siblings(rewards, groups, succeeded)
    texts = {
        index: solution_text(rollouts[index], tokenizer, max_characters=max_characters)
        for index in {sibling for sibling in siblings if sibling is not None}
    }
    return ["" if sibling is None else texts[sibling] for sibling in siblings]


def solution_text(rollout: Rollout, tokenizer: Any, *, max_characters: int = SIBLING_CHARACTERS) -> str:
    """What a rollout did and answered, in words; of a long one the beginning and the end. Empty if it did nothing."""
    if rollout.messages:
        parts = []
        for place in rollout.spoken:
            message = rollout.messages[place]
            parts.append(text_of(message.get("content")).strip())
            for call in (call_of(one, "") for one in calls_in(message)):
                given = call.raw_arguments if call.raw_arguments is not None else dump_json(call.arguments)
                parts.append(f"Call {call.name} with {given}")
    else:
        said = [token for token, flag in zip(rollout.completion_ids, rollout.generated, strict=True) if flag]
        parts = [tokenizer.decode(said, skip_special_tokens=True).strip()]
    text = "\n".join(part for part in parts if part)
    if not text:
        return ""
    if len(text) > max_characters:
        head = max_characters // 2
        text = f"{text[:head]} … {text[len(text) - (max_characters - head) :]}"
    return f"A correct solution of this task:\n{text}"
