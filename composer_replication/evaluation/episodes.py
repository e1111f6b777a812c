"""Held-out tasks of an environment: episodes, what came of them, and what is measured in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from composer_replication.envs.contract import Split, Task, task_id
from composer_replication.envs.reset_text import begin_episode
from composer_replication.evaluation.intervals import Cluster
from composer_replication.evaluation.pass_at_k import pass_at_k
from composer_replication.evaluation.results import Measure, OnProgress, Outcome, measure
from composer_replication.generation.episodes import EpisodeSettings, run_episodes
from composer_replication.run.data import load_training_data
from composer_replication.run.environment import RolloutParts
from composer_replication.run.sections import DataSection, EnvironmentSection, TasksSection

# The settings of a run, as the options of the command are called.
_OPTIONS = {
    "environment.class": "--env",
    "environment.arguments": "--env-arg",
    "data.prompts": "--tasks",
    "environment.tasks": "--task-arg",
}


@dataclass(frozen=True)
class EpisodeEvaluation:
    """Tasks that are played a number of times each. Use `of_environment`. `warnings` are for the user."""

    settings: dict[str, Any]
    factory: Callable[[], Any]
    tasks: list[Task]
    playing: EpisodeSettings
    batch_size: int
    save_samples: bool
    warnings: list[str] = field(default_factory=list)
    kind = "environment"

    @classmethod
    def of_environment(
        cls,
        name: str,
        *,
        tasks: Path | None = None,
        split: Split = "held_out",
        n: int = 100,
        samples: int = 1,
        k: int = 1,
        pass_reward: float = 1.0,
        seed: int = 0,
        arguments: Mapping[str, Any] | None = None,
        task_arguments: Mapping[str, Any] | None = None,
        playing: EpisodeSettings | None = None,
        batch_size: int = 32,
        save_samples: bool = False,
    ) -> EpisodeEvaluation:
        """Make the environment and its tasks, and check them.

        Args:
            name: as `environment.class` of a configuration.
            tasks: a file of tasks, .jsonl or .parquet; None: those of the package's environment, of one `split`.
            n: maximum number of tasks.
            samples: episodes of each task.
            k: of pass@k.
            pass_reward: an episode with this reward has passed.
            seed: of the tasks, and of what the model says.
            arguments: of the environment.
            task_arguments: of the task generator.
            playing: how tokens are drawn, and the limits of an episode.
            batch_size: episodes that are played at once.
            save_samples: keep the messages of every episode in its outcome.

        Raises:
            ValueError: there is no such environment or file, it cannot be used, or k is greater than `samples`.
        """
        pass_at_k(samples, 0, k)
        if ":" in name and tasks is None:
            raise ValueError(f"--env: {name} has no tasks of its own: give a file of them with --tasks")
        try:
            generated = None
            if tasks is None:
                generated = TasksSection(split=split, count=n, seed=seed, arguments=dict(task_arguments or {}))
            section = EnvironmentSection(class_=name, arguments=dict(arguments or {}), tasks=generated)
            parts = RolloutParts(section)
            rows = load_training_data(DataSection(prompts=tasks, max_prompts=n), section).prompts
            parts.check_columns(column for row in rows for column in row)
        except ValueError as error:
            message = str(error)
            for setting, option in _OPTIONS.items():
                message = message.replace(setting, option)
            raise ValueError(message) from error
        assert parts.factory is not None
        playing = playing or EpisodeSettings()
        settings = {
            "environment": name,
            "arguments": dict(arguments or {}),
            "tasks": str(tasks) if tasks is not None else {"split": split, **(task_arguments or {})},
            "n": len(rows),
            "samples": samples,
            "k": k,
            "pass_reward": pass_reward,
            "seed": seed,
            **asdict(playing),
        }
        return cls(settings, parts.factory, rows, playing, batch_size, save_samples)

    def outcomes(self, model: Any, tokenizer: Any, on_progress: OnProgress = lambda *_: None) -> list[Outcome]:
        """Play all episodes with a model; with the same seed, the same on the same machine.

        Raises:
            ValueError: the model or its chat template cannot be used for episodes.
        """
        waiting = [(task, sample) for task in self.tasks for sample in range(self.settings["samples"])]
        outcomes: list[Outcome] = []
        with ExitStack() as stack:
            environments: list[Any] = []
            for _ in waiting[: self.batch_size]:
                environments.append(self.factory())
                stack.callback(getattr(environments[-1], "_close", lambda: None))
            stack.enter_context(torch.random.fork_rng())
            torch.manual_seed(self.settings["seed"])
            while len(outcomes) < len(waiting):
                on_progress(len(outcomes), len(waiting))
                batch = waiting[len(outcomes) : len(outcomes) + self.batch_size]
                own = environments[: len(batch)]
                prompts = [begin_episode(one, task) for one, (task, _) in zip(own, batch, strict=True)]
                played = run_episodes(model, tokenizer, prompts, own, self.playing)
                for (task, sample), prompt, environment, episode in zip(batch, prompts, own, played, strict=True):
                    reward = float(environment.get_reward())
                    outcome = {
                        "task_id": str(task.get("task_id") or task_id(task)),
                        "sample": sample,
                        "reward": reward,
                        "passed": reward >= self.settings["pass_reward"],
                        "calls": episode.calls,
                        "failed_calls": episode.failures,
                        "tokens": sum(episode.generated),
                    }
                    said = {"prompt": prompt, "messages": episode.messages} if self.save_samples else {}
                    outcomes.append(outcome | said)
        on_progress(len(outcomes), len(waiting))
        return outcomes

    def measures(self, outcomes: Sequence[Outcome]) -> dict[str, Measure]:
        """Return what is measured in episodes, by task."""
        k = self.settings["k"]
        passed = measure(outcomes, "task_id", lambda one: one["passed"], is_share=True)
        made = {"pass@1": passed}
        if k > 1:
            of_tasks = {
                task: Cluster(pass_at_k(int(one.number), int(one.total), k), 1.0)
                for task, one in passed.clusters.items()
            }
            made[f"pass@{k}"] = Measure(of_tasks, is_share=True)
        made["reward"] = measure(outcomes, "task_id", lambda one: one["reward"])
        made["calls_per_episode"] = measure(outcomes, "task_id", lambda one: one["calls"])
        if any(one["calls"] for one in outcomes):
            made["failed_calls_per_call"] = measure(
                outcomes, "task_id", lambda one: one["failed_calls"], lambda one: one["calls"]
            )
        made["tokens_per_episode"] = measure(outcomes, "task_id", lambda one: one["tokens"])
        return made
