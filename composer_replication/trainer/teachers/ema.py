"""A moving average of the policy over its optimiser steps."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from composer_replication.causal_lm import HiddenStates
from composer_replication.channels import Batch
from composer_replication.trainer.teachers.lora import LoraUpdate, lora_updates
from composer_replication.trainer.teachers.low_rank import LowRankAverage
from composer_replication.trainer.teachers.state import check_state, saved
from composer_replication.trainer.teachers.substitution import Substitution

# Times the adapter's rank: what the average of a LoRA update keeps.
KEPT_RANK = 4


class EMATeacher:
    """`teacher ← (1 - rate)·teacher + rate·policy` at each update, from the policy as it is when the teacher is made.

    LoRA updates are averaged as products, at four times the adapter's rank (`low_rank`). All other parameters that
    train (the model's own, `modules_to_save`, biases) are averaged one by one. Half precision would lose a step's share
    in its rounding, so averages are kept in float32 and cast for the pass. Everything else, buffers included, is the
    policy's own.
    """

    kind = "ema"

    def __init__(self, model: nn.Module, rate: float) -> None:
        self._rate = rate
        self._substitution = Substitution(model)
        self._updates = lora_updates(self._substitution.policy)
        self._averages = {name: _in_averaging_type(parameter) for name, parameter in self._plain().items()}
        self._low_rank = {
            name: LowRankAverage(
                update.down, update.up, update.scaling, rank=KEPT_RANK * update.layer.r[update.adapter]
            )
            for name, update in self._updates.items()
        }

    @property
    def truncation(self) -> float:
        """Upper bound of the relative error that the kept rank has cost any LoRA layer so far; 0 without LoRA."""
        return max((float(average.truncation) for average in self._low_rank.values()), default=0.0)

    def hinted_states(self, inputs: Batch, teacher_index_P2: torch.Tensor) -> HiddenStates:
        tensors = {name: self._averages[name].to(parameter) for name, parameter in self._plain().items()}
        for name, update in self._updates.items():
            average = self._low_rank[name]
            # The layer itself applies the factors: its own sizes come from the weights, and it scales the product.
            tensors[update.down_name] = average.right_RI.to(update.down)
            tensors[update.up_name] = (average.left_OR / update.scaling).to(update.up)
        return self._substitution.hinted_states(tensors, inputs, teacher_index_P2)

    @torch.no_grad()
    def update(self) -> None:
        for name, parameter in self._plain().items():
            self._averages[name] = average = self._averages[name].to(parameter.device)
            average.lerp_(parameter.to(average.dtype), self._rate)
        for name, update in self._updates.items():
            self._follow(name, update)

    def state_dict(self) -> dict[str, torch.Tensor]:
        return saved(self._tensors())

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        check_state(self.kind, state, self._tensors())
        for name, tensor in self._tensors().items():
            tensor.copy_(state[name])

    def _follow(self, name: str, update: LoraUpdate) -> None:
        average = self._low_rank[name]
        average.to(update.down.device)
        try:
            average.update(update.down, update.up, update.scaling, self._rate)
        except ValueError as error:
            raise ValueError(f"layer {name}: {error}") from None

    def _plain(self) -> dict[str, nn.Parameter]:
        factors = {name for update in self._updates.values() for name in (update.down_name, update.up_name)}
        trained = self._substitution.trained_parameters()
        return {name: parameter for name, parameter in trained.items() if name not in factors}

    def _tensors(self) -> dict[str, torch.Tensor]:
        low_rank = {
            f"{layer}.{part}": tensor
            for layer, average in self._low_rank.items()
            for part, tensor in average.tensors().items()
        }
        return {**self._averages, **low_rank}


def _in_averaging_type(parameter: torch.Tensor) -> torch.Tensor:
    halves = (torch.float16, torch.bfloat16)
    return parameter.detach().to(torch.float32 if parameter.dtype in halves else parameter.dtype, copy=True)
