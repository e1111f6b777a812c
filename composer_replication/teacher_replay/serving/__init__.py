"""Local teachers: an OpenAI-compatible server on 127.0.0.1, in front of Hugging Face models and Python functions."""

from typing import TYPE_CHECKING

from composer_replication._lazy import lazy_exports

if TYPE_CHECKING:
    from composer_replication.teacher_replay.serving.answering import (
        Answer,
        Answerer,
        Question,
        QuestionError,
        StreamingAnswerer,
    )
    from composer_replication.teacher_replay.serving.callables import CallableTeacher
    from composer_replication.teacher_replay.serving.hf_model import HuggingFaceTeacher
    from composer_replication.teacher_replay.serving.server import LocalTeachers

_HOMES = {
    "Answer": "composer_replication.teacher_replay.serving.answering",
    "Answerer": "composer_replication.teacher_replay.serving.answering",
    "CallableTeacher": "composer_replication.teacher_replay.serving.callables",
    "HuggingFaceTeacher": "composer_replication.teacher_replay.serving.hf_model",
    "LocalTeachers": "composer_replication.teacher_replay.serving.server",
    "Question": "composer_replication.teacher_replay.serving.answering",
    "QuestionError": "composer_replication.teacher_replay.serving.answering",
    "StreamingAnswerer": "composer_replication.teacher_replay.serving.answering",
}

__all__ = [
    "Answer",
    "Answerer",
    "CallableTeacher",
    "HuggingFaceTeacher",
    "LocalTeachers",
    "Question",
    "QuestionError",
    "StreamingAnswerer",
]

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
