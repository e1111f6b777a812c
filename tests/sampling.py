"""Sampling that draws the same tokens on every machine."""

from __future__ import annotations

from typing import Any

import torch


def multinomial(probabilities: torch.Tensor, num_samples: int, **_: Any) -> torch.Tensor:
    """In place of `torch.multinomial`, whose draws depend on how torch was built and on the CPU."""
    assert num_samples == 1
    cumulated = probabilities.double().cumsum(-1)
    drawn = torch.rand((*probabilities.shape[:-1], 1)) * cumulated[..., -1:]
    return torch.searchsorted(cumulated, drawn, right=True).clamp(max=probabilities.shape[-1] - 1)
