"""`composer-replication ingest`: agent logs to traces; `--explain` shows one log, `--audit` what was lost."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn


def ingest(
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATHS...", help="Logs: files, folders (searched to the bottom), globs."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", file_okay=False, help="Where the traces go. Made if missing."),
    ] = None,
    explain: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Show one log turn by turn, with its errors and hints. Writes nothing."),
    ] = None,
    audit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH", help="Compare Claude Code logs with a count over their raw lines. Writes nothing."
        ),
    ] = None,
    subagents: Annotated[
        bool, typer.Option("--subagents", help="Read sub-agents too, each as a trace of its own.")
    ] = False,
    redact: Annotated[
        bool,
        typer.Option("--redact/--no-redact", help="Replace secrets and personal data. Keep it on for what is shared."),
    ] = True,
    processes: Annotated[
        int | None, typer.Option("--processes", "-p", min=1, help="How many read at once. [default: one per core]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Read agent logs and write clean, linear, redacted traces with every tool error found and classified.

    The format of a log is found by its content: Claude Code, Codex CLI, OpenAI chat JSONL, Harbor ATIF, SWE-agent,
    mini-swe-agent, OpenHands, OpenTelemetry GenAI and OpenInference. Everything that is passed over is counted.

    DIR/traces holds a JSONL file per log, DIR/manifest.jsonl what was read: a second run reads only what changed. The
    manifest names your files by their paths; traces do not.

    Exit code 1: a log could not be read, there was none, or the audit found a difference.
    """
    modes = [name for name, given in (("PATHS", paths), ("--explain", explain), ("--audit", audit)) if given]
    if len(modes) != 1 and modes != ["PATHS", "--audit"]:  # a shell's glob leaves but one path to --audit
        instead = f", not {' and '.join(modes)}" if modes else ""
        raise typer.BadParameter(f"give one of PATHS (with -o DIR), --explain FILE or --audit PATH{instead}")
    if output is not None and modes[-1] != "PATHS":
        raise typer.BadParameter(f"{modes[-1]} writes nothing: leave -o out, or {modes[-1]}")
    if explain is not None:
        _explain(explain, subagents=subagents, redact=redact, as_json=as_json)
    elif audit:
        _audit([*audit, *(paths or [])], as_json=as_json)
    elif output is None:
        raise typer.BadParameter("-o DIR is missing: it says where the traces go")
    else:
        _ingest(paths or [], output, subagents=subagents, redact=redact, processes=processes, as_json=as_json)


def _ingest(
    paths: list[str], output: Path, *, subagents: bool, redact: bool, processes: int | None, as_json: bool
) -> None:
    from composer_replication.cli.ingest_views import show_report
    from composer_replication.ingestion.formats import known_formats
    from composer_replication.ingestion.pipeline import ingest_logs
    from composer_replication.ingestion.source import IngestOptions

    errors = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=errors, transient=True, disable=as_json or not errors.is_terminal) as progress:
        bar = progress.add_task("Looking for logs", total=None)

        def start(files: int, size: int) -> None:
            progress.update(bar, description=f"Reading {files} files", total=size)

        with _wrong_paths_are_bad_usage():
            report = ingest_logs(
                paths,
                output,
                IngestOptions(subagents=subagents, redact=redact),
                processes=processes,
                on_start=start,
                on_progress=lambda size: progress.advance(bar, size),
            )
    if as_json:
        typer.echo(json.dumps(report.as_dict(), indent=2))
    else:
        show_report(_console(), report, output)
    if report.with_status("failed"):
        raise typer.Exit(1)
    if not report.with_status("read"):
        known = ", ".join(one.name for one in known_formats())
        raise ValueError(
            f"no log behind {', '.join(paths)}: none of {len(report.sources)} files is of a known format ({known})"
        )


def _console() -> Console:
    # `:key:` is a piece of a log, not a picture of a key.
    return Console(emoji=False, highlight=False)


@contextmanager
def _wrong_paths_are_bad_usage() -> Iterator[None]:
    from composer_replication.ingestion.discovery import NoSuchPathError

    try:
        yield
    except NoSuchPathError as error:
        raise typer.BadParameter(str(error)) from None


def _audit(paths: list[str], *, as_json: bool) -> None:
    from composer_replication.cli.ingest_views import show_audits
    from composer_replication.ingestion.audit import audit_file
    from composer_replication.ingestion.discovery import find_files

    with _wrong_paths_are_bad_usage():
        files = find_files(paths)
    audits = [audit for file in files if (audit := audit_file(file)) is not None]
    if not audits:
        raise ValueError(f"no Claude Code log behind {', '.join(paths)}")
    if as_json:
        rows: list[dict[str, Any]] = [
            {**vars(audit), "path": os.fspath(audit.path), "holds": audit.holds} for audit in audits
        ]
        typer.echo(json.dumps({"holds": all(audit.holds for audit in audits), "files": rows}, indent=2))
    else:
        show_audits(_console(), audits)
    if not all(audit.holds for audit in audits):
        raise typer.Exit(1)


def _explain(path: Path, *, subagents: bool, redact: bool, as_json: bool) -> None:
    from composer_replication.cli.ingest_views import show_trace
    from composer_replication.ingestion.explanation import explain_trace
    from composer_replication.ingestion.formats import ReadOptions
    from composer_replication.ingestion.reading import read_traces
    from composer_replication.ingestion.redaction import redact_trace

    if not path.is_file():
        what = "this is a folder; give one of its files" if path.is_dir() else "there is no such file"
        raise typer.BadParameter(f"{path}: {what}")
    traces = []
    for trace in read_traces(path, ReadOptions(subagents=subagents)):
        if redact:
            redact_trace(trace)
        traces.append(trace)
    if as_json:
        explained = {"traces": [explain_trace(trace) for trace in traces]}
        typer.echo(json.dumps(explained, indent=2, ensure_ascii=False))
        return
    for trace in traces:
        show_trace(_console(), trace)
