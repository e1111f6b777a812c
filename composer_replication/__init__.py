"""Post-train any Hugging Face causal LM the Composer 2.5 way.

One policy, three additive channels: GRPO, hint self-distillation (SDPO) and N-teacher trace replay (DPO or SimPO).
Names load on first use: importing this package imports neither torch nor transformers.
"""

from typing import TYPE_CHECKING, Any

from composer_replication._optional import MissingExtraError, is_available, lazy_exports

if TYPE_CHECKING:
    from composer_replication.batch import build_batch
    from composer_replication.diloco import make_diloco_outer_loop
    from composer_replication.ingestion import SYSTEM_PROMPT, ClaudeCodeIngester, IngestionStats
    from composer_replication.loss import LossComponents, compose_loss
    from composer_replication.opsd import generalized_jsd_loss
    from composer_replication.teacher_replay import (
        DEFAULT_TEACHERS,
        DPOPair,
        TeacherCallResult,
        TeacherSpec,
        extract_dpo_pairs,
        replay_trace,
    )
    from composer_replication.traces import TraceState
    from composer_replication.trainer.composer_trainer import ComposerReplicationTrainer
    from composer_replication.trainer.trace_trainer import TraceTrainer

__version__ = "0.1.0"

_DILOCO_AVAILABLE: bool = is_available("torchft")

__all__ = [
    "DEFAULT_TEACHERS",
    "SYSTEM_PROMPT",
    "ClaudeCodeIngester",
    "ComposerReplicationTrainer",
    "DPOPair",
    "IngestionStats",
    "LossComponents",
    "MissingExtraError",
    "TeacherCallResult",
    "TeacherSpec",
    "TraceState",
    "TraceTrainer",
    "__version__",
    "build_batch",
    "compose_loss",
    "extract_dpo_pairs",
    "generalized_jsd_loss",
    "make_diloco_outer_loop",
    "replay_trace",
]

_HOMES = {
    "SYSTEM_PROMPT": "composer_replication.ingestion",
    "ClaudeCodeIngester": "composer_replication.ingestion",
    "IngestionStats": "composer_replication.ingestion",
    "ComposerReplicationTrainer": "composer_replication.trainer.composer_trainer",
    "TraceState": "composer_replication.traces",
    "TraceTrainer": "composer_replication.trainer.trace_trainer",
    "DEFAULT_TEACHERS": "composer_replication.teacher_replay",
    "DPOPair": "composer_replication.teacher_replay",
    "TeacherCallResult": "composer_replication.teacher_replay",
    "TeacherSpec": "composer_replication.teacher_replay",
    "extract_dpo_pairs": "composer_replication.teacher_replay",
    "replay_trace": "composer_replication.teacher_replay",
    "LossComponents": "composer_replication.loss",
    "compose_loss": "composer_replication.loss",
    "build_batch": "composer_replication.batch",
    "generalized_jsd_loss": "composer_replication.opsd",
}
if _DILOCO_AVAILABLE:
    _HOMES["make_diloco_outer_loop"] = "composer_replication.diloco"
else:
    make_diloco_outer_loop: Any = None  # type: ignore[no-redef]

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
