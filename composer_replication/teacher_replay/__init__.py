"""Replay a trace's steps with other models, and learn from where they agree against the student."""

from typing import TYPE_CHECKING

from composer_replication._optional import lazy_exports

if TYPE_CHECKING:
    from composer_replication.teacher_replay.pair_files import (
        load_pairs,
        save_compact_pairs,
        save_pairs,
        save_preference,
    )
    from composer_replication.teacher_replay.pairs import extract_dpo_pairs, extract_pairs_with_report
    from composer_replication.teacher_replay.records import DPOPair, TeacherCallResult
    from composer_replication.teacher_replay.schedule import ReplayOptions, open_replay, replay_trace
    from composer_replication.teacher_replay.teachers import DEFAULT_TEACHERS, TeacherSpec
    from composer_replication.traces import TraceState

__all__ = [
    "DEFAULT_TEACHERS",
    "DPOPair",
    "ReplayOptions",
    "TeacherCallResult",
    "TeacherSpec",
    "TraceState",
    "extract_dpo_pairs",
    "extract_pairs_with_report",
    "load_pairs",
    "open_replay",
    "replay_trace",
    "save_compact_pairs",
    "save_pairs",
    "save_preference",
]

_MODULES = {
    "pair_files": ("load_pairs", "save_compact_pairs", "save_pairs", "save_preference"),
    "pairs": ("extract_dpo_pairs", "extract_pairs_with_report"),
    "records": ("DPOPair", "TeacherCallResult"),
    "schedule": ("ReplayOptions", "open_replay", "replay_trace"),
    "teachers": ("DEFAULT_TEACHERS", "TeacherSpec"),
}
_HOMES = {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}
_HOMES["TraceState"] = "composer_replication.traces"

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
