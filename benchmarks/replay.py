"""A session of 300 states replayed with three teachers, against doing it one state after another.

The teachers are a server on loopback in a process of its own, with prices, prompt caches, latencies and answers that
are fixed in replay_setting.py; times are shortened by one factor for all. Every contestant meets a server that has seen
nothing. What is paid is what the server's own meter says.

"earlier_design" asks all teachers of a state at once and goes on when all have answered: one call per teacher in
flight, no ledger, no gate, no cache. So its dollars are those of every token at the full price ("dollars_uncached");
its "dollars" are what it pays where providers cache of their own accord. "replay" is ours with a ledger on disk, 16
calls in flight per teacher and the sequential gate, "replay_ungated" the same with every teacher asked, which shows all
pairs. "streamed" and "streamed_10x" are ours from traces on disk to rows on disk, as the command does it, for one
session and for ten: their peak memory is compared.

The earlier design runs once: it waits 300 times in a row, which evens out what happens meanwhile, and takes as long as
everything else together. So do the two whose memory counts. The others take turns around them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
from metered_billing import NANO, Usage, cost
from replay_setting import TEACHERS, faster, pairs_to_be_found, write_traces
from reporting import BenchmarkError, in_child, judged, machine, main, medians, other_cpu_seconds, resident_bytes
from rich.console import Console
from rich.progress import track

if TYPE_CHECKING:
    from composer_replication.teacher_replay.records import TeacherRow
    from composer_replication.teacher_replay.replay_files import TraceToReplay
    from composer_replication.teacher_replay.replay_report import ReplayReport
    from composer_replication.teacher_replay.schedule import ReplayOptions
    from composer_replication.teacher_replay.teachers import RemoteTeacher

AGREEMENT: Literal["action"] = "action"
CONCURRENCY = 16
# Above what any contestant spends with what it has reserved, so that none of them waits for money.
CAP_USD = 2_000.0


class Shape(NamedTuple):
    """`shortened` is what all latencies are divided by; `memory_shortened` is that for "streamed" and its tenfold,
    which are not timed: calls only need to last long enough to be under way together."""

    states: int
    shortened: int
    memory_shortened: int
    memory_traces: int = 10


FULL = Shape(states=300, shortened=40, memory_shortened=100)
QUICK = Shape(states=100, shortened=80, memory_shortened=300)


def earlier_design(folder: Path, teachers: list[RemoteTeacher], _work: Path) -> dict[str, Any]:
    """One state after another, with our client and our encoding of prompts: it differs in its design alone."""
    from composer_replication.teacher_replay.client import TeacherClient
    from composer_replication.teacher_replay.prompts import PromptWriter
    from composer_replication.teacher_replay.records import TeacherRow
    from composer_replication.teacher_replay.tool_schemas import complete_tools

    (trace,) = _traces(folder)

    async def run() -> list[TeacherRow]:
        client = TeacherClient(connections=len(teachers))
        writer = PromptWriter([step.messages for step in trace.steps], complete_tools(trace.tools, trace.steps))
        rows = []
        for step in trace.steps:
            prompt = writer.prompt(step.messages)
            asked = (client.ask(teacher, prompt.request(teacher.settings)) for teacher in teachers)
            for teacher, reply in zip(teachers, await asyncio.gather(*asked), strict=True):
                rows.append(TeacherRow(step.state_id, teacher.slug, reply.turn))
        await client.close()
        return rows

    with _timed() as figures:
        rows = asyncio.run(run())
    return {**figures, "pairs": _pairs(trace, rows)}


def replay(gate: str) -> Callable[[Path, list[RemoteTeacher], Path], dict[str, Any]]:
    """Ours on one trace in memory, with a ledger on disk."""

    def contestant(folder: Path, teachers: list[RemoteTeacher], work: Path) -> dict[str, Any]:
        from composer_replication.teacher_replay.schedule import open_replay

        (trace,) = _traces(folder)

        async def run() -> tuple[ReplayReport, list[TeacherRow]]:
            async with open_replay(teachers, _options(gate, work / "ledger.sqlite")) as running:
                rows = [row async for rows in running.run([trace]) for row in rows]
            return running.report, rows

        with _timed() as figures:
            report, rows = asyncio.run(run())
        return {**figures, **_by_ledger(report), "pairs": _pairs(trace, rows)}

    return contestant


def streamed(folder: Path, teachers: list[RemoteTeacher], work: Path) -> dict[str, Any]:
    """Ours as the command does it: traces are read and rows are written one trace at a time."""
    from composer_replication.teacher_replay.replay_files import ReplayFolder
    from composer_replication.teacher_replay.schedule import open_replay

    output = ReplayFolder(work, create=True)

    async def run() -> ReplayReport:
        writer = output.writer()
        async with open_replay(teachers, _options("sequential", output.ledger)) as running:
            async for rows in running.run(_traces(folder)):
                writer.add(rows)
        writer.finish()
        return running.report

    with _timed() as figures:
        report = asyncio.run(run())
    return {**figures, **_by_ledger(report), "states": report.states}


class Contestant(NamedTuple):
    """What is run, on which folder of traces, whether once is enough, and whether only its memory counts."""

    run: Callable[[Path, list[RemoteTeacher], Path], dict[str, Any]]
    traces: str
    once: bool = False
    memory_only: bool = False


CONTESTANTS = {
    "replay": Contestant(replay("sequential"), "1x"),
    "replay_ungated": Contestant(replay("none"), "1x"),
    "earlier_design": Contestant(earlier_design, "1x", once=True),
    "streamed": Contestant(streamed, "1x", once=True, memory_only=True),
    "streamed_10x": Contestant(streamed, "10x", once=True, memory_only=True),
}


def measure(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """In the child: one contestant's figures as far as the client knows them."""
    from composer_replication.teacher_replay.teachers import TeacherSpec, resolve_teachers

    contestant, folder = CONTESTANTS[name], arguments.traces
    specs = [
        TeacherSpec(
            slug=slug,
            base_url=arguments.server,
            input_per_mtok=teacher.input_per_mtok,
            output_per_mtok=teacher.output_per_mtok,
            cached_input_per_mtok=teacher.cached_per_mtok or 0.0,
            cache_write_per_mtok=teacher.cache_write_per_mtok or teacher.input_per_mtok,
        )
        for slug, teacher in TEACHERS.items()
    ]
    with tempfile.TemporaryDirectory(dir=folder) as work:
        figures = contestant.run(folder / contestant.traces, resolve_teachers(specs), Path(work))
    return {**figures, "peak_bytes": resident_bytes("VmHWM")}


