"""The contract of an environment against TRL: the same tools in the same order, and the same answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from trainer.live_run import arguments
from trl import GRPOTrainer

from composer_replication._tiny import tiny_model, tiny_tokenizer
from composer_replication.envs.contract import call_tool, task_id, tools_of
from composer_replication.envs.registry import NAMES, built_in


class Base:
    def reset(self, **row: Any) -> None:
        self.row = row

    def get_reward(self) -> float:
        return 1.0

    def wind(self, turns: int) -> str:
        """Wind the clock.

        Args:
            turns: How often.
        """
        if turns > 3:
            raise ValueError(f"the spring 'breaks' at {turns}")
        return "tick " * turns


class Clock(Base):
    """Everything that a class can have, tools or not."""

    @property
    def broken(self) -> str:
        raise AssertionError("nobody may look at this")

    @classmethod
    def made(cls) -> Clock:
        return cls()

    @staticmethod
    def count(numbers: list[int]) -> dict[str, int]:
        """Count numbers.

        Args:
            numbers: The numbers.
        """
        return {"count": len(numbers)}

    def _feedback(self) -> None:
        return None

    def alarm(self) -> None:
        """Ring the alarm."""


def trl_trainer(factory: Any, output: Path) -> Any:
    return GRPOTrainer(
        model=tiny_model("qwen2", vocab_size=640, seed=1),
        args=arguments(output, max_tool_calling_iterations=1),
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": "What time is it?"}]}] * 8),
        processing_class=tiny_tokenizer("qwen2_5"),
        environment_factory=factory,
    )


@pytest.mark.parametrize("factory", [Clock, *(built_in(name).environment for name in NAMES)])
def test_the_tools_are_those_that_trl_finds(factory: Any, tmp_path: Path) -> None:
    trainer = trl_trainer(factory, tmp_path)
    (instance,) = trainer._environment_pool[None]
    assert list(tools_of(instance).values()) == trainer._env_tools[None]
    assert list(tools_of(instance)) == [tool.__name__ for tool in trainer._env_tools[None]]
    assert list(tools_of(Clock())) == ["alarm", "count", "wind"]


def test_the_answers_are_those_of_trls_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [
        ("wind", {"turns": 2}),
        ("wind", {"turns": 9}),
        ("wind", {"turn": 2}),
        ("wind", {"turns": "many"}),
        ("count", {"numbers": [1, 2]}),
        ("alarm", {}),
        ("strike", {}),
        ("reset", {}),
        ("_feedback", {}),
        ("broken", {}),
    ]
    trainer = trl_trainer(Clock, tmp_path)
    tools = {tool.__name__: tool for tool in trainer._env_tools[None]}
    trainer._sync_tool_dicts, trainer._async_tool_dicts, trainer._batch_environments = [tools], [{}], [None]
    monkeypatch.setattr(trainer, "_generate_single_turn", lambda prompt_ids, *_, **__: ([[] for _ in prompt_ids], None))
    functions = [{"type": "function", "function": {"name": name, "arguments": given}} for name, given in calls]
    said = [{"role": "assistant", "content": "", "tool_calls": functions}]
    trainer.max_completion_length = 10_000
    _, completions, _, _, count, failures, _ = trainer._tool_call_loop(
        [[{"role": "user", "content": "?"}]], [[1]], [[2]], [said], None, None, {}
    )
    assert count == len(calls)
    ours = [call_tool(tools_of(Clock()), name, given) for name, given in calls]
    assert [str(result) for result, _ in ours] == [one["content"] for one in completions[0] if one["role"] == "tool"]
    assert [failed for _, failed in ours] == [False, True, True, True, False, False, True, True, True, True]
    assert failures == sum(failed for _, failed in ours)


def test_a_task_is_known_by_its_content() -> None:
    assert task_id([{"a": 1, "b": "ä"}]) == task_id([{"a": 1, "b": "ä"}]) != task_id([{"a": 1, "b": "a"}])
    assert len(task_id([])) == 16
