"""pass@k against all subsets of the samples."""

from __future__ import annotations

from itertools import combinations

import pytest

from composer_replication.evaluation.pass_at_k import pass_at_k


@pytest.mark.parametrize("samples", [1, 2, 5, 8])
def test_it_is_the_share_of_subsets_with_a_passed_sample(samples: int) -> None:
    for passed in range(samples + 1):
        outcomes = [True] * passed + [False] * (samples - passed)
        for k in range(1, samples + 1):
            subsets = list(combinations(outcomes, k))
            assert pass_at_k(samples, passed, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_known_values() -> None:
    assert pass_at_k(200, 1, 1) == pytest.approx(0.005)
    assert pass_at_k(200, 1, 100) == pytest.approx(0.5)
    assert pass_at_k(10, 3, 5) == pytest.approx(11 / 12)  # 1 - 21/252
    assert pass_at_k(100, 50, 10) == pytest.approx(0.999407, abs=1e-6)


def test_it_refuses_a_k_above_the_samples() -> None:
    with pytest.raises(ValueError, match="k is 5, and a task has 4 samples"):
        pass_at_k(4, 2, 5)
    with pytest.raises(ValueError, match="k must be a positive"):
        pass_at_k(4, 2, 0)
    with pytest.raises(ValueError, match=r"passed must be in \[0, 4\], got 5"):
        pass_at_k(4, 5, 1)