def report(arguments: argparse.Namespace) -> dict[str, Any]:
    """Write the traces, let the contestants take turns, and judge."""
    shape = QUICK if arguments.quick else FULL
    repeats = arguments.repeats or (1 if arguments.quick else 3)
    asked: dict[str, set[tuple[str, str]]] = {}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as work:
        folder = Path(work)
        write_traces(folder / "1x", 1, shape.states)
        write_traces(folder / "10x", shape.memory_traces, shape.states)
        turns = [(turn, name) for turn in range(repeats) for name in CONTESTANTS]
        rounds = [name for turn, name in turns if turn == 0 or not CONTESTANTS[name].once]
        measured: dict[str, list[dict[str, Any]]] = {}
        console = Console(stderr=True)
        for name in track(rounds, "replay", console=console, disable=not console.is_terminal):
            figures, questions = _against_server(name, folder, shape)
            measured.setdefault(name, []).append(figures)
            if asked.setdefault(name, questions) != questions:
                raise BenchmarkError(f"{name} did not ask the same in every repeat")
    if asked["replay_ungated"] != asked["earlier_design"] or not asked["replay"] <= asked["earlier_design"]:
        raise BenchmarkError("contestants asked different questions")
    kept = _pairs_kept(measured)
    results = {name: _summary(runs) for name, runs in measured.items()}
    return {
        "benchmark": "replay",
        "machine": machine("httpx2", "msgspec"),
        "shape": {
            **shape._asdict(),
            "teachers": len(TEACHERS),
            "concurrency": CONCURRENCY,
            "pairs_to_be_found": pairs_to_be_found(shape.states),
            "repeats": repeats,
        },
        "results": results,
        "columns": ["dollars", "dollars_uncached", "calls", "cached_share", "cpu_seconds", "pairs"],
        "targets": _targets(results, kept),
    }


def _targets(results: Mapping[str, Any], kept: float) -> list[dict[str, Any]]:
    naive, ours = results["earlier_design"], results["replay"]
    growth = results["streamed_10x"]["peak_bytes"] / results["streamed"]["peak_bytes"]
    return [
        judged("wall_vs_sequential", ours["seconds"] / naive["seconds"], "<=0.1"),
        judged("dollars_vs_naive", ours["dollars"] / naive["dollars_uncached"], "<=0.35"),
        judged("pairs_kept", kept, ">=0.95"),
        judged("memory_growth_10x_states", growth, "<=1.5"),
    ]


