"""Generalized JSD: golden numbers, endpoints, both clips, top-k, properties, and refusals."""

from __future__ import annotations

import math
import re

import pytest
import torch
from golden import STUDENT, TEACHER
from hypothesis import given
from hypothesis import strategies as st

from composer_replication import generalized_jsd_loss

BETAS = (0.0, 0.1, 0.5, 0.9, 1.0)

GOLDEN = {0.0: 1.531724789, 0.1: 0.127461978, 0.5: 0.318823127, 0.9: 0.125775800, 1.0: 1.512032693}
GOLDEN_ELEMENTWISE_CLIP = {
    0.0: -0.140882883,
    0.1: 0.097504805,
    0.5: 0.117225584,
    0.9: 0.104043032,
    1.0: -0.108401447,
}


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_golden_numbers(beta: float, dtype: torch.dtype) -> None:
    loss = generalized_jsd_loss(STUDENT.to(dtype), TEACHER.to(dtype), beta=beta)
    assert loss.dtype == dtype
    assert loss.item() == pytest.approx(GOLDEN[beta], abs=1e-6)


@pytest.mark.parametrize("beta", BETAS)
def test_golden_numbers_with_opsds_elementwise_clip(beta: float) -> None:
    loss = generalized_jsd_loss(STUDENT, TEACHER, beta=beta, elementwise_clip=0.05)
    assert loss.item() == pytest.approx(GOLDEN_ELEMENTWISE_CLIP[beta], abs=1e-6)


def test_golden_temperature() -> None:
    assert generalized_jsd_loss(STUDENT, TEACHER, temperature=1.1).item() == pytest.approx(0.278101022, abs=1e-6)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"beta": 0.5, "top_k_support": "teacher", "top_k_tail": False}, 0.208125615),
        ({"beta": 1.0, "top_k_support": "student", "top_k_tail": True}, 1.507906240),
        ({"beta": 1.0, "top_k_support": "student", "top_k_tail": False}, 0.257403165),
    ],
)
def test_golden_top_2(settings: dict, expected: float) -> None:
    assert generalized_jsd_loss(STUDENT, TEACHER, top_k=2, **settings).item() == pytest.approx(expected, abs=1e-6)


def test_top_k_takes_the_teachers_support_with_a_tail_by_default() -> None:
    by_default = generalized_jsd_loss(STUDENT, TEACHER, top_k=2)
    assert by_default.item() == generalized_jsd_loss(
        STUDENT, TEACHER, top_k=2, top_k_support="teacher", top_k_tail=True
    )
    assert by_default.item() != generalized_jsd_loss(STUDENT, TEACHER, top_k=2, top_k_support="student")


@pytest.mark.parametrize("top_k", [4, 5])
def test_top_k_of_the_whole_vocabulary_is_the_plain_divergence(top_k: int) -> None:
    assert generalized_jsd_loss(STUDENT, TEACHER, top_k=top_k) == generalized_jsd_loss(STUDENT, TEACHER)


def test_small_beta_divided_by_beta_tends_to_forward_kl() -> None:
    assert generalized_jsd_loss(STUDENT, TEACHER, beta=1e-6).item() / 1e-6 == pytest.approx(GOLDEN[0.0], rel=1e-4)


def test_token_clip_bounds_the_position_and_stops_its_gradient() -> None:
    student = torch.cat([STUDENT, STUDENT.flip(-1)], dim=1).requires_grad_()
    teacher = torch.cat([TEACHER, TEACHER.flip(-1) * 0.1], dim=1)
    per_token = generalized_jsd_loss(student, teacher, reduction="none")
    clip = (per_token[0, 0].item() + per_token[0, 1].item()) / 2
    clipped = generalized_jsd_loss(student, teacher, reduction="none", token_clip=clip)
    assert clipped.max().item() == clip
    assert clipped.min() == per_token.min()
    clipped.sum().backward()
    at_clip = int(per_token.argmax())
    assert student.grad[0, at_clip].abs().max() == 0
    assert student.grad[0, 1 - at_clip].abs().max() > 0


def test_reductions_agree_with_each_other() -> None:
    student, teacher = torch.randn(2, 3, 7), torch.randn(2, 3, 7)
    labels = torch.tensor([[1, -100, 2], [-100, -100, 0]])
    none = generalized_jsd_loss(student, teacher, labels, reduction="none")
    assert none.shape == (2, 3)
    assert (none[labels == -100] == 0).all()
    torch.testing.assert_close(generalized_jsd_loss(student, teacher, labels, reduction="sum"), none.sum())
    torch.testing.assert_close(generalized_jsd_loss(student, teacher, labels), none.sum() / 3)
    torch.testing.assert_close(generalized_jsd_loss(student, teacher, labels, reduction="mean"), none.sum() / 3 / 7)


