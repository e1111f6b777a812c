"""A live run of the laboratory model in a house: what the trainer's tests share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import GRPOConfig

from composer_replication.envs.house_style import HouseStyle, make_tasks
from composer_replication.envs.house_style.lessons import preference_pairs
from composer_replication.laboratory import laboratory_model, laboratory_tokenizer
from composer_replication.trainer.composer_trainer import ComposerReplicationTrainer


def house_tasks(count: int) -> list[dict[str, Any]]:
    return make_tasks("train", count, calls=1)


def house_pairs(count: int) -> list[dict[str, Any]]:
    return preference_pairs(make_tasks("train", count, seed=5, calls=1))


def uneven(completions: list[Any], **_: Any) -> list[float]:
    """A little for every other rollout: the rewards of a group differ, whatever the model says."""
    return [0.25 * (row % 2) for row in range(len(completions))]


def arguments(output_dir: Path, **changes: Any) -> GRPOConfig:
    settings: dict[str, Any] = {
        "output_dir": str(output_dir),
        "max_steps": 2,
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 64,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
    }
    return GRPOConfig(**{**settings, **changes})


def trainer(
    output_dir: Path, *, model: Any = None, args: dict[str, Any] | None = None, tasks: int = 16, **options: Any
) -> Any:
    settings: dict[str, Any] = {
        "model": model if model is not None else laboratory_model(),
        "args": arguments(output_dir, **(args or {})),
        "train_dataset": Dataset.from_list(house_tasks(tasks)),
        "processing_class": laboratory_tokenizer(),
        "environment_factory": HouseStyle,
        "reward_funcs": [uneven],
        "replay_dataset": house_pairs(6),
    }
    return ComposerReplicationTrainer(**{**settings, **options})


def metrics(output_dir: Path) -> list[dict[str, Any]]:
    """The logged steps, without what depends on the clock."""
    lines = [json.loads(line) for line in (output_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    clock = ("time", "runtime", "per_second", "train_loss")
    return [
        {name: value for name, value in line.items() if not any(word in name for word in clock)}
        for line in lines
        if "loss" in line
    ]
