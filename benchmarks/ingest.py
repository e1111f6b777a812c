"""Claude Code logs to traces on disk, in one process, against merely parsing every line with json and with orjson.

"ours" is everything that `composer-replication ingest --no-redact` does: find the files, tell their format, read, pair,
classify errors, write the traces and the manifest, with hashes. The peers only parse, and throw the result away. The
corpus is made up in the shape of real sessions (claude_code_corpus.py), once at 1x and once at 4x. Memory is the whole
process's peak. "ours_redacted" is the same with redaction on, which is the default of `ingest`, and "redaction" is that
step alone, on the text of the traces. "typed_decode" and "to_traces" are the first steps of ours alone, and show where
its time goes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from claude_code_corpus import write_corpus
from reporting import MEBIBYTE, judged, machine, main, medians, take_turns, timed

MEGABYTE = 1_000_000
FULL_MEGABYTES, QUICK_MEGABYTES = 300, 40
# The speed of redaction is steady: a part of the corpus is enough.
REDACTED_MEGABYTES = 40


def parse_lines(loads: Callable[[bytes], Any]) -> Callable[[Path], dict[str, Any]]:
    """A peer: parse every line, keep nothing."""

    def run(corpus: Path) -> dict[str, Any]:
        records = 0
        for path in sorted(corpus.iterdir()):
            with path.open("rb", buffering=1 << 20) as file:
                for line in file:
                    loads(line)
                    records += 1
        return {"records": records}

    return run


def ours(processes: int, *, redact: bool = False) -> Callable[[Path], dict[str, Any]]:
    """The whole path, into a fresh folder."""
    from composer_replication.ingestion.pipeline import ingest_logs
    from composer_replication.ingestion.source import IngestOptions

    def run(corpus: Path) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(dir=corpus.parent) as folder:
            report = ingest_logs([corpus], folder, IngestOptions(redact=redact), processes=processes)
            written = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        return {"records": report.stats.n_records_total, "bytes_out": written, "seconds": report.seconds}

    return run


def typed_decode(corpus: Path) -> dict[str, Any]:
    """Only the first step of ours: the reader's decoder, which builds the fields it needs and skips the rest."""
    from composer_replication.ingestion.formats.claude_code.records import RecordDecoder
    from composer_replication.ingestion.statistics import IngestionStats

    return parse_lines(RecordDecoder(IngestionStats(), subagents=False).decode)(corpus)


def to_traces(corpus: Path) -> dict[str, Any]:
    """Ours up to traces in memory: decoded, grouped and paired; not classified, not written."""
    from composer_replication.ingestion.formats import ReadOptions
    from composer_replication.ingestion.formats.claude_code import read
    from composer_replication.ingestion.log_file import LogFile
    from composer_replication.ingestion.statistics import IngestionStats

    stats = IngestionStats()
    for path in sorted(corpus.iterdir()):
        for _ in read(LogFile(path), ReadOptions(verbatim_results=True), stats):
            pass
    return {"records": stats.n_records_total}


def redaction(corpus: Path) -> dict[str, Any]:
    """Redact the traces of a part of the corpus; reading them is not timed."""
    from composer_replication.ingestion.pipeline import read_traces
    from composer_replication.ingestion.redaction import redact_trace
    from composer_replication.traces import dump_json

    text_bytes, seconds, found = 0, 0.0, 0
    for path in sorted(corpus.iterdir()):
        for trace in read_traces(path):
            for turn in trace.turns:
                text_bytes += len(turn.content.encode()) + len(turn.thinking.encode())
                text_bytes += sum(len(dump_json(call.arguments).encode()) for call in turn.tool_calls)
            start = time.perf_counter()
            found += redact_trace(trace).total()
            seconds += time.perf_counter() - start
        if text_bytes > REDACTED_MEGABYTES * MEGABYTE:
            break
    return {"text_bytes": text_bytes, "seconds": seconds, "replacements": found}


