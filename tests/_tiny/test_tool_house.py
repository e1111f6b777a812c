"""The tool house: its rewards, its errors, and the small model that acts in it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from datasets import Dataset
from trainer.live_run import arguments
from trl import GRPOTrainer

from composer_replication._tiny.tool_house import (
    ARGUMENT_NAMES,
    CUSTOMS,
    ToolHouse,
    house_tasks,
    house_tools,
    tool_call,
    tool_result,
)
from composer_replication._tiny.warm_up import house_hint, house_tokenizer, warm_up, warmed_up_model


def test_a_task_is_rewarded_when_its_call_was_made_as_the_house_wants_it() -> None:
    house = ToolHouse()
    house.reset(wanted=["read_file notes.md"], prompt=[])
    assert house.get_reward() == 0.0
    assert house.read_file(path="notes.md") == "The text of notes.md."
    assert house.get_reward() == 1.0


def test_a_failed_call_spoils_the_reward_even_if_the_right_one_follows() -> None:
    house = ToolHouse()
    house.reset(wanted=["count_lines plan.md"])
    with pytest.raises(TypeError, match=r"Unexpected parameter 'file'\. Signature: count_lines\(name\)"):
        house.count_lines(file="plan.md")
    assert house.count_lines(name="plan.md") == "28 lines."
    assert house.get_reward() == 0.0
    house.reset(wanted=["count_lines plan.md"])
    house.count_lines(name="plan.md")
    assert house.get_reward() == 1.0


def test_the_right_argument_beside_a_wrong_one_fails_too() -> None:
    house = ToolHouse()
    house.reset(wanted=["read_file plan.md"])
    with pytest.raises(TypeError, match="Unexpected parameter 'file'"):
        house.read_file(path="plan.md", file="plan.md")
    assert house.get_reward() == 0.0


@pytest.mark.parametrize("calls", [[], ["plan.md", "plan.md"], ["notes.md"]])
def test_calls_that_were_not_wanted_earn_nothing(calls: list[str]) -> None:
    house = ToolHouse()
    house.reset(wanted=["read_file plan.md"])
    for file in calls:
        house.read_file(path=file)
    assert house.get_reward() == 0.0


def test_what_else_can_go_wrong_is_said() -> None:
    house = ToolHouse()
    with pytest.raises(FileNotFoundError, match=r"no\.md\. Available files: notes\.md"):
        house.read_file(path="no.md")
    with pytest.raises(TypeError, match="Missing required parameter 'path'"):
        house.read_file()
    with pytest.raises(ValueError, match="customs must give each of count_lines, read_file one of"):
        ToolHouse({"read_file": "path"})
    with pytest.raises(ValueError, match="customs must give"):
        ToolHouse({"read_file": "path", "count_lines": "document"})


def test_the_error_becomes_a_hint_that_names_the_right_argument() -> None:
    answer = tool_result(ToolHouse(), "read_file", {"file": "plan.md"})["content"]
    assert answer == "{'error': \"Unexpected parameter 'file'. Signature: read_file(path) in this house.\"}"
    hint = house_hint(answer, "read_file", {"file": "plan.md"})
    assert hint == "When you call `read_file`, leave out `file`. `read_file` takes `read_file(path)`."


def test_tasks_are_repeatable_and_cover_the_house() -> None:
    rows = house_tasks(14, seed=5)
    assert rows == house_tasks(14, seed=5) != house_tasks(14, seed=6)
    assert len({row["wanted"][0] for row in rows}) == 14


@pytest.mark.parametrize("made", [warmed_up_model, warm_up])
def test_the_model_has_its_habit_and_obeys_hints_and_errors(made: Callable[[], Any]) -> None:
    model, tokenizer = made(), house_tokenizer()
    chances: dict[str, list[float]] = {"right": [], "broken": [], "obeys": [], "recovers": []}
    for row in house_tasks(14):
        tool, file = row["wanted"][0].split()
        calls = _chances(model, tokenizer, row["prompt"], tool, file)
        chances["right"].append(calls[CUSTOMS[tool]])
        chances["broken"].append(1 - sum(calls.values()))
        for right in ARGUMENT_NAMES:
            wrong = ARGUMENT_NAMES[ARGUMENT_NAMES.index(right) - 1]
            error = tool_result(ToolHouse({**CUSTOMS, tool: right}), tool, {wrong: file})
            hint = {"role": "system", "content": house_hint(error["content"], tool, {wrong: file})}
            hinted, corrected = [*row["prompt"], hint], [*row["prompt"], tool_call(tool, wrong, file), error]
            chances["obeys"].append(_chances(model, tokenizer, hinted, tool, file)[right])
            chances["recovers"].append(_chances(model, tokenizer, corrected, tool, file)[right])
    means = {name: fmean(values) for name, values in chances.items()}
    assert 0.1 < means["right"] < 0.4, means
    assert means["broken"] < 0.15, means
    assert means["obeys"] > 0.8, means
    assert means["recovers"] > 0.7, means


def test_the_model_leaves_the_global_random_state_alone_and_is_a_copy() -> None:
    before = torch.get_rng_state()
    first, second = warmed_up_model(), warmed_up_model()
    assert torch.equal(torch.get_rng_state(), before)
    with torch.no_grad():
        first.lm_head.weight.zero_()
    assert second.lm_head.weight.abs().sum() > 0
    assert warmed_up_model().lm_head.weight.abs().sum() > 0


def test_trl_runs_the_house_with_calls_that_fail_and_calls_that_earn(tmp_path: Path) -> None:
    first, rewarded, failed, answers = _live_run(tmp_path)
    assert rewarded > 0
    assert failed > 0
    assert any("Signature: read_file(path) in this house." in answer for answer in answers)
    assert any(answer.endswith("lines.") or answer.startswith("The text of") for answer in answers)
    again, *_ = _live_run(tmp_path)
    assert first == again


def test_trl_finds_the_tools_that_the_lessons_were_written_with(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path, partial(ToolHouse, CUSTOMS))
    prompt = house_tasks(1)[0]["prompt"]
    tokenizer = house_tokenizer()
    with_ours = tokenizer.apply_chat_template(prompt, tools=house_tools(), tokenize=False)
    assert tokenizer.apply_chat_template(prompt, tools=trainer.tools, tokenize=False) == with_ours


class _Watched(GRPOTrainer):  # type: ignore[misc]
    """Keeps what the tools answered."""

    answers: list[str]

    def _generate(self, prompts: list[Any]) -> Any:
        result = super()._generate(prompts)
        messages = (message for completion in result[3] for message in completion)
        self.answers = [*getattr(self, "answers", []), *(one["content"] for one in messages if one["role"] == "tool")]
        return result


def _trainer(output: Path, factory: Any) -> _Watched:
    return _Watched(
        model=warmed_up_model(),
        args=arguments(output, max_completion_length=128, loss_type="dr_grpo"),
        train_dataset=Dataset.from_list(house_tasks(28)),
        processing_class=house_tokenizer(),
        environment_factory=factory,
    )


def _live_run(output: Path) -> tuple[list[float], float, float, list[str]]:
    torch.manual_seed(0)
    trainer = _trainer(output, ToolHouse)
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "reward" in entry]
    rewarded = sum(entry["rewards/ToolHouse/mean"] for entry in logs)
    failed = sum(entry["tools/failure_frequency"] for entry in logs)
    return [entry["loss"] for entry in logs], rewarded, failed, trainer.answers


def _chances(model: Any, tokenizer: Any, messages: list[Any], tool: str, file: str) -> dict[str, float]:
    """The probability of each right-formed call for the file, by its argument name."""
    prompt = tokenizer.apply_chat_template(messages, tools=house_tools(), tokenize=False, add_generation_prompt=True)
    start = len(tokenizer(prompt)["input_ids"])
    chances = {}
    for name in ARGUMENT_NAMES:
        call = f'<tool_call>\n{{"name": "{tool}", "arguments": {{"{name}": "{file}"}}}}\n</tool_call>'
        ids = tokenizer(prompt + call + tokenizer.eos_token, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            logprobs = model(ids).logits[0, start - 1 : -1].log_softmax(-1)
        chances[name] = logprobs.gather(1, ids[0, start:, None]).sum().exp().item()
    return chances
