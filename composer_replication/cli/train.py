"""`composer-replication init` and `train`: write a first configuration, and train the three channels by one."""

from __future__ import annotations

import json
import shlex
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from composer_replication.cli.pairs import AsJson

if TYPE_CHECKING:
    from composer_replication.config import Config, ConfigError
    from composer_replication.run.dry_run import DryRun
    from composer_replication.run.launch import RunResult, TrainingRun

_INTERRUPTED = 130

Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a setting of the file: training.steps=200. Repeatable."),
]


def init(
    example: Annotated[
        Literal["logs", "environment"],
        typer.Argument(
            help="logs: learn from an agent's logs. environment: learn in an environment with tools and rewards."
        ),
    ] = "logs",
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", file_okay=False, help="Where to write the files.")
    ] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Write a commented configuration for `train`, with the files that it needs, and show the next commands.

    logs writes train.yaml; environment writes train_environment.yaml, house.py (an environment to replace by your own)
    and tasks.jsonl. All of them are written, or none.

    Exit code 1: a file exists already.
    """
    from composer_replication.examples import header, write_example

    written = write_example(example, output, overwrite=force)
    typer.echo(f"wrote {', '.join(map(str, written))}\n")
    if output.resolve() != Path.cwd():
        typer.echo(f"Paths in it are relative to the working directory: cd {shlex.quote(str(output))}\n")
    typer.echo(header(written[0]))


def train(
    config: Annotated[
        Path | None,
        typer.Argument(
            metavar="CONFIG", help="A YAML file; `composer-replication init` writes one.", show_default=False
        ),
    ] = None,
    overrides: Overrides = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan (config, data, memory, channels) without training.")
    ] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of CONFIG, for editors.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a model with GRPO, hint self-distillation and preference pairs.

    With an environment, the model acts in it, and channel 2 trains the turns that go wrong; without one, the turns of
    the logs that went wrong. The run directory gets the resolved config, metrics.jsonl, checkpoints and, with an
    environment, samples.jsonl. The same command again resumes from the newest checkpoint. Ctrl-C writes a checkpoint
    and stops; a second one stops at once.

    A terminal shows a progress bar; elsewhere every logged step is a line on standard error. At the end there is a
    summary of each channel, and the folder that AutoModelForCausalLM, or AutoPeftModelForCausalLM, loads.

    Exit code 2: the configuration is invalid; each problem is one line.
    """
    from composer_replication.config import ConfigError, config_schema, load_config
    from composer_replication.run.configuration import is_first_process

    if schema:
        typer.echo(json.dumps(config_schema(), indent=2))
        return
    if config is None:
        raise typer.BadParameter("CONFIG is missing: a YAML file; `composer-replication init` writes one to start from")
    try:
        loaded = load_config(config, overrides or ())
    except FileNotFoundError as error:
        raise typer.BadParameter(str(error)) from None
    except ConfigError as error:
        show_problems(error)
        raise typer.Exit(2) from None
    quiet_loading()
    if dry_run:
        _plan(loaded, as_json=as_json)
        return
    speaks = is_first_process()
    result, stopped = _train(loaded, show_progress=speaks and not as_json)
    if speaks and as_json:
        figures = {
            "output_dir": str(result.output_dir),
            "checkpoint": str(result.checkpoint),
            "resumed_from_step": result.resumed_from,
            "steps": result.steps,
            "metrics": dict(result.metrics),
        }
        typer.echo(json.dumps(figures, indent=2))
    elif speaks:
        _show_result(Console(emoji=False, highlight=False), result, loaded)
    if stopped:
        raise typer.Exit(_INTERRUPTED)