def _summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The medians; of the pairs, how many there are."""
    return medians([{**run, "pairs": len(run["pairs"])} if "pairs" in run else run for run in runs])


def _pairs_kept(measured: Mapping[str, list[dict[str, Any]]]) -> float:
    """The share of all pairs that a gated replay has too, with the same action chosen; the worst of the repeats."""
    from composer_replication.teacher_replay.pairs import comparer_for
    from composer_replication.traces import parse_action

    same = comparer_for(AGREEMENT)

    def kept(gated: dict[str, str], every: dict[str, str]) -> float:
        both = [(parse_action(gated[state]), parse_action(text)) for state, text in every.items() if state in gated]
        return sum(same(one, other).same for one, other in both) / len(every)

    runs = zip(measured["replay"], measured["replay_ungated"], strict=True)
    return min(kept(gated["pairs"], ungated["pairs"]) for gated, ungated in runs)


def _against_server(name: str, folder: Path, shape: Shape) -> tuple[dict[str, Any], set[tuple[str, str]]]:
    """One contestant against a server of its own: its figures, and the questions that the server was asked."""
    shortened = shape.memory_shortened if CONTESTANTS[name].memory_only else shape.shortened
    with _server(folder / "server.json", shortened) as (url, process):
        before = _cpu_seconds(process.pid)
        figures = in_child(name, ["--traces", str(folder), "--server", url])
        server_seconds = _cpu_seconds(process.pid) - before
        with urllib.request.urlopen(url.removesuffix("/v1") + "/meter") as response:
            meter = json.load(response)
    questions = {(question["model"], question["digest"]) for question in meter["questions"]}
    if meter["broken"] or any(question["asked"] != 1 for question in meter["questions"]):
        raise BenchmarkError(f"{name}: the server broke down, or was asked something twice: {meter['broken']}")
    if any(model["peak_in_flight"] > CONCURRENCY for model in meter["models"].values()):
        raise BenchmarkError(f"{name}: more than {CONCURRENCY} calls to one teacher were in flight")
    spent = meter["spent_nano_usd"]
    if figures.get("ledger_nano_usd", spent) != spent:
        raise BenchmarkError(f"{name}: the ledger has {figures['ledger_nano_usd']}, the server's meter {spent}")
    figures["server_cpu_seconds"] = server_seconds
    # Seen from the client, the server is somebody else too; it is no disturbance.
    figures["busy_elsewhere"] -= server_seconds / figures["seconds"]
    figures |= _money(meter["models"], spent)
    figures["calls"] = len(questions)
    figures["calls_per_second"] = len(questions) / figures["seconds"]
    figures["overspent_dollars"] = max(0.0, spent / NANO - CAP_USD)
    return figures, questions


def _money(models: Mapping[str, Any], spent: int) -> dict[str, float]:
    prompt = sum(figures["prompt_tokens"] for figures in models.values())
    cached = sum(figures["cached_tokens"] for figures in models.values())
    uncached = sum(
        cost(TEACHERS[name], Usage(figures["prompt_tokens"], 0, 0, figures["completion_tokens"]))
        for name, figures in models.items()
    )
    return {"dollars": spent / NANO, "dollars_uncached": uncached / NANO, "cached_share": cached / prompt}


@contextmanager
def _server(configuration: Path, shortened: float) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The teachers as a process of their own, with empty caches; it ends with the block, or with this process."""
    settings = {"teachers": faster(shortened), "answers": "replay_setting:answer", "seed": 1}
    configuration.write_bytes(msgspec.json.encode(settings))
    script = Path(__file__).with_name("metered_server.py")
    command = [sys.executable, str(script), "--config", str(configuration), "--with-stdin"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise BenchmarkError("the metered server did not start")
        yield json.loads(line)["url"], process
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def _cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _timed() -> Iterator[dict[str, float]]:
    figures: dict[str, float] = {}
    start, own, others = time.perf_counter(), time.process_time(), other_cpu_seconds()
    yield figures
    figures["seconds"] = time.perf_counter() - start
    figures["cpu_seconds"] = time.process_time() - own
    figures["busy_elsewhere"] = (other_cpu_seconds() - others) / figures["seconds"]


def _options(gate: Any, ledger: Path) -> ReplayOptions:
    from composer_replication.teacher_replay.schedule import ReplayOptions

    return ReplayOptions(max_total_usd=CAP_USD, ledger=ledger, gate=gate, agreement=AGREEMENT, concurrency=CONCURRENCY)


def _traces(folder: Path) -> Iterator[TraceToReplay]:
    from composer_replication.teacher_replay.replay_files import traces_to_replay

    return traces_to_replay(folder)


def _by_ledger(replayed: ReplayReport) -> dict[str, int]:
    assert replayed.balance is not None
    if any(use.failed or use.no_room for use in replayed.teachers.values()):
        raise BenchmarkError("calls failed, or were not made for want of money")
    return {"ledger_nano_usd": replayed.balance.spent}


def _pairs(trace: TraceToReplay, rows: list[TeacherRow]) -> dict[str, str]:
    """The chosen action of every pair, by state."""
    from composer_replication.teacher_replay.pairs import extract_dpo_pairs

    pairs = extract_dpo_pairs(
        [step.state() for step in trace.steps], [row.result() for row in rows], agreement=AGREEMENT
    )
    return {pair["state_id"]: pair["chosen"] for pair in pairs}


if __name__ == "__main__":
    options = {
        "--folder": {"type": Path, "help": "where traces and ledgers are written for the run (50 MB)"},
        "--traces": {"type": Path, "help": argparse.SUPPRESS},
        "--server": {"help": argparse.SUPPRESS},
    }
    main(report, measure=measure, options=options)
