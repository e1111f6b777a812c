"""Channel 3, preference pairs: prefer what the teachers agreed on over what the student did.

A side's reward is its log-probability above the reference's: of the whole response (dpo), or per token (dpo_norm).
simpo and nll have no reference; there it is the log-probability per token. The margin is the chosen's reward minus the
rejected's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple

from typing_extensions import TypedDict

from composer_replication.channels.fields import (
    LOSS_SUMS,
    Count,
    CountOrZero,
    Keyword,
    OnlyWith,
    Positive,
    Settings,
    Weight,
)

if TYPE_CHECKING:
    import torch
    from torch import nn

    from composer_replication.channels.scoring import Batch

DPOVariant = Literal["dpo", "simpo", "dpo_norm", "nll"]

_REFERENCES = ("dpo_chosen_ref_logprobs", "dpo_rejected_ref_logprobs")


class PreferenceLoss(NamedTuple):
    """The loss with gradient, the number of tokens it covers, and each pair's rewards (B,) without gradient.

    Without a reference there is no `chosen_reward_B`.
    """

    loss: torch.Tensor
    active_tokens: int
    chosen_reward_B: torch.Tensor | None
    margin_B: torch.Tensor


@dataclass(frozen=True)
class Preference(Settings):
    """Channel 3: preference pairs of the action that the teachers agreed on and the student's own."""

    beta: Annotated[Weight, Keyword("beta_replay")] = 0.05
    """Weight of channel 3, preference pairs; 0 turns it off. In a configuration without pairs, it is 0."""
    variant: Annotated[DPOVariant, Keyword("dpo_variant")] = "dpo"
    """dpo and dpo_norm (the same per token) need reference log-probabilities, which are computed once; simpo needs
    none; nll imitates the chosen side alone."""
    dpo_beta: Annotated[Positive, OnlyWith("variant", "dpo", "dpo_norm"), Keyword("replay_dpo_beta")] = 0.1
    """The variants dpo and dpo_norm: β, how closely the policy is kept to the reference."""
    simpo_beta: Annotated[Positive, OnlyWith("variant", "simpo"), Keyword("simpo_beta")] = 2.0
    """The variant simpo: β, the scale of the log-probabilities."""
    simpo_gamma: Annotated[Weight, OnlyWith("variant", "simpo"), Keyword("simpo_gamma")] = 1.0
    """The variant simpo: γ, the target margin."""
    nll_weight: Annotated[Weight, OnlyWith("variant", "dpo", "dpo_norm", "simpo"), Keyword("replay_nll_weight")] = 0.0
    """Weight of an anchor in the channel's loss: the negative log-likelihood of a token of the chosen side, a mean
    over all tokens of a micro-batch. Without it, a preference loss may lower the probability of both sides."""
    batch_size: Annotated[Count | None, Keyword("replay_batch_size")] = None
    """Pairs in each micro-batch; null: one for every two rollouts or traces."""
    max_length: Annotated[Count, Keyword("replay_max_length")] = 2048
    """Maximum tokens of a prompt and one response. A longer prompt keeps system prompt, tools, task and its latest
    messages."""
    refresh_pairs_every: Annotated[CountOrZero, Keyword("refresh_pairs_every")] = 0
    """Optimiser steps after which the policy scores all pairs: those that it prefers by refresh_margin rest until the
    next time; 0: never, all pairs are used."""
    refresh_margin: Annotated[Positive | None, Keyword("refresh_margin")] = None
    """With refresh_pairs_every: the margin from which a pair rests, in nats, as `channels/replay/margin` reports it:
    per response for dpo, per token for the other variants."""

    sums: ClassVar[tuple[str, ...]] = (*LOSS_SUMS, "measured", "margin", "referenced", "chosen_reward")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.refresh_pairs_every and self.refresh_margin is None:
            raise ValueError(
                f"refresh_margin must be given with refresh_pairs_every={self.refresh_pairs_every}: the margin, in "
                "nats, from which a pair rests"
            )
        if self.refresh_margin is not None and not self.refresh_pairs_every:
            raise ValueError(
                f"refresh_margin={self.refresh_margin:g} has no effect without refresh_pairs_every: give the number of "
                "steps between refreshes, or leave it out"
            )

    def loss(self, model: nn.Module, inputs: Batch) -> PreferenceLoss:
        """The mean loss over the pairs of a batch, anchor included, from one forward pass.

        Raises:
            ValueError: an input is missing, misshapen or empty.
        """
        import torch

        from composer_replication._arguments import check_same_shape, entry
        from composer_replication.channels.scoring import preference_logprobs
        from composer_replication.distillation.dpo import chosen_nll, dpo_loss
        from composer_replication.distillation.simpo import simpo_loss

        references = [entry(inputs, name) for name in _REFERENCES] if self.needs_reference else []
        sums_2B, lengths_2B = preference_logprobs(model, inputs)
        chosen = sums_2B.chunk(2)[0], lengths_2B.chunk(2)[0]
        for name, reference in zip(_REFERENCES, references, strict=False):
            check_same_shape(name, reference, "the policy's log-probabilities", chosen[0])
        reference_2B = torch.cat(references) if references else None
        if self.variant == "nll":
            loss = chosen_nll(*chosen)
        elif reference_2B is None:
            loss = simpo_loss(*(sums_2B / lengths_2B).chunk(2), beta=self.simpo_beta, gamma=self.simpo_gamma)
        else:
            sides = (self._per_response(one, lengths_2B).chunk(2) for one in (sums_2B, reference_2B))
            loss = dpo_loss(*(one for side in sides for one in side), beta=self.dpo_beta)
        if self.variant != "nll" and self.nll_weight:
            loss = loss + self.nll_weight * chosen_nll(*chosen)
        chosen_B, rejected_B = self.rewards(sums_2B.detach(), lengths_2B, reference_2B).chunk(2)
        chosen_reward_B = chosen_B if self.needs_reference else None
        return PreferenceLoss(loss, int(lengths_2B.sum()), chosen_reward_B, chosen_B - rejected_B)

    def rewards(
        self, sums: torch.Tensor, lengths: torch.Tensor, references: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Rewards of responses from their summed log-probabilities: above `references`, where the variant has them, and
        per token unless it is dpo."""
        return self._per_response(sums if references is None else sums - references, lengths)

    def _per_response(self, sums: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Sums over responses as they are, or per token, as the variant has it."""
        return sums if self.variant == "dpo" else sums / lengths

    @property
    def needs_reference(self) -> bool:
        """Whether the loss reads reference log-probabilities."""
        return self.variant in ("dpo", "dpo_norm")

    def summary(self) -> str:
        """The settings that define the loss, for a model card."""
        if self.variant == "nll":
            return "NLL of the chosen"
        text = f"{self.variant} with beta {self.dpo_beta if self.needs_reference else self.simpo_beta:g}"
        return f"{text} and {self.nll_weight:g} · NLL of the chosen" if self.nll_weight else text


class PreferenceKeywords(TypedDict, total=False):
    """The trainers' keywords of `Preference`, for type checkers and editors."""

    beta_replay: float
    dpo_variant: DPOVariant
    replay_dpo_beta: float
    simpo_beta: float
    simpo_gamma: float
    replay_nll_weight: float
    replay_batch_size: int | None
    replay_max_length: int
    refresh_pairs_every: int
    refresh_margin: float | None
