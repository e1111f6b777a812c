"""Token log-probabilities and cross-entropy from hidden states, without logits for the whole batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from composer_replication._arguments import check_no_nan, check_positive, check_range
from composer_replication.distillation.fused.chunked_loss import chunked_rows, chunked_sum
from composer_replication.distillation.fused.divergence import FusedLoss
from composer_replication.distillation.fused.head import LogitHead


def fused_cross_entropy(
    hidden: torch.Tensor,
    targets: torch.Tensor,
    head: LogitHead,
    *,
    label_smoothing: float = 0.0,
) -> FusedLoss:
    """Mean cross-entropy of (N,) target tokens under (N, H) hidden states, and each position's.

    Raises:
        ValueError: shapes that do not fit, targets outside the vocabulary, or NaN logits.
    """
    check_range("label_smoothing", label_smoothing, 0.0, 1.0)
    _check_targets(hidden, targets, head)

    def row_loss(logits: torch.Tensor, _: torch.Tensor | None, where: slice) -> torch.Tensor:
        return F.cross_entropy(logits, targets[where], reduction="none", label_smoothing=label_smoothing)

    total, losses_N = chunked_sum(row_loss, hidden, head)
    check_no_nan(losses_N, hidden=hidden, **head.tensors("head"))
    return FusedLoss(total / hidden.shape[0], losses_N)


def fused_token_logprobs(
    hidden: torch.Tensor, targets: torch.Tensor, head: LogitHead, *, temperature: float = 1.0
) -> torch.Tensor:
    """The (N,) log-probabilities of (N,) target tokens under (N, H) hidden states, with gradient.

    Raises:
        ValueError: shapes that do not fit, targets outside the vocabulary, or NaN logits.
    """
    check_positive("temperature", temperature)
    _check_targets(hidden, targets, head)

    def row_loss(logits: torch.Tensor, _: torch.Tensor | None, where: slice) -> torch.Tensor:
        tempered = logits if temperature == 1.0 else logits / temperature
        return -F.cross_entropy(tempered, targets[where], reduction="none")

    logprobs_N = chunked_rows(row_loss, hidden, head)
    check_no_nan(logprobs_N, hidden=hidden, **head.tensors("head"))
    return logprobs_N


def _check_targets(hidden: torch.Tensor, targets: torch.Tensor, head: LogitHead) -> None:
    head.check_hidden("hidden", hidden)
    if targets.shape != hidden.shape[:1]:
        raise ValueError(f"targets has shape {tuple(targets.shape)}, expected ({hidden.shape[0]},)")
    vocabulary = head.vocabulary(hidden)
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= vocabulary:
        raise ValueError(f"targets has ids from {low} to {high}, the vocabulary has {vocabulary}")
