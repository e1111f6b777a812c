"""One pass over all positions: logits a chunk at a time, losses, and gradients of their weighted sum.

Each chunk of rows is projected to logits once; while they are there, the loss is evaluated, its gradient replaces the
logits in the buffer, and two matrix products carry it to the hidden states and to the head.

Shapes: N positions, H hidden size, V vocabulary, C rows of a chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from composer_replication.distillation.fused.chunks import block_rows, chunk_rows, slices
from composer_replication.distillation.fused.head import LogitHead
from composer_replication.distillation.fused.products import accumulate_product, project_into

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
