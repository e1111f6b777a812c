"""Episodes of held-out tasks: which are played, what came of them, and what is measured in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from run.training_material import json_lines

from composer_replication._tiny import tiny_model, tiny_tokenizer
from composer_replication.envs.house_style import make_tasks
from composer_replication.evaluation.episodes import EpisodeEvaluation
from composer_replication.evaluation.pass_at_k import pass_at_k
from composer_replication.generation.episodes import EpisodeSettings

ENVIRONMENT = '''
class Lamp:
    """A lamp that is as bright as its row says; a reset text asks for it."""

    def __init__(self, factor: float = 1.0):
        self._factor = factor

    def reset(self, prompt, brightness, **row):
        self._bright = brightness
        return f"There are {brightness} lamps."

    def switch(self) -> str:
        """Switch the lamp."""
        return "done"

    def get_reward(self):
        return self._factor * self._bright

    def _close(self):
        Lamp.closed = getattr(Lamp, "closed", 0) + 1
'''


@pytest.fixture
def lamps(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "lamp.py").write_text(ENVIRONMENT)
    rows = [{"prompt": f"Switch lamp {n} on.", "brightness": n / 4} for n in range(5)]
    tasks = json_lines(tmp_path / "tasks.jsonl", *rows)
    return {"name": f"{tmp_path / 'lamp.py'}:Lamp", "tasks": tasks, "playing": EpisodeSettings(max_completion_length=6)}


def played(evaluation: EpisodeEvaluation, seed: int = 1, **more: Any) -> list[dict[str, Any]]:
    return evaluation.outcomes(tiny_model(vocab_size=640, seed=seed), tiny_tokenizer("qwen2_5"), **more)


def test_every_task_is_played_as_often_as_asked_and_scored_by_its_environment(lamps: dict[str, Any]) -> None:
    seen: list[tuple[int, int]] = []
    evaluation = EpisodeEvaluation.of_environment(
        **lamps, samples=3, k=2, batch_size=4, arguments={"factor": 2.0}, pass_reward=1.5, save_samples=True
    )
    outcomes = played(evaluation, on_progress=lambda *one: seen.append(one))
    assert [(one["sample"], one["reward"], one["passed"]) for one in outcomes] == [
        (sample, n / 2, n >= 3) for n in range(5) for sample in range(3)
    ]
    assert len({one["task_id"] for one in outcomes}) == 5
    assert all(0 < one["tokens"] <= 6 for one in outcomes)
    assert outcomes[3]["prompt"] == [{"role": "user", "content": "Switch lamp 1 on.\n\nThere are 0.25 lamps."}]
    assert outcomes[3]["messages"][0]["role"] == "assistant"
    assert seen[0] == (0, 15)
    assert seen[-1] == (15, 15)
    assert type(evaluation.factory()).closed == 4
    measured = evaluation.measures(outcomes)
    assert list(measured) == ["pass@1", "pass@2", "reward", "calls_per_episode", "tokens_per_episode"]
    assert sorted(measured["pass@1"].clusters.values()) == [(0.0, 3.0)] * 3 + [(3.0, 3.0)] * 2


def test_a_seed_gives_the_same_episodes_and_leaves_the_random_state_alone(lamps: dict[str, Any]) -> None:
    def texts(seed: int) -> list[Any]:
        return [
            one["messages"] for one in played(EpisodeEvaluation.of_environment(**lamps, seed=seed, save_samples=True))
        ]

    state = torch.random.get_rng_state()
    first = texts(0)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.rand(3)
    assert texts(0) == first
    assert texts(1) != first


def test_pass_at_k_is_the_mean_over_tasks(lamps: dict[str, Any]) -> None:
    evaluation = EpisodeEvaluation.of_environment(**lamps, samples=4, k=2)
    outcomes = [
        {"task_id": task, "sample": n, "reward": float(n < passed), "passed": n < passed, "calls": calls, **rest}
        for task, passed, calls in (("a", 1, 2), ("b", 0, 0), ("c", 4, 1))
        for n, rest in enumerate([{"failed_calls": 1 if calls == 2 else 0, "tokens": 10}] * 4)
    ]
    measured = evaluation.measures(outcomes)
    assert measured["pass@2"].clusters == {"a": (pass_at_k(4, 1, 2), 1.0), "b": (0.0, 1.0), "c": (1.0, 1.0)}
    assert measured["pass@1"].clusters == {"a": (1.0, 4.0), "b": (0.0, 4.0), "c": (4.0, 4.0)}
    assert measured["failed_calls_per_call"].clusters == {"a": (4.0, 8.0), "b": (0.0, 0.0), "c": (0.0, 4.0)}
    assert measured["calls_per_episode"].clusters["a"] == (8.0, 4.0)
    assert measured["tokens_per_episode"].clusters["a"] == (40.0, 4.0)


def test_the_tasks_of_a_built_in_environment_are_those_of_its_split() -> None:
    made = EpisodeEvaluation.of_environment("house_style", n=3, seed=2, split="dev", task_arguments={"calls": 2})
    assert made.tasks == make_tasks("dev", 3, seed=2, calls=2)
    assert made.settings["tasks"] == {"split": "dev", "calls": 2}
    cool = EpisodeEvaluation.of_environment("house_style", n=3, playing=EpisodeSettings(temperature=0.5))
    assert json.loads(json.dumps(cool.settings))["temperature"] == 0.5
    assert EpisodeEvaluation.of_environment("house_style", n=3).tasks == make_tasks("held_out", 3)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("nothing", {}, "--env: 'nothing' must be one of house_style"),
        ("no.such.module:Thing", {"tasks": Path("x.jsonl")}, "--env: there is no module no.such.module"),
        ("a.module:Thing", {}, "--env: a.module:Thing has no tasks of its own: give a file of them with --tasks"),
        ("house_style", {"tasks": Path("gone.jsonl")}, "--tasks: gone.jsonl: there is no such file"),
        ("house_style", {"arguments": {"size": 3}}, "--env-arg: house_style does not take them"),
        ("house_style", {"task_arguments": {"size": 3}}, "--task-arg: house_style cannot make them: .*size"),
        ("house_style", {"samples": 2, "k": 3}, "k is 3, and a task has 2 samples"),
    ],
)
def test_what_cannot_be_played_is_refused_in_words_of_the_command(name: str, changes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        EpisodeEvaluation.of_environment(name, **changes)


def test_columns_that_reset_does_not_take_are_named(lamps: dict[str, Any], tmp_path: Path) -> None:
    json_lines(tmp_path / "tasks.jsonl", {"prompt": "Switch it on."})
    with pytest.raises(ValueError, match=r"--env: .*Lamp: reset does not take the columns of --tasks \(prompt\)"):
        EpisodeEvaluation.of_environment(**lamps)
