"""Replay a trace's steps with other models, and learn from where they agree against the student."""

from typing import TYPE_CHECKING

from composer_replication._lazy import lazy_exports

if TYPE_CHECKING:
    from composer_replication.teacher_replay.records import DPOPair, TeacherCallResult
    from composer_replication.traces import TraceState

_HOMES = {
    "DPOPair": "composer_replication.teacher_replay.records",
    "TeacherCallResult": "composer_replication.teacher_replay.records",
    "TraceState": "composer_replication.traces",
}

__all__ = ["DPOPair", "TeacherCallResult", "TraceState"]

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
