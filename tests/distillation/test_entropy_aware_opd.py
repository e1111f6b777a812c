"""Entropy-aware OPD: entropy's ends, the three gates, and refusals."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.distillation import entropy_aware_opd_loss, generalized_jsd_loss, teacher_entropy

GATES = ("soft", "switch", "additive")


def kl(student: torch.Tensor, teacher: torch.Tensor, beta: float) -> torch.Tensor:
    return generalized_jsd_loss(student, teacher, beta=beta, reduction="none")


def logits(*shape: int, spread: float = 1.0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64) * spread


def test_entropy_of_a_one_hot_is_0_and_of_a_uniform_log_v() -> None:
    one_hot = torch.full((2, 3, 7), -math.inf).index_fill(-1, torch.tensor([2]), 0.0)
    assert torch.equal(teacher_entropy(one_hot), torch.zeros(2, 3))
    torch.testing.assert_close(teacher_entropy(torch.full((2, 3, 7), 4.2)), torch.full((2, 3), math.log(7)))


@pytest.mark.parametrize("gate", GATES)
@given(seed=st.integers(0, 1000), spread=st.floats(0.01, 20))
def test_zero_at_equality_and_never_negative(gate: str, seed: int, spread: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    student, teacher = (torch.randn(2, 3, 9, generator=generator, dtype=torch.float64) * spread for _ in "ST")
    assert entropy_aware_opd_loss(student, student + 1.0, gate=gate).abs() < 1e-9
    assert (entropy_aware_opd_loss(student, teacher, gate=gate, reduction="none") > 0).all()


def test_soft_gate_mixes_by_relative_entropy() -> None:
    student, teacher = logits(2, 3, 6), logits(2, 3, 6)
    weight = teacher_entropy(teacher) / math.log(6)
    expected = weight * kl(student, teacher, 0.0) + (1 - weight) * kl(student, teacher, 1.0)
    torch.testing.assert_close(entropy_aware_opd_loss(student, teacher, reduction="none"), expected)
    # A tiny h_max saturates the gate: all forward KL.
    saturated = entropy_aware_opd_loss(student, teacher, h_max=1e-6, reduction="none")
    torch.testing.assert_close(saturated, kl(student, teacher, 0.0))


def test_gate_sees_the_tempered_teacher() -> None:
    student, teacher = logits(1, 1, 6), logits(1, 1, 6, spread=4.0)
    weight = teacher_entropy(teacher / 3.0) / math.log(6)
    forward, reverse = (kl(student / 3.0, teacher / 3.0, beta) for beta in (0.0, 1.0))
    torch.testing.assert_close(
        entropy_aware_opd_loss(student, teacher, temperature=3.0, reduction="none"),
        weight * forward + (1 - weight) * reverse,
    )


def sure_and_unsure() -> tuple[torch.Tensor, torch.Tensor]:
    teacher = torch.stack([torch.tensor([9.0, 0, 0, 0, 0, 0]), torch.tensor([1.0, 0.9, 1.1, 1, 1, 1])]).double()
    return logits(1, 2, 6), teacher.unsqueeze(0)


def test_switch_takes_forward_kl_where_the_teacher_is_unsure() -> None:
    student, teacher = sure_and_unsure()
    loss = entropy_aware_opd_loss(student, teacher, gate="switch", reduction="none")
    torch.testing.assert_close(loss[0, 0], kl(student, teacher, 1.0)[0, 0])
    torch.testing.assert_close(loss[0, 1], kl(student, teacher, 0.0)[0, 1])


def test_additive_adds_the_teachers_top_k_where_it_is_unsure() -> None:
    student, teacher = sure_and_unsure()
    reverse, forward = kl(student, teacher, 1.0), kl(student, teacher, 0.0)
    loss = entropy_aware_opd_loss(student, teacher, gate="additive", reduction="none")
    torch.testing.assert_close(loss, reverse + forward * torch.tensor([[0.0, 1.0]], dtype=torch.float64))

    two = entropy_aware_opd_loss(student, teacher, gate="additive", forward_top_k=2, reduction="none")
    p, q = teacher[0, 1].softmax(-1), student[0, 1].softmax(-1)
    top = p.topk(2).indices
    torch.testing.assert_close(two[0, 1], reverse[0, 1] + (p * (p.log() - q.log()))[top].sum())


@pytest.mark.parametrize("gate", GATES)
def test_gradient_is_that_of_finite_differences(gate: str) -> None:
    student, teacher = logits(2, 3, 6).requires_grad_(), logits(2, 3, 6, spread=2.0)
    assert torch.autograd.gradcheck(lambda s: entropy_aware_opd_loss(s, teacher, gate=gate), (student,))


def test_labels_multiply_and_reductions_agree() -> None:
    student, teacher = logits(2, 3, 6), logits(2, 3, 6)
    student[0, 1] = math.nan
    labels = torch.tensor([[1, 0, 1], [1, 1, 0]])
    none = entropy_aware_opd_loss(student, teacher, labels=labels, reduction="none")
    assert (none[labels == 0] == 0).all()
    torch.testing.assert_close(entropy_aware_opd_loss(student, teacher, labels=labels), none.sum() / 4)
    torch.testing.assert_close(
        entropy_aware_opd_loss(student, teacher, labels=labels, reduction="mean"), none.sum() / 4 / 6
    )
    torch.testing.assert_close(
        entropy_aware_opd_loss(student, teacher, labels=labels * 0.5, reduction="sum"), none.sum() / 2
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gate": "hard"}, "gate must be one of .* got 'hard'"),
        ({"h_max": 0.0}, "h_max must be a positive finite number, got 0.0"),
        ({"h_max": 2.0, "gate": "switch"}, "h_max=2.0 belongs to gate='soft', not to gate='switch'"),
        ({"forward_top_k": 2}, "forward_top_k=2 belongs to gate='additive', not to gate='soft'"),
        ({"temperature": -1.0}, "temperature must be a positive finite number, got -1.0"),
        ({"reduction": "all"}, "reduction must be one of .* got 'all'"),
        ({"labels": torch.tensor([[1, 1, -100], [1, 1, 1]])}, "labels is a 0/1 multiplier here, got the value -100"),
        ({"labels": torch.tensor([[1, 42, 0], [1, 1, 1]])}, r"got the value 42; .* give \(labels != -100\)"),
        ({"labels": torch.zeros(2, 3)}, "labels leaves none of the 6 positions"),
        ({"labels": torch.ones(2, 2)}, "labels has shape"),
        ({"teacher_logits": torch.randn(2, 3, 5)}, "student_logits has shape"),
        ({"teacher_logits": torch.full((2, 3, 6), math.nan)}, "teacher_logits has 36 NaN values"),
    ],
)
def test_bad_input_is_named(change: dict, message: str) -> None:
    arguments = {"student_logits": torch.randn(2, 3, 6), "teacher_logits": torch.randn(2, 3, 6), **change}
    with pytest.raises(ValueError, match=message):
        entropy_aware_opd_loss(**arguments)
