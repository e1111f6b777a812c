from __future__ import annotations

import math
from typing import Any

import pytest

from composer_replication.trainer.on_policy_hints import OnPolicyHints, _succeeded


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
