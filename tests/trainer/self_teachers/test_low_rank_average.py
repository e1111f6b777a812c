"""The factored average of LoRA updates against the dense one."""

from __future__ import annotations

import pytest
import torch

from composer_replication.trainer.self_teachers.averages import LowRankAverage

RANK, SCALING = 2, 1.5


def factors(step: int, outputs: int = 24, inputs: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """Unrelated ones at each step: the worst case for a fixed rank."""
    generator = torch.Generator().manual_seed(step)
    return torch.randn(RANK, inputs, generator=generator), torch.randn(outputs, RANK, generator=generator)


def dense(average: LowRankAverage) -> torch.Tensor:
    return average.left_OR.double() @ average.right_RI.double()


def product(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    return SCALING * B.double() @ A.double()


def test_exact_while_the_rank_allows_it() -> None:
    average = LowRankAverage(*factors(0), SCALING, rank=4 * RANK)
    exact = product(*factors(0))
    for step in (1, 2, 3):
        average.update(*factors(step), SCALING, 0.3)
        exact = 0.7 * exact + 0.3 * product(*factors(step))
        torch.testing.assert_close(dense(average), exact, rtol=1e-5, atol=1e-6)
    assert average.truncation < 1e-6
    assert (average.left_OR.shape, average.right_RI.shape) == ((24, 8), (8, 16))
    assert average.left_OR.dtype == average.right_RI.dtype == torch.float32


def test_what_the_rank_leaves_out_is_bounded_by_what_it_says() -> None:
    average = LowRankAverage(*factors(0), SCALING, rank=4 * RANK)
    exact = product(*factors(0))
    worst = 0.0
    for step in range(1, 12):
        average.update(*factors(step), SCALING, 0.3)
        exact = 0.7 * exact + 0.3 * product(*factors(step))
        difference = float((dense(average) - exact).norm())
        assert difference <= float(average.error) * (1 + 1e-4) + 1e-5
        worst = max(worst, difference / float(exact.norm()))
    assert 0.05 < worst <= float(average.truncation) < 3 * worst

    # What was lost once fades from the average, but the largest loss is what a log should show.
    largest = float(average.truncation)
    for _ in range(30):
        average.update(*factors(0), SCALING, 0.3)
    assert average.error / exact.norm() < 0.01
    assert float(average.truncation) >= largest


def test_one_truncation_drops_the_smallest_singular_values_and_no_more() -> None:
    average = LowRankAverage(*factors(0), SCALING, rank=RANK)
    average.update(*factors(1), SCALING, 0.5)
    exact = 0.5 * product(*factors(0)) + 0.5 * product(*factors(1))
    singular = torch.linalg.svdvals(exact)
    torch.testing.assert_close((dense(average) - exact).norm(), singular[RANK:].norm(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(average.error.double(), singular[RANK:].norm(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(average.truncation.double(), singular[RANK:].norm() / singular.norm(), rtol=1e-4, atol=0)


def test_the_first_value_is_the_layers_own_and_zero_stays_zero() -> None:
    A, B = factors(0)
    torch.testing.assert_close(dense(LowRankAverage(A, B, SCALING, rank=8)), product(A, B), rtol=1e-5, atol=1e-6)
    zero = LowRankAverage(A, torch.zeros_like(B), SCALING, rank=8)
    zero.update(A, torch.zeros_like(B), SCALING, 0.1)
    assert not dense(zero).any()
    assert zero.truncation == 0


@pytest.mark.parametrize(("outputs", "inputs"), [(3, 16), (16, 3), (1, 5), (7, 7)])
def test_a_narrow_layer_needs_no_more_than_its_full_rank(outputs: int, inputs: int) -> None:
    average = LowRankAverage(*factors(0, outputs, inputs), SCALING, rank=4 * RANK)
    exact = product(*factors(0, outputs, inputs))
    for step in range(1, 9):
        average.update(*factors(step, outputs, inputs), SCALING, 0.2)
        exact = 0.8 * exact + 0.2 * product(*factors(step, outputs, inputs))
    assert average.left_OR.shape == (outputs, min(outputs, inputs, 8))
    torch.testing.assert_close(dense(average), exact, rtol=1e-5, atol=1e-6)


def test_half_precision_of_the_caller_stays_outside() -> None:
    A, B = factors(0)
    average = LowRankAverage(A.bfloat16(), B.bfloat16(), SCALING, rank=8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        average.update(A.bfloat16(), B.bfloat16(), SCALING, 0.5)
    torch.testing.assert_close(dense(average), product(A.bfloat16(), B.bfloat16()), rtol=1e-5, atol=1e-6)


def test_weights_that_are_not_finite_are_refused() -> None:
    A, B = factors(0)
    average = LowRankAverage(A, B, SCALING, rank=8)
    with pytest.raises(ValueError, match="weights are not finite"):
        average.update(A * torch.nan, B, SCALING, 0.5)
