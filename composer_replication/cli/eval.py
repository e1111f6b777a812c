"""`composer-replication eval`: a model on tasks or logs that it was not trained on, alone or against another."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    from composer_replication.evaluation.episodes import EpisodeEvaluation
    from composer_replication.evaluation.logs import LogEvaluation
    from composer_replication.evaluation.results import Evaluation


def _acting(text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel="With an environment", **more)


def _logged(text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel="With logs", **more)


_MODEL = (
    "A run that `train` wrote (its newest checkpoint), a folder with a checkpoint or a LoRA adapter, a model's id on "
)
_MODEL += "the hub, smollm2 or laboratory."
_ENV = "house_style, python_tasks, module:Class or path.py:Class."
_TRAINED_ON = "What MODEL was trained on, if it is not in a run: a run, traces, or a file of tasks or pairs."
_TASKS = "Tasks, .jsonl or .parquet: a `prompt` a row, and the columns that reset reads."
_SHARE = "Share of the sessions that is held out. (default: data.held_out of the run, or all)"
_AN_ARGUMENT = {"metavar": "KEY=VALUE"}
_A_FILE = {"metavar": "FILE", "exists": True}


def evaluate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=_MODEL, show_default=False)],
    env: Annotated[str | None, _acting(_ENV, metavar="NAME")] = None,
    traces: Annotated[Path | None, _logged("A folder that `ingest` wrote.", metavar="DIR", exists=True)] = None,
    pairs: Annotated[list[Path] | None, _logged("Pairs of `pairs` or `normalize`. Repeatable.", **_A_FILE)] = None,
    against: Annotated[
        str | None, typer.Option(metavar="MODEL|DIR", help="Another model, or its saved results, to compare with.")
    ] = None,
    trained_on: Annotated[Path | None, typer.Option(metavar="PATH", exists=True, help=_TRAINED_ON)] = None,
    n: Annotated[int, _acting("Maximum number of tasks.", "--n", min=1)] = 100,
    k: Annotated[int, _acting("Also report pass@k.", "--k", min=1)] = 1,
    samples: Annotated[int | None, _acting("Episodes of each task. (default: k)", min=1)] = None,
    tasks: Annotated[Path | None, _acting(_TASKS, **_A_FILE)] = None,
    split: Annotated[
        Literal["held_out", "dev", "train"], _acting("Part of the tasks of a built-in environment.")
    ] = "held_out",
    env_arg: Annotated[list[str] | None, _acting("Argument of the environment. Repeatable.", **_AN_ARGUMENT)] = None,
    task_arg: Annotated[
        list[str] | None, _acting("Argument of the task generator. Repeatable.", **_AN_ARGUMENT)
    ] = None,
    pass_reward: Annotated[float, _acting("An episode with this reward, or more, has passed.")] = 1.0,
    temperature: Annotated[float, _acting("Of sampling; 0 takes the likeliest token.", min=0.0)] = 1.0,
    max_tokens: Annotated[int, _acting("Maximum tokens of an episode, results of tools included.", min=1)] = 1024,
    held_out_share: Annotated[float | None, _logged(_SHARE, min=0.0, max=1.0)] = None,
    use_all: Annotated[bool, _logged("Use all sessions: training has seen none of them.", "--all")] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Episodes, or rows of logs, at once.")] = 16,
    seed: Annotated[int, typer.Option(min=0, help="Of the tasks, the sampling and the intervals.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", file_okay=False, help="Write results.jsonl and summary.json."),
    ] = None,
    save_samples: Annotated[bool, _acting("Write the messages of every episode, too.", "--save-samples")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Evaluate a model on tasks or logs that it was not trained on, with 95 % intervals.

    With --env, the model acts on held-out tasks: pass rates and rewards. With --traces or --pairs, nothing is
    generated: it is measured how likely the model finds turns that erred, their corrections, good turns, and the two
    sides of pairs. --against compares with another model on the same tasks or sessions, by a paired test.

    Tasks or sessions that MODEL or the other model was trained on are refused.

    Exit code 1: the model or the data cannot be used, or training has seen the data.
    """
    from composer_replication.cli.train import quiet_loading
    from composer_replication.envs import registry
    from composer_replication.evaluation import overlap
    from composer_replication.evaluation.models import checkpoint_of
    from composer_replication.evaluation.results import is_saved, read_results, summarised, write_results

    if (env is not None) + (traces is not None or bool(pairs)) != 1:
        raise typer.BadParameter("give --env, or logs with --traces or --pairs")
    if env is not None and ":" not in env and env not in registry.NAMES:
        known = ", ".join(registry.NAMES)
        raise typer.BadParameter(f"--env: there is no environment {env!r}: give {known}, module:Class or path.py:Class")
    if k > (samples or k):
        raise typer.BadParameter(f"--k {k} needs as many samples of each task, and --samples is {samples}")
    if held_out_share is not None and use_all:
        raise typer.BadParameter("give --held-out-share or --all, not both")
    if save_samples and output is None:
        raise typer.BadParameter("--save-samples needs a folder to write to: give -o DIR")
    quiet_loading()
    models = [checkpoint_of(model)]
    saved = read_results(Path(against)) if against is not None and is_saved(Path(against)) else None
    if against is not None and saved is None:
        models.append(checkpoint_of(against))
    trained = [overlap.trained_by_run(name) for name in models]
    if trained_on is not None:
        trained[0] = overlap.trained_on(trained_on, tasks=env is not None)
    known_data = [one for one in trained if one is not None]
    subject: EpisodeEvaluation | LogEvaluation
    if env is not None:
        from composer_replication.evaluation.episodes import EpisodeEvaluation
        from composer_replication.generation.episodes import EpisodeSettings

        subject = EpisodeEvaluation.of_environment(
            env,
            tasks=tasks,
            split=split,
            n=n,
            samples=samples or k,
            k=k,
            pass_reward=pass_reward,
            seed=seed,
            arguments=_values("--env-arg", env_arg),
            task_arguments=_values("--task-arg", task_arg),
            playing=EpisodeSettings(temperature=temperature, max_completion_length=max_tokens),
            batch_size=batch_size,
            save_samples=save_samples,
        )
        for one in known_data:
            overlap.check_tasks(subject.tasks, one)
    else:
        from composer_replication.evaluation.logs import LogEvaluation

        share = next((one.data.held_out for one in known_data if one.data.held_out), None)
        subject = LogEvaluation.of_files(
            traces,
            pairs or (),
            trained=known_data,
            share=None if use_all else share if held_out_share is None else held_out_share,
            config=trained[0].config if trained[0] is not None else None,
            batch_size=batch_size,
        )
    ours, theirs = [*_evaluations(subject, models, device, shown=not as_json), saved][:2]
    assert ours is not None
    summary = summarised(ours, theirs, subject.measures, seed=seed) | {"warnings": subject.warnings}
    if env is not None and trained[0] is not None:
        summary["training"] = overlap.training_gap(trained[0], summary["measures"]["reward"]["value"])
    if output is not None:
        write_results(output, summary, ours, theirs)
    if as_json:
        typer.echo(json.dumps(summary, indent=2))
    else:
        _show(Console(emoji=False, highlight=False), summary, output)


