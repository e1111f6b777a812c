"""Entropy-aware on-policy distillation (arXiv 2603.07079): the teacher's entropy H_T decides the KL's direction.

Where the teacher is unsure, forward KL(T‖S) keeps its alternatives alive; where it is sure, reverse KL(S‖T) seeks its
mode. Three gates:

    soft      w·KL(T‖S) + (1-w)·KL(S‖T),  w = clamp(H_T/h_max, 0, 1)     (the documented default)
    switch    KL(T‖S) where H_T > threshold, else KL(S‖T)
    additive  KL(S‖T) everywhere, plus Σ p_T·(log p_T - log p_S) over the teacher's top-k where H_T > threshold
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from composer_replication._arguments import check_choice, check_count, check_no_nan, check_positive, check_same_shape
from composer_replication.distillation.positions import REDUCTIONS, Reduction, select_positions
from composer_replication.opsd import divergence_terms, finite, infinite_where_ruled_out, log_probabilities

Gate = Literal["soft", "switch", "additive"]


@dataclass(frozen=True)
class EntropyAwareOPD:
    """The loss's settings; calling it on (N, V) logits gives the (N,) loss of each position."""

    h_max: float | None = None
    temperature: float = 1.0
    gate: Gate = "soft"
    entropy_threshold: float = 0.8
    forward_top_k: int | None = None

    def __post_init__(self) -> None:
        check_positive("h_max", self.h_max)
        check_positive("temperature", self.temperature)
        check_choice("gate", self.gate, ("soft", "switch", "additive"))
        check_positive("entropy_threshold", self.entropy_threshold)
        check_count("forward_top_k", self.forward_top_k)
        if self.h_max is not None and self.gate != "soft":
            raise ValueError(f"h_max={self.h_max!r} belongs to gate='soft', not to gate={self.gate!r}")
        if self.forward_top_k is not None and self.gate != "additive":
            raise ValueError(
                f"forward_top_k={self.forward_top_k!r} belongs to gate='additive', not to gate={self.gate!r}"
            )

    def __call__(self, student_logits_NV: torch.Tensor, teacher_logits_NV: torch.Tensor) -> torch.Tensor:
        """The (N,) losses; gradients flow to the student logits only."""
        student_NV = log_probabilities(student_logits_NV, self.temperature)
        teacher_NV = log_probabilities(teacher_logits_NV.detach(), self.temperature)
        entropy_N = _entropy(teacher_NV)
        return infinite_where_ruled_out(self._mix(student_NV, teacher_NV, entropy_N))

    def _mix(self, student_NV: torch.Tensor, teacher_NV: torch.Tensor, entropy_N: torch.Tensor) -> torch.Tensor:
        forward_NV = divergence_terms(student_NV, teacher_NV, beta=0.0)
        reverse_N = divergence_terms(student_NV, teacher_NV, beta=1.0).sum(-1)
        if self.gate == "soft":
            h_max = math.log(student_NV.shape[-1]) if self.h_max is None else self.h_max
            return torch.lerp(reverse_N, forward_NV.sum(-1), (entropy_N / h_max).clamp(0.0, 1.0))
        unsure_N = entropy_N > self.entropy_threshold
        if self.gate == "switch":
            return torch.where(unsure_N, forward_NV.sum(-1), reverse_N)
        if self.forward_top_k is not None and self.forward_top_k < student_NV.shape[-1]:
            forward_NV = forward_NV.gather(-1, teacher_NV.topk(self.forward_top_k, dim=-1).indices)
        return reverse_N + torch.where(unsure_N, forward_NV.sum(-1), 0.0)


def entropy_aware_opd_loss(
    student_logits: torch.Tensor,
    teacher_logits: torch.Tensor,
    *,
    labels: torch.Tensor | None = None,
    h_max: float | None = None,
    temperature: float = 1.0,
    reduction: Reduction = "batchmean",
    gate: Gate = "soft",
    entropy_threshold: float = 0.8,
    forward_top_k: int | None = None,
) -> torch.Tensor:
    """Forward and reverse KL mixed by the teacher's entropy.

    Args:
        student_logits: (B, T, V), with gradient.
        teacher_logits: (B, T, V); no gradient reaches it.
        labels: (B, T) 0/1 mask that multiplies each position's loss. Unlike in `generalized_jsd_loss`, it is a
            multiplier, not a set of token ids: values outside [0, 1] are refused.
        h_max: entropy in nats at which the soft gate is all forward KL; None is log V.
        temperature: divides both logits; the gate's entropy is that of the tempered teacher.
        reduction: "batchmean" = sum / unmasked positions; "mean" divides by V as well; "sum"; "none" gives (B, T).
        gate: "soft", "switch" or "additive" (see the module).
        entropy_threshold: nats above which "switch" and "additive" use forward KL.
        forward_top_k: limits the additive gate's forward term to the teacher's top-k; None takes the vocabulary.

    Raises:
        ValueError: shapes that differ, a setting out of range, NaN logits, or no position left.
    """
    check_choice("reduction", reduction, REDUCTIONS)
    criterion = EntropyAwareOPD(h_max, temperature, gate, entropy_threshold, forward_top_k)
    check_same_shape("student_logits", student_logits, "teacher_logits", teacher_logits)
    if labels is not None and bool((wrong := (labels < 0) | (labels > 1)).any()):
        raise ValueError(
            f"labels is a 0/1 multiplier here, got the value {labels[wrong][0].item()!r}; for labels of token ids give "
            "(labels != -100).long()"
        )
    positions = select_positions(student_logits, "labels", None if labels is None else labels > 0, labels)
    student_NV, teacher_NV = positions.rows(student_logits), positions.rows(teacher_logits)
    losses_N = criterion(student_NV, teacher_NV)
    check_no_nan(losses_N, student_logits=student_NV, teacher_logits=teacher_NV)
    return positions.reduce(losses_N, reduction, student_logits.shape[-1])


def teacher_entropy(teacher_logits: torch.Tensor) -> torch.Tensor:
    """Entropy in nats of (..., V) logits, to (...)."""
    return _entropy(log_probabilities(teacher_logits))


def _entropy(log_probs: torch.Tensor) -> torch.Tensor:
    return -(log_probs.exp() * finite(log_probs)).sum(-1)
