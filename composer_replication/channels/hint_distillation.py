"""Channel 2, hint self-distillation: where a turn went wrong, the model with a hint teaches the model without it.

Shapes: P index pairs, S sites, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field
from typing_extensions import TypedDict

from composer_replication.channels.fields import (
    LOSS_SUMS,
    BelowOne,
    Count,
    Flag,
    Fraction,
    Keyword,
    Number,
    OnlyWith,
    Positive,
    PositiveFraction,
    Settings,
    Weight,
)

if TYPE_CHECKING:
    import torch
    from torch import nn

    from composer_replication.causal_lm import HiddenStates
    from composer_replication.channels.scoring import Batch, ChannelLoss, HintedStates
    from composer_replication.distillation.fused.losses import Divergence

SDPOWrapper = Literal["none", "taid", "entropy_opd"]
TeacherKind = Literal["ema", "frozen", "live", "trust_region"]
HintSourceKind = Literal["error", "sibling", "both"]
HintRole = Literal["system", "developer", "user"]
SDPOTarget = Literal["erring_turn", "recovery_turn"]
Routing = Literal["none", "srpo"]
AlphaSchedule = Literal["constant", "linear"]
Mix = Annotated[float, Field(gt=0, lt=1, strict=True)]

HintGenerator = Callable[[str, Mapping[str, Any] | None], str | None]
"""From an error's kind and its `error_meta` to a hint, or None; `as_collator_hint` makes one."""

OVERLAP_TOP = 10
"""The number of most likely tokens that `overlap` compares."""


@dataclass(frozen=True)
class TaidSchedule(Settings):
    """The TAID schedule: the teacher's share grows from t_start to t_end as the student keeps up."""

    t_start: Annotated[Fraction, Keyword("taid_t_start")] = 0.4
    """TAID: the teacher's share at the start."""
    t_end: Annotated[Fraction, Keyword("taid_t_end")] = 1.0
    """TAID: the teacher's share at the end."""
    alpha: Annotated[PositiveFraction, Keyword("taid_alpha")] = 5e-4
    """TAID: the size of the adaptive step."""
    beta: Annotated[BelowOne, Keyword("taid_beta")] = 0.99
    """TAID: the momentum of the adaptive step."""