def test_mean_divides_by_the_vocabulary_with_top_k_too() -> None:
    student, teacher = torch.randn(2, 3, 7), torch.randn(2, 3, 7)
    batchmean, mean = (
        generalized_jsd_loss(student, teacher, top_k=3, reduction=reduction) for reduction in ("batchmean", "mean")
    )
    torch.testing.assert_close(mean, batchmean / 7)


def test_probabilities_in_place_of_logits() -> None:
    loss = generalized_jsd_loss(STUDENT.softmax(-1), TEACHER.softmax(-1), logits_are_probs=True)
    assert loss.item() == pytest.approx(GOLDEN[0.5], abs=1e-9)
    half = generalized_jsd_loss(STUDENT.softmax(-1).half(), TEACHER.softmax(-1).half(), logits_are_probs=True)
    assert half.dtype == torch.float32
    assert half.item() == pytest.approx(GOLDEN[0.5], abs=1e-3)


@pytest.mark.parametrize("beta", BETAS)
def test_a_probability_of_0_gives_a_finite_gradient(beta: float) -> None:
    student = torch.tensor([[[0.5, 0.5, 0.0, 0.0]]], dtype=torch.float64, requires_grad=True)
    teacher = torch.tensor([[[0.3, 0.7, 0.0, 0.0]]], dtype=torch.float64)
    loss = generalized_jsd_loss(student, teacher, beta=beta, logits_are_probs=True)
    two = generalized_jsd_loss(student[..., :2], teacher[..., :2], beta=beta, logits_are_probs=True)
    torch.testing.assert_close(loss, two)
    loss.backward()
    assert student.grad.isfinite().all()
    assert student.grad[..., :2].abs().max() > 0


@pytest.mark.parametrize("beta", BETAS)
def test_a_token_that_one_side_rules_out_makes_kl_infinite_and_jsd_not(beta: float) -> None:
    ruling_out = torch.cat([STUDENT[..., :3], torch.full((1, 1, 1), -math.inf, dtype=torch.float64)], -1)
    student_rules_out = generalized_jsd_loss(ruling_out, TEACHER, beta=beta).item()
    teacher_rules_out = generalized_jsd_loss(STUDENT, ruling_out, beta=beta).item()
    assert math.isinf(student_rules_out) == (beta == 0.0)
    assert math.isinf(teacher_rules_out) == (beta == 1.0)


@pytest.mark.parametrize("beta", BETAS)
def test_a_token_that_both_rule_out_changes_nothing(beta: float) -> None:
    ruled_out = torch.full((1, 1, 1), -math.inf, dtype=torch.float64)
    student = torch.cat([STUDENT, ruled_out], -1).requires_grad_()
    loss = generalized_jsd_loss(student, torch.cat([TEACHER, ruled_out], -1), beta=beta)
    assert loss.item() == pytest.approx(GOLDEN[beta], abs=1e-9)
    loss.backward()
    assert student.grad.isfinite().all()


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize(
    "settings",
    [{}, {"temperature": 1.7}, {"top_k": 3}, {"top_k": 3, "top_k_tail": False, "top_k_support": "student"}],
)
def test_gradient_is_that_of_finite_differences(beta: float, settings: dict) -> None:
    student = torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(2, 3, 6, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda s: generalized_jsd_loss(s, teacher, beta=beta, **settings), (student,))


@pytest.mark.parametrize("beta", BETAS)
def test_gradient_with_elementwise_clip(beta: float) -> None:
    student = torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(2, 3, 6, dtype=torch.float64)
    clipped = lambda s: generalized_jsd_loss(s, teacher, beta=beta, elementwise_clip=0.03)  # noqa: E731
    assert clipped(student) != generalized_jsd_loss(student, teacher, beta=beta)
    assert torch.autograd.gradcheck(clipped, (student,))


@pytest.mark.parametrize("beta", BETAS)
def test_teacher_receives_no_gradient(beta: float) -> None:
    student, teacher = torch.randn(1, 2, 5, requires_grad=True), torch.randn(1, 2, 5, requires_grad=True)
    generalized_jsd_loss(student, teacher, beta=beta).backward()
    assert teacher.grad is None
    assert student.grad.abs().max() > 0


def test_half_precision_logits_are_compared_in_float32() -> None:
    loss = generalized_jsd_loss(STUDENT.bfloat16(), TEACHER.bfloat16())
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(GOLDEN[0.5], abs=1e-6)


