"""TAID (arXiv 2501.16937): distillation toward a target that moves from the student to the teacher.

    p_t = softmax((1-t)·sg(S) + t·T)        L = -Σ_v p_t(v)·log softmax(S)(v)

At t=0 the target is the student itself, so the teacher is hidden and the gradient is zero; at t=1 the gradient is
that of forward KL. The loss is a cross-entropy: its minimum is the target's entropy, not 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from composer_replication._arguments import check_no_nan, check_range, check_same_shape
from composer_replication.distillation.positions import select_positions
from composer_replication.opsd import finite, log_probabilities


@dataclass(frozen=True)
class TAID:
    """The interpolation coefficient; calling it on (N, V) logits gives the (N,) loss of each position."""

    t: float

    def __post_init__(self) -> None:
        check_range("t", self.t, 0.0, 1.0)

    def __call__(self, student_logits_NV: torch.Tensor, teacher_logits_NV: torch.Tensor) -> torch.Tensor:
        """The (N,) cross-entropies; gradients flow to the student's log-probabilities, not to the target."""
        student_NV = finite(log_probabilities(student_logits_NV))
        teacher_NV = finite(log_probabilities(teacher_logits_NV.detach()))
        # Interpolating log-probabilities instead of logits shifts a row by a constant, which softmax removes; and they
        # can be made finite where a logit is -inf.
        target_NV = torch.lerp(student_NV.detach(), teacher_NV, self.t)
        return -(torch.softmax(target_NV, dim=-1) * student_NV).sum(-1)


def taid_loss(
    student_logits: torch.Tensor,
    teacher_logits: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    t: float | torch.Tensor,
) -> torch.Tensor:
    """Mean TAID cross-entropy over the positions that `mask` selects.

    Args:
        student_logits: (B, T, V), with gradient.
        teacher_logits: (B, T, V); no gradient reaches it.
        mask: (B, T); positions above 0 count. None counts all.
        t: interpolation coefficient in [0, 1], a number or a tensor of one element.

    Raises:
        ValueError: shapes that differ, t out of range, NaN logits, or an empty mask.
    """
    criterion = TAID(float(t))
    check_same_shape("student_logits", student_logits, "teacher_logits", teacher_logits)
    positions = select_positions(student_logits, "mask", None if mask is None else mask > 0)
    student_NV, teacher_NV = positions.rows(student_logits), positions.rows(teacher_logits)
    losses_N = criterion(student_NV, teacher_NV)
    check_no_nan(losses_N, student_logits=student_NV, teacher_logits=teacher_NV)
    return positions.reduce(losses_N, "batchmean")


class TAIDScheduler:
    """Moves t from `t_start` to `t_end`: never below the linear schedule, faster while the loss keeps falling.

    Call `update_t` once per optimiser step. Calling it again for a step it has seen (as a loop over micro-batches
    under gradient accumulation would) raises, because the momentum would then run too fast unnoticed.
    """

    def __init__(
        self,
        num_train_steps: int,
        *,
        t_start: float = 0.4,
        t_end: float = 1.0,
        alpha: float = 5e-4,
        beta: float = 0.99,
        disable_adaptive: bool = False,
        device: torch.device | str = "cpu",
    ) -> None:
        if num_train_steps < 1:
            raise ValueError(f"num_train_steps must be at least 1, got {num_train_steps!r}")
        check_range("t_end", t_end, 0.0, 1.0)
        check_range("t_start", t_start, 0.0, t_end)
        check_range("alpha", alpha, 0.0, 1.0)
        check_range("beta", beta, 0.0, 1.0)
        self.num_train_steps = num_train_steps
        self.t_start = t_start
        self.t_end = t_end
        self.alpha = alpha
        self.beta = beta
        self.disable_adaptive = disable_adaptive
        self.device = torch.device(device)
        self.momentum = 0.0
        self._t = t_start
        self._previous_loss: float | None = None
        self._last_step: int | None = None

    @property
    def t(self) -> float:
        """The coefficient to use for the coming step."""
        return self._t

    def update_t(self, loss: torch.Tensor | float, global_step: int) -> torch.Tensor | None:
        """Take in one optimiser step's loss and advance t.

        Returns the adaptive increment, or None where there is none: the first finite loss (it is only stored), a
        loss that is not finite (t still follows the linear schedule), and with `disable_adaptive`.

        Raises:
            ValueError: `global_step` is not above the last one seen.
        """
        if self._last_step is not None and global_step <= self._last_step:
            raise ValueError(
                f"global_step {global_step} came after step {self._last_step}: update_t takes one loss per optimiser "
                "step; average micro-batch losses first"
            )
        value = float(loss)
        self._last_step = global_step
        floor = self.t_start + (self.t_end - self.t_start) * global_step / self.num_train_steps
        if self.disable_adaptive or not math.isfinite(value):
            self._advance(floor)
            return None
        if self._previous_loss is None:
            self._previous_loss = value
            self._advance(floor)
            return None
        relative_fall = (self._previous_loss - value) / (self._previous_loss + 1e-15)
        self.momentum = self.beta * self.momentum + (1.0 - self.beta) * relative_fall
        self._previous_loss = value
        delta_t = self.alpha * _sigmoid(self.momentum) * (1.0 - self._t)
        self._advance(max(floor, self._t + delta_t))
        return torch.tensor(delta_t, device=self.device)

    def state_dict(self) -> dict[str, float | int | None]:
        """What a checkpoint needs to go on as if nothing had happened; plain numbers."""
        return {
            "t": self._t,
            "momentum": self.momentum,
            "previous_loss": self._previous_loss,
            "last_step": self._last_step,
        }

    def load_state_dict(self, state: dict[str, float | int | None]) -> None:
        """Restore what `state_dict` gave; raise ValueError if an entry is missing or foreign."""
        if set(state) != set(self.state_dict()):
            raise ValueError(f"state has the keys {sorted(state)}, expected {sorted(self.state_dict())}")
        t, momentum, previous_loss, last_step = (state[n] for n in ("t", "momentum", "previous_loss", "last_step"))
        if t is None or momentum is None:
            raise ValueError(f"state needs numbers for t and momentum, got {t!r} and {momentum!r}")
        check_range("t", t, 0.0, 1.0)
        self._t = float(t)
        self.momentum = float(momentum)
        self._previous_loss = None if previous_loss is None else float(previous_loss)
        self._last_step = None if last_step is None else int(last_step)

    def _advance(self, candidate: float) -> None:
        self._t = min(self.t_end, max(self._t, candidate))


def _sigmoid(x: float) -> float:
    # exp only ever sees a negative number: a loss that explodes must not overflow the schedule.
    e = math.exp(-abs(x))
    return 1.0 / (1.0 + e) if x >= 0 else e / (1.0 + e)
