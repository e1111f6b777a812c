from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from composer_replication.trainer.advantages import SequenceKL, routed_advantages

ACCELERATOR = SimpleNamespace(process_index=0, gather=lambda tensor: tensor)


def _inputs() -> dict[str, torch.Tensor]:
    """Four rollouts of two prompts: prompts padded on the left, completions on the right, tool text in two of them."""
    generator = torch.Generator().manual_seed(0)
    return {
        "prompt_ids": torch.randint(3, 600, (4, 5), generator=generator),
        "prompt_mask": torch.tensor([[0, 1, 1, 1, 1], [0, 1, 1, 1, 1], [1] * 5, [1] * 5]),
        "completion_ids": torch.randint(3, 600, (4, 6), generator=generator),
        "completion_mask": torch.tensor([[1] * 6, [1, 1, 1, 1, 0, 0], [1] * 6, [1, 1, 1, 0, 0, 0]]),
        "tool_mask": torch.tensor([[1, 1, 0, 0, 1, 1], [1] * 6, [1, 0, 0, 1, 1, 1], [1] * 6]),
        "advantages": torch.tensor([1.0, -1.0, 0.5, -0.5]),
    }


def _summed(model: Any, inputs: dict[str, torch.Tensor], temperature: float) -> torch.Tensor:
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
    attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
    with torch.no_grad():
        logprobs = (model(ids, attention_mask=attention).logits / temperature).log_softmax(-1)[:, 4:-1]
    of_tokens = logprobs.gather(-1, inputs["completion_ids"].unsqueeze(-1)).squeeze(-1)
    return (of_tokens * inputs["completion_mask"] * inputs["tool_mask"]).sum(1)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("rows_per_pass", [1, 3])
def test_what_drifts_from_the_reference_more_than_its_group_loses_advantage(
    qwen_model: Any, temperature: float, rows_per_pass: int
) -> None:
    inputs = _inputs()
    kl = SequenceKL(qwen_model, 0.3, temperature=temperature, rows_per_pass=rows_per_pass)
    unchanged = kl.adjusted(qwen_model, inputs, 2, ACCELERATOR)
    torch.testing.assert_close(unchanged, inputs["advantages"], atol=1e-5, rtol=0)
    before = _summed(qwen_model, inputs, temperature)
    with torch.no_grad():
        for parameter in qwen_model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    drift = (_summed(qwen_model, inputs, temperature) - before).view(2, 2)
    expected = inputs["advantages"] - 0.3 * (drift - drift.mean(1, keepdim=True)).flatten()
    torch.testing.assert_close(kl.adjusted(qwen_model, inputs, 2, ACCELERATOR), expected, atol=1e-3, rtol=1e-3)


def test_rollouts_that_are_masked_out_take_no_part(qwen_model: Any) -> None:
    inputs = _inputs()
    inputs["completion_mask"][:2] = 0
    inputs["completion_mask"][3] = 0
    kl = SequenceKL(qwen_model, 0.3, temperature=1.0, rows_per_pass=2)
    with torch.no_grad():
        for parameter in qwen_model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    # A group of one has no drift against its mean, and the others have none at all.
    torch.testing.assert_close(kl.adjusted(qwen_model, inputs, 2, ACCELERATOR), inputs["advantages"])


def test_a_reference_of_another_run_is_refused(qwen_model: Any) -> None:
    kl = SequenceKL(qwen_model, 0.3, temperature=1.0, rows_per_pass=2)
    kl.load_state_dict(kl.state_dict())
    with pytest.raises(ValueError, match="another reference policy"):
        kl.load_state_dict("of something else")


def test_routing_takes_whole_rollouts_out() -> None:
    routed = torch.tensor([True, False])
    assert routed_advantages(torch.tensor([1.0, 2.0]), routed).tolist() == [0.0, 2.0]
    per_token = routed_advantages(torch.ones(2, 3), routed)
    assert per_token.sum(1).tolist() == [0.0, 3.0]
