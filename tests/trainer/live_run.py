"""A live run in the little tool house: what the trainer's tests share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import GRPOConfig

from composer_replication._tiny.tool_house import ToolHouse, house_pairs, house_tasks
from composer_replication._tiny.warm_up import house_tokenizer, warmed_up_model
from composer_replication.trainer.composer_trainer import ComposerReplicationTrainer


def arguments(output_dir: Path, **changes: Any) -> GRPOConfig:
    settings: dict[str, Any] = {
        "output_dir": str(output_dir),
        "max_steps": 2,
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 96,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
        "seed": 9,  # in the first two steps, every group has rollouts that earn and rollouts that fail
    }
    return GRPOConfig(**{**settings, **changes})


def trainer(
    output_dir: Path, *, model: Any = None, args: dict[str, Any] | None = None, tasks: int = 16, **options: Any
) -> Any:
    settings: dict[str, Any] = {
        "model": model if model is not None else warmed_up_model(),
        "args": arguments(output_dir, **(args or {})),
        "train_dataset": Dataset.from_list(house_tasks(tasks)),
        "processing_class": house_tokenizer(),
        "environment_factory": ToolHouse,
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
