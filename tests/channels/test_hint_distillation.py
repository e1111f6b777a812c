"""Channel 2's weight over the steps, the weights of its tokens, and the overlap of top tokens."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from composer_replication.causal_lm import HiddenStates
from composer_replication.channels import hint_divergence
from composer_replication.channels.hint_distillation import (
    HintDistillation,
    OverlapMeter,
    importance_weights,
    top_overlap,
)
from composer_replication.distillation.fused import sweep
from composer_replication.distillation.fused.head import LogitHead
from composer_replication.opsd import GeneralizedJSD


def test_the_weight_goes_to_its_end_and_stays_there() -> None:
    published = HintDistillation(alpha=0.3, alpha_schedule="linear", alpha_end=0.05, alpha_steps=60)
    assert [published.alpha_at(step, 1000) for step in (0, 30, 60, 61, 999)] == pytest.approx(
        [0.3, 0.175, 0.05, 0.05, 0.05]
    )
    whole_run = HintDistillation(alpha=0.1, alpha_schedule="linear", alpha_end=0.5)
    assert [whole_run.alpha_at(step, 5) for step in range(6)] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.5])
    assert whole_run.alpha_at(0, 1) == 0.1
    constant = HintDistillation(alpha=0.1, alpha_end=0.5, alpha_steps=2)
    assert {constant.alpha_at(step, 4) for step in range(5)} == {0.1}


@pytest.mark.parametrize(
    ("setting", "wanted"),
    [
        ({"alpha_schedule": "cosine"}, "alpha_schedule must be one of 'constant', 'linear', got 'cosine'"),
        ({"alpha_schedule": "linear", "alpha_end": -0.1}, "alpha_end must be a finite number >= 0, got -0.1"),
        ({"alpha_schedule": "linear", "alpha_steps": 0}, "alpha_steps must be a positive whole number, got 0"),
        ({"alpha": 0.0, "alpha_schedule": "linear"}, "alpha_end=0.05 has no effect with alpha_sdpo=0, .* give a small"),
        ({"max_hinted_turns": 0}, "max_hinted_turns must be a positive whole number, got 0"),
        ({"importance_clip": 0.0}, "importance_clip must be a positive finite number, got 0.0"),
    ],
)
def test_values_out_of_range_are_refused(setting: dict[str, Any], wanted: str) -> None:
    with pytest.raises(ValueError, match=wanted):
        HintDistillation(**setting)


def test_importance_weights_are_ratios_up_to_the_clip() -> None:
    now = torch.tensor([-1.0, -1.0, -1.0, -1.0, 0.0, -200.0], requires_grad=True)
    old = torch.tensor([-1.0, -0.5, -4.0, math.nan, -200.0, 0.0])
    weights = importance_weights(now, old, 2.0)
    torch.testing.assert_close(weights, torch.tensor([1.0, math.exp(-0.5), 2.0, 1.0, 2.0, math.exp(-20)]))
    assert not weights.requires_grad
    assert importance_weights(now, old, math.inf).isfinite().all()


def test_weighted_divergence_and_gradient_are_those_of_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "CHUNK_ELEMENTS", 40)
    make = torch.Generator().manual_seed(3)
    hidden = torch.randn(1, 6, 4, generator=make, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(20, 4, generator=make, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(3, 4, generator=make, dtype=torch.float64)
    index = torch.tensor([[0, 1], [0, 3], [0, 5]])
    token_weights = torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)
    head = LogitHead(weight)
    loss, tokens = hint_divergence(
        HiddenStates(hidden, head), index, HiddenStates(teacher, head), GeneralizedJSD(beta=1.0), token_weights
    )
    student = (hidden[0, [0, 2, 4]] @ weight.T).log_softmax(-1)
    target = (teacher @ weight.T).detach().log_softmax(-1)
    divergence_P = (student.exp() * (student - target)).sum(-1)
    expected = (token_weights * divergence_P).sum() / 3
    assert tokens == 3
    torch.testing.assert_close(loss, expected)
    for got, wanted in zip(
        torch.autograd.grad(loss, (hidden, weight)), torch.autograd.grad(expected, (hidden, weight)), strict=True
    ):
        torch.testing.assert_close(got, wanted)


def test_overlap_is_the_share_of_top_tokens_that_both_have() -> None:
    student = torch.tensor([[5.0, 4.0, 3.0, 2.0, 1.0, 0.0], [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]])
    teacher = torch.tensor([[0.0, 6.0, 7.0, 5.0, 0.5, 0.1], [5.0, 4.0, 3.0, 2.0, 1.0, 0.0]])
    # The student's top three are 0, 1, 2 and 5, 4, 3, the teacher's 2, 1, 3 and 0, 1, 2.
    torch.testing.assert_close(top_overlap(student, teacher, top=3), torch.tensor([2 / 3, 0.0]))
    assert top_overlap(student, student).tolist() == [1.0, 1.0]


def test_the_meter_counts_every_position_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "CHUNK_ELEMENTS", 40)  # two positions
    make = torch.Generator().manual_seed(5)
    hidden = torch.randn(1, 6, 4, generator=make, requires_grad=True)
    head, own = (LogitHead(torch.randn(20, 4, generator=make)) for _ in range(2))
    index = torch.tensor([[0, column] for column in range(1, 6)])
    teacher = torch.randn(5, 4, generator=make)
    meter = OverlapMeter(GeneralizedJSD(), 5)
    loss, _ = hint_divergence(HiddenStates(hidden, head), index, HiddenStates(teacher, own), meter)
    plain, _ = hint_divergence(HiddenStates(hidden, head), index, HiddenStates(teacher, own), GeneralizedJSD())
    assert torch.equal(loss, plain)
    expected = top_overlap(head.logits(hidden[0, :5]), own.logits(teacher)).sum()
    assert 0 < float(expected) < 5
    torch.testing.assert_close(meter.overlap, expected)
    for _ in range(2):
        torch.autograd.grad(loss, hidden, retain_graph=True)
    torch.testing.assert_close(meter.overlap, expected)
