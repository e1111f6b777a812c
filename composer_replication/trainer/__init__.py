"""Training: the collator, the trainers with three channels, their self-teachers and their checkpoints."""

from composer_replication._optional import lazy_exports

__all__ = [
    "ChannelSettings",
    "CollatorConfig",
    "ComposerDataCollator",
    "ComposerReplicationTrainer",
    "EffortPenalty",
    "HintGate",
    "InactiveChannelWarning",
    "NegativeChosenReward",
    "TraceTrainer",
    "effort_cost",
    "make_teacher",
]

_MODULES = {
    "channel_log": ("InactiveChannelWarning", "NegativeChosenReward"),
    "composer_trainer": ("ComposerReplicationTrainer",),
    "data_collator": ("CollatorConfig", "ComposerDataCollator"),
    "rewards": ("EffortPenalty", "effort_cost"),
    "self_teachers": ("make_teacher",),
    "trace_trainer": ("TraceTrainer",),
}
_HOMES = {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}
_HOMES["ChannelSettings"] = "composer_replication.channels.settings"
_HOMES["HintGate"] = "composer_replication.channels.hint_distillation"

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
