"""The output head: how hidden states become logits.

Shapes: C rows of a chunk, H hidden size, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from composer_replication._arguments import check_positive

_WIDENED_SLICE = 16384


@dataclass(frozen=True, eq=False)
class LogitHead:
    """`logits = softcap·tanh(scale·(hidden @ weight.T + bias) / softcap)`, the cap and the bias being optional.

    `weight` is (V, H) and `bias` (V,). A head without a weight is the identity: its hidden states are logits already,
    which lets a model whose head cannot be taken apart use the same losses.
    """

    weight: torch.Tensor | None
    bias: torch.Tensor | None = None
    scale: float = 1.0
    softcap: float | None = None

    def __post_init__(self) -> None:
        check_positive("softcap", self.softcap)
        if self.weight is None and self.bias is not None:
            raise ValueError("bias needs a weight: a head without one takes logits as they are")
        if self.weight is not None and self.bias is not None and self.bias.shape != self.weight.shape[:1]:
            raise ValueError(
                f"bias has shape {tuple(self.bias.shape)}, weight {tuple(self.weight.shape)}: "
                "expected one bias per row of weight"
            )

    def check_hidden(self, name: str, hidden: torch.Tensor) -> None:
        """Raise unless `hidden` is (N, H) for this head, with at least one row."""
        width = None if self.weight is None else self.weight.shape[1]
        if hidden.dim() != 2 or (width is not None and hidden.shape[1] != width):
            raise ValueError(f"{name} has shape {tuple(hidden.shape)}, expected (positions, {width or 'V'})")
        if hidden.shape[0] == 0:
            raise ValueError(f"{name} has no positions: its shape is {tuple(hidden.shape)}")

    def is_same(self, other: LogitHead) -> bool:
        """Whether both turn the same hidden states into the same logits, through the very same tensors."""
        return (
            self.weight is other.weight
            and self.bias is other.bias
            and (self.scale, self.softcap) == (other.scale, other.softcap)
        )

    def vocabulary(self, hidden: torch.Tensor) -> int:
        """V, the number of logits that `hidden` gives."""
        return hidden.shape[-1] if self.weight is None else self.weight.shape[0]

    def finish(self, projected: torch.Tensor) -> torch.Tensor:
        """Scale and cap what `project_into` left in a buffer; differentiable."""
        if self.scale != 1.0:
            projected = projected * self.scale
        if self.softcap is not None:
            projected = torch.tanh(projected / self.softcap) * self.softcap
        return projected

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """All the logits of (..., H) hidden states, materialised and differentiable."""
        if self.weight is None:
            return self.finish(hidden)
        return self.finish(torch.nn.functional.linear(hidden, self.weight, self.bias))


def project_into(
    out_CV: torch.Tensor, hidden_CH: torch.Tensor, weight_VH: torch.Tensor | None, bias_V: torch.Tensor | None
) -> None:
    """Write `hidden @ weight.T + bias` into a buffer of at least float32."""
    if weight_VH is None:
        out_CV.copy_(hidden_CH)
        return
    accumulate_product(out_CV, hidden_CH, weight_VH.t(), fresh=True)
    if bias_V is not None:
        out_CV.add_(bias_V)


def accumulate_product(out: torch.Tensor, left: torch.Tensor, right: torch.Tensor, *, fresh: bool) -> None:
    """`out = left @ right` if `fresh`, else `out += left @ right`, without rounding to half precision in between.

    Rounding each chunk's product to bfloat16 before summing would bias the accumulated gradients.
    """
    if left.dtype == right.dtype == out.dtype:
        if fresh:
            torch.mm(left, right, out=out)
        else:
            out.addmm_(left, right)
    elif out.is_cuda:
        # Tensor cores with a float32 result. Written from the documentation; there was no GPU to try it on.
        left = left.to(right.dtype)
        if fresh:
            torch.mm(left, right, out_dtype=out.dtype, out=out)
        else:
            torch.addmm(out, left, right, out_dtype=out.dtype, out=out)
    else:
        _accumulate_widened(out, left.to(out.dtype), right, fresh)


def _accumulate_widened(out: torch.Tensor, left: torch.Tensor, right: torch.Tensor, fresh: bool) -> None:
    # Widen a slice of the long dimension at a time: a float32 copy of the whole head would double its memory.
    inner, columns = right.shape
    if fresh:
        out.zero_()
    if columns > inner:
        for start in range(0, columns, _WIDENED_SLICE):
            part = slice(start, start + _WIDENED_SLICE)
            out[:, part].addmm_(left, right[:, part].to(out.dtype))
    else:
        for start in range(0, inner, _WIDENED_SLICE):
            part = slice(start, start + _WIDENED_SLICE)
            out.addmm_(left[:, part], right[part].to(out.dtype))
