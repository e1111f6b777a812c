"""What every benchmark shares: options, a process of its own for each contestant, targets, the printed report."""

from __future__ import annotations

import argparse
import json
import operator
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

MEBIBYTE = 2**20
_BOUNDS: Mapping[str, Callable[[float, float], bool]] = {"<=": operator.le, ">=": operator.ge}


class BenchmarkError(Exception):
    """The figures would mean nothing: a contestant crashed, or contestants computed different things."""


def argument_parser(description: str | None) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--quick", action="store_true", help="smaller and fewer runs; targets are for full ones")
    parser.add_argument("--repeats", type=_at_least_one, metavar="N", help="processes per contestant")
    parser.add_argument("--contestant", help=argparse.SUPPRESS)
    return parser


def report_or_fail(make_report: Callable[[], dict[str, Any] | None], *, as_json: bool) -> int:
    """Print a report; the exit code is 0 whether or not targets hold, and 1 if there is nothing to report."""
    try:
        report = make_report()
    except BenchmarkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if report is not None:
        print(json.dumps(report)) if as_json else print_tables(report)
    return 0


def in_child(contestant: str, options: Sequence[str], environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run one contestant of this benchmark in a process of its own; its last line is its measurement."""
    command = [sys.executable, sys.argv[0], "--contestant", contestant, *options]
    merged = {**os.environ, **(environment or {})}
    child = subprocess.run(command, env=merged, capture_output=True, text=True, check=False)
    if child.returncode != 0:
        reason = (child.stderr.strip().splitlines() or ["it wrote nothing to stderr"])[-1]
        raise BenchmarkError(f"contestant {contestant!r} ended with exit code {child.returncode}: {reason}")
    measurement: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return measurement


def judged(name: str, value: float, bound: str) -> dict[str, Any]:
    """A target (its bound: "<=0.6", ">=2") and whether it holds."""
    holds = _BOUNDS[bound[:2]](value, float(bound[2:]))
    return {"name": name, "value": value, "bound": bound, "holds": holds}


def other_cpu_seconds() -> float:
    """CPU time that was not this process's: a timing beside other work says little, and should be seen to."""
    all_cores = Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]
    user, nice, system, _idle, _waiting, *interrupts_and_stolen = map(int, all_cores)
    return (user + nice + system + sum(interrupts_and_stolen)) / os.sysconf("SC_CLK_TCK") - time.process_time()


def resident_bytes(name: str) -> int:
    """A figure of this process's memory: "VmRSS" now, "VmHWM" at its peak."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields[name].split()[0]) * 1024


def machine(*packages: str) -> dict[str, Any]:
    """The processor, its cores, and the versions of the packages that matter."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    versions = {package: version(package) for package in packages}
    return {"cpu": models[0] if models else "unknown", "cores": os.cpu_count(), **versions}


def print_tables(report: Mapping[str, Any]) -> None:
    """The contestants' figures and the targets; `columns` names further figures, which not every contestant has."""
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
    targets = Table("target", "value", "bound", "holds")
    for target in report["targets"]:
        targets.add_row(target["name"], f"{target['value']:.3f}", target["bound"], "yes" if target["holds"] else "NO")
    shown_tables = [results, *([further] if report.get("columns") else []), *([targets] if report["targets"] else [])]
    Console().print(", ".join(described), *shown_tables, sep="\n", highlight=False)


def _at_least_one(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)
