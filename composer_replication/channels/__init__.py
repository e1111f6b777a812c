"""The three loss channels: each with its settings, its loss and what it reports.

`policy` (channel 1), `hint_distillation` (channel 2) and `preference` (channel 3) hold the settings and the loss that
reads them; `scoring` has the forward passes and token positions that they share; `settings` puts them together.
"""

from composer_replication._optional import lazy_exports

_MODULES = {
    "hint_distillation": ("HintDistillation", "HintGate", "TaidSchedule", "hint_divergence", "sdpo_channel"),
    "policy": ("CrossEntropy", "Grpo", "lm_channel"),
    "preference": ("Preference",),
    "scoring": (
        *("Batch", "ChannelLoss", "HintedStates", "at", "hinted_states", "preference_logprobs", "row_sums"),
        *("sdpo_pairs", "summed_logprobs"),
    ),
    "settings": ("ChannelSettings",),
}
_HOMES = {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}

__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
