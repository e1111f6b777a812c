from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gpu_smoke.py"


def _run(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *options],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_a_gpu_one_line_says_so() -> None:
    run = _run(CUDA_VISIBLE_DEVICES="")
    assert run.returncode == 1
    assert run.stdout == ""
    assert run.stderr.startswith("error: no CUDA device")
    assert run.stderr.count("\n") == 1


def test_the_script_itself_runs_on_a_cpu_with_all_channels_live() -> None:
    # One thread: tensors this small lose more in hand-overs to a second one than it computes.
    run = _run("--device", "cpu", "--random", "--quick", "--steps", "1", "--json", OMP_NUM_THREADS="1")
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout.splitlines()[-1])
    assert report["benchmark"] == "gpu_smoke"
    assert report["targets"] == []
    three_channels, plain = report["results"]["three_channels"], report["results"]["plain_grpo"]
    assert all(three_channels[f"{channel}_tokens"] > 0 for channel in ("grpo", "sdpo", "replay"))
    # A hint on one of four rollouts, some of which may have ended early.
    assert three_channels["sdpo_tokens"] < three_channels["grpo_tokens"] / 2
    for figures in (three_channels, plain):
        assert figures["peak_bytes"] > 0
        assert math.isfinite(figures["seconds"])
        assert 0 < figures["generation_seconds"] < figures["seconds"]
    assert "sdpo_tokens" not in plain
