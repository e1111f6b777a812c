from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from composer_replication.trainer.on_policy_hints import OnPolicyHints, _succeeded, sampled_logprobs


def _hints() -> OnPolicyHints:
    nothing: Any = None
    return OnPolicyHints(nothing, nothing, nothing, accelerator=nothing, rows_per_pass=1, max_length=None)


def test_of_several_that_speak_the_first_is_heard() -> None:
    hints = _hints()
    hints.listen(["a", None, None])
    hints.listen([None, "b", None])
    hints.listen(["c", "c", None])
    assert hints._texts == ["a", "b", None]
    hints.forget()
    assert hints._texts == []


def test_a_wrong_number_of_texts_is_refused() -> None:
    hints = _hints()
    rollouts: list[Any] = [object(), object()]
    hints.keep(rollouts, None)
    with pytest.raises(ValueError, match="each of 2 rollouts, got 3"):
        hints.listen([None, None, "x"])


def test_success_is_above_the_group_or_from_a_threshold_on() -> None:
    rewards = [1.0, 0.0, 0.0, 0.0, 0.5, 0.5, 0.5, math.nan]
    assert _succeeded(rewards, 4, None) == [True, False, False, False, False, False, False, True]
    assert _succeeded(rewards, 4, 0.5) == [True, False, False, False, True, True, True, True]


def test_the_samplers_own_probabilities_come_first() -> None:
    # Two prompt columns; the first token of the second rollout and the last of the first.
    index = torch.tensor([[1, 2], [0, 4]])
    prompts = torch.zeros(2, 2, dtype=torch.long)
    old = -torch.arange(1.0, 7.0).view(2, 3)
    sampling = torch.tensor([[-0.1, -0.2, math.nan], [-0.4, -0.5, -0.6]])
    assert sampled_logprobs({"prompt_ids": prompts}, index) is None
    for given, expected in (
        ({"old_per_token_logps": old}, [-4.0, -3.0]),
        ({"old_per_token_logps": old, "sampling_per_token_logps": sampling}, [-0.4, -3.0]),
        ({"sampling_per_token_logps": sampling}, [-0.4, math.nan]),
    ):
        found = sampled_logprobs({"prompt_ids": prompts, **given}, index)
        assert found is not None
        torch.testing.assert_close(found, torch.tensor(expected), equal_nan=True)
