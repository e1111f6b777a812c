"""Run folders as `train` writes them, made without training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from run.training_material import model_folder

from composer_replication.run.loading import parse_config


def run_folder(folder: Path, config: dict[str, Any], *, rewards: list[float] | None = None, steps: int = 1) -> Path:
    """A run with one complete checkpoint and, above it, one that was cut; each logged step has a reward."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(parse_config(config).to_yaml(), encoding="utf-8")
    (folder / "environment.json").write_text("{}", encoding="utf-8")
    checkpoint = model_folder(folder / f"checkpoint-{steps}")
    for name in ("channels-0.json", "trainer_state.json"):
        (checkpoint / name).write_text("{}", encoding="utf-8")
    (folder / f"checkpoint-{steps + 1}").mkdir()
    if rewards is not None:
        lines = [json.dumps({"step": step, "reward": reward}) for step, reward in enumerate(rewards)]
        (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def given(**sections: Any) -> dict[str, Any]:
    """A configuration with these sections."""
    return {"model": {"name": "some/model"}, "training": {"output_dir": "out"}, **sections}
