from __future__ import annotations

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


def test_a_negative_gap_is_refused() -> None:
    with pytest.raises(ValueError, match="min_gap"):
        HintGate(min_gap=-0.1)
