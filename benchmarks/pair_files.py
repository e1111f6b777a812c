"""Pairs of long sessions on the disk and in memory: 20,000 of them through `pairs` and `normalize`.

Fifty sessions of 400 steps, whose context begins anew when it is full (replay_setting.py), and a replay of them without
a network: at every state, two teachers agree on something that the student did not do. Each command runs in a process
of its own. "floor" has loaded data-juicer and made the operators, and read no pair. `self_contained_bytes` is what the
file would have if every pair held its history and tools.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from replay_setting import step, write_traces
from reporting import (
    MEBIBYTE,
    BenchmarkError,
    argument_parser,
    in_child,
    judged,
    machine,
    other_cpu_seconds,
    report_or_fail,
    resident_bytes,
)
from rich.console import Console

STATES = 400
SESSIONS, QUICK_SESSIONS = 50, 5
TEACHERS = ("some-gpt", "some-qwen")


def write_replay(traces: Path, replayed: Path) -> None:
    """A replay of all states, in which the teachers would do what the student does one step later."""
    from composer_replication.teacher_replay.replay_folder import ReplayFolder
    from composer_replication.teacher_replay.sources import StateOptions, traces_to_replay
    from composer_replication.teacher_replay.teachers import resolve_teachers
    from composer_replication.traces import dump_json

    folder = ReplayFolder(replayed, create=True)
    writer = folder.writer()
    for number, trace in enumerate(traces_to_replay(traces)):
        for position, state in enumerate(trace.states):
            call = step(number, position + 1).student
            text = f"[TOOL_USE] name={call.name} input={dump_json(call.arguments)}"
            writer.add(
                {
                    "state_id": state["state_id"],
                    "teacher_slug": slug,
                    "response_text": text,
                    "latency_s": 1.0,
                    "prompt_tokens": 1,
                    "completion_tokens": 1,
                    "cost_usd": 0.0,
                    "error": None,
                }
                for slug in TEACHERS
            )
    writer.finish()
    teachers = resolve_teachers([{"slug": slug, "base_url": "http://127.0.0.1:9/v1"} for slug in TEACHERS])
    folder.write_settings(StateOptions(), teachers, {})


def measure(name: str, folder: Path) -> dict[str, Any]:
    """In the child: one contestant's figures."""
    run = {"floor": _load, "pairs": _pairs, "normalize": _normalize}[name]
    began, others = time.perf_counter(), other_cpu_seconds()
    figures = run(folder)
    seconds = time.perf_counter() - began
    return {
        "seconds": seconds,
        "peak_bytes": resident_bytes("VmHWM"),
        "busy_elsewhere": (other_cpu_seconds() - others) / seconds,
        **figures,
    }


def _load(_: Path) -> dict[str, Any]:
    from composer_replication.replaysim import DJNormalizer

    DJNormalizer()
    return {}


def _pairs(folder: Path) -> dict[str, Any]:
    made = _command("pairs", folder / "traces", "--replay", folder / "replayed", "-o", folder / "pairs.jsonl")
    return {"pairs": made["pairs"], "bytes": (folder / "pairs.jsonl").stat().st_size}


def _normalize(folder: Path) -> dict[str, Any]:
    made = _command("normalize", folder / "pairs.jsonl", "-o", folder / "normalized.jsonl", "--force")
    return {"pairs": made["pairs_out"], "bytes": (folder / "normalized.jsonl").stat().st_size}


def _command(*arguments: str | Path) -> dict[str, Any]:
    from composer_replication.cli.app import run

    with contextlib.redirect_stdout(io.StringIO()) as output:
        code = run([*map(str, arguments), "--json"])
    if code != 0:
        raise SystemExit(f"{arguments[0]} ended with exit code {code}")
    made: dict[str, Any] = json.loads(output.getvalue())
    return made


def self_contained_bytes(pairs: Path) -> int:
    """The bytes of the same pairs with all their messages and tools."""
    from composer_replication.teacher_replay.compact_pairs import encoded
    from composer_replication.teacher_replay.pair_files import stored_pairs
    from composer_replication.traces import render_action

    sizes: dict[int, tuple[Any, int]] = {}

    def size(value: Any) -> int:
        known = sizes.get(id(value))
        if known is None:  # with the value: another must not get its place
            known = sizes[id(value)] = (value, len(encoded(value)))
        return known[1]

    total = 0
    for pair in stored_pairs(pairs):
        total += len(encoded({**pair.row(render_action), "state_messages": [], "tools": []})) + 1
        total += size(pair.tools) - 2 + sum(size(message) + 2 for message in pair.messages) - 2
    return total


def report(arguments: argparse.Namespace) -> dict[str, Any]:
    """Make the sessions, run the commands, and judge."""
    sessions = QUICK_SESSIONS if arguments.quick else SESSIONS
    repeats = arguments.repeats or 1
    with tempfile.TemporaryDirectory(prefix="pairs-") as name, Console(stderr=True).status("pair_files"):
        folder = Path(name)
        write_traces(folder / "traces", sessions, STATES)
        write_replay(folder / "traces", folder / "replayed")
        rounds = [one for _ in range(repeats) for one in ("floor", "pairs", "normalize")]
        measured: dict[str, list[dict[str, Any]]] = {one: [] for one in rounds}
        for one in rounds:
            measured[one].append(in_child(one, ["--folder", name]))
        traces = sum(path.stat().st_size for path in (folder / "traces").rglob("*") if path.is_file())
        whole = self_contained_bytes(folder / "pairs.jsonl")
    if measured["pairs"][0]["pairs"] != sessions * STATES:
        raise BenchmarkError(f"{sessions * STATES} pairs were to be found, not {measured['pairs'][0]['pairs']}")
    results = {
        one: {**{figure: statistics.median(run[figure] for run in runs) for figure in runs[0]}, "repeats": runs}
        for one, runs in measured.items()
    }
    results["pairs"] |= {"traces_bytes": traces, "self_contained_bytes": whole}
    peak = results["normalize"]["peak_bytes"] / MEBIBYTE
    return {
        "benchmark": "pair_files",
        "machine": machine("py-data-juicer"),
        "shape": {"sessions": sessions, "pairs": sessions * STATES},
        "columns": ["pairs", "bytes", "traces_bytes", "self_contained_bytes"],
        "results": results,
        "targets": [
            judged("pairs_bytes_vs_traces", results["pairs"]["bytes"] / traces, "<=2"),
            judged("normalize_peak_mib", peak, "<=500"),
        ],
    }


def main() -> int:
    """Measure and report."""
    parser = argument_parser(__doc__)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contestant is not None:
        print(json.dumps(measure(arguments.contestant, arguments.folder)))
        return 0
    return report_or_fail(lambda: report(arguments), as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
