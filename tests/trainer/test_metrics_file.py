from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from composer_replication.trainer.channel_log import MetricsFile


def _state(step: int) -> Any:
    return SimpleNamespace(global_step=step, is_world_process_zero=True)


def _steps(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_resumed_run_replaces_what_was_logged_beyond_its_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "run" / "metrics.jsonl"
    first = MetricsFile(path)
    first.on_train_begin(None, _state(0), None)
    for step in range(1, 5):
        first.on_log(None, _state(step), None, {"loss": step / 2})
    with path.open("a", encoding="utf-8") as file:
        file.write('{"step": 5, "lo')  # a kill in mid-line
    second = MetricsFile(path)
    second.on_train_begin(None, _state(2), None)
    assert _steps(path) == [1, 2]
    second.on_log(None, _state(3), None, {"loss": 9.0})
    assert _steps(path) == [1, 2, 3]


def test_a_new_run_in_the_same_place_starts_empty(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n', encoding="utf-8")
    MetricsFile(path).on_train_begin(None, _state(0), None)
    assert _steps(path) == []
