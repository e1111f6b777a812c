"""Runs that are killed with SIGKILL and resumed equal the one that was not."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from trainer.live_run import metrics, trainer

from composer_replication.trainer.checkpoint import last_complete_checkpoint

SCRIPT = Path(__file__).with_name("killed_run.py")
ROOT = Path(__file__).parents[2]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}


def _start(output_dir: Path, kind: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), str(output_dir), kind],
        env=_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _finish(process: subprocess.Popen[str]) -> None:
    _, errors = process.communicate()
    assert process.returncode == 0, errors[-3000:]


def _kill_when(process: subprocess.Popen[str], reached: Callable[[], bool]) -> None:
    while not reached():
        assert process.poll() is None, process.communicate()[1][-3000:]
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def _weights(output_dir: Path) -> dict[str, torch.Tensor]:
    (file,) = (output_dir / "final").glob("*model.safetensors")
    return load_file(file)


@pytest.mark.parametrize("kind", ["full", "lora"])
def test_a_killed_run_equals_one_that_was_not(tmp_path: Path, kind: str) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    _finish(_start(whole, kind))
    # In the middle of saving: the folder is there and its last file is not.
    _kill_when(_start(broken, kind), (broken / "checkpoint-2").exists)
    # Between a generation and the use of its second half, and between two lines of the log.
    _kill_when(_start(broken, kind), lambda: _saved(broken) >= 3)
    _finish(_start(broken, kind))
    expected, got = metrics(whole), metrics(broken)
    assert [line["step"] for line in got] == [2, 4, 6]
    assert got == expected
    assert all(line["channels/sdpo/active_tokens"] > 0 for line in got)
    # The second generation completes the gate's calibration, from which the threshold then stays the same.
    thresholds = [line.get("channels/sdpo/gate_threshold") for line in got]
    assert thresholds[0] is None
    assert thresholds[1] == thresholds[2] > 0
    if kind == "full":
        assert any(0 < line["channels/replay/resting"] < 6 for line in got)
    final = _weights(whole)
    assert all(torch.equal(tensor, final[name]) for name, tensor in _weights(broken).items())


def _saved(output_dir: Path) -> int:
    found = last_complete_checkpoint(output_dir)
    return int(found.name.rpartition("-")[2]) if found is not None else 0


def test_two_processes_stay_one_policy(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--master_addr=127.0.0.1"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        launcher.append(f"--master_port={free.getsockname()[1]}")
    run = subprocess.run(
        [*launcher, str(SCRIPT), str(tmp_path), "two"],
        env=_environment(),
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    first, second = (load_file(tmp_path / f"process-{process}.safetensors") for process in range(2))
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
    logged = metrics(tmp_path)
    assert [line["step"] for line in logged] == [1, 2]
    for line in logged:
        assert all(line[f"channels/{channel}/active_tokens"] > 0 for channel in ("grpo", "sdpo", "replay"))
        hints = line["channels/sdpo/alpha"] * line["channels/sdpo/loss"]
        total = line["channels/grpo/loss"] + hints + 0.05 * line["channels/replay/loss"]
        assert line["loss"] == pytest.approx(total, rel=1e-3)
    # Each of the two saves what it alone knows, and what both have measured.
    saved = [json.loads(file.read_text()) for file in (tmp_path / "checkpoint-2").glob("channels-*.json")]
    first_gate, second_gate = (one["channels"]["calibrations"]["sdpo"] for one in saved)
    assert first_gate["changes"] == second_gate["changes"] != []
    # Both have scored their share of the pairs, and rest the same ones.
    first_state, second_state = (
        json.loads((tmp_path / "checkpoint-2" / f"channels-{process}.json").read_text())["channels"]["pairs"]
        for process in range(2)
    )
    assert first_state == second_state
    assert len(first_state["resting"]) > 0
    assert 0 < logged[-1]["channels/replay/resting"] < 6
    # Each of the two saves what it alone knows.
    assert len(list((tmp_path / "checkpoint-2").glob("channels-*.json"))) == 2


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    options: dict[str, Any] = {"args": {"max_steps": 1, "save_strategy": "steps", "save_steps": 1}}
    trainer(tmp_path, **options).train()
    options["args"]["max_steps"] = 2
    with pytest.raises(ValueError, match="teacher 'ema', this run has 'frozen'"):
        trainer(tmp_path, sdpo_teacher="frozen", **options).train(resume_from_checkpoint=True)
    with pytest.raises(ValueError, match="same replay_dataset"):
        trainer(tmp_path, replay_dataset=None, **options).train(resume_from_checkpoint=True)
    with pytest.raises(ValueError, match="no complete checkpoint"):
        trainer(tmp_path / "elsewhere", **options).train(resume_from_checkpoint=True)
