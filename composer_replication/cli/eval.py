"""`composer-replication eval`: a model on tasks or logs that it was not trained on, alone or against another."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
import yaml
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    from composer_replication.evaluation.episodes import EpisodeEvaluation
    from composer_replication.evaluation.logs import LogEvaluation
    from composer_replication.evaluation.overlap import Trained
    from composer_replication.evaluation.results import Evaluation

_TASKS, _LOGS, _OUTPUT = "With an environment", "With logs", "Results"


def evaluate(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A run that `train` wrote (its newest checkpoint), a folder with a checkpoint or a LoRA adapter, a "
            "model's id on the hub, or smollm2.",
            show_default=False,
        ),
    ],
    env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="house_style, python_tasks, module:Class or path.py:Class.",
            rich_help_panel=_TASKS,
        ),
    ] = None,
    traces: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A folder that `ingest` wrote.", rich_help_panel=_LOGS)
    ] = None,
    pairs: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Pairs of `pairs` or `normalize`. Repeatable.", rich_help_panel=_LOGS),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="MODEL|DIR", help="Another model, or its saved results, to compare with."),
    ] = None,
    trained_on: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="What MODEL was trained on, if it is not in a run: a run, traces, or a file of tasks or pairs.",
        ),
    ] = None,
    n: Annotated[int, typer.Option("--n", min=1, help="Maximum number of tasks.", rich_help_panel=_TASKS)] = 100,
    k: Annotated[int, typer.Option("--k", min=1, help="Also report pass@k.", rich_help_panel=_TASKS)] = 1,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Episodes of each task. (default: k)", rich_help_panel=_TASKS)
    ] = None,
    tasks: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Tasks as .jsonl or .parquet: a `prompt` a row, and the columns that reset reads.",
            rich_help_panel=_TASKS,
        ),
    ] = None,
    split: Annotated[
        Literal["held_out", "dev", "train"],
        typer.Option(help="Part of the tasks of a built-in environment.", rich_help_panel=_TASKS),
    ] = "held_out",
    env_arg: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Argument of the environment. Repeatable.", rich_help_panel=_TASKS),
    ] = None,
    task_arg: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Argument of the task generator. Repeatable.", rich_help_panel=_TASKS),
    ] = None,
    pass_reward: Annotated[
        float, typer.Option(help="An episode with this reward has passed.", rich_help_panel=_TASKS)
    ] = 1.0,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="Of sampling; 0 takes the likeliest token.", rich_help_panel=_TASKS)
    ] = 1.0,
    max_tokens: Annotated[
        int,
        typer.Option(min=1, help="Maximum tokens of an episode, results of tools included.", rich_help_panel=_TASKS),
    ] = 1024,
    held_out_share: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Share of the sessions that is held out. (default: data.held_out of the run)",
            rich_help_panel=_LOGS,
        ),
    ] = None,
    use_all: Annotated[
        bool, typer.Option("--all", help="Use all sessions: training has seen none of them.", rich_help_panel=_LOGS)
    ] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Episodes, or rows of logs, at once.")] = 16,
    seed: Annotated[int, typer.Option(min=0, help="Of the tasks, the sampling and the intervals.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            file_okay=False,
            help="Write results.jsonl and summary.json.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    save_samples: Annotated[
        bool, typer.Option("--save-samples", help="Keep the messages of every episode.", rich_help_panel=_OUTPUT)
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of tables.", rich_help_panel=_OUTPUT)
    ] = False,
) -> None:
    """Evaluate a model on tasks or logs that it was not trained on, with 95 % intervals.

    With --env, the model acts on held-out tasks: pass rates and rewards. With --traces or --pairs, nothing is
    generated: it is measured how likely the model finds turns that erred, their corrections, good turns, and the two
    sides of pairs. --against compares with another model on the same tasks or sessions, by a paired test.

    Tasks or sessions that MODEL or the other model was trained on are refused.

    Exit code 1: the model or the data cannot be used, or training has seen the data.
    """
    from composer_replication.cli.train import quiet_loading
    from composer_replication.evaluation import overlap
    from composer_replication.evaluation.results import is_saved, read_results, summarised, write_results

    if (env is not None) + (traces is not None or bool(pairs)) != 1:
        raise typer.BadParameter("give --env, or logs with --traces or --pairs")
    if held_out_share is not None and use_all:
        raise typer.BadParameter("give --held-out-share or --all, not both")
    quiet_loading()
    saved = read_results(Path(against)) if against is not None and is_saved(Path(against)) else None
    named = (
        overlap.trained_by_run(model) if trained_on is None else overlap.trained_on(trained_on, tasks=env is not None)
    )
    rival = overlap.trained_by_run(against) if against is not None and saved is None else None
    trained = [one for one in (named, rival) if one is not None]
    subject: EpisodeEvaluation | LogEvaluation
    if env is not None:
        from composer_replication.evaluation.episodes import EpisodeEvaluation
        from composer_replication.generation.episodes import EpisodeSettings

        subject = EpisodeEvaluation.of_environment(
            env,
            tasks=tasks,
            split=split,
            n=n,
            samples=k if samples is None else samples,
            k=k,
            pass_reward=pass_reward,
            seed=seed,
            arguments=_values("--env-arg", env_arg),
            task_arguments=_values("--task-arg", task_arg),
            playing=EpisodeSettings(temperature=temperature, max_completion_length=max_tokens),
            batch_size=batch_size,
            save_samples=save_samples,
        )
        for one in trained:
            overlap.check_tasks(subject.tasks, one)
    else:
        from composer_replication.evaluation.logs import LogEvaluation

        share = next((one.data.held_out for one in trained if one.data.held_out), None)
        subject = LogEvaluation.of_files(
            traces,
            pairs or (),
            trained=trained,
            share=None if use_all else share if held_out_share is None else held_out_share,
            config=named.config if named is not None else None,
            batch_size=batch_size,
        )
    ours, theirs = _evaluated(subject, model, against, saved, device, shown=not as_json)
    summary = summarised(ours, theirs, subject.measures, seed=seed) | _gap(env, named, ours)
    if output is not None:
        write_results(output, summary, ours, theirs)
    if as_json:
        typer.echo(json.dumps(summary, indent=2))
        return
    console = Console(emoji=False, highlight=False)
    _show(console, summary)
    for warning in getattr(subject, "warnings", ()):
        console.print(f"[yellow]warning:[/] {escape(warning)}")
    if output is not None:
        console.print(f"results: {escape(str(output))}", soft_wrap=True)


def _values(option: str, given: Sequence[str] | None) -> dict[str, Any]:
    values = {}
    for one in given or ():
        name, equals, text = one.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{option}: {one!r} must look like KEY=VALUE")
        values[name] = yaml.safe_load(text)
    return values


def _evaluated(
    subject: EpisodeEvaluation | LogEvaluation,
    model: str,
    against: str | None,
    saved: Evaluation | None,
    device: str,
    *,
    shown: bool,
) -> tuple[Evaluation, Evaluation | None]:
    """Evaluate one model after the other: only one is in memory at a time."""
    from composer_replication.evaluation.models import load_evaluated
    from composer_replication.evaluation.results import Evaluation

    errors = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    made: list[Evaluation] = []
    tokenizer: Any = None
    with Progress(*columns, console=errors, transient=True, disable=not (shown and errors.is_terminal)) as progress:
        for name in [model] if against is None or saved is not None else [model, against]:
            bar = progress.add_task(f"Loading {escape(name)}", total=None)
            loaded, tokenizer = load_evaluated(name, device=device, like=tokenizer)
            progress.update(bar, description=f"Evaluating {escape(name)}")

            def came(done: int, total: int, bar: Any = bar) -> None:
                progress.update(bar, completed=done, total=total)

            outcomes = subject.outcomes(loaded, tokenizer, came)
            made.append(Evaluation(subject.kind, name, dict(subject.settings), outcomes))
            del loaded
    ours, *others = made
    return ours, saved or next(iter(others), None)


def _gap(env: str | None, trained: Trained | None, ours: Evaluation) -> dict[str, Any]:
    """Compare the reward of the last training steps with that on the tasks here."""
    from composer_replication.evaluation.overlap import training_reward

    reward = training_reward(trained) if env is not None and trained is not None else None
    if reward is None:
        return {}
    held_out = sum(one["reward"] for one in ours.outcomes) / len(ours.outcomes)
    return {"training": {"reward": reward, "held_out_reward": held_out, "gap": reward - held_out}}


def _show(console: Console, summary: dict[str, Any]) -> None:
    against, differences = summary.get("against"), summary.get("differences", {})
    table = Table("", *(["MODEL"] if against is None else ["MODEL", "against", "difference", "p"]))
    for column in table.columns[1:]:
        column.justify = "right"
    for name, one in summary["measures"].items():
        cells = [name.replace("_", " "), _interval(one["value"], one)]
        if against is not None:
            other, difference = against["measures"].get(name), differences.get(name)
            cells.append("" if other is None else _interval(other["value"], other))
            cells += (
                ["", ""]
                if difference is None
                else [
                    _interval(difference["difference"], difference, sign="+"),
                    f"{difference['p_value']:.3g}",
                ]
            )
        table.add_row(*cells)
    console.print(table)
    clusters = next(iter(summary["measures"].values()))["clusters"]
    what = "tasks" if summary["kind"] == "environment" else "sessions"
    console.print(f"{clusters:,} {what}; 95 % intervals over {what}", soft_wrap=True)
    if against is not None:
        console.print(f"MODEL: {escape(summary['model'])}; against: {escape(against['model'])}", soft_wrap=True)
    if gap := summary.get("training"):
        console.print(
            f"reward in the last training steps {gap['reward']:.3f}, here {gap['held_out_reward']:.3f}: "
            f"a gap of {gap['gap']:+.3f}"
        )


def _interval(value: float, ends: dict[str, Any], sign: str = "") -> str:
    low, high = ends["low"], ends["high"]
    between = "" if low is None or high is None else f" [{low:{sign}.3f}, {high:{sign}.3f}]"
    return escape(f"{value:{sign}.3f}{between}")