def _values(option: str, given: Sequence[str] | None) -> dict[str, Any]:
    import yaml

    values = {}
    for one in given or ():
        name, equals, text = one.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{option}: {one!r} must look like KEY=VALUE")
        values[name] = yaml.safe_load(text)
    return values


def _evaluations(
    subject: EpisodeEvaluation | LogEvaluation, models: Sequence[str], device: str, *, shown: bool
) -> Iterator[Evaluation]:
    """Evaluate one model after the other: only one is in memory at a time."""
    from composer_replication.evaluation.models import load_evaluated
    from composer_replication.evaluation.results import Evaluation

    errors = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    tokenizer: Any = None
    with Progress(*columns, console=errors, transient=True, disable=not (shown and errors.is_terminal)) as progress:
        for name in models:
            bar = progress.add_task(f"Loading {escape(name)}", total=None)

            def came(done: int, total: int, bar: TaskID = bar, name: str = name) -> None:
                progress.update(bar, completed=done, total=total, description=f"Evaluating {escape(name)}")

            model, tokenizer = load_evaluated(name, device=device, like=tokenizer)
            outcomes = subject.outcomes(model, tokenizer, came)
            del model
            yield Evaluation(subject.kind, name, dict(subject.settings), outcomes)


def _show(console: Console, summary: dict[str, Any], output: Path | None) -> None:
    against, differences = summary.get("against") or {}, summary.get("differences") or {}
    unit = "tasks" if summary["kind"] == "environment" else "sessions"
    table = Table("", unit, "MODEL", *(["against", "difference", "p"] if against else []))
    for column in table.columns[1:]:
        column.justify = "right"
    for name, one in summary["measures"].items():
        cells = [name.replace("_", " "), f"{one['clusters']:,}", _interval(one["value"], one)]
        if name in differences:
            other, difference = against["measures"][name], differences[name]
            cells += [_interval(other["value"], other), _interval(difference["difference"], difference, "+")]
            cells.append(f"{difference['p_value']:.3g}")
        table.add_row(*cells)
    console.print(table)
    rival = f"; against: {escape(against['model'])}" if against else ""
    console.print(f"95 % intervals over {unit}; MODEL: {escape(summary['model'])}{rival}", soft_wrap=True)
    if gap := summary.get("training"):
        console.print(
            "reward in the last training steps {training_reward:.3f}, here {held_out_reward:.3f}".format(**gap)
        )
    for warning in summary["warnings"]:
        console.print(f"[yellow]warning:[/] {escape(warning)}", soft_wrap=True)
    if output is not None:
        console.print(f"results: {escape(str(output))}", soft_wrap=True)


def _interval(value: float, ends: dict[str, Any], sign: str = "") -> str:
    low, high = ends["low"], ends["high"]
    between = "" if low is None or high is None else f" [{low:{sign}.3f}, {high:{sign}.3f}]"
    return escape(f"{value:{sign}.3f}{between}")
