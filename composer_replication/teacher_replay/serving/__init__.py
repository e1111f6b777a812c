"""Local teachers: an OpenAI-compatible server on 127.0.0.1, in front of Hugging Face models and Python functions."""

from typing import TYPE_CHECKING

from composer_replication._optional import lazy_exports
from composer_replication.teacher_replay.serving.http_server import LocalTeachers
from composer_replication.teacher_replay.serving.local_teacher import (
    Answerer,
    CallableTeacher,
    Completion,
    Question,
    QuestionError,
    StreamingAnswerer,
)

if TYPE_CHECKING:
    from composer_replication.teacher_replay.serving.model_teacher import HuggingFaceTeacher

__all__ = [
    "Answerer",
    "CallableTeacher",
    "Completion",
    "HuggingFaceTeacher",
    "LocalTeachers",
    "Question",
    "QuestionError",
    "StreamingAnswerer",
]

# Needs torch and transformers.
_HOMES = {"HuggingFaceTeacher": "composer_replication.teacher_replay.serving.model_teacher"}
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
