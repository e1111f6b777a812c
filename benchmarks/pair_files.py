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
import tempfile
from pathlib import Path
from typing import Any

from replay_setting import step, write_traces
from reporting import MEBIBYTE, BenchmarkError, judged, machine, main, medians, take_turns, timed

STATES = 400
SESSIONS, QUICK_SESSIONS = 50, 5
TEACHERS = ("some-gpt", "some-qwen")


def write_replay(traces: Path, replayed: Path) -> None:
    """A replay of all states, in which the teachers would do what the student does one step later."""
    from composer_replication.teacher_replay.records import TeacherRow
    from composer_replication.teacher_replay.replay_files import ReplayFolder, StateOptions, traces_to_replay
    from composer_replication.teacher_replay.teachers import resolve_teachers
    from composer_replication.traces import ToolCall, Turn

    folder = ReplayFolder(replayed, create=True)
    writer = folder.writer()
    for number, trace in enumerate(traces_to_replay(traces)):
        for position, one in enumerate(trace.steps):
            turn = Turn("assistant", tool_calls=[ToolCall("call_0", *step(number, position + 1).student)])
            writer.add(TeacherRow(one.state_id, slug, turn, 1.0, 1, 1) for slug in TEACHERS)
    writer.finish()
    teachers = resolve_teachers([{"slug": slug, "base_url": "http://127.0.0.1:9/v1"} for slug in TEACHERS])
    folder.write_settings(StateOptions(), teachers, {})


def measure(name: str, folder: Path) -> dict[str, Any]:
    """In the child: one contestant's figures."""
    run = {"floor": _load, "pairs": _pairs, "normalize": _normalize}[name]
    return timed(lambda: run(folder))


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
    with tempfile.TemporaryDirectory(prefix="pairs-") as name:
        folder = Path(name)
        write_traces(folder / "traces", sessions, STATES)
        write_replay(folder / "traces", folder / "replayed")
        rounds = ["floor", "pairs", "normalize"] * repeats
        measured = take_turns("pair_files", rounds, ["--folder", name])
        traces = sum(path.stat().st_size for path in (folder / "traces").rglob("*") if path.is_file())
        whole = self_contained_bytes(folder / "pairs.jsonl")
    if measured["pairs"][0]["pairs"] != sessions * STATES:
        raise BenchmarkError(f"{sessions * STATES} pairs were to be found, not {measured['pairs'][0]['pairs']}")
    results = {one: medians(runs) for one, runs in measured.items()}
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


if __name__ == "__main__":
    main(
        report,
        measure=lambda name, arguments: measure(name, arguments.folder),
        options={"--folder": {"type": Path, "help": argparse.SUPPRESS}},
    )
