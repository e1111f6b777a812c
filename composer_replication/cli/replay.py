"""`composer-replication replay`: ask every teacher at every step of the traces, within a budget."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from composer_replication.teacher_replay.records import TeacherCallResult
    from composer_replication.teacher_replay.replay_files import StateOptions, TraceToReplay
    from composer_replication.teacher_replay.replay_report import ReplayReport
    from composer_replication.teacher_replay.schedule import ReplayOptions
    from composer_replication.teacher_replay.teachers import RemoteTeacher

_INTERRUPTED = 130
SECONDS_BETWEEN_LINES = 10.0


def replay(
    traces: Annotated[Path, typer.Argument(help="A folder that `ingest` wrote, or a JSONL file of states.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", file_okay=False, help="Ledger and answers. Made if missing."),
    ] = None,
    teacher: Annotated[
        list[str] | None,
        typer.Option(metavar="SLUG", help="A teacher by its OpenRouter name; repeat it for more. (default: three)"),
    ] = None,
    teachers: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Teachers as YAML or JSON: slug, base_url, api_key_variable, prices, ..."),
    ] = None,
    max_usd: Annotated[
        float, typer.Option(min=0.0, help="Cap on the total cost of the ledger, earlier runs included.")
    ] = 5.0,
    gate: Annotated[
        Literal["none", "sequential"],
        typer.Option(help="sequential: cheapest teacher first, stop when the outcome is decided. none: ask all."),
    ] = "sequential",
    threshold: Annotated[int, typer.Option(min=1, help="Teachers that must agree, for the gate.")] = 2,
    min_margin: Annotated[int, typer.Option(min=0, help="Lead over the next best action, for the gate.")] = 0,
    agreement: Annotated[
        Literal["action", "exact"], typer.Option(help="How the gate compares answers: by meaning, or by text.")
    ] = "action",
    exclude_same_family: Annotated[
        bool, typer.Option("--exclude-same-family", help="Do not ask teachers of the student's own model family.")
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Maximum number of states to replay.")] = None,
    max_history_tokens: Annotated[
        int | None, typer.Option(min=1, help="Drop the oldest messages of longer histories (spoils prompt caching).")
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Calls in flight per teacher.")] = 16,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for one try.")] = 180.0,
    max_retries: Annotated[int, typer.Option(min=0, help="Tries after the first.")] = 4,
    ledger: Annotated[
        Path | None, typer.Option(metavar="FILE", dir_okay=False, help="Share a ledger. (default: DIR/ledger.sqlite)")
    ] = None,
    budget: Annotated[
        str, typer.Option(metavar="NAME", help="Account for spending; a new name starts from 0.")
    ] = "replay",
    env_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", exists=True, dir_okay=False, help="NAME=value lines that may hold keys."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Estimate the cost; make no call, write nothing.")] = False,
    release: Annotated[
        bool,
        typer.Option("--release", help="First release what calls in doubt have reserved. Check the bill before."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Ask other models what they would have done at every step of the traces.

    A call starts only if its worst case fits under the cap. Answers are stored before they are used: a run that was
    stopped or killed continues where it was, and pays for nothing twice. Everything that is sent is redacted first.
    Ctrl-C waits for the calls in flight; a second one does not. A terminal shows a progress bar; otherwise there is a
    line on standard error at most every ten seconds.

    Keys come from the environment, from --env-file, or from ~/.hermes/.env.

    An answer that is truncated, withheld, empty, or has an invalid tool call costs money and has no vote; such answers
    are counted, with their cost.

    Exit code 1: a teacher could not be used, or there is no usable answer.
    """
    from composer_replication.teacher_replay.replay_files import ReplayFolder, StateOptions, traces_to_replay
    from composer_replication.teacher_replay.schedule import ReplayOptions

    if output is None and not dry_run:
        raise typer.BadParameter("-o DIR is missing: it says where the ledger and the answers go")
    if teacher and teachers is not None:
        raise typer.BadParameter("give --teacher or --teachers, not both")
    if dry_run and release:
        raise typer.BadParameter("--dry-run writes nothing, and --release does: give one of them")
    states = StateOptions(max_history_tokens=max_history_tokens, limit=limit)
    try:
        asked = _teachers(teacher, teachers, env_file)
        options = ReplayOptions(
            max_total_usd=max_usd,
            ledger=ledger or (output / "ledger.sqlite" if output is not None else None),
            budget=budget,
            gate=gate,
            agreement=agreement,
            agreement_threshold=threshold,
            min_margin=min_margin,
            concurrency=concurrency,
            timeout=timeout,
            max_retries=max_retries,
            exclude_same_family=exclude_same_family,
        )
    except (ValueError, FileNotFoundError) as error:
        raise typer.BadParameter(str(error)) from None
    if gate == "sequential" and max(threshold, min_margin) > len(asked):
        raise typer.BadParameter(
            f"{max(threshold, min_margin)} teachers cannot agree where {len(asked)} are asked: name more, lower "
            "--threshold and --min-margin, or give --gate none"
        )
    if not traces.exists():
        raise typer.BadParameter(f"{traces}: there is no such folder of traces, or file of states")
    if dry_run or output is None:
        _estimate(traces, states, asked, options, as_json=as_json)
        return
    for one in asked:
        one.require_key()
    if next(iter(traces_to_replay(traces, StateOptions(limit=1))), None) is None:
        raise ValueError(f"{traces} holds no turn of an assistant: there is nothing to replay")
    if options.ledger is not None and Path(options.ledger).exists():
        # Before anything is written: the file may not be a ledger.
        _open_ledger(options, release=release)
    folder = ReplayFolder(output, create=True)
    report = _run(traces, states, asked, options, folder, show_progress=not as_json)
    figures = report.as_dict()
    folder.write_settings(states, asked, figures)
    if as_json:
        typer.echo(json.dumps(figures, indent=2))
    else:
        from composer_replication.cli.replay_views import show_replay

        show_replay(Console(emoji=False, highlight=False), report, folder.folder, max_usd)
    if report.stopped:
        raise typer.Exit(_INTERRUPTED)
    if not report.usable or any(use.left_alone for use in report.teachers.values()):
        raise typer.Exit(1)


