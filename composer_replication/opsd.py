"""Generalized Jensen-Shannon divergence between a student's and a teacher's next-token distributions.

    m = (1-β)·p_S + β·p_T        L = β·KL(p_T‖m) + (1-β)·KL(p_S‖m)

β=0 is KL(p_T‖p_S) and β=1 is KL(p_S‖p_T). The formula itself goes to 0 at both ends, so the endpoints are
discontinuous on purpose (`L/β → KL(p_T‖p_S)` as β → 0). Temperature divides both logits; there is no T² factor.

Shapes: B batch, T positions, V vocabulary, N selected positions, K compared entries (V, or the top-k support).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from composer_replication._arguments import (
    check_choice,
    check_count,
    check_no_nan,
    check_positive,
    check_range,
    check_same_shape,
)
from composer_replication.distillation.positions import REDUCTIONS, Reduction, select_positions

TopKSupport = Literal["teacher", "student"]

IGNORE_LABEL = -100

# Stands for log 0 (a logit of -inf) where it is multiplied by 0. A loss above the other bound has met it elsewhere.
_LOG_ZERO = -1e30
_MAX_FINITE_LOSS = 1e10
# A top-k support that holds all the mass leaves a tail of about 1e-7 rather than log(0).
_MAX_LOG_CAPTURED = -1e-7


@dataclass(frozen=True)
class GeneralizedJSD:
    """The divergence's settings; calling it on (N, V) logits gives the (N,) loss of each position.

    Gradients flow to the student logits only, and are first-order: parts whose derivative cancels are held
    constant, so a second derivative would be wrong.
    """

    beta: float = 0.5
    temperature: float = 1.0
    top_k: int | None = None
    top_k_support: TopKSupport = "teacher"
    top_k_tail: bool = True
    token_clip: float | None = None
    elementwise_clip: float | None = None

    def __post_init__(self) -> None:
        check_range("beta", self.beta, 0.0, 1.0)
        check_positive("temperature", self.temperature)
        check_count("top_k", self.top_k)
        check_choice("top_k_support", self.top_k_support, ("teacher", "student"))
        check_positive("token_clip", self.token_clip)
        check_positive("elementwise_clip", self.elementwise_clip)

    def __call__(self, student_logits_NV: torch.Tensor, teacher_logits_NV: torch.Tensor) -> torch.Tensor:
        """The (N,) losses of two sets of (N, V) logits."""
        return self.from_log_probs(
            log_probabilities(student_logits_NV, self.temperature),
            log_probabilities(teacher_logits_NV.detach(), self.temperature),
        )

    def from_log_probs(self, student_NV: torch.Tensor, teacher_NV: torch.Tensor) -> torch.Tensor:
        """The (N,) losses of two sets of normalised (N, V) log-probabilities."""
        student_NK, teacher_NK = self._restrict(student_NV, teacher_NV)
        terms_NK = divergence_terms(student_NK, teacher_NK, self.beta)
        if self.elementwise_clip is not None:
            terms_NK = terms_NK.clamp(max=self.elementwise_clip)
        losses_N = infinite_where_ruled_out(terms_NK.sum(-1))
        return losses_N if self.token_clip is None else losses_N.clamp(max=self.token_clip)

    def _restrict(self, student_NV: torch.Tensor, teacher_NV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.top_k is None or self.top_k >= student_NV.shape[-1]:
            return student_NV, teacher_NV
        chooser = teacher_NV if self.top_k_support == "teacher" else student_NV.detach()
        support = chooser.topk(self.top_k, dim=-1).indices
        complete = _with_tail if self.top_k_tail else _renormalised
        return complete(student_NV.gather(-1, support)), complete(teacher_NV.gather(-1, support))


def generalized_jsd_loss(
    student_logits: torch.Tensor,
    teacher_logits: torch.Tensor,
    labels: torch.Tensor | None = None,
    beta: float = 0.5,
    temperature: float = 1.0,
    reduction: Reduction = "batchmean",
    logits_are_probs: bool = False,
    top_k: int | None = None,
    token_clip: float | None = None,
    *,
    top_k_support: TopKSupport = "teacher",
    top_k_tail: bool = True,
    elementwise_clip: float | None = None,
) -> torch.Tensor:
    """Divergence of the student from the teacher at every position that `labels` does not rule out.

    Differentiable once. A KL divergence from a side that rules out (logit -inf) what the other allows is infinite.

    Args:
        student_logits: (B, T, V), with gradient.
        teacher_logits: (B, T, V); no gradient reaches it.
        labels: (B, T); positions equal to -100 are ignored, whatever the others hold.
        beta: 0 is forward KL, 1 reverse KL, 0.5 the symmetric JSD.
        temperature: divides both logits.
        reduction: "batchmean" = sum / unmasked positions; "mean" divides by V as well; "sum"; "none" gives (B, T)
            with 0 at ignored positions.
        logits_are_probs: the inputs are probabilities already; temperature must then be 1.
        top_k: compare only the k most likely tokens of `top_k_support`.
        token_clip: upper bound of a position's loss, after the sum over the vocabulary.
        top_k_support: whose top-k: the teacher's (as OPSD does) or the student's (as SDPO does).
        top_k_tail: put the mass outside the support into one more entry. False renormalises on the support
            instead (OPSD's convention), which hides how much mass lies outside it.
        elementwise_clip: OPSD's clip: bounds each vocabulary entry's term before the sum. Negative terms survive,
            so the loss may turn negative.

    Raises:
        ValueError: shapes that differ, a setting out of range, NaN logits, or no position left.
    """
    check_choice("reduction", reduction, REDUCTIONS)
    divergence = GeneralizedJSD(beta, temperature, top_k, top_k_support, top_k_tail, token_clip, elementwise_clip)
    check_same_shape("student_logits", student_logits, "teacher_logits", teacher_logits)
    positions = select_positions(student_logits, "labels", None if labels is None else labels != IGNORE_LABEL)
    student_NV, teacher_NV = positions.rows(student_logits), positions.rows(teacher_logits)
    if logits_are_probs:
        if temperature != 1.0:
            raise ValueError(f"temperature must be 1 with logits_are_probs=True, got {temperature!r}")
        losses_N = divergence.from_log_probs(
            _log_of_probabilities("student_logits", student_NV),
            _log_of_probabilities("teacher_logits", teacher_NV.detach()),
        )
    else:
        losses_N = divergence(student_NV, teacher_NV)
    check_no_nan(losses_N, student_logits=student_NV, teacher_logits=teacher_NV)
    return positions.reduce(losses_N, reduction, student_logits.shape[-1])


def log_probabilities(logits: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    """Log-softmax of tempered logits, in at least float32."""
    dtype = torch.promote_types(logits.dtype, torch.float32)
    if temperature != 1.0:
        logits = logits / temperature
    return torch.log_softmax(logits, dim=-1, dtype=dtype)


def finite(log_probs: torch.Tensor) -> torch.Tensor:
    """Put a finite stand-in for log 0, so that 0·log 0 is 0 and not NaN."""
    return log_probs.clamp_min(_LOG_ZERO)


def infinite_where_ruled_out(losses_N: torch.Tensor) -> torch.Tensor:
    """Turn a loss that met the stand-in for log 0 on one side only into the infinity that it stands for."""
    return losses_N.masked_fill(losses_N.detach() > _MAX_FINITE_LOSS, math.inf)


def divergence_terms(student: torch.Tensor, teacher: torch.Tensor, beta: float) -> torch.Tensor:
    """Elementwise terms of log-probabilities whose sum over the last dimension is the divergence."""
    if beta in (0.0, 1.0):
        student, teacher = finite(student), finite(teacher)
        return teacher.exp() * (teacher - student) if beta == 0.0 else student.exp() * (student - teacher)
    p_student, p_teacher = student.exp(), teacher.exp()
    with torch.no_grad():
        # d/dp of (1-β)p·log(p/m) + βq·log(q/m) with m = (1-β)p + βq is (1-β)·log(p/m): what comes from m cancels.
        # So both logarithms may be constants, which spares the backward pass several vocabulary-sized tensors.
        tiny = torch.finfo(student.dtype).tiny
        log_mixture = torch.lerp(p_student, p_teacher, beta).clamp_min_(tiny).log_()
        student_ratio = (student - log_mixture).clamp_min_(_LOG_ZERO).mul_(1.0 - beta)
        teacher_term = (teacher - log_mixture).clamp_min_(_LOG_ZERO).mul_(p_teacher).mul_(beta)
    return torch.addcmul(teacher_term, p_student, student_ratio)


def _log_of_probabilities(name: str, probabilities: torch.Tensor) -> torch.Tensor:
    dtype = torch.promote_types(probabilities.dtype, torch.float32)
    if bool((probabilities < 0).any()):
        raise ValueError(f"{name} must hold probabilities, got {probabilities.min().item()!r}")
    probabilities = probabilities.to(dtype)
    # A probability of 0 is replaced before the logarithm too: left there, it would send 0·(1/0) into the gradient.
    ruled_out = probabilities == 0
    return probabilities.masked_fill(ruled_out, 1.0).log().masked_fill(ruled_out, -math.inf)


def _with_tail(log_probs_NK: torch.Tensor) -> torch.Tensor:
    captured = torch.logsumexp(log_probs_NK, dim=-1, keepdim=True).clamp(max=_MAX_LOG_CAPTURED)
    return torch.cat([log_probs_NK, torch.log(-torch.expm1(captured))], dim=-1)


def _renormalised(log_probs_NK: torch.Tensor) -> torch.Tensor:
    return log_probs_NK - torch.logsumexp(log_probs_NK, dim=-1, keepdim=True)
