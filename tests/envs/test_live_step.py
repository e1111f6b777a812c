"""One step of the trainer in each environment, with all channels live; what the model says is written down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from trainer.live_run import metrics, trainer

from composer_replication.envs.contract import Task, schemas_of
from composer_replication.envs.house_style import right_calls
from composer_replication.envs.python_tasks.bank import find_function
from composer_replication.envs.registry import built_in


def said(name: str, /, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def scripts(environment: str, task: Task) -> list[list[str]]:
    """A rollout that solves the task, and one whose call fails."""
    if environment == "house_style":
        right = [said(call.tool, **call.arguments) for call in right_calls(task["steps"])]
        return [[*right, "Done."], [said("open_file", path="a.md"), "Done."]]
    solution = find_function(task["function"]).source
    return [
        [said("write_file", path="solution.py", text=solution), said("run_tests"), "Done."],
        [said("read_file", path="missing.py"), said("run_tests"), "Done."],
    ]


@pytest.mark.parametrize("environment", ["house_style", "python_tasks"])
def test_all_channels_learn_from_rollouts_in_the_environment(environment: str, tmp_path: Path) -> None:
    made = built_in(environment)
    (task,) = made.make_tasks("train", 1)
    pair = {
        "prompt": task["prompt"],
        "chosen": [{"role": "assistant", "content": "Yes."}],
        "rejected": [{"role": "assistant", "content": "No."}],
        "tools": schemas_of(made.environment()),
    }
    live = trainer(
        tmp_path,
        args={"max_steps": 1, "per_device_train_batch_size": 2, "num_generations": 2, "max_completion_length": 3000},
        train_dataset=Dataset.from_list([task]),
        environment_factory=made.environment,
        replay_dataset=[pair],
        alpha_sdpo=0.5,
        beta_replay=0.5,
    )
    waiting = scripts(environment, task)

    def generate(prompt_ids: list[list[int]], *_: Any, **__: Any) -> tuple[list[list[int]], None]:
        # The loop goes on with the rollouts that called something: those with something left to say.
        turns = [script.pop(0) for script in waiting if script]
        assert len(turns) == len(prompt_ids)
        end = live.processing_class.eos_token
        return [live.processing_class(turn + end)["input_ids"] for turn in turns], None

    live._generate_single_turn = generate
    live.train()
    (step,) = metrics(tmp_path)
    assert waiting == [[], []]
    assert [episode.get_reward() for episode in live.environments] == [1.0, 0.0]
    for channel in ("grpo", "sdpo", "replay"):
        assert step[f"channels/{channel}/active_tokens"] > 0
    assert step["grad_norm"] > 0