@dataclass(frozen=True)
class HintGate(Settings):
    """Rules for hints that are left out, and counted."""

    min_gap: Weight = 0.01
    """Leave out a hint that changes a token's log-probability by less than this on average, in nats."""
    drop_conflicts: Flag = True
    """Leave out a hint that makes the tokens of a rewarded turn (advantage above 0) less likely: channel 1 is raising
    the same tokens."""
    calibrate: Count | None = None
    """Measurements of foreign hints, those of other sessions or prompts, made once before training (published: 80). A
    hint then counts only if it changes the mean log-probability of its turn, up or down, by more than `percentile` of
    the foreign hints do; null: no such rule."""
    percentile: PositiveFraction = 0.95
    """With calibrate: the share of foreign hints that a hint must exceed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.calibrate is None and self.percentile != HintGate.percentile:
            raise ValueError(
                f"percentile={self.percentile:g} has no effect without calibrate: give the number of foreign hints to "
                "measure, or leave it out"
            )


@dataclass(frozen=True)
class HintDistillation(Settings):
    """Channel 2: at the turns that went wrong, the model with a hint teaches the model without it."""

    alpha: Annotated[Weight, Keyword("alpha_sdpo")] = 0.1
    """Weight of channel 2, hint self-distillation; 0 turns it off. In a configuration without traces and without an
    environment, it is 0."""
    alpha_schedule: Annotated[AlphaSchedule, Keyword("alpha_schedule")] = "constant"
    """constant: alpha in every step; linear: from alpha in the first step to alpha_end."""
    alpha_end: Annotated[Weight, OnlyWith("alpha_schedule", "linear"), Keyword("alpha_end")] = 0.05
    """The schedule linear: the weight at its end."""
    alpha_steps: Annotated[Count | None, OnlyWith("alpha_schedule", "linear"), Keyword("alpha_steps")] = None
    """The schedule linear: optimiser steps until alpha_end is reached; null: the last step of the run has it."""
    jsd_beta: Annotated[Fraction, Keyword("sdpo_jsd_beta")] = 0.5
    """The divergence: 0 is KL(teacher || student), 1 is KL(student || teacher), between them the generalised JSD."""
    temperature: Annotated[Positive, Keyword("sdpo_temperature")] = 1.0
    """Divides the logits of student and teacher."""
    token_clip: Annotated[Positive | None, Keyword("sdpo_token_clip")] = None
    """Upper bound of the divergence of one token; null: none."""
    wrapper: Annotated[SDPOWrapper, Keyword("sdpo_wrapper")] = "none"
    """none: the divergence itself; taid: a target that moves from student to teacher; entropy_opd: forward and reverse
    KL weighted by the teacher's entropy."""
    taid: Annotated[TaidSchedule, OnlyWith("wrapper", "taid")] = TaidSchedule()
    """Settings of the wrapper taid."""
    entropy_opd_h_max: Annotated[Positive | None, OnlyWith("wrapper", "entropy_opd"), Keyword("entropy_opd_h_max")] = (
        None
    )
    """The wrapper entropy_opd: the entropy at which it is all forward KL; null: log of the vocabulary."""
    teacher: Annotated[TeacherKind, Keyword("sdpo_teacher")] = "ema"
    """The weights that see the hint: a moving average, the initial ones, the student's own (known to collapse), or a
    blend of initial and current logits."""
    ema_rate: Annotated[PositiveFraction, OnlyWith("teacher", "ema"), Keyword("ema_rate")] = 0.05
    """The teacher ema: how far it moves to the student after each optimiser step."""
    trust_region_mix: Annotated[Mix, OnlyWith("teacher", "trust_region"), Keyword("trust_region_mix")] = 0.05
    """The teacher trust_region: the student's share of the logits. 0 would be the teacher frozen, 1 the teacher
    live."""
    hint_source: Annotated[HintSourceKind, Keyword("hint_source", only="rollouts")] = "error"
    """error: hints at failing turns; sibling: a failed rollout sees a successful one of its group; both: both, at a
    failing turn."""
    hint_role: Annotated[HintRole, Keyword("hint_role", only="rollouts")] = "system"
    """Role of the hint's message. A chat template that refuses it there gets user."""
    target: Annotated[SDPOTarget, Keyword("sdpo_target", only="rollouts")] = "erring_turn"
    """The turn that is trained: the one that went wrong, or the one after it."""
    max_hinted_turns: Annotated[Count | None, Keyword("max_hinted_turns", only="rollouts")] = None
    """Maximum number of hinted turns in a rollout or a conversation of a trace: the first ones that went wrong; null:
    all."""
    strip_attempt: Annotated[Flag, Keyword("strip_attempt", only="rollouts")] = False
    """Take the failing call out of its hint, where the error quotes it: its arguments and its command, word for
    word."""
    importance_clip: Annotated[Positive | None, Keyword("importance_clip", only="rollouts")] = None
    """Weigh each token by its probability now over that when it was sampled, up to this (published: 2.0). For rollouts
    that are used in several steps or come from vLLM; null: weight 1."""
    gate: Annotated[HintGate | None, Keyword("hint_gate")] = HintGate()
    """Rules for hints that are left out; null keeps all hints."""
    routing: Annotated[Routing, Keyword("routing", only="rollouts")] = "none"
    """srpo: failed rollouts that have a hint are trained by channel 2 only."""
    success_threshold: Annotated[Number | None, Keyword("success_threshold", only="rollouts")] = None
    """The reward from which a rollout counts as a success; null: above the mean of its group."""
    trace_batch_size: Annotated[Count, Keyword("trace_batch_size", only="rollouts")] = 1
    """With an environment and traces: traces in each micro-batch of rollouts."""

    sums: ClassVar[tuple[str, ...]] = (
        *LOSS_SUMS,
        *("sites", "measured", "gap", "signed_gap", "too_small", "like_foreign", "conflicting"),
        *("compared", "overlap", "weighted", "importance_weight"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha_schedule == "linear" and not self.alpha and self.alpha_end:
            raise ValueError(
                f"alpha_end={self.alpha_end:g} has no effect with alpha_sdpo=0, which turns channel 2 off: give a "
                "small alpha_sdpo (channels.sdpo.alpha) to start from, or leave the schedule out"
            )

    def alpha_at(self, step: int, steps: int) -> float:
        """The weight in the optimiser step that follows `step` others, in a run of `steps`."""
        if self.alpha_schedule == "constant":
            return self.alpha
        share = min(1.0, step / (self.alpha_steps or max(1, steps - 1)))
        return (1.0 - share) * self.alpha + share * self.alpha_end

    def of_sites(self) -> dict[str, Any]:
        """The settings by which hint sites are found, by the names of `CollatorConfig` and `find_hint_sites`."""
        return {
            "hint_role": self.hint_role,
            "sdpo_target": self.target,
            "max_hinted_turns": self.max_hinted_turns,
            "strip_attempt": self.strip_attempt,
        }

    def divergence(self, taid_t: float | None = None) -> Divergence:
        """The loss per position, as a function of student and teacher logits.

        Raises:
            ValueError: the wrapper is taid, and `taid_t` (TAID's coefficient in [0, 1]) is missing or out of range.
        """
        from composer_replication.distillation.entropy_aware_opd import EntropyAwareOPD
        from composer_replication.distillation.taid import TAID
        from composer_replication.opsd import GeneralizedJSD

        if self.wrapper == "none":
            return GeneralizedJSD(beta=self.jsd_beta, temperature=self.temperature, token_clip=self.token_clip)
        if self.wrapper == "entropy_opd":
            return EntropyAwareOPD(h_max=self.entropy_opd_h_max, temperature=self.temperature)
        if taid_t is None:
            raise ValueError("sdpo_wrapper='taid' needs taid_t in [0, 1], got None: drive it from TAIDScheduler.t")
        return TAID(taid_t)

    def summary(self) -> str:
        """The settings that define the loss, for a model card."""
        weight = "" if self.alpha_schedule == "constant" else f"weight linear to {self.alpha_end:g}, "
        return f"{weight}teacher {self.teacher}, JSD beta {self.jsd_beta:g}, wrapper {self.wrapper}"


class HintKeywords(TypedDict, total=False):
    """The keywords of `HintDistillation` that all trainers take, for type checkers and editors."""

    alpha_sdpo: float
    alpha_schedule: AlphaSchedule
    alpha_end: float
    alpha_steps: int | None
    sdpo_jsd_beta: float
    sdpo_temperature: float
    sdpo_token_clip: float | None
    sdpo_wrapper: SDPOWrapper
    taid_t_start: float
    taid_t_end: float
    taid_alpha: float
    taid_beta: float
    entropy_opd_h_max: float | None
    sdpo_teacher: TeacherKind
    ema_rate: float
    trust_region_mix: float
    hint_gate: HintGate | None


class RolloutHintKeywords(HintKeywords, total=False):
    """The keywords of `HintDistillation` for training on rollouts."""

    hint_source: HintSourceKind
    hint_role: HintRole
    sdpo_target: SDPOTarget
    max_hinted_turns: int | None
    strip_attempt: bool
    importance_clip: float | None
    routing: Routing
    success_threshold: float | None
    trace_batch_size: int


def sdpo_channel(
    student: HiddenStates, teacher: nn.Module | HintedStates, inputs: Batch, divergence: Divergence
) -> ChannelLoss:
    """Channel 2: pull the student's predictions toward those made with the hint in context, at the paired tokens.

    `teacher` is a model, or whatever else gives hidden states for hinted contexts.
    """
    from torch import nn

    from composer_replication.channels.scoring import hinted_states, sdpo_pairs

    student_P2, teacher_P2 = sdpo_pairs(inputs)
    score = partial(hinted_states, teacher) if isinstance(teacher, nn.Module) else teacher
    return hint_divergence(student, student_P2, score(inputs, teacher_P2), divergence)


def hint_divergence(
    student: HiddenStates,
    student_P2: torch.Tensor,
    hinted: HiddenStates,
    divergence: Divergence,
    token_weight_P: torch.Tensor | None = None,
) -> ChannelLoss:
    """The mean divergence at (P, 2) tokens of the student's from what a teacher's (P, H) states predict there.

    `token_weight_P` multiplies each token's divergence; the sum is divided by P either way.
    """
    from composer_replication.channels.scoring import ChannelLoss
    from composer_replication.distillation.fused.losses import fused_divergence

    result = fused_divergence(
        divergence,
        student.predicting(student_P2),
        hinted.hidden,
        student.head,
        teacher_head=hinted.head,
        position_weight=token_weight_P,
    )
    return ChannelLoss(result.loss, student_P2.shape[0])


def importance_weights(now_P: torch.Tensor, old_P: torch.Tensor, clip: float) -> torch.Tensor:
    """The weights min(π_now/π_old, clip) of tokens, from log-probabilities; 1 where the old one is not known (NaN)."""
    # A ratio beyond e^20 says nothing more, and must not become infinite.
    ratio_P = (now_P.detach() - old_P.detach()).clamp(-20.0, 20.0).exp().clamp(max=clip)
    return ratio_P.nan_to_num(nan=1.0)


class OverlapMeter:
    """A divergence that also measures how many of student's and teacher's `OVERLAP_TOP` likeliest tokens are the same.

    `overlap` is the sum over `positions` rows of logits of the share that both have. Each row counts once: a second
    backward pass through the same graph evaluates the divergence again.
    """

    def __init__(self, divergence: Divergence, positions: int) -> None:
        self._divergence = divergence
        self._left = positions
        self.overlap: torch.Tensor | float = 0.0

    def __call__(self, student_NV: torch.Tensor, teacher_NV: torch.Tensor) -> torch.Tensor:
        if self._left > 0:
            self._left -= student_NV.shape[0]
            self.overlap = self.overlap + top_overlap(student_NV, teacher_NV).sum()
        return self._divergence(student_NV, teacher_NV)


def top_overlap(student_NV: torch.Tensor, teacher_NV: torch.Tensor, top: int = OVERLAP_TOP) -> torch.Tensor:
    """The (N,) shares of tokens that are among the `top` likeliest of both rows of logits."""
    top = min(top, student_NV.shape[-1])
    student_NK, teacher_NK = (logits.detach().topk(top).indices for logits in (student_NV, teacher_NV))
    return (student_NK.unsqueeze(-1) == teacher_NK.unsqueeze(-2)).any(-1).float().mean(-1)


class GateResult(NamedTuple):
    """The sites that stay (S,), the mean absolute and signed change of a token's log-probability per site (S,), and the
    number of sites that each rule dropped. The signed change is positive where the hint makes the turn less likely."""

    kept_S: torch.Tensor
    gap_S: torch.Tensor
    signed_gap_S: torch.Tensor
    too_small: int = 0
    like_foreign: int = 0
    conflicting: int = 0


def judge_sites(
    gate: HintGate | None,
    bare_logprobs_P: torch.Tensor,
    hinted_logprobs_P: torch.Tensor,
    site_of_pair_P: torch.Tensor,
    rewarded_S: torch.Tensor | None = None,
    threshold: float | None = None,
) -> GateResult:
    """Measure every site, and decide which ones reach the divergence; without a gate, all do.

    The gap of a site is how much the hint changes the teacher's log-probabilities of the turn's own tokens: those
    without it minus those with it. Both come from the teacher, because an averaged or frozen teacher differs from the
    policy even without a hint. A hint that changes little teaches little; the gap predicts the gain, so it is logged
    either way.

    Two quantities are compared: `min_gap` with the mean of the tokens' absolute changes, a calibrated threshold with
    the absolute value of their mean change, so that the noise that any text in the context causes cancels out.

    Args:
        gate: the rules, or None.
        bare_logprobs_P: of the turns' own tokens, without the hint.
        hinted_logprobs_P: of the same tokens, with it.
        site_of_pair_P: the number of the site that a position belongs to, from 0 without gaps.
        rewarded_S: whether a site's turn is in a rewarded rollout; None where there are no rewards.
        threshold: of a calibrated gate; None: not calibrated.
    """
    import torch

    sites = int(site_of_pair_P.max()) + 1
    change_P = bare_logprobs_P.detach().float() - hinted_logprobs_P.detach().float()
    gap_S, signed_gap_S = (_mean_per_site(values_P, site_of_pair_P, sites) for values_P in (change_P.abs(), change_P))
    kept_S = torch.ones_like(gap_S, dtype=torch.bool)
    if gate is None:
        return GateResult(kept_S, gap_S, signed_gap_S)
    dropped = []
    rules = [gap_S < gate.min_gap, signed_gap_S.abs() <= (-1.0 if threshold is None else threshold), ~kept_S]
    if gate.drop_conflicts and rewarded_S is not None:
        rules[-1] = rewarded_S.to(kept_S.device) & (signed_gap_S > 0)
    for against_S in rules:  # each site counts under the first rule that drops it
        dropped.append(int((kept_S & against_S).sum()))
        kept_S = kept_S & ~against_S
    return GateResult(kept_S, gap_S, signed_gap_S, *dropped)


def _mean_per_site(values_P: torch.Tensor, site_of_pair_P: torch.Tensor, sites: int) -> torch.Tensor:
    sums_S = values_P.new_zeros(sites).index_add(0, site_of_pair_P, values_P)
    counts_S = site_of_pair_P.bincount(minlength=sites)
    return sums_S / counts_S.clamp(min=1)