def _show_result(console: Console, result: RunResult, config: Config) -> None:
    from composer_replication.cli.train_views import already_finished, logged_steps, show_channels

    show_channels(console, logged_steps(result.output_dir / "metrics.jsonl"))
    steps = config.training.steps
    loader = "AutoModelForCausalLM" if config.model.lora is None else "AutoPeftModelForCausalLM"
    if result.steps == result.resumed_from:
        console.print(already_finished(result.steps, steps), soft_wrap=True)
    else:
        since = f" (resumed from {result.resumed_from:,})" if result.resumed_from else ""
        console.print(f"step {result.steps:,} of {steps:,}{since}: {escape(str(result.output_dir))}", soft_wrap=True)
    console.print(f"model, for {loader}.from_pretrained: {escape(str(result.checkpoint))}", soft_wrap=True)


def show_problems(error: ConfigError) -> None:
    """Print a line for each problem of a configuration."""
    errors = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)
    for problem in error.problems:
        line = "".join(letter if letter.isprintable() else "\ufffd" for letter in f"{error.source}: {problem}")
        errors.print(f"[red]error:[/] {escape(line)}")


def quiet_loading() -> None:
    """Turn off the progress bars of the libraries and TRL's warning for developers."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    warnings.filterwarnings("ignore", message="You are using 'environment_factory'")


def _plan(config: Config, *, as_json: bool) -> None:
    from composer_replication.run.dry_run import dry_run

    with Console(stderr=True).status("Looking at the data and the model"):
        plan = dry_run(config)
    if as_json:
        typer.echo(json.dumps(plan.as_dict(), indent=2))
    else:
        _show_plan(Console(emoji=False, highlight=False), plan)


def _show_plan(console: Console, plan: DryRun) -> None:
    console.print(plan.config.to_yaml(), markup=False, soft_wrap=True)
    if plan.counts:
        data = Table("data", "count")
        data.columns[1].justify = "right"
        for source, counts in plan.counts.items():
            for name, count in counts.items():
                label = name.replace("_", " ")
                data.add_row(label if name == source else f"  {label}", f"{count:,}")
        console.print(data)
    memory = Table("memory, estimated", "GB")
    memory.columns[1].justify = "right"
    figures = plan.memory.as_dict()
    for name in ("weights", "gradients", "optimizer", "teacher", "reference", "activations"):
        memory.add_row(name, f"{figures[name] / 1e9:,.2f}")
    memory.add_row("in all, per device", f"{figures['total'] / 1e9:,.2f}", style="bold")
    console.print(memory)
    console.print(
        f"{figures['parameters']:,} parameters, {figures['trainable_parameters']:,} of them trained; this is an "
        "estimate: activations depend on lengths and kernels, and generation needs a cache on top"
    )
    channels = Table("channel", "weight", "live", "why")
    for channel in plan.channels:
        weight = "" if channel.weight is None else f"{channel.weight:g}"
        channels.add_row(channel.channel, weight, "yes" if channel.live else "no", escape(channel.why))
    console.print(channels)
    if plan.resumes_from:
        steps = plan.config.training.steps
        would = "resume from" if plan.resumes_from < steps else "train nothing: finished at"
        console.print(f"would {would} step {plan.resumes_from:,}: {escape(str(plan.config.training.output_dir))}")


def _train(config: Config, *, show_progress: bool) -> tuple[RunResult, bool]:
    from composer_replication.cli.train_views import StepProgress
    from composer_replication.run.launch import TrainingRun

    errors = Console(stderr=True, highlight=False)
    with StepProgress(errors, config.training.steps, is_shown=show_progress) as progress:
        run = TrainingRun(config, on_log=progress.came)
        progress.begin(run.resumes_from)
        with _gentle_interrupt(run, errors):
            result = run.run()
    return result, run.stopped


@contextmanager
def _gentle_interrupt(run: TrainingRun, errors: Console) -> Iterator[None]:
    """The first Ctrl-C asks the run to write a checkpoint and end; the second ends it as usual."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:  # nohup
        yield
        return

    def interrupted(*_: Any) -> None:
        signal.signal(signal.SIGINT, before)
        run.stop()
        errors.print("stopping after this step, with a checkpoint (Ctrl-C again stops at once)")

    try:
        signal.signal(signal.SIGINT, interrupted)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