def _teachers(slugs: list[str] | None, file: Path | None, env_file: Path | None) -> list[RemoteTeacher]:
    from composer_replication.teacher_replay.teachers import DEFAULT_TEACHERS, load_teachers, resolve_teachers

    if file is not None and not file.is_file():
        raise FileNotFoundError(f"{file}: there is no such file of teachers")
    specs = load_teachers(file) if file is not None else (slugs or DEFAULT_TEACHERS)
    return resolve_teachers(specs, env_file=env_file)


def _estimate(
    traces: Path, states: StateOptions, asked: list[RemoteTeacher], options: ReplayOptions, *, as_json: bool
) -> None:
    from composer_replication.teacher_replay.estimate import estimate_replay
    from composer_replication.teacher_replay.replay_files import traces_to_replay

    with Console(stderr=True).status("Pricing the replay"):
        estimate = estimate_replay(traces_to_replay(traces, states), asked, options)
    if not estimate.states:
        raise ValueError(f"{traces} holds no turn of an assistant: there is nothing to replay")
    if as_json:
        typer.echo(json.dumps(estimate.as_dict(), indent=2))
        return
    from composer_replication.cli.replay_views import show_estimate

    show_estimate(Console(emoji=False, highlight=False), estimate, options)


def _open_ledger(options: ReplayOptions, *, release: bool) -> None:
    from composer_replication.teacher_replay.ledger import Ledger
    from composer_replication.teacher_replay.prices import to_usd

    with Ledger(options.ledger) as ledger:
        if release:
            calls, amount = ledger.release(options.budget)
            Console(stderr=True, highlight=False).print(f"released ${to_usd(amount):.4f} of {calls} calls in doubt")


def _run(
    traces: Path,
    states: StateOptions,
    asked: list[RemoteTeacher],
    options: ReplayOptions,
    folder: Any,
    *,
    show_progress: bool,
) -> ReplayReport:
    from composer_replication.cli.replay_views import progress_line
    from composer_replication.cli.train_views import Pace
    from composer_replication.teacher_replay.prices import to_usd
    from composer_replication.teacher_replay.replay_files import traces_to_replay
    from composer_replication.teacher_replay.schedule import open_replay

    errors = Console(stderr=True, highlight=False)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("${task.fields[usd]:.4f}"),
        TimeElapsedColumn(),
    )
    progress = Progress(*columns, console=errors, transient=True, disable=not (show_progress and errors.is_terminal))
    questions = 0
    if show_progress:
        with errors.status("Counting the questions"):
            questions = _questions(traces_to_replay(traces, states), asked, options)

    async def replayed() -> ReplayReport:
        stop = asyncio.Event()
        bar = progress.add_task("Questions", total=questions, usd=0.0)
        pace = Pace(every=SECONDS_BETWEEN_LINES)

        def came(_: TeacherCallResult) -> None:
            report = running.report
            progress.update(bar, completed=report.settled, usd=to_usd(report.spent))
            if show_progress and not errors.is_terminal and pace.is_due():
                left = pace.left(report.asked, report.asked + questions - report.settled)
                errors.print(progress_line(report, questions, left), markup=False, soft_wrap=True)

        writer = folder.writer()
        try:
            with _gentle_interrupt(stop, errors):
                async with open_replay(asked, options, on_result=came, stop=stop) as running:
                    async for rows in running.run(traces_to_replay(traces, states)):
                        writer.add(rows)
            writer.finish()
        except BaseException:
            writer.discard()
            raise
        return running.report

    with progress:
        return asyncio.run(replayed())


def _questions(traces: Iterable[TraceToReplay], asked: list[RemoteTeacher], options: ReplayOptions) -> int:
    """Return the highest possible number of questions: every step, to every teacher of its trace."""
    from composer_replication.teacher_replay.teachers import same_family

    def excluded(trace: TraceToReplay) -> int:
        return len(same_family(asked, trace.student_models)) if options.exclude_same_family else 0

    return sum(len(trace.steps) * (len(asked) - excluded(trace)) for trace in traces)


@contextmanager
def _gentle_interrupt(stop: asyncio.Event, errors: Console) -> Iterator[None]:
    """The first Ctrl-C asks the replay to end; the second ends it as usual."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # nohup
        yield
        return
    loop = asyncio.get_running_loop()

    def interrupted() -> None:
        # The handler first: a second Ctrl-C that comes while this is printed must not be lost.
        loop.remove_signal_handler(signal.SIGINT)
        stop.set()
        errors.print("stopping: waiting for the calls under way (Ctrl-C again leaves them in doubt)")

    try:
        loop.add_signal_handler(signal.SIGINT, interrupted)
    except (NotImplementedError, ValueError):  # Windows, or not the main thread
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
