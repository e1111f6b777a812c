"""A moving average of a LoRA layer's update, as two factors.

Averaging A and B apart would average something else: mean(B)·mean(A) is not mean(B·A). The average of the products has
a rank that grows with every step, but all of it that matters lies in few directions, because old steps fade and
neighbouring ones look alike. So the factors keep a fixed rank, and what that leaves out is counted.

Shapes: O output features, I input features, R kept rank, r the adapter's rank, K = R + r.
"""

from __future__ import annotations

import torch


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
