"""The trust-region self-teacher."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from trainer.self_teachers.small_policies import (
    ARCHITECTURES,
    INDEX,
    VOCABULARY,
    Training,
    hinted_batch,
    logits,
    lora_policy,
    own_logits,
    policy,
)

from composer_replication.trainer.self_teachers import make_teacher


def moved(model: Any, mix: float) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """The teacher, and the logits of the policy at the start and after some steps."""
    start = own_logits(model)
    teacher, training = make_teacher("trust_region", model, mix=mix), Training(model)
    for _ in range(6):
        training.step()
        teacher.update()
    now = own_logits(model)
    assert (now - start).abs().max() > 0.02
    return teacher, start, now


@pytest.mark.parametrize("mix", [0.0, 0.05, 0.7, 1.0])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("build", [policy, lora_policy], ids=["full", "lora"])
def test_the_mix_is_one_of_logits(build: Any, architecture: str, mix: float) -> None:
    teacher, start, now = moved(build(architecture), mix)
    torch.testing.assert_close(logits(teacher), (1 - mix) * start + mix * now, rtol=1e-4, atol=1e-4)


def test_one_head_for_both_costs_no_logits() -> None:
    model = lora_policy()
    teacher, *_ = moved(model, 0.3)
    states = teacher.hinted_states(hinted_batch(), INDEX)
    assert states.head.weight is model.get_base_model().lm_head.weight
    assert states.hidden.shape == (4, 32)


def test_two_heads_cost_logits_at_the_positions_only() -> None:
    teacher, *_ = moved(policy(), 0.3)
    states = teacher.hinted_states(hinted_batch(), INDEX)
    assert states.head.weight is None
    assert states.hidden.shape == (4, VOCABULARY)


@pytest.mark.parametrize("softcap", [None, 0.5])
def test_a_bias_and_a_cap_on_the_logits(softcap: float | None) -> None:
    """A bias is mixed right with the hidden states, as the weights add up to one; a cap is not linear."""
    model = policy()
    model.lm_head.bias = torch.nn.Parameter(torch.linspace(-1, 1, VOCABULARY))
    for parameter in model.lm_head.parameters():
        parameter.requires_grad_(False)
    if softcap is not None:
        model.config.final_logit_softcapping = softcap
        plain = model.forward

        def capped(*args: Any, logits_to_keep: Any = 0, **kwargs: Any) -> Any:
            output = plain(*args, logits_to_keep=logits_to_keep, **kwargs)
            output.logits = torch.tanh(output.logits / softcap) * softcap
            return output

        model.forward = capped
    teacher, start, now = moved(model, 0.5)
    torch.testing.assert_close(logits(teacher), 0.5 * start + 0.5 * now, rtol=1e-4, atol=1e-5)
    assert (teacher.hinted_states(hinted_batch(), INDEX).head.weight is None) == (softcap is not None)


def test_in_half_precision_and_under_autocast() -> None:
    for model in (policy().bfloat16(), lora_policy().bfloat16()):
        teacher, start, now = moved(model, 0.5)
        torch.testing.assert_close(logits(teacher), 0.5 * start + 0.5 * now, rtol=0.05, atol=0.05)
    model = policy()
    teacher, start, now = moved(model, 0.5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        states = teacher.hinted_states(hinted_batch(), INDEX)
    torch.testing.assert_close(states.hidden, 0.5 * start + 0.5 * now, rtol=0.05, atol=0.05)
