"""Losses over hidden states as autograd functions, in two forms.

`chunked_sum` gives a weighted sum whose weights are known: its gradient is computed in the forward sweep, and backward
only multiplies it. `chunked_rows` gives every position's loss, to be used in any further formula: how much each
position weighs is known only in backward, which sweeps once more with those weights. If just the hidden states need a
gradient (a frozen head, as with LoRA), it too is taken from the forward sweep: one vector a position, then scaled.

Shapes: N positions, H hidden size, V vocabulary.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from composer_replication.distillation.fused.head import LogitHead
from composer_replication.distillation.fused.sweep import RowLoss, Sweep, run_sweep

Grads = tuple[torch.Tensor | None, ...]


def chunked_sum(
    row_loss: RowLoss,
    hidden_NH: torch.Tensor,
    head: LogitHead,
    *,
    teacher_hidden_NH: torch.Tensor | None = None,
    teacher_head: LogitHead | None = None,
    weight_N: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`Σ weight·row_loss`, with gradients for the hidden states and the head; and the (N,) losses, without.

    Under autocast the matrix products run in the autocast type; losses and gradients are kept in at least float32.
    """
    tensors, sweep = _prepare(row_loss, hidden_NH, head, teacher_hidden_NH, teacher_head, weight_N)
    total, losses_N = _ChunkedSum.apply(*tensors, sweep)  # type: ignore[no-untyped-call]
    return total, losses_N


def chunked_rows(
    row_loss: RowLoss,
    hidden_NH: torch.Tensor,
    head: LogitHead,
    *,
    teacher_hidden_NH: torch.Tensor | None = None,
    teacher_head: LogitHead | None = None,
) -> torch.Tensor:
    """The (N,) losses, with gradients for the hidden states and the head."""
    tensors, sweep = _prepare(row_loss, hidden_NH, head, teacher_hidden_NH, teacher_head, None)
    losses_N: torch.Tensor = _ChunkedRows.apply(*tensors, sweep)  # type: ignore[no-untyped-call]
    return losses_N


def _prepare(
    row_loss: RowLoss,
    hidden_NH: torch.Tensor,
    head: LogitHead,
    teacher_hidden_NH: torch.Tensor | None,
    teacher_head: LogitHead | None,
    weight_N: torch.Tensor | None,
) -> tuple[tuple[torch.Tensor | None, ...], Sweep]:
    hidden_NH, student = _in_compute_type(hidden_NH, head)
    teacher = student
    if teacher_hidden_NH is not None:
        teacher_hidden_NH = teacher_hidden_NH.detach()
        if teacher_head is None or teacher_head.is_same(head):
            # One head object for both tells the sweep that they can share one matrix product.
            teacher_hidden_NH = teacher_hidden_NH.to(hidden_NH.dtype)
        else:
            teacher_hidden_NH, teacher = _in_compute_type(teacher_hidden_NH, teacher_head)
    tensors = (hidden_NH, student.weight, student.bias)
    grad_enabled = torch.is_grad_enabled()
    hidden, weight, bias = (grad_enabled and t is not None and t.requires_grad for t in tensors)
    return tensors, Sweep(row_loss, student, teacher_hidden_NH, teacher, weight_N, (hidden, weight, bias))


def _in_compute_type(hidden: torch.Tensor, head: LogitHead) -> tuple[torch.Tensor, LogitHead]:
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    if head.weight is None or (hidden.dtype == dtype and head.weight.dtype == dtype):
        return hidden, head
    return hidden.to(dtype), LogitHead(head.weight.to(dtype), head.bias, head.scale, head.softcap)


class _ChunkedSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: torch.Tensor,
        weight_VH: torch.Tensor | None,
        bias_V: torch.Tensor | None,
        sweep: Sweep,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.set_materialize_grads(False)
        total, losses_N, ctx.gradients = run_sweep(sweep, hidden_NH, weight_VH, bias_V)
        ctx.save_for_backward(hidden_NH, weight_VH, bias_V)
        ctx.sweep = sweep
        ctx.mark_non_differentiable(losses_N)
        return total, losses_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_total: torch.Tensor | None, _: Any) -> Grads:
        if grad_total is None:
            return None, None, None, None
        # The buffers are given away, so that autograd can adopt them as `.grad` instead of copying: the head's
        # gradient is by far the largest tensor here. A second backward through the same graph computes them again.
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            gradients = run_sweep(ctx.sweep, *ctx.saved_tensors)[2]
        given = gradients.hidden, gradients.weight, gradients.bias
        del gradients
        return (
            *_in_type_of(ctx.saved_tensors, [g if g is None else g.mul_(grad_total) for g in given]),
            None,
        )


class _ChunkedRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: torch.Tensor,
        weight_VH: torch.Tensor | None,
        bias_V: torch.Tensor | None,
        sweep: Sweep,
    ) -> torch.Tensor:
        only_hidden = sweep.needs == (True, False, False)
        forward_sweep = sweep if only_hidden else replace(sweep, needs=(False, False, False))
        _, losses_N, gradients = run_sweep(forward_sweep, hidden_NH, weight_VH, bias_V)
        ctx.save_for_backward(hidden_NH, weight_VH, bias_V)
        ctx.sweep = sweep
        ctx.row_gradient_NH = gradients.hidden
        return losses_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_N: torch.Tensor) -> Grads:
        if ctx.row_gradient_NH is not None:
            given: list[torch.Tensor | None] = [ctx.row_gradient_NH * grad_N.unsqueeze(-1), None, None]
        else:
            gradients = run_sweep(replace(ctx.sweep, weight_N=grad_N), *ctx.saved_tensors)[2]
            given = [gradients.hidden, gradients.weight, gradients.bias]
        return (*_in_type_of(ctx.saved_tensors, given), None)


def _in_type_of(tensors: Grads, gradients: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
    pairs = zip(gradients, tensors, strict=True)
    return [None if g is None or t is None else g.to(t.dtype) for g, t in pairs]
