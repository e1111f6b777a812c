"""Channel 1: cross-entropy on the logs' assistant turns, or policy gradients over rollouts (TRL's GRPO)."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field
from typing_extensions import TypedDict

from composer_replication.channels.fields import (
    LOSS_SUMS,
    Count,
    CountOrZero,
    Flag,
    Keyword,
    Positive,
    PositiveFraction,
    Settings,
    Weight,
)

if TYPE_CHECKING:
    from composer_replication.causal_lm import HiddenStates
    from composer_replication.channels.scoring import Batch, ChannelLoss

RolloutLoop = Literal["auto", "trl", "cached"]


@dataclass(frozen=True)
class CrossEntropy(Settings):
    """Channel 1 without an environment: cross-entropy on the assistant turns of the traces."""

    weight: Annotated[Weight, Keyword("lm_weight", only="traces")] = 1.0
    """Weight of channel 1; 0 turns it off."""
    train_on_errors: Flag = False
    """Also imitate the turns that went wrong. If false, they are context only, and channel 2 trains on them."""

    sums: ClassVar[tuple[str, ...]] = LOSS_SUMS


class CrossEntropyKeywords(TypedDict, total=False):
    """The trainers' keywords of `CrossEntropy`, for type checkers and editors."""

    lm_weight: float


@dataclass(frozen=True)
class Grpo(Settings):
    """Channel 1 with an environment: policy gradients over rollouts. Defaults as in Composer 2's report."""

    loss_type: Literal["grpo", "dapo", "dr_grpo", "bnpo", "cispo", "sapo", "luspo", "vespo"] = "dr_grpo"
    """The objective, by TRL's names. dr_grpo does not weight by length."""
    scale_rewards: Literal["group", "batch", "none"] = "none"
    """Divide advantages by the standard deviation of the rewards in a group or batch, or do not."""
    beta: Weight = 0.0
    """Weight of the KL divergence to the reference policy as a term of the loss (k3)."""
    kl_in_advantage: Annotated[Weight, Keyword("kl_in_advantage", only="rollouts")] = 0.0
    """Weight c of the KL divergence to the reference policy in the advantages (k1) instead:
    A' = A - c·(KL - the group's mean KL)."""
    num_generations: Annotated[int, Field(ge=2, strict=True)] = 8
    """Rollouts per prompt; they are compared with each other."""
    max_completion_length: Count = 1024
    """Maximum tokens of a rollout, tool results included."""
    temperature: Positive = 1.0
    """Sampling temperature."""
    top_p: PositiveFraction = 1.0
    """Sample from the smallest set of tokens with this much probability."""
    top_k: CountOrZero = 0
    """Sample from this many of the most likely tokens; 0: from all."""
    epsilon: Positive = 0.2
    """Clipping range of the ratio of new and old probabilities, downwards and upwards."""
    epsilon_high: Positive | None = None
    """A different clipping range upwards."""
    num_iterations: Count = 1
    """Number of passes over each batch of rollouts."""
    mask_truncated_completions: Flag = False
    """Leave out rollouts that were cut at max_completion_length."""
    max_tool_iterations: Count | None = None
    """Maximum rounds of tool calls in a rollout."""
    rollout_loop: Annotated[RolloutLoop, Keyword("rollout_loop", only="rollouts")] = "trl"
    """The loop that generates rollouts: trl, which reads a conversation again in every turn; cached, which keeps the
    caches of the rows; or auto: cached on a CPU, for text, with tools, where nothing speaks against it. A configuration
    that does not say has auto."""
    trl: dict[str, Any] = field(default_factory=dict)
    """Any other setting of trl.GRPOConfig, by its own name (use_vllm, vllm_mode, top_entropy_quantile, ...)."""

    sums: ClassVar[tuple[str, ...]] = LOSS_SUMS

    def trl_arguments(self) -> dict[str, Any]:
        """These settings by the names of `trl.GRPOConfig`, without those in `trl`."""
        renamed = {"max_tool_iterations": "max_tool_calling_iterations"}
        names = (one.name for one in fields(self) if one.name not in ("kl_in_advantage", "rollout_loop", "trl"))
        return {renamed.get(name, name): getattr(self, name) for name in names}


class GrpoKeywords(TypedDict, total=False):
    """The trainers' keywords of `Grpo`, for type checkers and editors."""

    kl_in_advantage: float
    rollout_loop: RolloutLoop


def lm_channel(student: HiddenStates, inputs: Batch, *, label_smoothing: float = 0.0) -> ChannelLoss:
    """Channel 1 without rollouts: cross-entropy of the response tokens."""
    from composer_replication._arguments import entry
    from composer_replication.channels.scoring import ChannelLoss, at, masked_tokens
    from composer_replication.distillation.fused.losses import fused_cross_entropy

    input_ids = entry(inputs, "input_ids")
    index_P2 = masked_tokens(inputs, "response_mask", "input_ids", "attention_mask")
    targets_P = at(input_ids, index_P2)
    result = fused_cross_entropy(student.predicting(index_P2), targets_P, student.head, label_smoothing=label_smoothing)
    return ChannelLoss(result.loss, targets_P.numel())
