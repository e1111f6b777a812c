"""Who scores the hinted contexts: the policy itself, as it was, averaged over its steps, or held near its start."""

from composer_replication._optional import lazy_exports

_HOMES = {
    "Teacher": "composer_replication.trainer.teachers.teacher",
    "make_teacher": "composer_replication.trainer.teachers.teacher",
}

__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
