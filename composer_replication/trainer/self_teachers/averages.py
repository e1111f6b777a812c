"""A moving average of the policy over its optimiser steps; of LoRA layers, the average of their effective update.

Averaging a LoRA layer's A and B apart would average something else: mean(B)·mean(A) is not mean(B·A). The average of
the products has a rank that grows with every step, but nearly all of it lies in few directions, because old steps fade
and neighbouring ones are alike. So it is kept as two factors of a fixed rank, and what that leaves out is measured.

Shapes: O output features, I input features, R kept rank, r the adapter's rank, K = R + r.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from composer_replication.causal_lm import HiddenStates
from composer_replication.channels.scoring import Batch
from composer_replication.trainer.self_teachers.substitution import Substitution, check_state, saved

# Times the adapter's rank: what the average of a LoRA update keeps.
KEPT_RANK = 4


class EMATeacher:
    """`teacher ← (1 - rate)·teacher + rate·policy` at each update, from the policy as it is when the teacher is made.

    LoRA updates are averaged as products, at four times the adapter's rank (`low_rank`). All other parameters that
    train (the model's own, `modules_to_save`, biases) are averaged one by one. Half precision would lose a step's share
    in its rounding, so averages are kept in float32 and cast once per update. Everything else, buffers included, is
    the policy's own.
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
        self._cast: dict[str, torch.Tensor] = {}

    @property
    def truncation(self) -> float:
        """Upper bound of the relative error that the kept rank has cost any LoRA layer so far; 0 without LoRA."""
        return max((float(average.truncation) for average in self._low_rank.values()), default=0.0)

    def hinted_states(
        self, inputs: Batch, teacher_index_P2: torch.Tensor, token_budget: int | None = None
    ) -> HiddenStates:
        return self._substitution.hinted_states(self._as_policy(), inputs, teacher_index_P2, token_budget)

    @torch.no_grad()
    def update(self) -> None:
        self._cast = {}
        for name, parameter in self._plain().items():
            self._averages[name] = average = self._averages[name].to(parameter.device)
            average.lerp_(parameter.to(average.dtype), self._rate)
        for name, update in self._updates.items():
            self._follow(name, update)

    def state_dict(self) -> dict[str, torch.Tensor]:
        return saved(self._tensors())

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        check_state(self.kind, state, self._tensors())
        self._cast = {}
        for name, tensor in self._tensors().items():
            tensor.copy_(state[name])

    def _as_policy(self) -> dict[str, torch.Tensor]:
        """The averages in the types and places of the policy's parameters, made at the first pass after an update."""
        trained = self._substitution.trained_parameters()
        # Trainers may move or cast the policy after the first pass.
        if any(_kind(self._cast.get(name)) != _kind(parameter) for name, parameter in trained.items()):
            self._cast = {name: self._averages[name].to(parameter) for name, parameter in self._plain().items()}
            for name, update in self._updates.items():
                average = self._low_rank[name]
                # The layer itself applies the factors: its own sizes come from the weights, and it scales the product.
                self._cast[update.down_name] = average.right_RI.to(update.down)
                self._cast[update.up_name] = (average.left_OR / update.scaling).to(update.up)
        return self._cast

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


def _kind(tensor: torch.Tensor | None) -> tuple[torch.dtype, torch.device] | None:
    return None if tensor is None else (tensor.dtype, tensor.device)


def _in_averaging_type(parameter: torch.Tensor) -> torch.Tensor:
    halves = (torch.float16, torch.bfloat16)
    return parameter.detach().to(torch.float32 if parameter.dtype in halves else parameter.dtype, copy=True)


class LowRankAverage:
    """`left @ right`, an average over the steps of `scaling · B @ A`, in float32.

    Exact up to rounding while the steps' ranks add up to no more than R; then the smallest singular values are
    dropped. `error` is an upper bound of the Frobenius distance to the exact average: what was dropped at each update,
    faded like the average itself. `truncation` is the largest value that the bound has had relative to the average.
    """

    def __init__(self, A_rI: torch.Tensor, B_Or: torch.Tensor, scaling: float, *, rank: int) -> None:
        self.rank = min(rank, A_rI.shape[1], B_Or.shape[0])
        self.left_OR, self.right_RI = A_rI.new_zeros(0), A_rI.new_zeros(0)
        self.error = torch.zeros((), device=A_rI.device)
        self.truncation = torch.zeros((), device=A_rI.device)
        self._compress(*_precise(scaling * _precise(B_Or)[0], A_rI))

    def update(self, A_rI: torch.Tensor, B_Or: torch.Tensor, scaling: float, rate: float) -> None:
        """Move the average by `rate` toward the layer's update as it is now."""
        left, right, A, B = _precise(self.left_OR, self.right_RI, A_rI, B_Or)
        self.error.mul_(1.0 - rate)
        self._compress(torch.cat([(1.0 - rate) * left, rate * scaling * B], 1), torch.cat([right, A]))

    def to(self, device: torch.device) -> None:
        """Follow the layer to its device."""
        for name, tensor in self.tensors().items():
            setattr(self, name, tensor.to(device))

    def tensors(self) -> dict[str, torch.Tensor]:
        """The whole state, by attribute name."""
        names = ("left_OR", "right_RI", "error", "truncation")
        return {name: getattr(self, name) for name in names}

    def _compress(self, left_OK: torch.Tensor, right_KI: torch.Tensor) -> None:
        """Take the best factors of rank R of a product, through the singular values of its small core."""
        left_basis, left_core = torch.linalg.qr(left_OK)
        right_basis, right_core = torch.linalg.qr(right_KI.T)
        core = left_core @ right_core.T
        if not bool(torch.isfinite(core).all()):
            raise ValueError("the adapter's weights are not finite: nothing can be averaged with them")
        U, S, Vh = torch.linalg.svd(core, full_matrices=False)
        root = S.sqrt()
        left_OR = left_basis @ (U * root)[:, : self.rank]
        right_RI = (root[:, None] * Vh)[: self.rank] @ right_basis.T
        # Fewer directions than R so far: the rest are zeros, so that shapes never change.
        missing = self.rank - left_OR.shape[1]
        self.left_OR = torch.nn.functional.pad(left_OR, (0, missing)).float().contiguous()
        self.right_RI = torch.nn.functional.pad(right_RI, (0, 0, 0, missing)).float().contiguous()
        self.error += S[self.rank :].norm().float()
        relative = self.error / S.norm().float().clamp_min(torch.finfo(torch.float32).tiny)
        self.truncation = torch.maximum(self.truncation, relative)


def _precise(*tensors: torch.Tensor) -> list[torch.Tensor]:
    # Double precision costs little on matrices this narrow, and neither autocast nor TF32 touch it. Apple's GPUs have
    # none.
    return [t.detach().to(torch.float32 if t.device.type == "mps" else torch.float64) for t in tensors]


@dataclass(frozen=True)
class LoraUpdate:
    """A layer with the update `scaling · B @ A`, and the names of its two parameters."""

    layer: Any
    adapter: str
    down_name: str
    up_name: str

    @property
    def down(self) -> torch.Tensor:
        """A, (r, input features)."""
        weight: torch.Tensor = self.layer.lora_A[self.adapter].weight
        return weight

    @property
    def up(self) -> torch.Tensor:
        """B, (output features, r)."""
        weight: torch.Tensor = self.layer.lora_B[self.adapter].weight
        return weight

    @property
    def scaling(self) -> float:
        """α/r, or α/√r for rank-stabilised LoRA."""
        return float(self.layer.scaling[self.adapter])


def lora_updates(policy: nn.Module) -> dict[str, LoraUpdate]:
    """The updates that train, by the name of their layer; none for a policy without adapters.

    Raises:
        ValueError: an adapter whose effect is not a low-rank update of a linear layer, or several of them in one layer.
    """
    return {name: update for name, update in _updates(policy) if _trains(update)}


def _trains(update: LoraUpdate) -> bool:
    return update.down.requires_grad or update.up.requires_grad


def _updates(policy: nn.Module) -> Iterator[tuple[str, LoraUpdate]]:
    for name, config in _active_configs(policy).items():
        if config.peft_type != "LORA":
            raise _refusal(f"adapter {name!r} is of PEFT's method {config.peft_type.value}")
    # Whoever has such layers has imported PEFT; whoever has none need not.
    layers = sys.modules.get("peft.tuners.lora.layer")
    if layers is None:
        return
    layer: Any
    for name, layer in policy.named_modules():
        if not isinstance(layer, layers.LoraLayer):
            continue
        kind = f"{type(layer).__module__}.{type(layer).__name__}"
        active = [adapter for adapter in layer.active_adapters if adapter in layer.r]
        if not active:
            continue
        if len(active) > 1:
            raise _refusal(f"layer {name} has several active adapters ({', '.join(active)})")
        # The quantised layers of bitsandbytes compute the same formula over another base.
        if kind not in (
            "peft.tuners.lora.layer.Linear",
            "peft.tuners.lora.bnb.Linear4bit",
            "peft.tuners.lora.bnb.Linear8bitLt",
        ):
            raise _refusal(f"layer {name} is a {kind}, not LoRA on a linear layer")
        (adapter,) = active
        if (variant := layer.lora_variant.get(adapter)) is not None:
            raise _refusal(f"layer {name} uses the LoRA variant {type(variant).__name__}")
        if layer.scaling[adapter] == 0:
            raise _refusal(f"layer {name} scales its adapter by 0")
        yield name, LoraUpdate(layer, adapter, f"{name}.lora_A.{adapter}.weight", f"{name}.lora_B.{adapter}.weight")


def _active_configs(policy: nn.Module) -> dict[str, Any]:
    configs = getattr(policy, "peft_config", None)
    if not isinstance(configs, dict):
        return {}
    # A property of PEFT's models, a method of transformers' own.
    active: Any = policy.active_adapters
    names = active() if callable(active) else active
    return {name: configs[name] for name in names}


def _refusal(what: str) -> ValueError:
    return ValueError(
        f"{what}, of which there is no exact average: use plain LoRA on linear layers, or the teacher 'frozen', "
        "'trust_region' or 'live'"
    )