def contestants() -> dict[str, tuple[str, Callable[[Path], dict[str, Any]]]]:
    """By name: the corpus, and what is run on it."""
    import orjson

    return {
        "json": ("1x", parse_lines(json.loads)),
        "orjson": ("1x", parse_lines(orjson.loads)),
        "typed_decode": ("1x", typed_decode),
        "to_traces": ("1x", to_traces),
        "ours": ("1x", ours(1)),
        "ours_redacted": ("1x", ours(1, redact=True)),
        "json_4x": ("4x", parse_lines(json.loads)),
        "orjson_4x": ("4x", parse_lines(orjson.loads)),
        "ours_4x": ("4x", ours(1)),
        "ours_4x_2_processes": ("4x", ours(2)),
        "redaction": ("1x", redaction),
    }


def measure(name: str, folder: Path) -> dict[str, Any]:
    """In the child: one contestant's figures."""
    corpus, run = contestants()[name]
    size = sum(path.stat().st_size for path in (folder / corpus).iterdir())
    return timed(lambda: {"bytes_in": size, **run(folder / corpus)})


def report(arguments: argparse.Namespace) -> dict[str, Any]:
    """Write the corpora, let the contestants take turns, and judge."""
    megabytes = arguments.megabytes or (QUICK_MEGABYTES if arguments.quick else FULL_MEGABYTES)
    repeats = arguments.repeats or (1 if arguments.quick else 3)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        write_corpus(folder / "1x", megabytes, seed=1)
        write_corpus(folder / "4x", 4 * megabytes, seed=2)
        measured = take_turns("ingest", [*contestants()] * repeats, ["--corpora", str(folder)])
    results = {one: {**medians(runs), "megabytes_per_second": _speed(runs)} for one, runs in measured.items()}
    return {
        "benchmark": "ingest",
        "machine": machine("msgspec", "orjson"),
        "shape": {"megabytes": megabytes, "repeats": repeats},
        "results": results,
        "targets": _targets(results),
    }


def _speed(runs: list[dict[str, Any]]) -> float:
    return statistics.median(run.get("text_bytes", run["bytes_in"]) / MEGABYTE / run["seconds"] for run in runs)


def _targets(results: dict[str, Any]) -> list[dict[str, Any]]:
    def seconds(name: str) -> float:
        return float(results[name]["seconds"])

    def per_byte(name: str) -> float:
        return float(results[name]["seconds"] / results[name]["bytes_in"])

    peak = max(results[name]["peak_bytes"] for name in ("ours", "ours_4x")) / MEBIBYTE
    out = max(results[name]["bytes_out"] / results[name]["bytes_in"] for name in ("ours", "ours_4x"))
    return [
        judged("speed_vs_json", per_byte("json") / per_byte("ours"), ">=1.1"),
        judged("speed_vs_orjson", per_byte("orjson") / per_byte("ours"), ">=0.45"),
        judged("speed_vs_json_4x", per_byte("json_4x") / per_byte("ours_4x"), ">=1.1"),
        judged("speed_vs_orjson_4x", per_byte("orjson_4x") / per_byte("ours_4x"), ">=0.45"),
        judged("peak_memory_mb", peak, "<=400"),
        judged("bytes_out_per_byte_in", out, "<=1"),
        judged("growth_4x", seconds("ours_4x") / seconds("ours"), "<=4.4"),
        judged("speedup_2_processes", seconds("ours_4x") / seconds("ours_4x_2_processes"), ">=1.5"),
        judged("redacted_vs_unredacted", seconds("ours_redacted") / seconds("ours"), "<=2"),
    ]


if __name__ == "__main__":
    options = {
        "--megabytes": {"type": int, "help": "size of the 1x corpus"},
        "--folder": {"type": Path, "help": "where the corpora are written for the run (5x their size)"},
        "--corpora": {"type": Path, "help": argparse.SUPPRESS},
    }
    main(report, measure=lambda name, arguments: measure(name, arguments.corpora), options=options)
