"""`composer-replication ingest`: agent logs to traces; its other modes show what is in logs, and write nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

if TYPE_CHECKING:
    from composer_replication.ingestion.error_views import SiteFilter
    from composer_replication.ingestion.pipeline import EveryTrace
    from composer_replication.ingestion.source import IngestOptions


def ingest(
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATHS...", help="Logs: files, folders (searched recursively), globs."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", file_okay=False, help="Output folder. Created if missing."),
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
    stats: Annotated[
        bool, typer.Option("--stats", help="Count errors of PATHS by project, tool and model. Writes nothing.")
    ] = False,
    hints: Annotated[
        bool,
        typer.Option(
            "--hints", help="List every hint of PATHS with its turn, to read before training. Writes nothing."
        ),
    ] = False,
    errors_only: Annotated[
        bool, typer.Option("--errors-only", help="With --explain: only turns with an error, and those around them.")
    ] = False,
    around: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Number of turns to show before and after each error (default 1)."),
    ] = None,
    kinds: Annotated[
        list[str] | None,
        typer.Option("--kind", metavar="KIND", help="With --explain or --hints: only errors of this kind. Repeatable."),
    ] = None,
    tools: Annotated[
        list[str] | None,
        typer.Option("--tool", metavar="TOOL", help="With --explain or --hints: only errors of this tool. Repeatable."),
    ] = None,
    subagents: Annotated[
        bool, typer.Option("--subagents", help="Read sub-agents too, each as a trace of its own.")
    ] = False,
    redact: Annotated[
        bool,
        typer.Option(
            "--redact/--no-redact", help="Replace secrets and personal data. Keep this on for anything you share."
        ),
    ] = True,
    processes: Annotated[
        int | None, typer.Option("--processes", "-p", min=1, help="Number of worker processes (default: one per core).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Read agent logs and write clean, linear, redacted traces with every tool error found and classified.

    The format of a log is found by its content: Claude Code, Codex CLI, OpenAI chat JSONL, Harbor ATIF, SWE-agent,
    mini-swe-agent, OpenHands, OpenTelemetry GenAI and OpenInference. Everything that is skipped is counted.

    DIR/traces holds a JSONL file per log, DIR/manifest.jsonl what was read: a second run reads only what changed. The
    manifest names your files by their paths; traces do not. --stats and --hints take logs, or such a DIR.

    Exit code 1: a log could not be read, there was none, no error has the given --kind or --tool, or the
    audit found a difference.
    """
    from composer_replication.ingestion.error_views import SiteFilter
    from composer_replication.ingestion.source import IngestOptions

    views = {"--explain": explain, "--audit": audit, "--stats": stats, "--hints": hints}
    modes = [name for name, given in views.items() if given]
    if paths and (not modes or explain):  # the other views take PATHS; a shell's glob leaves but one path to --audit
        modes.insert(0, "PATHS")
    if len(modes) != 1:
        instead = f", not {' and '.join(modes)}" if modes else ""
        ways = "PATHS (with -o DIR), --explain FILE, --audit PATH, --stats PATHS or --hints PATHS"
        raise typer.BadParameter(f"give one of {ways}{instead}")
    (mode,) = modes
    if output is not None and mode != "PATHS":
        raise typer.BadParameter(f"{mode} writes nothing: leave -o out, or {mode}")
    if mode in ("--stats", "--hints") and not paths:
        raise typer.BadParameter(f"{mode} needs PATHS: logs, or a folder that ingest wrote")
    for option, is_given, where in (
        ("--errors-only", errors_only, ["--explain"]),
        ("--around", around is not None, ["--explain"]),
        ("--kind", kinds, ["--explain", "--hints"]),
        ("--tool", tools, ["--explain", "--hints"]),
        ("--processes", processes is not None, ["PATHS"]),
    ):
        if is_given and mode not in where:
            raise typer.BadParameter(f"{option} goes with {' or '.join(where)}, not {mode}")
    is_filtered = bool(errors_only or kinds or tools)
    if around is not None and not is_filtered:
        raise typer.BadParameter("--around goes with --errors-only, --kind or --tool")
    chosen = SiteFilter(kinds or (), tools or ())
    options = IngestOptions(subagents=subagents, redact=redact)
    if explain is not None:
        wanted = chosen if is_filtered else None
        _explain(explain, options, wanted, around=1 if around is None else around, as_json=as_json)
    elif audit:
        _audit([*audit, *(paths or [])], as_json=as_json)
    elif stats:
        _stats(paths or [], options, as_json=as_json)
    elif hints:
        _hints(paths or [], options, chosen, as_json=as_json)
    elif output is None:
        raise typer.BadParameter("-o DIR is missing: the output folder for the traces")
    else:
        _ingest(paths or [], output, options, processes=processes, as_json=as_json)


