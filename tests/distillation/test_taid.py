"""TAID: golden numbers of the loss and of the scheduler, both ends of t, state, and refusals."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from golden import STUDENT, TEACHER

from composer_replication.distillation import TAIDScheduler, taid_loss


def test_golden_number_is_the_cross_entropy_not_the_kl() -> None:
    assert taid_loss(STUDENT, TEACHER, t=0.4).item() == pytest.approx(1.435926646, abs=1e-6)
    target = torch.softmax(0.6 * STUDENT + 0.4 * TEACHER, -1)
    entropy = -(target * target.log()).sum()
    assert taid_loss(STUDENT, TEACHER, t=0.4).item() - entropy.item() == pytest.approx(0.250803314, abs=1e-6)


def test_t_0_hides_the_teacher() -> None:
    student = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    loss_a = taid_loss(student, torch.randn(2, 3, 5, dtype=torch.float64) * 10, t=0.0)
    loss_b = taid_loss(student, torch.randn(2, 3, 5, dtype=torch.float64) * 10, t=0.0)
    assert loss_a.item() == loss_b.item()
    loss_a.backward()
    assert student.grad.abs().max() < 1e-12


def test_t_1_is_forward_kl() -> None:
    student = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(2, 3, 5, dtype=torch.float64)
    forward_kl = F.kl_div(F.log_softmax(student, -1), F.log_softmax(teacher, -1), log_target=True, reduction="sum") / (
        2 * 3
    )
    teacher_entropy = -(F.softmax(teacher, -1) * F.log_softmax(teacher, -1)).sum(-1).mean()
    loss = taid_loss(student, teacher, t=1.0)
    torch.testing.assert_close(loss, forward_kl + teacher_entropy)
    torch.testing.assert_close(torch.autograd.grad(loss, student)[0], torch.autograd.grad(forward_kl, student)[0])


def test_the_target_is_held_constant() -> None:
    student = torch.randn(1, 1, 4, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(1, 1, 4, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(taid_loss(student, teacher, t=0.4), student)
    target = torch.softmax(0.6 * student.detach() + 0.4 * teacher, -1)
    torch.testing.assert_close(gradient, torch.softmax(student.detach(), -1) - target)


def test_masked_positions_do_not_count() -> None:
    student, teacher = torch.randn(1, 3, 5), torch.randn(1, 3, 5)
    student[0, 1] = math.nan
    masked = taid_loss(student, teacher, torch.tensor([[1, 0, 1]]), t=torch.tensor(0.7))
    torch.testing.assert_close(masked, taid_loss(student[:, ::2], teacher[:, ::2], t=0.7))


def test_a_token_that_both_rule_out_changes_nothing() -> None:
    ruled_out = torch.full((1, 1, 1), -math.inf, dtype=torch.float64)
    student, teacher = torch.cat([STUDENT, ruled_out], -1), torch.cat([TEACHER, ruled_out], -1)
    assert taid_loss(student, teacher, t=0.4).item() == pytest.approx(1.435926646, abs=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"t": -0.1}, r"t must be in \[0, 1\], got -0.1"),
        ({"t": 1.01}, r"t must be in \[0, 1\], got 1.01"),
        ({"mask": torch.zeros(2, 3)}, "mask leaves none of the 6 positions"),
        ({"mask": torch.ones(3, 2)}, "mask has shape"),
        ({"teacher_logits": torch.randn(2, 3, 6)}, "student_logits has shape"),
        ({"student_logits": torch.full((2, 3, 5), math.nan)}, "student_logits has 30 NaN values"),
    ],
)
def test_bad_input_is_named(change: dict, message: str) -> None:
    arguments = {"student_logits": torch.randn(2, 3, 5), "teacher_logits": torch.randn(2, 3, 5), "t": 0.4, **change}
    with pytest.raises(ValueError, match=message):
        taid_loss(**arguments)


LOSSES = (2.0, 1.8, 1.9, 1.5)


def run_scheduler(scheduler: TAIDScheduler) -> tuple[list[float], list[float]]:
    ts, momenta = [], []
    for step, loss in enumerate(LOSSES):
        scheduler.update_t(torch.tensor(loss, dtype=torch.float64), step)
        ts.append(scheduler.t)
        momenta.append(scheduler.momentum)
    return ts, momenta


def test_scheduler_follows_the_linear_floor_when_the_run_is_short() -> None:
    ts, momenta = run_scheduler(TAIDScheduler(1000))
    assert ts == pytest.approx([0.4, 0.4006, 0.4012, 0.4018], abs=1e-9)
    assert momenta[1:] == pytest.approx([0.001, 0.000434444, 0.002535363], abs=1e-9)


def test_scheduler_adapts_above_the_floor_when_the_run_is_long() -> None:
    ts, _ = run_scheduler(TAIDScheduler(100_000))
    assert ts == pytest.approx([0.4, 0.400150075, 0.400300070, 0.400450185], abs=1e-9)


def test_scheduler_returns_nothing_first_and_the_increment_then() -> None:
    scheduler = TAIDScheduler(100_000)
    assert scheduler.update_t(2.0, 0) is None
    before = scheduler.t
    increment = scheduler.update_t(1.8, 1)
    assert increment.item() == pytest.approx(scheduler.t - before, rel=1e-5)
    assert increment.item() > 0


def test_scheduler_without_the_adaptive_part_is_linear() -> None:
    scheduler = TAIDScheduler(10, disable_adaptive=True)
    for step in range(11):
        assert scheduler.update_t(1.0, step) is None
        assert scheduler.t == pytest.approx(0.4 + 0.6 * step / 10)
    assert scheduler.t == 1.0


def test_scheduler_never_leaves_its_range_nor_goes_back() -> None:
    scheduler = TAIDScheduler(50, alpha=0.9)
    previous = scheduler.t
    for step, loss in enumerate([2.0, 1e9, 1e-9, math.nan, math.inf, 3.0] * 20):
        scheduler.update_t(loss, step)
        assert previous <= scheduler.t <= 1.0
        previous = scheduler.t
    assert scheduler.t == 1.0


def test_scheduler_ignores_a_loss_that_is_not_finite() -> None:
    scheduler = TAIDScheduler(100_000)
    assert scheduler.update_t(math.nan, 0) is None
    assert scheduler.update_t(2.0, 1) is None
    assert scheduler.update_t(math.inf, 2) is None
    assert scheduler.momentum == 0.0
    assert scheduler.update_t(1.8, 3) is not None
    assert scheduler.momentum == pytest.approx(0.001)


def test_scheduler_refuses_a_second_update_for_one_step() -> None:
    scheduler = TAIDScheduler(100)
    scheduler.update_t(2.0, 3)
    with pytest.raises(ValueError, match=r"global_step 3 came after step 3: .* average micro-batch losses first"):
        scheduler.update_t(1.9, 3)
    with pytest.raises(ValueError, match="global_step 2 came after step 3"):
        scheduler.update_t(1.9, 2)


def test_scheduler_state_survives_a_restart() -> None:
    whole, first = TAIDScheduler(100_000), TAIDScheduler(100_000)
    for step, loss in enumerate(LOSSES[:2]):
        whole.update_t(loss, step)
        first.update_t(loss, step)
    second = TAIDScheduler(100_000)
    second.load_state_dict(first.state_dict())
    for step, loss in enumerate(LOSSES[2:], start=2):
        whole.update_t(loss, step)
        second.update_t(loss, step)
    assert second.state_dict() == whole.state_dict()
    with pytest.raises(ValueError, match="state has the keys"):
        second.load_state_dict({"t": 0.5})
    with pytest.raises(ValueError, match="could not convert string to float"):
        second.load_state_dict({**first.state_dict(), "previous_loss": "x"})


def test_scheduler_update_that_failed_may_be_repeated() -> None:
    scheduler = TAIDScheduler(100)
    with pytest.raises((RuntimeError, ValueError)):
        scheduler.update_t(torch.ones(2), 0)
    assert scheduler.update_t(2.0, 0) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_train_steps": 0}, "num_train_steps must be at least 1, got 0"),
        ({"num_train_steps": 10, "t_start": 0.9, "t_end": 0.5}, "t_start must be in"),
        ({"num_train_steps": 10, "t_end": 1.2}, "t_end must be in"),
        ({"num_train_steps": 10, "beta": 2.0}, "beta must be in"),
    ],
)
def test_scheduler_refuses_settings_out_of_range(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TAIDScheduler(**settings)
