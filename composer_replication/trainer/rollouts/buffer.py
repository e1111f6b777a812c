"""Rollouts that were generated but not used up when a checkpoint is saved: as tensors, and back.

Without them, a run resumed between two generations would sample anew where the uninterrupted one goes on learning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from composer_replication.trainer.rollouts.hint_sites import HintSite

_PREFIX = "buffer"


def buffered_tensors(
    buffer: Sequence[Mapping[str, Any]] | None, sites: str
) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]] | None]:
    """The tensors of a buffer under flat names, and the rest of each micro-batch as JSON takes it.

    `sites` is the key of the hint sites. Other entries must be tensors or plain values.
    """
    if buffer is None:
        return {}, None
    tensors: dict[str, torch.Tensor] = {}
    rests: list[dict[str, Any]] = []
    for number, inputs in enumerate(buffer):
        rest: dict[str, Any] = {}
        for name, value in inputs.items():
            if isinstance(value, torch.Tensor):
                # Slices of one batch share their storage, which safetensors refuses.
                tensors[f"{_PREFIX}.{number}.{name}"] = value.detach().clone()
            elif name == sites:
                rest[name] = [[site.to_json() for site in of_row] for of_row in value]
            else:
                rest[name] = value
        rests.append(rest)
    return tensors, rests


def restored_buffer(
    tensors: Mapping[str, torch.Tensor],
    rests: Sequence[Mapping[str, Any]] | None,
    sites: str,
    device: torch.device | str,
) -> list[dict[str, Any]] | None:
    """What `buffered_tensors` took apart."""
    if rests is None:
        return None
    buffer: list[dict[str, Any]] = []
    for number, rest in enumerate(rests):
        prefix = f"{_PREFIX}.{number}."
        inputs: dict[str, Any] = {
            name.removeprefix(prefix): tensor.to(device) for name, tensor in tensors.items() if name.startswith(prefix)
        }
        for name, value in rest.items():
            inputs[name] = (
                [[HintSite.from_json(site) for site in of_row] for of_row in value] if name == sites else value
            )
        buffer.append(inputs)
    return buffer
