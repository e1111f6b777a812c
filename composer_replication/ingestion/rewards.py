"""How a run ended, as a number."""

from __future__ import annotations

from typing import Any

VERDICTS = ("resolved", "success", "reward")
"""Where agent harnesses write whether the task was solved."""
SCORES = ("reward", "final_reward", "score", "label")
"""Where rows of data sets have what a conversation is worth."""


def reward_of(*records: dict[str, Any], keys: tuple[str, ...] = VERDICTS) -> float | None:
    """The first number, or yes or no (1 or 0), under one of the keys; the records are asked in their order."""
    for record in records:
        for key in keys:
            value = record.get(key)
            if isinstance(value, bool | int | float) and -1e300 < value < 1e300:  # which NaN is not either
                return float(value)
    return None
