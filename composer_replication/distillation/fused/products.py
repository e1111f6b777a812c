"""Matrix products between half-precision operands and float32 buffers, without rounding in between.

Rounding each chunk's product to bfloat16 before summing would bias the accumulated gradients.

Shapes: C rows of a chunk, H hidden size, V vocabulary.
"""

from __future__ import annotations

import torch

_WIDENED_SLICE = 16384


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
    """`out = left @ right` if `fresh`, else `out += left @ right`."""
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
