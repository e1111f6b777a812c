"""Distillation and preference losses as pure functions of tensors, and their fused forms over hidden states."""

from composer_replication._optional import lazy_exports

_HOMES = {
    "GeneralizedJSD": "composer_replication.opsd",
    "generalized_jsd_loss": "composer_replication.opsd",
    "chosen_nll": "composer_replication.distillation.dpo",
    "dpo_loss": "composer_replication.distillation.dpo",
    "sum_sequence_logprob": "composer_replication.distillation.dpo",
    "avg_sequence_logprob": "composer_replication.distillation.simpo",
    "simpo_loss": "composer_replication.distillation.simpo",
    "TAID": "composer_replication.distillation.taid",
    "TAIDScheduler": "composer_replication.distillation.taid",
    "taid_loss": "composer_replication.distillation.taid",
    "EntropyAwareOPD": "composer_replication.distillation.entropy_aware_opd",
    "entropy_aware_opd_loss": "composer_replication.distillation.entropy_aware_opd",
    "teacher_entropy": "composer_replication.distillation.entropy_aware_opd",
    "LogitHead": "composer_replication.distillation.fused.head",
    "fused_cross_entropy": "composer_replication.distillation.fused.losses",
    "fused_divergence": "composer_replication.distillation.fused.losses",
    "fused_token_logprobs": "composer_replication.distillation.fused.losses",
}

__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
