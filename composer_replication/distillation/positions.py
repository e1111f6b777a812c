"""Which positions of a batch carry loss, and how their losses become one number."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

Reduction = Literal["batchmean", "sum", "mean", "none"]
REDUCTIONS: tuple[str, ...] = ("batchmean", "sum", "mean", "none")


@dataclass(frozen=True)
class SelectedPositions:
    """The N positions of a (B, T) grid that carry loss, and optionally their weights."""

    grid: torch.Size
    index_N: torch.Tensor | None  # flat indices; None when every position is selected
    weight_N: torch.Tensor | None = None

    def rows(self, tensor: torch.Tensor) -> torch.Tensor:
        """The (N, V) rows of a (B, T, V) tensor; a view when nothing is left out."""
        flat = tensor.flatten(0, -2)
        return flat if self.index_N is None else flat.index_select(0, self.index_N)

    def reduce(self, losses_N: torch.Tensor, reduction: Reduction, vocabulary: int = 1) -> torch.Tensor:
        """Weigh the losses and reduce them.

        "batchmean" divides the sum by N, "mean" by N times `vocabulary`; "none" gives the (B, T) grid with
        0 where nothing was selected.
        """
        if self.weight_N is not None:
            losses_N = losses_N * self.weight_N
        if reduction == "sum":
            return losses_N.sum()
        if reduction == "none":
            if self.index_N is None:
                return losses_N.view(self.grid)
            full = losses_N.new_zeros(math.prod(self.grid))
            return full.index_copy(0, self.index_N, losses_N).view(self.grid)
        mean = losses_N.sum() / losses_N.numel()
        return mean if reduction == "batchmean" else mean / vocabulary


def select_positions(
    logits_BTV: torch.Tensor,
    mask_name: str,
    active_BT: torch.Tensor | None,
    weight_BT: torch.Tensor | None = None,
) -> SelectedPositions:
    """Select the positions where `active_BT` is true; raise if that leaves none.

    Rows are gathered rather than multiplied by zero: whatever stands at a masked position, NaN included, then
    touches neither the loss nor the gradient.
    """
    grid = logits_BTV.shape[:-1]
    if logits_BTV.dim() < 2:
        raise ValueError(f"student_logits has shape {tuple(logits_BTV.shape)}, expected (..., positions, vocabulary)")
    if active_BT is None:
        if math.prod(grid) == 0:
            raise ValueError(f"student_logits has no positions: its shape is {tuple(logits_BTV.shape)}")
        return SelectedPositions(grid, None)
    if active_BT.shape != grid:
        raise ValueError(f"{mask_name} has shape {tuple(active_BT.shape)}, the logits need {tuple(grid)}")
    index_N = active_BT.flatten().nonzero().squeeze(-1)
    if index_N.numel() == 0:
        raise ValueError(f"{mask_name} leaves none of the {active_BT.numel()} positions")
    weight_N = None if weight_BT is None else weight_BT.flatten().index_select(0, index_N)
    if index_N.numel() == active_BT.numel():
        return SelectedPositions(grid, None, weight_N)
    return SelectedPositions(grid, index_N, weight_N)
