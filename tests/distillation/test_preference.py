"""DPO, SimPO and the anchor: values by hand, direction of the gradient, and refusals.

Parity with TRL is in test_trl_parity.
"""

from __future__ import annotations

import math

import pytest
import torch

from composer_replication.distillation import (
    avg_sequence_logprob,
    chosen_nll,
    dpo_loss,
    simpo_loss,
    sum_sequence_logprob,
)

CHOSEN, REJECTED = torch.tensor([-2.1, -1.8]), torch.tensor([-3.0, -2.5])


def softplus(x: float) -> float:
    return math.log1p(math.exp(x))


def test_simpo_by_hand() -> None:
    expected = (softplus(-(2.0 * 0.9 - 1.0)) + softplus(-(2.0 * 0.7 - 1.0))) / 2
    assert simpo_loss(CHOSEN, REJECTED).item() == pytest.approx(expected, abs=1e-6)
    assert simpo_loss(CHOSEN, REJECTED, beta=1.0, gamma=0.0).item() == pytest.approx(
        (softplus(-0.9) + softplus(-0.7)) / 2, abs=1e-6
    )


def test_dpo_by_hand() -> None:
    reference_chosen, reference_rejected = torch.tensor([-2.5, -1.5]), torch.tensor([-2.0, -2.0])
    loss = dpo_loss(CHOSEN, REJECTED, reference_chosen, reference_rejected, beta=0.3)
    margins = [(0.4) - (-1.0), (-0.3) - (-0.5)]
    assert loss.item() == pytest.approx(sum(softplus(-0.3 * m) for m in margins) / 2, abs=1e-6)
    at_reference = dpo_loss(CHOSEN, REJECTED, CHOSEN, REJECTED)
    assert at_reference.item() == pytest.approx(math.log(2), abs=1e-6)


def test_the_anchor_weighs_every_chosen_token_the_same() -> None:
    assert chosen_nll(torch.tensor([-6.0, -1.0]), torch.tensor([3, 1])).item() == pytest.approx(7 / 4)
    policy = CHOSEN.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(chosen_nll(policy, torch.tensor([3, 2])), policy)
    assert gradient.tolist() == pytest.approx([-0.2, -0.2])


def test_gradient_raises_the_chosen_and_spares_the_reference() -> None:
    policy = [CHOSEN.clone().requires_grad_(), REJECTED.clone().requires_grad_()]
    reference = [CHOSEN.clone().requires_grad_(), REJECTED.clone().requires_grad_()]
    for loss in (dpo_loss(*policy, *reference), simpo_loss(*policy)):
        chosen_gradient, rejected_gradient = torch.autograd.grad(loss, policy)
        assert (chosen_gradient < 0).all()
        assert (rejected_gradient > 0).all()
    assert not any(
        t is not None for t in torch.autograd.grad(dpo_loss(*policy, *reference), reference, allow_unused=True)
    )


def test_sequence_logprobs_use_response_tokens_only() -> None:
    logprobs = torch.tensor([[-1.0, -2.0, -3.0, math.nan], [-4.0, -5.0, -math.inf, -6.0]])
    mask = torch.tensor([[0, 1, 1, 0], [1, 0, 0, 1]])
    assert sum_sequence_logprob(logprobs, mask).tolist() == [-5.0, -10.0]
    assert avg_sequence_logprob(logprobs, mask).tolist() == [-2.5, -5.0]


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="rejected_avg_logprobs has shape"):
        simpo_loss(CHOSEN, REJECTED[:1])
    with pytest.raises(ValueError, match="rejected_ref_logprobs has shape"):
        dpo_loss(CHOSEN, REJECTED, CHOSEN, REJECTED[:1])
    with pytest.raises(ValueError, match="beta must be a positive finite number, got 0"):
        simpo_loss(CHOSEN, REJECTED, beta=0)
    with pytest.raises(ValueError, match="gamma must be a finite number >= 0, got -1"):
        simpo_loss(CHOSEN, REJECTED, gamma=-1)
    with pytest.raises(ValueError, match=r"beta must be a positive finite number, got -0\.1"):
        dpo_loss(CHOSEN, REJECTED, CHOSEN, REJECTED, beta=-0.1)
    with pytest.raises(ValueError, match="chosen_ref_logprobs has 1 NaN values of 2"):
        dpo_loss(CHOSEN, REJECTED, torch.tensor([math.nan, 0.0]), REJECTED)
    with pytest.raises(ValueError, match="chosen_lengths has shape"):
        chosen_nll(CHOSEN, torch.ones(3))
    with pytest.raises(ValueError, match=r"chosen_lengths must be positive, got \[1, 0\]"):
        chosen_nll(CHOSEN, torch.tensor([1, 0]))
    with pytest.raises(ValueError, match="chosen_logprobs has 1 NaN values of 2"):
        chosen_nll(torch.tensor([math.nan, 0.0]), torch.ones(2))
    with pytest.raises(ValueError, match=r"response_mask selects no token in rows \[1\]"):
        avg_sequence_logprob(torch.randn(2, 3), torch.tensor([[1, 1, 1], [0, 0, 0]]))
    with pytest.raises(ValueError, match="response_mask has shape"):
        sum_sequence_logprob(torch.randn(2, 3), torch.ones(2, 4))
