"""5,000 pairs through the default recipe: in-process by the operators' batched interface, and on data-juicer's engine.

Each run is a fresh process that has imported `composer_replication.replaysim` and nothing of data-juicer, and holds the
pairs. The clock runs over `DJNormalizer(executor=...)` and `normalize(pairs)`: "loading" is the first (importing
data-juicer and making the operators, which both sides do alike), "seconds" is the second. For data-juicer's
DefaultExecutor that is a process, its imports, its configuration and the run, because that is what every call costs.
The results must be equal, metadata and reports included, but for the executor's name.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from dataclasses import asdict
from typing import Any

from reporting import BenchmarkError, judged, machine, main, medians, other_cpu_seconds, resident_bytes, take_turns
from tool_call_pairs import tool_call_pairs

from composer_replication.replaysim import DJNormalizer

PAIRS = 5_000
# By contestant: the executor.
EXECUTORS = {"batched": "batched", "data_juicer_executor": "data-juicer"}


def measure(name: str, count: int) -> dict[str, Any]:
    """In the child: one contestant's figures."""
    pairs = tool_call_pairs(count, seed=1)
    executor: Any = EXECUTORS[name]
    began, others = time.perf_counter(), other_cpu_seconds()
    normalizer = DJNormalizer(executor=executor)
    loaded = time.perf_counter()
    kept = normalizer.normalize(pairs)
    ended = time.perf_counter()
    report = normalizer.report
    assert report is not None
    rows = [asdict(one) for one in kept]
    for row in rows:
        row["metadata"]["executor"] = None
    result = json.dumps([rows, {**report.as_dict(), "executor": None}], sort_keys=True)
    return {
        "seconds": ended - loaded,
        "loading_seconds": loaded - began,
        "peak_bytes": resident_bytes("VmHWM"),
        "busy_elsewhere": (other_cpu_seconds() - others) / (ended - began),
        "pairs_in": report.pairs_in,
        "pairs_out": report.pairs_out,
        "digest": hashlib.sha256(result.encode()).hexdigest(),
    }


def report(arguments: argparse.Namespace) -> dict[str, Any]:
    """Let the contestants take turns, compare what they made, and judge."""
    count = arguments.pairs or PAIRS
    repeats = arguments.repeats or (1 if arguments.quick else 3)
    measured = take_turns("normalize", [*EXECUTORS] * repeats, ["--pairs", str(count)])
    if len({run["digest"] for runs in measured.values() for run in runs}) > 1:
        raise BenchmarkError("the contestants made different pairs of the same input")
    results = {name: medians(runs, "digest") for name, runs in measured.items()}
    engine, ours = results["data_juicer_executor"], results["batched"]
    results["batched"]["speed_with_loading"] = (engine["seconds"] + engine["loading_seconds"]) / (
        ours["seconds"] + ours["loading_seconds"]
    )
    return {
        "benchmark": "normalize",
        "machine": machine("py-data-juicer", "datasets", "pyarrow"),
        "shape": {"pairs": count, "repeats": repeats},
        "results": results,
        "targets": [judged("speed_vs_executor", engine["seconds"] / ours["seconds"], ">=10")],
    }


if __name__ == "__main__":
    main(
        report,
        measure=lambda name, arguments: measure(name, arguments.pairs),
        options={"--pairs": {"type": int, "help": "how many pairs"}},
    )
