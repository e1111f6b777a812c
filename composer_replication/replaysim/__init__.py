"""Normalise preference pairs with data-juicer: drop what cannot be trained on, and say what was dropped and why."""

from typing import TYPE_CHECKING

from composer_replication._optional import lazy_exports

if TYPE_CHECKING:
    from composer_replication.replaysim.normalize import (
        DJNormalizer,
        replay_and_normalize_trace,
        replay_and_normalize_trace_sync,
    )
    from composer_replication.replaysim.records import NormalizedDPOPair, NormalizeReport
    from composer_replication.teacher_replay.pairs import extract_dpo_pairs
    from composer_replication.teacher_replay.records import DPOPair, TeacherCallResult
    from composer_replication.teacher_replay.schedule import replay_trace

__all__ = [
    "DJNormalizer",
    "DPOPair",
    "NormalizeReport",
    "NormalizedDPOPair",
    "TeacherCallResult",
    "extract_dpo_pairs",
    "replay_and_normalize_trace",
    "replay_and_normalize_trace_sync",
    "replay_trace",
]

_MODULES = {
    "replaysim.normalize": ("DJNormalizer", "replay_and_normalize_trace", "replay_and_normalize_trace_sync"),
    "replaysim.records": ("NormalizedDPOPair", "NormalizeReport"),
    "teacher_replay.pairs": ("extract_dpo_pairs",),
    "teacher_replay.records": ("DPOPair", "TeacherCallResult"),
    "teacher_replay.schedule": ("replay_trace",),
}
_HOMES = {name: f"composer_replication.{module}" for module, names in _MODULES.items() for name in names}

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
