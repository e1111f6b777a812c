"""Presets of a configuration: values that were earned by evidence, beside the documented defaults.

A preset fills in what the user did not write. `docs/settings.md` shows this table; the figures behind it are in
`docs/benchmarks.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

PresetName = Literal["recommended"]


class Earned(NamedTuple):
    """A value, and the evidence for it."""

    value: Any
    why: str


# By the dotted path of the key. A choice comes before the settings that belong to it (`OnlyWith`).
PRESETS: Mapping[PresetName, Mapping[str, Earned]] = {
    "recommended": {
        "channels.sdpo.alpha": Earned(
            0.5,
            "More reward than GRPO alone, and its final reward sooner (`sdpo .5` of `benchmarks/channel3_quick.py`). "
            "Measured on rollouts, not on logs alone.",
        ),
        "channels.replay.beta": Earned(
            0.5,
            "With the anchor below, more reward than 0.05 (`dpo + anchor .5` against `dpo + anchor .05` of "
            "`benchmarks/channel3_quick.py`).",
        ),
        "channels.replay.nll_weight": Earned(
            1.0,
            "The chosen responses gain likelihood sooner, and the reward rises sooner (`dpo + anchor .5` against `dpo "
            ".5` of `benchmarks/channel3_quick.py`). Beside GRPO the chosen can lose likelihood (`dpo .05`); under "
            "GRPO alone they can, too (`grpo`).",
        ),
    }
}
