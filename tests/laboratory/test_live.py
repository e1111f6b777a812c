"""The laboratory model in TRL's own loop: calls that fail and calls that earn, with the tools of its lessons."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from trainer.live_run import arguments, house_tasks
from trl import GRPOTrainer

from composer_replication.envs.contract import schemas_of
from composer_replication.envs.house_style import HouseStyle, house_customs
from composer_replication.laboratory import laboratory_model, laboratory_tokenizer


class _Watched(GRPOTrainer):  # type: ignore[misc]
    """Keeps what the tools answered."""

    answers: list[str]

    def _generate(self, prompts: list[Any]) -> Any:
        result = super()._generate(prompts)
        messages = (message for completion in result[3] for message in completion)
        self.answers = [*getattr(self, "answers", []), *(one["content"] for one in messages if one["role"] == "tool")]
        return result


def _trainer(output: Path) -> _Watched:
    return _Watched(
        model=laboratory_model(),
        args=arguments(output, loss_type="dr_grpo"),
        train_dataset=Dataset.from_list(house_tasks(16)),
        processing_class=laboratory_tokenizer(),
        environment_factory=HouseStyle,
    )


def _live_run(output: Path, number: int) -> tuple[list[float], float, float, list[str]]:
    torch.manual_seed(number)  # what was drawn before a run is none of its business
    trainer = _trainer(output)
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "reward" in entry]
    rewarded = sum(entry["rewards/HouseStyle/mean"] for entry in logs)
    failed = sum(entry["tools/failure_frequency"] for entry in logs)
    return [entry["loss"] for entry in logs], rewarded, failed, trainer.answers


def test_trl_runs_a_house_with_calls_that_fail_and_calls_that_earn(tmp_path: Path) -> None:
    losses, rewarded, failed, answers = _live_run(tmp_path, 0)
    assert rewarded > 0
    assert failed > 0
    assert any(f"Available tools: {', '.join(house_customs().values())}." in answer for answer in answers)
    assert any(answer.startswith(("Created", "Added", "Renamed", "Deleted")) for answer in answers)
    assert _live_run(tmp_path, 1) == (losses, rewarded, failed, answers)


def test_trl_shows_the_tools_that_the_lessons_were_rendered_with(tmp_path: Path) -> None:
    tokenizer, prompt = laboratory_tokenizer(), house_tasks(1)[0]["prompt"]
    ours, theirs = (
        tokenizer.apply_chat_template(prompt, tools=tools, tokenize=False)
        for tools in (schemas_of(HouseStyle()), _trainer(tmp_path).tools)
    )
    assert ours == theirs
