"""`composer-replication pairs` and `normalize`: preference pairs, made from a replay and sent through a recipe."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    from composer_replication.teacher_replay.action_judge import ActionJudge
    from composer_replication.teacher_replay.records import Pair
    from composer_replication.teacher_replay.replay_files import ReplayFolder
    from composer_replication.teacher_replay.replayed_pairs import ReplayedPairs


def _output(text: str) -> Any:
    return typer.Option("--output", "-o", metavar="FILE", dir_okay=False, help=text, show_default=False)


Preference = Annotated[
    Path | None,
    typer.Option(metavar="FILE", dir_okay=False, help="Also in TRL's preference format: .jsonl or .parquet."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]


def pairs(
    traces: Annotated[Path, typer.Argument(help="The replayed traces: a folder of traces, or a JSONL file of states.")],
    replayed: Annotated[
        Path, typer.Option("--replay", "-r", metavar="DIR", help="The folder that `replay` wrote.", show_default=False)
    ],
    output: Annotated[Path, _output("Output file of pairs: JSON lines.")],
    preference: Preference = None,
    self_contained: Annotated[
        bool,
        typer.Option("--self-contained", help="Write every pair with its whole history. (default: each message once)"),
    ] = False,
    threshold: Annotated[
        int | None,
        typer.Option(min=1, help="Minimum number of agreeing teachers. (default: as the replay was gated, or 2)"),
    ] = None,
    min_margin: Annotated[
        int | None,
        typer.Option(min=0, help="Minimum lead over the next best action; 1 drops ties. (default: as gated, or 0)"),
    ] = None,
    agreement: Annotated[
        Literal["action", "exact"] | None,
        typer.Option(
            help="action: compare what calls do, and how similar texts are. exact: compare texts, without white space. "
            "(default: as gated, or action)"
        ),
    ] = None,
    exclude_same_family: Annotated[
        bool, typer.Option("--exclude-same-family", help="Leave out teachers of the student's own model family.")
    ] = False,
    judge: Annotated[
        str | None,
        typer.Option(metavar="SLUG", help="OpenRouter name of a model that decides near misses."),
    ] = None,
    judges: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The judge as YAML or JSON, like a teacher; the first entry is used."),
    ] = None,
    max_usd: Annotated[float, typer.Option(min=0.0, help="Maximum total cost of the judge.")] = 1.0,
    env_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with NAME=value lines for API keys.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a preference pair of every step where teachers agree on an action that is not the student's.

    Actions are compared by what they do: the tool, its arguments, a command without its quoting and cosmetic flags, an
    edit by its effect. Neither side holds thinking. A pair names the teachers that agree, their margin and the
    similarity of their answers. Run it again when more of a replay is done: the file is replaced as a whole. A replay
    that is unfinished, or was gated by another rule, is used as it is, with a warning.

    Exit code 1: there is no pair.
    """
    from composer_replication.teacher_replay.pair_files import (
        save_compact_pairs,
        save_pairs,
        save_preference,
        stored_pairs,
    )
    from composer_replication.teacher_replay.replay_files import ReplayFolder
    from composer_replication.teacher_replay.replayed_pairs import ReplayedPairs

    if preference is not None and preference.suffix not in (".jsonl", ".parquet"):
        raise typer.BadParameter(f"--preference: {preference} must end in .jsonl or .parquet")
    if not math.isfinite(max_usd):
        raise typer.BadParameter(f"--max-usd must be an amount, not {max_usd}")
    if judge is not None and judges is not None:
        raise typer.BadParameter("give --judge or --judges, not both")
    if not traces.exists():
        raise typer.BadParameter(f"{traces}: there is no such folder of traces, or file of states")
    try:
        folder = ReplayFolder(replayed)
    except FileNotFoundError as error:
        raise typer.BadParameter(str(error)) from None
    with ExitStack() as stack:
        asks = None
        if judge is not None or judges is not None:
            asks = stack.enter_context(_judge(judge, judges, env_file, max_usd, folder))
        found = ReplayedPairs(
            traces,
            folder,
            agreement=agreement,
            agreement_threshold=threshold,
            min_margin=min_margin,
            exclude_same_family=exclude_same_family,
            judge=asks,
        )
        save = save_pairs if self_contained else save_compact_pairs
        save(_watched(found, shown=not as_json), output)
    if preference is not None:
        save_preference(stored_pairs(output), preference)
    if as_json:
        judged = found.judged
        figures = {
            **found.report.as_dict(),
            "same_family": found.same_family,
            "judge": None if judged is None else {"asked": judged.asked, "said_same": judged.said_same},
            "unfinished": asdict(found.unfinished),
            "warnings": found.warnings(),
        }
        typer.echo(json.dumps(figures, indent=2))
    else:
        _show(Console(emoji=False, highlight=False), found, output, excluded=exclude_same_family)
    if not found.report.pair_count:
        raise typer.Exit(1)


def _watched(found: ReplayedPairs, *, shown: bool) -> Iterator[Pair]:
    """Yield the pairs, and show the progress on a terminal."""
    errors = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True, disable=not (shown and errors.is_terminal)) as progress:
        bar = progress.add_task("Comparing answers", total=None)
        for pair in found:
            report = found.report
            progress.update(
                bar, description=f"Comparing answers: {report.states:,} states, {report.pair_count:,} pairs"
            )
            yield pair


