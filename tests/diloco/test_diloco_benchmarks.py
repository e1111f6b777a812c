"""Whole benchmarks in their quick form: a minute of kills, and replicas that learn by reinforcement."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from processes import environment

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def printed(script: str, *arguments: object) -> dict[str, Any]:
    made = subprocess.run(
        [sys.executable, str(BENCHMARKS / script), "--json", "--quick", *map(str, arguments)],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr[-3000:]
    found: dict[str, Any] = json.loads(made.stdout.splitlines()[-1])
    return found


def test_a_minute_of_kills_leaves_every_replica_in_step() -> None:
    figures = printed("fault_soak.py", "--fault-every", 15)["results"]
    assert figures["faults"] >= 3
    assert figures["in_sync"] >= 1
    assert figures["healed"] == figures["faults"]
    assert figures["max_divergence"] == 0
    assert all(len(one["survivors"]) == 3 for one in figures["seconds_lost"])


def test_four_replicas_learn_by_reinforcement_and_stay_one(tmp_path: Path) -> None:
    made = printed("diloco_rl.py", "--folder", tmp_path)
    (run,) = made["results"]["four"]["runs"]
    assert run["identical"]
    assert run["rounds"] == made["shape"]["steps"] / made["shape"]["sync_every"]
    for rank in range(made["shape"]["replicas"]):
        lines = (tmp_path / "quick" / "four-0" / f"replica-{rank}" / "metrics.jsonl").read_text().splitlines()
        steps = [json.loads(line) for line in lines]
        assert sum(step.get("channels/sdpo/active_tokens", 0) for step in steps) > 0
        assert sum(step.get("channels/replay/active_tokens", 0) for step in steps) > 0
    again = printed("diloco_rl.py", "--folder", tmp_path)
    assert again["results"] == made["results"]  # read from the folder
