"""Losses from hidden states: the same values and gradients as on full logits, in a fraction of the memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F

from composer_replication._arguments import check_choice, check_no_nan, check_positive, check_range
from composer_replication.distillation.fused.chunked_loss import chunked_rows, chunked_sum
from composer_replication.distillation.fused.head import LogitHead

# `GeneralizedJSD(...)`, `TAID(...)`, `EntropyAwareOPD(...)`, or any function of (N, V) student and teacher logits to
# (N,) losses that is differentiable in the student's.
Divergence = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class FusedLoss(NamedTuple):
    """A loss with gradient, and the (N,) losses of the positions, unweighted and without gradient."""

    loss: torch.Tensor
    per_position: torch.Tensor


def fused_divergence(
    divergence: Divergence,
    student_hidden: torch.Tensor,
    teacher_hidden: torch.Tensor,
    head: LogitHead,
    *,
    teacher_head: LogitHead | None = None,
    position_weight: torch.Tensor | None = None,
    reduction: Literal["batchmean", "sum", "none"] = "batchmean",
) -> FusedLoss:
    """Divergence between what two sets of hidden states predict, position by position.

    Pass hidden states of the positions that carry loss and no others: they are all that is projected.

    Args:
        divergence: the criterion, e.g. `GeneralizedJSD(beta=0.5)`.
        student_hidden: (N, H); gradients flow to it and to the head's weight and bias.
        teacher_hidden: (N, H'); no gradient reaches it or the teacher's head.
        head: the student's head.
        teacher_head: the teacher's, if it has its own (an EMA or frozen copy); None shares the student's.
        position_weight: (N,) constant factors, for instance importance weights.
        reduction: "batchmean" divides the sum by N, "sum" does not; "none" gives the (N,) losses with gradient, for
            one more sweep over the vocabulary in backward.

    Raises:
        ValueError: shapes that do not fit, no positions, or NaN logits.
    """
    check_choice("reduction", reduction, ("batchmean", "sum", "none"))
    head.check_hidden("student_hidden", student_hidden)
    (teacher_head or head).check_hidden("teacher_hidden", teacher_hidden)
    positions = student_hidden.shape[0]
    if teacher_hidden.shape[0] != positions:
        raise ValueError(
            f"student_hidden has {positions} positions, teacher_hidden {teacher_hidden.shape[0]}: they must pair up"
        )
    if teacher_head is not None and teacher_head.vocabulary(teacher_hidden) != head.vocabulary(student_hidden):
        raise ValueError(
            f"head has a vocabulary of {head.vocabulary(student_hidden)}, "
            f"teacher_head of {teacher_head.vocabulary(teacher_hidden)}: they must be equal"
        )
    if position_weight is not None:
        if position_weight.shape != (positions,):
            raise ValueError(f"position_weight has shape {tuple(position_weight.shape)}, expected ({positions},)")
        check_no_nan(position_weight, position_weight=position_weight)

    def row_loss(student: torch.Tensor, teacher: torch.Tensor | None, _: slice) -> torch.Tensor:
        assert teacher is not None
        return divergence(student, teacher)

    if reduction == "none":
        losses_N = chunked_rows(
            row_loss, student_hidden, head, teacher_hidden_NH=teacher_hidden, teacher_head=teacher_head
        )
        loss = losses_N if position_weight is None else losses_N * position_weight.detach()
    else:
        loss, losses_N = chunked_sum(
            row_loss,
            student_hidden,
            head,
            teacher_hidden_NH=teacher_hidden,
            teacher_head=teacher_head,
            weight_N=position_weight,
        )
        loss = loss / positions if reduction == "batchmean" else loss
    check_no_nan(
        losses_N,
        student_hidden=student_hidden,
        teacher_hidden=teacher_hidden,
        **head.tensors("head"),
        **(head if teacher_head is None else teacher_head).tensors("teacher_head"),
    )
    return FusedLoss(loss, losses_N.detach())


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