def _judge(
    slug: str | None, file: Path | None, env_file: Path | None, max_usd: float, folder: ReplayFolder
) -> ActionJudge:
    from composer_replication.teacher_replay.action_judge import ActionJudge
    from composer_replication.teacher_replay.teachers import TeacherError, load_teachers, resolve_teachers

    try:
        specs = load_teachers(file)[:1] if file is not None else [slug or ""]
        (teacher,) = resolve_teachers(specs, env_file=env_file)
    except (TeacherError, OSError) as error:
        raise typer.BadParameter(f"the judge: {error}") from None
    return ActionJudge(teacher, max_total_usd=max_usd, ledger=folder.ledger)


def _show(console: Console, found: ReplayedPairs, output: Path, *, excluded: bool) -> None:
    report, judged = found.report, found.judged
    table = Table("", "count", show_header=False)
    table.columns[1].justify = "right"
    table.add_row("states", f"{report.states:,}")
    table.add_row("  with answers", f"{report.states_with_answers:,}")
    for support, count in sorted(report.histogram.items()):
        table.add_row(f"    {support} teachers agree against the student", f"{count:,}")
    table.add_row("  teachers agree with the student", f"{report.student_supported:,}")
    table.add_row("  too few agree", f"{report.below_threshold:,}")
    table.add_row("  too small a margin", f"{report.below_margin:,}")
    table.add_row("  ties", f"{report.ties:,}")
    table.add_row("rows without an answer", f"{report.failed_rows:,}")
    table.add_row("pairs", f"{report.pair_count:,}", style="bold")
    console.print(table)
    votes = Table("teacher", "answers", "with the student", "in pairs")
    for column in votes.columns[1:]:
        column.justify = "right"
    for slug, its in sorted(report.by_teacher.items()):
        votes.add_row(escape(slug), f"{its.answers:,}", f"{its.with_student:,}", f"{its.in_pairs:,}")
    console.print(votes)
    if judged is not None:
        console.print(f"the judge was asked {judged.asked:,} times and found {judged.said_same:,} the same")
    for slug, family in found.same_family.items():
        what = "its votes do not count" if excluded else "--exclude-same-family leaves it out"
        console.print(f"[yellow]same family:[/] {escape(slug)} is a {escape(family)}, as the student was; {what}")
    for line in found.warnings():
        console.print(f"[yellow]warning:[/] {escape(line)}")
    console.print(f"pairs: {escape(str(output))}")


def normalize(
    pairs: Annotated[
        Path, typer.Argument(metavar="PAIRS", help="A JSONL file of pairs, as `pairs` writes it.", show_default=False)
    ],
    output: Annotated[Path, _output("Output file (.jsonl), in the form of the input.")],
    preference: Preference = None,
    recipe: Annotated[
        str, typer.Option(metavar="FILE", help="A data-juicer recipe: a YAML file, or default, or prose.")
    ] = "default",
    executor: Annotated[
        Literal["batched", "data-juicer", "ray"],
        typer.Option(help="batched: in this process. The others start data-juicer's engines, for large sets."),
    ] = "batched",
    processes: Annotated[
        int | None,
        typer.Option("--processes", "-p", min=1, help="Number of processes of an engine. (default: one per core)"),
    ] = None,
    skip_dj: Annotated[
        bool, typer.Option("--skip-dj", help="Run no operators: only convert the pairs to chat messages.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Run again even if nothing has changed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Drop pairs that cannot be trained on, and turn the others into chat messages with real tool calls.

    FILE.summary.json says which pairs each operator dropped, and why. FILE has the form of PAIRS: each message once, or
    every pair with its whole history. A second run with the same pairs, recipe and versions does nothing.

    Exit code 1: a line is not a pair, or no pair is left.
    """
    from composer_replication.replaysim.normalize import normalize_file

    errors = Console(stderr=True)
    try:
        with errors.status("Normalising pairs"):
            made = normalize_file(
                pairs,
                output,
                recipe=recipe,
                executor=executor,
                skip_dj=skip_dj,
                processes=processes,
                preference=preference,
                force=force,
            )
    except FileNotFoundError as error:
        raise typer.BadParameter(str(error)) from None
    if as_json:
        typer.echo(json.dumps({"up_to_date": made.up_to_date, "output": str(output), **made.report}, indent=2))
    else:
        _show_normalized(Console(emoji=False, highlight=False), made.report, output, up_to_date=made.up_to_date)
    if not made.report["pairs_out"]:
        raise typer.Exit(1)


def _show_normalized(console: Console, report: dict[str, Any], output: Path, *, up_to_date: bool) -> None:
    table = Table("", "pairs", "with calls")
    for column in table.columns[1:]:
        column.justify = "right"
    table.add_row("in", f"{report['pairs_in']:,}", f"{report['tool_call_pairs_in']:,}")
    for op in report["ops"]:
        step = f"  dropped by {escape(op['op'])} on {escape(op['field'])}"
        table.add_row(step, f"{op['dropped']:,}", f"{op['dropped_tool_calls']:,}")
    table.add_row("kept", f"{report['pairs_out']:,}", f"{report['tool_call_pairs_out']:,}", style="bold")
    console.print(table)
    if up_to_date:
        console.print("up to date: nothing has changed since these pairs were made (--force makes them again)")
    console.print(f"normalised pairs: {escape(str(output))}; what was dropped: {escape(output.name)}.summary.json")
