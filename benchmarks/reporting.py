"""The frame of every benchmark: its command line, a process for each contestant, medians, targets, the report."""

from __future__ import annotations

import argparse
import json
import operator
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.progress import track
from rich.table import Table

MEBIBYTE = 2**20
_BOUNDS: Mapping[str, Callable[[float, float], bool]] = {"<=": operator.le, ">=": operator.ge}


class BenchmarkError(Exception):
    """The figures would mean nothing: a contestant crashed, or contestants computed different things."""


def main(
    report: Callable[[argparse.Namespace], dict[str, Any] | None],
    *,
    measure: Callable[[str, argparse.Namespace], dict[str, Any]] | None = None,
    show: Callable[[dict[str, Any]], None] | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> NoReturn:
    """Run a benchmark's command line and end the process: 0 whether or not targets hold, 1 if there is no report.

    Args:
        report: makes the report; None if there is nothing to print.
        measure: in a child process, measures the contestant of that name.
        show: prints the report where no JSON is asked for; `print_tables` if None.
        options: further options by flag, with the keywords of `add_argument`.
    """
    parser = argparse.ArgumentParser(
        description=sys.modules["__main__"].__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--quick", action="store_true", help="smaller and fewer runs; targets are for full ones")
    parser.add_argument("--repeats", type=_at_least_one, metavar="N", help="processes per contestant")
    parser.add_argument("--contestant", help=argparse.SUPPRESS)
    for flag, keywords in (options or {}).items():
        parser.add_argument(flag, **keywords)
    arguments = parser.parse_args()
    try:
        if measure is not None and arguments.contestant is not None:
            print(json.dumps(measure(arguments.contestant, arguments)))
        elif (made := report(arguments)) is not None:
            print(json.dumps(made)) if arguments.json else (show or print_tables)(made)
    except BenchmarkError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    sys.exit(0)


def take_turns(
    title: str, contestants: Iterable[str], options: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> dict[str, list[dict[str, Any]]]:
    """Measure contestants in the given order, each in a process of its own, with a bar on a terminal."""
    measured: dict[str, list[dict[str, Any]]] = {}
    console = Console(stderr=True)
    for contestant in track(list(contestants), title, console=console, disable=not console.is_terminal):
        measured.setdefault(contestant, []).append(in_child(contestant, options, environment))
    return measured


def medians(runs: Sequence[Mapping[str, Any]], *without: str) -> dict[str, Any]:
    """Return the median of each figure but `without`, and the runs themselves as "repeats"."""
    figures = {name: statistics.median(run[name] for run in runs) for name in runs[0] if name not in without}
    return {**figures, "repeats": runs}


def timed(run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run in a contestant's own process and add its time, its peak memory and how busy other processes were."""
    start, other_start = time.perf_counter(), other_cpu_seconds()
    figures = run()
    seconds = time.perf_counter() - start
    busy = (other_cpu_seconds() - other_start) / seconds
    return {"seconds": seconds, "peak_bytes": resident_bytes("VmHWM"), "busy_elsewhere": busy, **figures}


def in_child(contestant: str, options: Sequence[str], environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Measure one contestant of this benchmark in a process of its own."""
    command = [sys.executable, sys.argv[0], "--contestant", contestant, *options]
    merged = {**os.environ, **(environment or {})}
    child = subprocess.run(command, env=merged, capture_output=True, text=True, check=False)
    if child.returncode != 0:
        reason = (child.stderr.strip().splitlines() or ["it wrote nothing to stderr"])[-1]
        raise BenchmarkError(f"contestant {contestant!r} ended with exit code {child.returncode}: {reason}")
    measurement: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return measurement


def judged(name: str, value: float, bound: str) -> dict[str, Any]:
    """Return a target with its bound ("<=0.6", ">=2") and whether it holds."""
    holds = _BOUNDS[bound[:2]](value, float(bound[2:]))
    return {"name": name, "value": value, "bound": bound, "holds": holds}


def other_cpu_seconds() -> float:
    """Return the CPU time of all other processes, which disturb a measurement."""
    all_cores = Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]
    user, nice, system, _idle, _waiting, *interrupts_and_stolen = map(int, all_cores)
    return (user + nice + system + sum(interrupts_and_stolen)) / os.sysconf("SC_CLK_TCK") - time.process_time()


def resident_bytes(name: str) -> int:
    """Return a figure of this process's memory: "VmRSS" now, "VmHWM" at its peak."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields[name].split()[0]) * 1024


def machine(*packages: str) -> dict[str, Any]:
    """Return the processor, its cores, and the versions of the packages that matter."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    versions = {package: version(package) for package in packages}
    return {"cpu": models[0] if models else "unknown", "cores": os.cpu_count(), **versions}


def print_tables(report: Mapping[str, Any]) -> None:
    """Print the contestants' figures and the targets; the report's `columns` are further figures of some of them."""
    described = [f"{name} {value}" for part in ("machine", "shape") for name, value in report[part].items()]
    results = Table(
        "contestant", "seconds", "MiB", "cores busy elsewhere", "seconds of each repeat", title=report["benchmark"]
    )
    for contestant, figures in report["results"].items():
        each = " ".join(f"{run['seconds']:.2f}" for run in figures["repeats"])
        mebibytes = figures["peak_bytes"] / MEBIBYTE
        row = (f"{figures['seconds']:.2f}", f"{mebibytes:.0f}", f"{figures['busy_elsewhere']:.2f}", each)
        results.add_row(contestant, *row)
    further = Table("contestant", *(column.replace("_", " ") for column in report.get("columns", ())))
    further.columns[0].no_wrap = True
    for contestant, figures in report["results"].items():
        shown = (f"{figures[column]:.4g}" if column in figures else "" for column in report.get("columns", ()))
        further.add_row(contestant, *shown)
    targets = [targets_table(report)] if report["targets"] else []
    shown_tables = [results, *([further] if report.get("columns") else []), *targets]
    Console().print(", ".join(described), *shown_tables, sep="\n", highlight=False)


def targets_table(report: Mapping[str, Any]) -> Table:
    """The report's targets."""
    targets = Table("target", "value", "bound", "holds")
    for target in report["targets"]:
        targets.add_row(target["name"], f"{target['value']:.3f}", target["bound"], "yes" if target["holds"] else "NO")
    return targets


def _at_least_one(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)
