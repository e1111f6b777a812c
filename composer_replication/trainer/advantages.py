"""Changes to GRPO's advantages: a KL penalty to the reference, and rollouts that are left to channel 2.

KL in the loss needs an estimator with a sound gradient; the plain k1 = log π - log π_ref is sound only as a reward:
A' = A - c·(KL_i - the mean KL of the group), KL_i summed over the tokens that a rollout generated.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from composer_replication.channels.scoring import HintedStates, at, hinted_states, row_sums
from composer_replication.distillation.fused.losses import fused_token_logprobs
from composer_replication.trainer.reference_logprobs import model_fingerprint, reference_policy
from composer_replication.trainer.self_teachers.snapshots import FrozenTeacher


class SequenceKL:
    """KL of whole rollouts to the reference: the adapters off, or what a model without any was at the start.

    Args:
        model: the policy, before its first step.
        coefficient: c.
        temperature: that rollouts are sampled with; KL is that of the distributions that were sampled from.
        rows_per_pass: how many rollouts are scored at once.
    """

    def __init__(self, model: nn.Module, coefficient: float, *, temperature: float, rows_per_pass: int) -> None:
        self.coefficient = coefficient
        self._temperature = temperature
        self._rows_per_pass = rows_per_pass
        self._reference = None if hasattr(model, "peft_config") else FrozenTeacher(model)
        with reference_policy(model) as reference:
            self._fingerprint = model_fingerprint(reference)

    def adjusted(self, model: nn.Module, inputs: Mapping[str, Any], group: int, accelerator: Any) -> torch.Tensor:
        """The advantages of (B,) rollouts with their KL taken in; groups may be spread over processes.

        Rollouts that are masked out have no KL, and take no part in their group's mean.
        """
        advantages_B: torch.Tensor = inputs["advantages"]
        if advantages_B.dim() != 1:
            raise ValueError(f"kl_in_advantage needs one advantage per rollout, got shape {tuple(advantages_B.shape)}")
        policy_B = self._logprobs(partial(hinted_states, model), inputs)
        if self._reference is not None:
            reference_B = self._logprobs(self._reference.hinted_states, inputs)
        else:
            with reference_policy(model) as reference:
                reference_B = self._logprobs(partial(hinted_states, reference), inputs)
        kl_B = (policy_B - reference_B).masked_fill(inputs["completion_mask"].sum(dim=1) == 0, float("nan"))
        kl: torch.Tensor = accelerator.gather(kl_B).view(-1, group)
        centred = (kl - kl.nanmean(dim=1, keepdim=True)).nan_to_num(0.0).flatten()
        first = accelerator.process_index * advantages_B.shape[0]
        return advantages_B - self.coefficient * centred[first : first + advantages_B.shape[0]]

    @torch.no_grad()
    def _logprobs(self, score: HintedStates, inputs: Mapping[str, Any]) -> torch.Tensor:
        """The (B,) summed log-probabilities of what the rollouts generated; tool text is context only."""
        input_ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention_mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        generated = torch.zeros_like(attention_mask)
        generated[:, inputs["prompt_ids"].shape[1] :] = inputs["completion_mask"] * inputs.get("tool_mask", 1)
        sums = []
        for start in range(0, input_ids.shape[0], self._rows_per_pass):
            rows = slice(start, start + self._rows_per_pass)
            ids, index_P2 = input_ids[rows], generated[rows].nonzero()
            if index_P2.shape[0] == 0:
                sums.append(torch.zeros(ids.shape[0], device=ids.device))
                continue
            # Teachers score whatever context they are given; here it is the rollout as it was.
            context = {"ctx_teacher_input_ids": ids, "ctx_teacher_attention_mask": attention_mask[rows]}
            states = score(context, index_P2)
            logprobs_P = fused_token_logprobs(
                states.hidden, at(ids, index_P2), states.head, temperature=self._temperature
            )
            sums.append(row_sums(logprobs_P, index_P2, ids.shape[0]).float())
        return torch.cat(sums)

    def state_dict(self) -> str:
        """The reference's fingerprint; its weights come with the model that a run starts from."""
        return self._fingerprint

    def load_state_dict(self, state: str) -> None:
        """Raise ValueError if the checkpoint was made with another reference."""
        if state != self._fingerprint:
            raise ValueError(
                "kl_in_advantage: the checkpoint was made with another reference policy; start from the model that the "
                "run began with, and let resume_from_checkpoint load the rest"
            )


def routed_advantages(advantages: torch.Tensor, to_channel_2_B: torch.Tensor) -> torch.Tensor:
    """Advantages with those rollouts at 0 that are left to channel 2 (SRPO)."""
    routed = to_channel_2_B.view(-1, *[1] * (advantages.dim() - 1))
    return advantages.masked_fill(routed, 0.0)
