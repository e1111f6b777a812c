"""Channel 3, preference pairs: prefer what the teachers agreed on over what the student did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from typing_extensions import TypedDict

from composer_replication.channels.fields import LOSS_SUMS, Count, Keyword, OnlyWith, Positive, Settings, Weight

if TYPE_CHECKING:
    from torch import nn

    from composer_replication.channels.scoring import Batch, ChannelLoss

DPOVariant = Literal["dpo", "simpo"]

_REFERENCES = ("dpo_chosen_ref_logprobs", "dpo_rejected_ref_logprobs")


@dataclass(frozen=True)
class Preference(Settings):
    """Channel 3: preference pairs of the action that the teachers agreed on and the student's own."""

    beta: Annotated[Weight, Keyword("beta_replay")] = 0.05
    """Weight of channel 3, preference pairs; 0 turns it off. In a configuration without pairs, it is 0."""
    variant: Annotated[DPOVariant, Keyword("dpo_variant")] = "dpo"
    """dpo needs reference log-probabilities, which are computed once; simpo needs none."""
    dpo_beta: Annotated[Positive, OnlyWith("variant", "dpo"), Keyword("replay_dpo_beta")] = 0.1
    """The variant dpo: β, how closely the policy is kept to the reference."""
    simpo_beta: Annotated[Positive, OnlyWith("variant", "simpo"), Keyword("simpo_beta")] = 2.0
    """The variant simpo: β, the scale of the log-probabilities."""
    simpo_gamma: Annotated[Weight, OnlyWith("variant", "simpo"), Keyword("simpo_gamma")] = 1.0
    """The variant simpo: γ, the target margin."""
    batch_size: Annotated[Count | None, Keyword("replay_batch_size")] = None
    """Pairs in each micro-batch; null: one for every two rollouts or traces."""
    max_length: Annotated[Count, Keyword("replay_max_length")] = 2048
    """Maximum tokens of a prompt and one response. A longer prompt keeps system prompt, tools, task and its latest
    messages."""

    sums: ClassVar[tuple[str, ...]] = LOSS_SUMS

    def loss(self, model: nn.Module, inputs: Batch) -> ChannelLoss:
        """The mean loss over the pairs of a batch.

        Raises:
            ValueError: an input is missing, misshapen or empty.
        """
        from composer_replication._arguments import check_same_shape, entry
        from composer_replication.channels.scoring import ChannelLoss, preference_logprobs
        from composer_replication.distillation.dpo import dpo_loss
        from composer_replication.distillation.simpo import simpo_loss

        references = [entry(inputs, name) for name in _REFERENCES] if self.needs_reference else []
        sums_B, lengths_B = preference_logprobs(model, inputs)
        tokens = int(lengths_B.sum())
        if self.variant == "simpo":
            chosen_B, rejected_B = (sums_B / lengths_B).chunk(2)
            return ChannelLoss(simpo_loss(chosen_B, rejected_B, beta=self.simpo_beta, gamma=self.simpo_gamma), tokens)
        chosen_B, rejected_B = sums_B.chunk(2)
        for name, reference in zip(_REFERENCES, references, strict=True):
            check_same_shape(name, reference, "the policy's log-probabilities", chosen_B)
        return ChannelLoss(dpo_loss(chosen_B, rejected_B, *references, beta=self.dpo_beta), tokens)

    @property
    def needs_reference(self) -> bool:
        """Whether the loss reads reference log-probabilities."""
        return self.variant == "dpo"

    def summary(self) -> str:
        """The settings that define the loss, for a model card."""
        return f"{self.variant} with beta {self.dpo_beta if self.variant == 'dpo' else self.simpo_beta:g}"


class PreferenceKeywords(TypedDict, total=False):
    """The trainers' keywords of `Preference`, for type checkers and editors."""

    beta_replay: float
    dpo_variant: DPOVariant
    replay_dpo_beta: float
    simpo_beta: float
    simpo_gamma: float
    replay_batch_size: int | None
    replay_max_length: int
