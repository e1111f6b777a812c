"""The LoRA layers of a policy whose update can be averaged: plain low-rank updates of linear layers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class LoraUpdate:
    """Where a layer's update `scaling · B @ A` is found: the names of its two parameters, and the layer."""

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
