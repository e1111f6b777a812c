"""Normalise preference pairs with data-juicer: drop what cannot be trained on, and say what was dropped and why."""

from typing import TYPE_CHECKING

from composer_replication._optional import lazy_exports

if TYPE_CHECKING:
    from composer_replication.replaysim.normalize import replay_and_normalize_trace, replay_and_normalize_trace_sync
    from composer_replication.replaysim.normalizer import DJNormalizer
    from composer_replication.replaysim.records import NormalizedDPOPair
    from composer_replication.replaysim.report import NormalizeReport
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

_HOMES = {
    "DJNormalizer": "composer_replication.replaysim.normalizer",
    "DPOPair": "composer_replication.teacher_replay.records",
    "NormalizeReport": "composer_replication.replaysim.report",
    "NormalizedDPOPair": "composer_replication.replaysim.records",
    "TeacherCallResult": "composer_replication.teacher_replay.records",
    "extract_dpo_pairs": "composer_replication.teacher_replay.pairs",
    "replay_and_normalize_trace": "composer_replication.replaysim.normalize",
    "replay_and_normalize_trace_sync": "composer_replication.replaysim.normalize",
    "replay_trace": "composer_replication.teacher_replay.schedule",
}

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
