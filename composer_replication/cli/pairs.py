"""`composer-replication pairs`: preference pairs from a replay, where teachers agree against the student."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from composer_replication.teacher_replay.action_judge import ActionJudge
    from composer_replication.teacher_replay.agreement.comparison import Comparer
    from composer_replication.teacher_replay.agreement.judge import JudgedComparer
    from composer_replication.teacher_replay.pair_report import PairReport
    from composer_replication.teacher_replay.records import DPOPair


def pairs(
    traces: Annotated[Path, typer.Argument(help="What was replayed: a folder of traces, or a JSONL file of states.")],
    replayed: Annotated[
        Path, typer.Option("--replay", "-r", metavar="DIR", help="The folder that `replay` wrote.", show_default=False)
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FILE", dir_okay=False, help="The pairs, a line each.", show_default=False
        ),
    ],
    preference: Annotated[
        Path | None,
        typer.Option(metavar="FILE", dir_okay=False, help="Also in TRL's preference format: .jsonl or .parquet."),
    ] = None,
    threshold: Annotated[int, typer.Option(min=1, help="How many teachers must agree.")] = 2,
    min_margin: Annotated[
        int, typer.Option(min=0, help="By how many they must outnumber the next best action; 1 drops ties.")
    ] = 0,
    agreement: Annotated[
        Literal["action", "exact"],
        typer.Option(help="action: the meaning of calls, the likeness of text. exact: the text, white space apart."),
    ] = "action",
    exclude_same_family: Annotated[
        bool, typer.Option("--exclude-same-family", help="Leave out teachers of the student's own model family.")
    ] = False,
    judge: Annotated[
        str | None,
        typer.Option(metavar="SLUG", help="A model that is asked about near misses, by its OpenRouter name."),
    ] = None,
    judges: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The judge as YAML or JSON, like a teacher; the first is taken.")
    ] = None,
    max_usd: Annotated[float, typer.Option(min=0.0, help="The cap on what the judge may cost in all.")] = 1.0,
    env_file: Annotated[Path | None, typer.Option(metavar="FILE", help="NAME=value lines that may hold keys.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Make a preference pair of every step where teachers agree on an action that is not the student's.

    Actions are compared by what they do: the tool, its arguments, a command without its quoting and cosmetic flags, an
    edit by its effect. Pairs carry thinking on neither side, and keep the teachers behind them, their margin and how
    alike their answers are. Run it again after more of a replay is done: the file is replaced as a whole.

    Exit code 1: there is no pair.
    """
    from composer_replication.teacher_replay.pair_files import PairFiles
    from composer_replication.teacher_replay.pair_report import PairReport
    from composer_replication.teacher_replay.replay_folder import ReplayFolder

    try:
        folder = ReplayFolder(replayed)
    except FileNotFoundError as error:
        raise typer.BadParameter(str(error)) from None
    if not traces.exists():
        raise typer.BadParameter(f"{traces}: there is no such folder of traces, or file of states")
    report = PairReport()
    with ExitStack() as stack:
        comparer, judged = _comparer(agreement, judge, judges, env_file, max_usd, folder, stack)
        files = stack.enter_context(PairFiles(output, preference))
        related: dict[str, str] = {}
        for one in _reports(traces, folder, comparer, threshold, min_margin, exclude_same_family, related):
            files.add(one.pairs)
            one.pairs.clear()
            report.add(one)
    figures: dict[str, Any] = {**report.as_dict(), "same_family": related, "judge": judged and judged.as_dict()}
    if as_json:
        typer.echo(json.dumps(figures, indent=2))
    else:
        _show(Console(emoji=False, highlight=False), report, related, exclude_same_family, output)
    if not report.pair_count:
        raise typer.Exit(1)