def _ingest(paths: list[str], output: Path, options: IngestOptions, *, processes: int | None, as_json: bool) -> None:
    from composer_replication.cli.ingest_views import show_report
    from composer_replication.ingestion.pipeline import ingest_logs

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
                options,
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
        raise _no_log(paths, len(report.sources))


def _no_log(paths: list[str], files: int) -> ValueError:
    from composer_replication.ingestion.formats import format_names

    known = ", ".join(format_names())
    return ValueError(f"no log in {', '.join(paths)}: none of {files} files is in a recognized log format ({known})")


def _console() -> Console:
    # `:key:` is a piece of a log, not a picture of a key.
    return Console(emoji=False, highlight=False)


@contextmanager
def _wrong_paths_are_bad_usage() -> Iterator[None]:
    from composer_replication.ingestion.log_file import NoSuchPathError

    try:
        yield
    except NoSuchPathError as error:
        raise typer.BadParameter(str(error)) from None


def _audit(paths: list[str], *, as_json: bool) -> None:
    from composer_replication.cli.ingest_views import show_audits
    from composer_replication.ingestion.audit import audit_file
    from composer_replication.ingestion.log_file import find_files

    with _wrong_paths_are_bad_usage():
        files = find_files(paths)
    audits = [audit for file in files if (audit := audit_file(file)) is not None]
    if not audits:
        raise ValueError(f"no Claude Code log in {', '.join(paths)}")
    if as_json:
        rows: list[dict[str, Any]] = [
            {**vars(audit), "path": os.fspath(audit.path), "holds": audit.holds} for audit in audits
        ]
        typer.echo(json.dumps({"holds": all(audit.holds for audit in audits), "files": rows}, indent=2))
    else:
        show_audits(_console(), audits)
    if not all(audit.holds for audit in audits):
        raise typer.Exit(1)


def _stats(paths: list[str], options: IngestOptions, *, as_json: bool) -> None:
    from composer_replication.cli.ingest_views import show_error_table
    from composer_replication.ingestion.error_views import ErrorTable

    table = ErrorTable()
    with _every_trace(paths, options) as every:
        for trace in every:
            table.add(trace)
    if as_json:
        typer.echo(json.dumps({"rows": table.rows(), "failures": every.failures}, indent=2))
    else:
        show_error_table(_console(), table)
    _show_failures(every, as_json=as_json)


def _hints(paths: list[str], options: IngestOptions, chosen: SiteFilter, *, as_json: bool) -> None:
    from composer_replication.cli.ingest_views import show_hints
    from composer_replication.ingestion.error_views import HintList

    listed = HintList()
    with _every_trace(paths, options) as every:
        for trace in every:
            listed.add(trace, chosen.sites(trace))
    chosen.check()
    if as_json:
        typer.echo(json.dumps({**vars(listed), "failures": every.failures}, indent=2, ensure_ascii=False))
    else:
        show_hints(_console(), listed)
    _show_failures(every, as_json=as_json)


@contextmanager
def _every_trace(paths: list[str], options: IngestOptions) -> Iterator[EveryTrace]:
    from composer_replication.ingestion.pipeline import EveryTrace

    with _wrong_paths_are_bad_usage():
        every = EveryTrace(paths, options)
    errors = Console(stderr=True)
    columns = (TextColumn("Reading files"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as progress:
        bar = progress.add_task("", total=every.sources)
        every.on_file = lambda: progress.advance(bar)
        yield every
    if not every.logs and not every.failures:
        raise _no_log(paths, len(every.files))


def _show_failures(every: EveryTrace, *, as_json: bool) -> None:
    from composer_replication.cli.ingest_views import show_failures

    if not as_json:
        show_failures(_console(), every.failures)
    if every.failures:
        raise typer.Exit(1)


def _explain(path: Path, options: IngestOptions, wanted: SiteFilter | None, *, around: int, as_json: bool) -> None:
    from composer_replication.cli.ingest_views import show_traces
    from composer_replication.ingestion.error_views import explain_trace, with_neighbours
    from composer_replication.ingestion.formats import ReadOptions
    from composer_replication.ingestion.pipeline import read_traces
    from composer_replication.ingestion.redaction import redact_trace

    if not path.is_file():
        what = "this is a folder; give one of its files" if path.is_dir() else "there is no such file"
        raise typer.BadParameter(f"{path}: {what}")
    explained = []
    for trace in read_traces(path, ReadOptions(subagents=options.subagents)):
        if options.redact:
            redact_trace(trace)
        shown = list(range(len(trace.turns)))
        if wanted is not None:
            wrong = (index for site in wanted.sites(trace) for index in site.turns)
            shown = with_neighbours(wrong, around, len(trace.turns))
        explained.append((explain_trace(trace), shown))
    if wanted is not None:
        wanted.check()
    if as_json:
        traces = [{**one, "turns": [one["turns"][index] for index in shown]} for one, shown in explained]
        typer.echo(json.dumps({"traces": traces}, indent=2, ensure_ascii=False))
    else:
        show_traces(_console(), explained)
