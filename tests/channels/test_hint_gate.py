from __future__ import annotations

from typing import Any

import pytest
import torch

from composer_replication.channels.hint_distillation import HintGate, judge_sites

# Three sites: one that the hint hardly moves, one that it makes less likely, one that it makes more likely.
STUDENT = torch.tensor([-1.0, -2.0, -1.0, -1.0, -3.0])
TEACHER = torch.tensor([-1.001, -1.999, -3.0, -2.0, -1.0])
SITES = torch.tensor([0, 0, 1, 1, 2])


def test_gap_is_the_mean_change_per_site() -> None:
    result = judge_sites(None, STUDENT, TEACHER, SITES)
    torch.testing.assert_close(result.gap_S, torch.tensor([0.001, 1.5, 2.0]))
    torch.testing.assert_close(result.signed_gap_S, torch.tensor([0.0, 1.5, -2.0]), atol=1e-6, rtol=0)
    assert result.kept_S.tolist() == [True, True, True]
    assert (result.too_small, result.conflicting) == (0, 0)


def test_a_hint_that_changes_nothing_is_left_out_and_counted() -> None:
    result = judge_sites(HintGate(min_gap=0.01), STUDENT, TEACHER, SITES)
    assert result.kept_S.tolist() == [False, True, True]
    assert (result.too_small, result.conflicting) == (1, 0)


def test_a_hint_against_rewarded_tokens_is_left_out_and_counted() -> None:
    rewarded = torch.tensor([True, True, True])
    result = judge_sites(HintGate(min_gap=0.01), STUDENT, TEACHER, SITES, rewarded)
    assert result.kept_S.tolist() == [False, False, True]
    assert (result.too_small, result.conflicting) == (1, 1)
    # The same hint where the rollout was not rewarded is what channel 2 is for.
    assert judge_sites(HintGate(), STUDENT, TEACHER, SITES, ~rewarded).kept_S.tolist() == [False, True, True]
    permissive = HintGate(min_gap=0.0, drop_conflicts=False)
    assert judge_sites(permissive, STUDENT, TEACHER, SITES, rewarded).kept_S.all()


def test_a_calibrated_gate_compares_the_absolute_mean_change_with_the_threshold() -> None:
    # The second site's tokens change by 2 and 1, the third's by -2: 1.5 is not above 1.5, and 2 is.
    result = judge_sites(HintGate(min_gap=0.01), STUDENT, TEACHER, SITES, None, 1.5)
    assert result.kept_S.tolist() == [False, False, True]
    assert (result.too_small, result.like_foreign, result.conflicting) == (1, 1, 0)
    # Changes that cancel out are those of any text: large one by one, nothing on average.
    noisy = judge_sites(HintGate(), torch.tensor([-1.0, -3.0]), torch.tensor([-3.0, -1.0]), SITES[:2], None, 0.1)
    assert noisy.gap_S.tolist() == [2.0]
    assert (noisy.kept_S.tolist(), noisy.like_foreign) == ([False], 1)
    both = judge_sites(HintGate(min_gap=0.01), STUDENT, TEACHER, SITES, torch.tensor([True] * 3), 1.0)
    assert (both.too_small, both.like_foreign, both.conflicting) == (1, 0, 1)


@pytest.mark.parametrize(
    ("setting", "wanted"),
    [
        ({"min_gap": -0.1}, "min_gap must be a finite number >= 0, got -0.1"),
        ({"calibrate": 0}, "calibrate must be a positive whole number, got 0"),
        ({"calibrate": 2.5}, "calibrate must be a positive whole number, got 2.5"),
        ({"percentile": 0.0}, r"percentile must be in \(0, 1\], got 0.0"),
        ({"percentile": 0.5}, r"percentile=0.5 has no effect without calibrate: give the number"),
        ({"percentile": 95.0}, r"percentile must be in \(0, 1\], got 95.0"),
    ],
)
def test_values_out_of_range_are_refused(setting: dict[str, Any], wanted: str) -> None:
    with pytest.raises(ValueError, match=wanted):
        HintGate(**setting)