def random_logits(seed: int, *shape: int, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * spread


@given(seed=st.integers(0, 10_000), beta=st.floats(0, 1), vocabulary=st.integers(2, 40), spread=st.floats(0.01, 30))
def test_never_negative_and_zero_only_for_equal_distributions(
    seed: int, beta: float, vocabulary: int, spread: float
) -> None:
    student = random_logits(seed, 2, 3, vocabulary, spread=spread)
    teacher = random_logits(seed + 1, 2, 3, vocabulary, spread=spread)
    per_token = generalized_jsd_loss(student, teacher, beta=beta, reduction="none")
    # Pinsker's inequality bounds the divergence below by the total variation, which is 0 only at equality.
    variation = (student.softmax(-1) - teacher.softmax(-1)).abs().sum(-1) / 2
    factor = 2.0 if beta in (0.0, 1.0) else 2.0 * beta * (1.0 - beta)
    assert (per_token >= factor * variation**2 - 1e-12).all()
    # Adding a constant to the logits leaves the distribution as it is.
    same = generalized_jsd_loss(student, student + 5.0, beta=beta, reduction="none")
    assert same.abs().max() < 1e-9


@given(seed=st.integers(0, 10_000), beta=st.sampled_from(BETAS), top_k=st.sampled_from([None, 3]))
def test_permuting_the_vocabulary_changes_nothing(seed: int, beta: float, top_k: int | None) -> None:
    student, teacher = random_logits(seed, 2, 3, 11), random_logits(seed + 1, 2, 3, 11)
    order = torch.randperm(11, generator=torch.Generator().manual_seed(seed))
    plain = generalized_jsd_loss(student, teacher, beta=beta, top_k=top_k)
    permuted = generalized_jsd_loss(student[..., order], teacher[..., order], beta=beta, top_k=top_k)
    torch.testing.assert_close(plain, permuted, rtol=1e-10, atol=1e-12)


@given(seed=st.integers(0, 10_000), beta=st.sampled_from(BETAS), junk=st.sampled_from([0.0, 1e30, math.nan, math.inf]))
def test_masked_positions_and_padding_change_neither_loss_nor_gradient(seed: int, beta: float, junk: float) -> None:
    student, teacher = random_logits(seed, 2, 3, 7).requires_grad_(), random_logits(seed + 1, 2, 3, 7)
    loss = generalized_jsd_loss(student, teacher, beta=beta)
    (gradient,) = torch.autograd.grad(loss, student)

    padding = torch.full((2, 4, 7), junk, dtype=torch.float64)
    padded = torch.cat([student.detach(), padding], 1).requires_grad_()
    labels = torch.cat([torch.zeros(2, 3), torch.full((2, 4), -100)], 1)
    padded_loss = generalized_jsd_loss(padded, torch.cat([teacher, padding], 1), labels, beta=beta)
    (padded_gradient,) = torch.autograd.grad(padded_loss, padded)
    assert padded_loss == loss
    assert torch.equal(padded_gradient[:, :3], gradient)
    assert (padded_gradient[:, 3:] == 0).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"beta": -0.1}, r"beta must be in \[0, 1\], got -0.1"),
        ({"beta": 1.5}, r"beta must be in \[0, 1\], got 1.5"),
        ({"beta": math.nan}, r"beta must be in \[0, 1\], got nan"),
        ({"temperature": 0.0}, "temperature must be a positive finite number, got 0.0"),
        ({"reduction": "median"}, "reduction must be one of 'batchmean', .* got 'median'"),
        ({"top_k": 0}, "top_k must be a positive whole number, got 0"),
        ({"top_k": 1.5}, "top_k must be a positive whole number, got 1.5"),
        ({"top_k": 2, "top_k_support": "both"}, "top_k_support must be one of .* got 'both'"),
        ({"token_clip": -1.0}, "token_clip must be a positive finite number, got -1.0"),
        ({"elementwise_clip": 0.0}, "elementwise_clip must be a positive finite number, got 0.0"),
        ({"teacher_logits": torch.randn(2, 3, 8)}, re.escape("student_logits has shape (2, 3, 7), teacher_logits")),
        ({"labels": torch.zeros(2, 4)}, re.escape("labels has shape (2, 4), the logits need (2, 3)")),
        ({"labels": torch.full((2, 3), -100)}, "labels leaves none of the 6 positions"),
        ({"student_logits": torch.full((2, 3, 7), math.nan)}, "student_logits has 42 NaN values"),
        ({"teacher_logits": torch.full((2, 3, 7), math.nan)}, "teacher_logits has 42 NaN values"),
        ({"logits_are_probs": True, "temperature": 2.0}, "temperature must be 1 with logits_are_probs"),
        (
            {"logits_are_probs": True, "student_logits": torch.ones(2, 3, 7), "teacher_logits": -torch.ones(2, 3, 7)},
            "teacher_logits must hold probabilities, got -1.0",
        ),
        ({"student_logits": torch.randn(7), "teacher_logits": torch.randn(7)}, r"student_logits has shape \(7,\)"),
    ],
)
def test_bad_input_is_named(change: dict, message: str) -> None:
    arguments = {"student_logits": torch.randn(2, 3, 7), "teacher_logits": torch.randn(2, 3, 7), **change}
    with pytest.raises(ValueError, match=message):
        generalized_jsd_loss(**arguments)
