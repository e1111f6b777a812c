"""The moving average of a policy that trains as a whole, against averages taken by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from trainer.self_teachers.small_policies import (
    ARCHITECTURES,
    INDEX,
    Training,
    hinted_batch,
    logits,
    own_logits,
    policy,
    trained_copies,
    with_parameters,
)

from composer_replication.trainer.self_teachers import make_teacher


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_average_is_the_one_taken_by_hand(architecture: str, tied: bool) -> None:
    model = policy(architecture, tie_word_embeddings=tied)
    teacher, training = make_teacher("ema", model, rate=0.2), Training(model)
    by_hand = trained_copies(model)
    for _ in range(4):
        training.step()
        teacher.update()
        for name, parameter in trained_copies(model).items():
            by_hand[name] = 0.8 * by_hand[name] + 0.2 * parameter
    state = teacher.state_dict()
    assert state.keys() == by_hand.keys()
    assert ("lm_head.weight" in state) is not tied
    for name, value in by_hand.items():
        torch.testing.assert_close(state[name], value, rtol=1e-5, atol=1e-7)
    expected = with_parameters(model, by_hand)
    torch.testing.assert_close(logits(teacher), expected, rtol=1e-4, atol=1e-5)
    # The test must be able to tell the average from the policy, from its start and from the average at another rate.
    assert (own_logits(model) - expected).abs().max() > 0.02
    head = teacher.hinted_states(hinted_batch(), INDEX).head.weight
    assert head is not model.lm_head.weight
    torch.testing.assert_close(head, by_hand["model.embed_tokens.weight" if tied else "lm_head.weight"])


def test_the_default_rate_is_a_twentieth() -> None:
    model = policy()
    teacher = make_teacher("ema", model)
    start = model.lm_head.weight.detach().clone()
    model.lm_head.weight.data += 1.0
    teacher.update()
    torch.testing.assert_close(teacher.state_dict()["lm_head.weight"], start + 0.05)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_does_not_swallow_the_steps(dtype: torch.dtype) -> None:
    model = policy().to(dtype)
    weight = model.lm_head.weight
    weight.data.fill_(1.0)
    teacher = make_teacher("ema", model, rate=0.05)
    weight.data.fill_(1.0 + 4 * torch.finfo(dtype).eps)
    naive = torch.ones_like(weight)
    by_hand = torch.ones(weight.shape)
    for _ in range(20):
        teacher.update()
        naive.lerp_(weight.detach(), 0.05)
        by_hand = 0.95 * by_hand + 0.05 * weight.detach().float()
    assert torch.equal(naive, torch.ones_like(weight))  # each step is less than half of what the type can tell apart
    kept = teacher.state_dict()["lm_head.weight"]
    assert kept.dtype == torch.float32
    torch.testing.assert_close(kept, by_hand, rtol=1e-6, atol=0.0)
    states = teacher.hinted_states(hinted_batch(), INDEX)
    assert states.hidden.dtype == dtype
    assert torch.equal(states.head.weight, by_hand.to(dtype))
    assert (states.head.weight > 1).all()


def test_buffers_are_the_policys_own() -> None:
    model = policy()
    model.model.register_buffer("shift", torch.zeros(32))
    model.model.register_forward_hook(
        lambda module, _, output: output.__class__(last_hidden_state=output.last_hidden_state + module.shift)
    )
    ema, frozen = make_teacher("ema", model), make_teacher("frozen", model)
    before = own_logits(model)
    model.model.shift += 1.0
    torch.testing.assert_close(logits(ema), own_logits(model))
    # As it was means as it was saved: a buffer that training moves is part of that.
    torch.testing.assert_close(logits(frozen), before)
    assert "model.shift" in frozen.state_dict()


@pytest.mark.parametrize("kind", ["ema", "frozen"])
def test_under_autocast(kind: Any) -> None:
    model = policy()
    teacher = make_teacher(kind, model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        autocast = logits(teacher)
        expected = own_logits(model)
        teacher.update()
    torch.testing.assert_close(autocast, expected)
    torch.testing.assert_close(logits(teacher), own_logits(model))
