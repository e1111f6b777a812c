"""One pass over all positions: logits a chunk at a time, losses, and gradients of their weighted sum.

Each chunk of rows is projected to logits once; while they are there, the loss is evaluated, its gradient replaces the
logits in the buffer, and two matrix products carry it to the hidden states and to the head.

Two sizes matter. A *chunk* is what a matrix product fills: long enough to use the head's weight well each time it is
read from memory, short enough that its logits stay small. A *block* is what the elementwise formula and its gradient
work on: on a CPU it stays in the cache, where a dozen passes cost little more than one from memory; on an accelerator
kernel launches cost more than memory traffic, so a block is the whole chunk.

Matrix products between half-precision operands go into float32 buffers without rounding in between: rounding each
chunk's product to bfloat16 before summing would bias the accumulated gradients.

Shapes: N positions, H hidden size, V vocabulary, C rows of a chunk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from composer_replication.distillation.fused.head import LogitHead

# Chosen with benchmarks/divergence.py at a vocabulary of 151,936. A chunk of 128 rows (78 MB of float32 logits) gives
# up some of the matrix products' speed; longer ones win little of it back and cost memory in proportion. A block of 6
# rows is as fast as any on an idle machine; shorter ones suffer when another process takes a core, because every
# operator ends with the threads waiting for each other.
CHUNK_ELEMENTS = 20_000_000
CPU_BLOCK_ELEMENTS = 2**20
_WIDENED_SLICE = 16384

# (student logits, teacher logits or None, which of the N rows these are) -> the rows' losses. Differentiable in the
# student logits; every row's loss must depend on that row alone.
RowLoss = Callable[[torch.Tensor, torch.Tensor | None, slice], torch.Tensor]


@dataclass(frozen=True, eq=False)
class Sweep:
    """What to evaluate, apart from the tensors that autograd tracks (hidden states, the head's weight and bias)."""

    row_loss: RowLoss
    head: LogitHead
    teacher_hidden_NH: torch.Tensor | None
    teacher_head: LogitHead
    weight_N: torch.Tensor | None  # constant factors of the rows' losses; None is ones
    needs: tuple[bool, bool, bool]  # gradients of hidden, weight, bias


@dataclass(eq=False)
class Gradients:
    """Gradients of the weighted sum, in at least float32; None where not needed."""

    hidden: torch.Tensor | None
    weight: torch.Tensor | None
    bias: torch.Tensor | None


def run_sweep(
    sweep: Sweep, hidden_NH: torch.Tensor, weight_VH: torch.Tensor | None, bias_V: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, Gradients]:
    """Evaluate the weighted sum of losses, the (N,) losses, and the gradients that the sweep asks for."""
    positions, vocabulary = hidden_NH.shape[0], sweep.head.vocabulary(hidden_NH)
    dtype = torch.promote_types(hidden_NH.dtype, torch.float32)
    device = hidden_NH.device
    rows = chunk_rows(positions, vocabulary)
    block = block_rows(rows, vocabulary, device)
    needs_hidden, needs_weight, needs_bias = sweep.needs
    needs_any = any(sweep.needs)

    has_teacher = sweep.teacher_hidden_NH is not None
    buffer = torch.empty((rows * (1 + has_teacher), vocabulary), dtype=dtype, device=device)
    losses_N = torch.empty(positions, dtype=dtype, device=device)
    gradients = Gradients(
        torch.empty(hidden_NH.shape, dtype=dtype, device=device) if needs_hidden else None,
        torch.empty((vocabulary, hidden_NH.shape[1]), dtype=dtype, device=device) if needs_weight else None,
        torch.zeros(vocabulary, dtype=dtype, device=device) if needs_bias else None,
    )
    with torch.autocast(device.type, enabled=False):
        for chunk in slices(positions, rows):
            student_CV, teacher_CV = _project(sweep, buffer, hidden_NH, weight_VH, bias_V, chunk)
            for part in slices(chunk.stop - chunk.start, block):
                where = slice(chunk.start + part.start, chunk.start + part.stop)
                losses_N[where] = _block(
                    sweep,
                    student_CV[part],
                    None if teacher_CV is None else teacher_CV[part],
                    where,
                    needs_any,
                )
            if needs_any:
                _carry(gradients, student_CV, hidden_NH[chunk], weight_VH, chunk)
        weighted_N = losses_N if sweep.weight_N is None else losses_N * sweep.weight_N
        return weighted_N.sum(), losses_N, gradients


def _project(
    sweep: Sweep,
    buffer: torch.Tensor,
    hidden_NH: torch.Tensor,
    weight_VH: torch.Tensor | None,
    bias_V: torch.Tensor | None,
    chunk: slice,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    rows = chunk.stop - chunk.start
    student_CV = buffer[:rows]
    if sweep.teacher_hidden_NH is None:
        project_into(student_CV, hidden_NH[chunk], weight_VH, bias_V)
        return student_CV, None
    teacher_CV = buffer[rows : 2 * rows]
    if sweep.teacher_head is sweep.head:
        # One product over both reads the weight from memory once.
        stacked = torch.cat([hidden_NH[chunk], sweep.teacher_hidden_NH[chunk]])
        project_into(buffer[: 2 * rows], stacked, weight_VH, bias_V)
    else:
        project_into(student_CV, hidden_NH[chunk], weight_VH, bias_V)
        project_into(teacher_CV, sweep.teacher_hidden_NH[chunk], sweep.teacher_head.weight, sweep.teacher_head.bias)
    return student_CV, teacher_CV


def _block(
    sweep: Sweep, student: torch.Tensor, teacher: torch.Tensor | None, where: slice, needs_any: bool
) -> torch.Tensor:
    """The losses of a few rows; their gradient, weighted, takes the place of the student's logits in the buffer."""
    if teacher is not None:
        teacher = sweep.teacher_head.finish(teacher)
    if not needs_any:
        return sweep.row_loss(sweep.head.finish(student), teacher, where)
    with torch.enable_grad():
        leaf = student.detach().requires_grad_()
        losses = sweep.row_loss(sweep.head.finish(leaf), teacher, where)
        (gradient,) = torch.autograd.grad(losses.sum(), leaf)
    if sweep.weight_N is None:
        student.copy_(gradient)
    else:
        torch.mul(gradient, sweep.weight_N[where].unsqueeze(-1).to(student.dtype), out=student)
    return losses.detach()


def _carry(
    gradients: Gradients,
    grad_logits_CV: torch.Tensor,
    hidden_CH: torch.Tensor,
    weight_VH: torch.Tensor | None,
    chunk: slice,
) -> None:
    """Take the gradient from a chunk's logits to the hidden states and to the head."""
    if gradients.hidden is not None:
        if weight_VH is None:
            gradients.hidden[chunk] = grad_logits_CV
        else:
            accumulate_product(gradients.hidden[chunk], grad_logits_CV, weight_VH, fresh=True)
    if gradients.weight is not None:
        accumulate_product(gradients.weight, grad_logits_CV.t(), hidden_CH, fresh=chunk.start == 0)
    if gradients.bias is not None:
        gradients.bias.add_(grad_logits_CV.sum(0))


def chunk_rows(positions: int, vocabulary: int) -> int:
    """Rows in a chunk: as many as the element budget holds, then evened out so that no chunk is a remnant."""
    at_most = max(1, CHUNK_ELEMENTS // vocabulary)
    return math.ceil(positions / math.ceil(positions / at_most))


def block_rows(chunk: int, vocabulary: int, device: torch.device) -> int:
    """Rows in a block of a chunk."""
    if device.type != "cpu":
        return chunk
    return min(chunk, max(1, CPU_BLOCK_ELEMENTS // vocabulary))


def slices(total: int, length: int) -> Iterator[slice]:
    """Cut `range(total)` into slices of at most `length`."""
    for start in range(0, total, length):
        yield slice(start, min(start + length, total))


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
