from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from trainer import live_run
from trl import GRPOTrainer

from composer_replication.envs.house_style import HouseStyle
from composer_replication.laboratory import laboratory_model, laboratory_tokenizer
from composer_replication.trainer.rewards import Effort, EffortPenalty, effort_cost, measure_effort

CALL = {"type": "function", "function": {"name": "read_file", "arguments": {"path": "a.py"}}}


@pytest.mark.parametrize(("q", "golden"), [(0.5, 5.797959), (1.0, 3.583519), (0.0, 10.0)])
def test_effort_cost_has_the_golden_values(q: float, golden: float) -> None:
    assert effort_cost(10.0, 0.5, q) == pytest.approx(golden, abs=5e-7)


@given(x=st.floats(0, 1e6, allow_subnormal=False), k=st.floats(1e-6, 10), q=st.floats(0, 1.5))
def test_effort_cost_is_no_more_than_the_effort_and_grows_with_it(x: float, k: float, q: float) -> None:
    cost = effort_cost(x, k, q)
    assert 0 <= cost <= x * (1 + 1e-9) + 1e-300
    assert effort_cost(2 * x + 1, k, q) > cost


def test_effort_cost_runs_into_the_logarithm_at_q_1() -> None:
    expected = math.log1p(1e-3 * 4000) / 1e-3
    for q in (1 - 1e-12, 1 + 1e-12, 1 - 1e-15, 1.0):
        assert effort_cost(4000, 1e-3, q) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [((-1, 0.5, 0.5), "x"), ((math.nan, 0.5, 0.5), "x"), ((1, 0, 0.5), "k"), ((1, 0.5, -0.1), "q")],
)
def test_effort_cost_names_what_is_out_of_range(arguments: tuple[float, float, float], named: str) -> None:
    with pytest.raises(ValueError, match=rf"^{named} must be"):
        effort_cost(*arguments)


def test_each_part_of_a_rollout_is_counted_as_what_it_is() -> None:
    messages = [
        {"role": "assistant", "content": "<think>" + "t" * 40 + "</think>" + "a" * 8, "tool_calls": [CALL, CALL]},
        {"role": "tool", "name": "read_file", "content": "o" * 100},
        {"role": "assistant", "content": "a" * 4, "reasoning_content": "t" * 20},
        {"role": "assistant", "content": "<think>" + "t" * 4},
    ]
    effort = measure_effort(messages)
    call_characters = len('{"name": "read_file", "arguments": {"path": "a.py"}}')
    assert effort == Effort(
        thinking_tokens=(40 + 20 + 4) / 4,
        tool_call_tokens=2 * call_characters / 4,
        tool_output_tokens=100 / 4,
        answer_tokens=12 / 4,
        calls=2,
        turns=3,
    )


def test_token_ids_fix_the_total_and_texts_divide_it() -> None:
    messages = [{"role": "assistant", "content": "<think>" + "t" * 30 + "</think>" + "a" * 10}]
    effort = measure_effort(messages, [0] * 12)
    assert (effort.thinking_tokens, effort.answer_tokens) == pytest.approx((9, 3))
    # What cannot be read still cost its tokens.
    assert measure_effort([], [0] * 5) == Effort(0, 0, 0, 5, 0, 0)
    assert measure_effort("plain text", [0] * 5) == Effort(0, 0, 0, 5, 0, 1)
    assert measure_effort([{"role": "assistant", "content": None}], [0] * 5) == Effort(0, 0, 0, 5, 0, 1)


def test_a_tokenizer_counts_in_its_own_tokens(qwen_tokenizer: Any) -> None:
    text = "Please fix the failing test"
    counted = measure_effort([{"role": "tool", "content": [{"type": "text", "text": text}]}], tokenizer=qwen_tokenizer)
    assert counted.tool_output_tokens == len(qwen_tokenizer(text)["input_ids"]) != len(text) / 4


def test_the_penalty_is_the_weighted_cost_below_zero() -> None:
    penalty = EffortPenalty(0.01, k=0.5, q=0.5, counts=Effort(0, 0, 0, 1, 0, 0))
    rewards = penalty([None, None], ["a" * 40, "a" * 80], [[0] * 10, [0] * 10])
    assert rewards == pytest.approx([-0.05797959] * 2, abs=1e-8)
    in_calls = EffortPenalty(1.0, q=0.0, counts=Effort(0, 0, 0, 0, 3, 2))
    logged: dict[str, float] = {}
    rewards = in_calls(
        [None], [[{"role": "assistant", "content": "", "tool_calls": [CALL]}]], log_metric=logged.__setitem__
    )
    assert rewards == pytest.approx([-5.0])
    assert logged == {"effort": 5.0}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"weight": -1}, "weight"),
        ({"weight": 1, "k": 0}, "k"),
        ({"weight": 1, "q": -1}, "q"),
        ({"weight": 1, "counts": Effort(calls=-2)}, r"counts\.calls"),
    ],
)
def test_a_penalty_that_would_pay_for_effort_is_refused(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=rf"^{named} must be"):
        EffortPenalty(**arguments)


def test_trl_takes_the_penalty_beside_the_environments_own_reward(tmp_path: Path) -> None:
    tokenizer = laboratory_tokenizer()
    trainer = GRPOTrainer(
        model=laboratory_model(),
        args=live_run.arguments(tmp_path, max_steps=1, per_device_train_batch_size=4),
        reward_funcs=[EffortPenalty(0.001, q=0.0, tokenizer=tokenizer)],
        train_dataset=Dataset.from_list(live_run.house_tasks(8)),
        processing_class=tokenizer,
        environment_factory=HouseStyle,
    )
    trainer.train()
    (logged,) = (entry for entry in trainer.state.log_history if "reward" in entry)
    assert logged["rewards/effort_penalty/mean"] == pytest.approx(-0.001 * logged["effort"], rel=1e-4)
    # Generated tokens, the house's answers, at least one call and two turns.
    assert logged["effort"] > logged["completions/mean_length"] + 3
