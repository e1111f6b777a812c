"""`composer-replication normalize`: preference pairs through a recipe of data-juicer operators."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table


def normalize(
    pairs: Annotated[
        Path, typer.Argument(metavar="PAIRS", help="A JSONL file of pairs, as `pairs` writes it.", show_default=False)
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            dir_okay=False,
            help="Output file (.jsonl), in the form of the input.",
            show_default=False,
        ),
    ],
    preference: Annotated[
        Path | None,
        typer.Option(metavar="FILE", dir_okay=False, help="Also in TRL's preference format: .jsonl or .parquet."),
    ] = None,
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
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
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
        _show(Console(emoji=False, highlight=False), made.report, output, up_to_date=made.up_to_date)
    if not made.report["pairs_out"]:
        raise typer.Exit(1)


def _show(console: Console, report: dict[str, Any], output: Path, *, up_to_date: bool) -> None:
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
