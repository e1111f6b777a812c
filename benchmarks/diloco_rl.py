"""DiLoCo with reinforcement learning: four replicas against one, at equal rollouts.

The laboratory model learns house style with all three channels: rollouts, hints where a call failed, and pairs. One
run makes all steps; four replicas make a quarter of them each, on different tasks, and synchronise now and then. Then
each acts on held-out tasks. Both are the commands that users have (`train`, `diloco run`, `eval`), in processes of one
thread.

Every run and every evaluation is kept in --folder: the same command again goes on where it ended.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml
from reporting import BenchmarkError, judged, machine, main, targets_table
from rich.console import Console
from rich.table import Table

from composer_replication.envs.house_style import make_tasks
from composer_replication.envs.house_style.lessons import preference_pairs
from composer_replication.evaluation.intervals import wilson

REPLICAS, SEEDS = 4, (0, 1, 2)
STEPS, SYNC_EVERY, BATCH, GENERATIONS = 24, 4, 16, 4  # of each of four replicas; rollouts of a step
TASKS, PAIRS, HELD_OUT, SAMPLES = 512, 128, 200, 2
QUICK = {"steps": 2, "sync_every": 1, "held_out": 8, "samples": 1}
ARMS = ("one", "four")


def configuration(folder: Path, arm: str, seed: int, sizes: dict[str, int]) -> Path:
    """Write the configuration of an arm."""
    pairs = folder / f"pairs-{seed}.jsonl"
    if not pairs.exists():
        made = preference_pairs(make_tasks("train", PAIRS, seed=1000 + seed, calls=1), seed=seed)
        pairs.write_text("".join(json.dumps(pair) + "\n" for pair in made), encoding="utf-8")
    config: dict[str, Any] = {
        "preset": "recommended",
        "model": {"name": "laboratory"},
        "data": {"pairs": str(pairs)},
        "environment": {
            "class": "house_style",
            "tasks": {"count": TASKS, "seed": seed, "arguments": {"calls": 1}},
        },
        "channels": {
            "grpo": {"num_generations": GENERATIONS, "max_completion_length": 256, "max_tool_iterations": 3},
        },
        "optimizer": {"lr": 1e-4},
        "training": {
            "output_dir": str(folder / f"{arm}-{seed}"),
            "steps": sizes["steps"] * (1 if arm == "four" else REPLICAS),
            "batch_size": BATCH,
            "save_every": 16,
            "keep_checkpoints": 1,
            "seed": 10 * seed,  # replicas add their number
            "device": "cpu",
            "gradient_checkpointing": False,
        },
    }
    if arm == "four":
        config["diloco"] = {"replicas": REPLICAS, "sync_every": sizes["sync_every"]}
    file = folder / f"{arm}-{seed}.yaml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    return file


def command(*arguments: object) -> dict[str, Any]:
    """Run `composer-replication` and return what it prints as JSON."""
    program = [sys.executable, "-c", "from composer_replication.cli import main; main()", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    made = subprocess.run([*program, "--json"], env=environment, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        last = (made.stderr.strip().splitlines() or ["it wrote nothing to stderr"])[-1]
        raise BenchmarkError(f"{' '.join(map(str, arguments[:3]))} ended with exit code {made.returncode}: {last}")
    found: dict[str, Any] = json.loads(made.stdout[made.stdout.index("{") :])
    return found


def trained(folder: Path, arm: str, seed: int, sizes: dict[str, int]) -> dict[str, Any]:
    """Train an arm, or go on with it, and evaluate its model; figures that are there already are read."""
    kept = folder / f"{arm}-{seed}.json"
    if kept.exists():
        figures: dict[str, Any] = json.loads(kept.read_text())
        return figures
    config, start = configuration(folder, arm, seed, sizes), time.monotonic()
    rounds, megabytes, identical = 0, 0.0, True
    if arm == "four":
        run = command("diloco", "run", config)
        checkpoint, rounds, identical = run["replicas"][0]["checkpoint"], run["rounds"], run["identical"]
        megabytes = run["replicas"][0]["bytes_up"] / 1e6
    else:
        checkpoint = command("train", config)["checkpoint"]
    seconds = time.monotonic() - start
    figures = {
        **evaluated(checkpoint, sizes),
        "seconds": seconds,
        "rounds": rounds,
        "megabytes_up": megabytes,
        "identical": identical,
        "rollouts": sizes["steps"] * REPLICAS * BATCH,
    }
    kept.write_text(json.dumps(figures), encoding="utf-8")
    return figures


def evaluated(model: str, sizes: dict[str, int]) -> dict[str, Any]:
    """Return how a model does on held-out tasks."""
    episodes = ("--n", sizes["held_out"], "--samples", sizes["samples"], "--max-tokens", 256, "--device", "cpu")
    summary = command("eval", model, "--env", "house_style", "--task-arg", "calls=1", *episodes)
    measure = summary["measures"]["pass@1"]
    return {"pass_rate": measure["value"], "interval": [measure["low"], measure["high"]]}


def report(arguments: argparse.Namespace) -> dict[str, Any]:
    """Train and evaluate what is missing."""
    sizes = {"steps": STEPS, "sync_every": SYNC_EVERY, "held_out": HELD_OUT, "samples": SAMPLES}
    if arguments.quick:
        sizes = QUICK
    seeds = SEEDS[:1] if arguments.quick else SEEDS
    folder = arguments.folder / ("quick" if arguments.quick else "full")
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / "before.json"
    if not kept.exists():
        kept.write_text(json.dumps(evaluated("laboratory", sizes)), encoding="utf-8")
    before = json.loads(kept.read_text())
    runs: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ARMS}
    for seed in seeds:
        for arm in ARMS:
            figures = trained(folder, arm, seed, sizes)
            print(f"{arm} {seed}: {figures}", file=sys.stderr)
            runs[arm].append({"seed": seed, **figures})
    results = {"before": {**before, "runs": []}}
    for arm, made in runs.items():
        rate = statistics.mean(run["pass_rate"] for run in made)
        # Seeds and samples are of the same tasks, so there are no more independent trials than tasks.
        pooled = wilson(rate * sizes["held_out"], sizes["held_out"])
        results[arm] = {"pass_rate": rate, "interval": list(pooled), "runs": made}
    gained = {arm: results[arm]["pass_rate"] - before["pass_rate"] for arm in ARMS}
    return {
        "benchmark": "diloco_rl",
        "machine": machine("torch", "trl", "torchft"),
        "shape": {**sizes, "replicas": REPLICAS, "batch": BATCH, "seeds": len(seeds)},
        "results": results,
        "four_minus_one": gained["four"] - gained["one"],
        "targets": [judged("replicas_identical", min(run["identical"] for run in runs["four"]), ">=1")],
    }


def show(made: dict[str, Any]) -> None:
    """Print a row for each arm."""
    table = Table("model", "held-out pass rate", "95 % interval", "each seed", "seconds", title="diloco_rl")
    for name, figures in made["results"].items():
        low, high = figures["interval"]
        each = " ".join(f"{run['pass_rate']:.3f}" for run in figures["runs"])
        seconds = " ".join(f"{run['seconds']:.0f}" for run in figures["runs"])
        table.add_row(name, f"{figures['pass_rate']:.3f}", f"{low:.3f} to {high:.3f}", each, seconds)
    described = (f"{name} {value}" for part in ("machine", "shape") for name, value in made[part].items())
    Console().print(", ".join(described), table, targets_table(made), sep="\n", highlight=False)


if __name__ == "__main__":
    main(
        report,
        show=show,
        options={
            "--folder": {
                "type": Path,
                "default": Path("runs/diloco_rl"),
                "help": "where runs are kept (default: runs/diloco_rl)",
            }
        },
    )
