"""Preference pairs as token ids: the prompt once, and two responses that start where the model would start."""

from __future__ import annotations

from typing import NamedTuple


class PreferenceRow(NamedTuple):
    """A pair: `prompt_ids` end with the generation prompt, both responses end with the end of the turn."""

    prompt_ids: list[int]
    chosen_ids: list[int]
    rejected_ids: list[int]
