"""The first steps: `composer-replication doctor` (which parts work here, and how to install the others), `quickstart` (the
three loss channels on a small model) and `init` (a first configuration for `train`)."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from composer_replication._optional import EXTRAS, install_command, require_all
from composer_replication.doctor import Diagnosis, diagnose

if TYPE_CHECKING:
    from composer_replication._tiny.loss_demo import DemoStep
    from composer_replication._tiny.sample_replay import SampleReplay


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
    imports: Annotated[
        bool, typer.Option("--imports/--no-imports", help="Import every installed extra to see that it works.")
    ] = True,
) -> None:
    """Show which packages and extras work, and how to install the others.

    Exit code 1: a core package is missing or of the wrong version. Missing extras are not an error.
    """
    console = Console()
    if as_json:
        diagnosis = diagnose(imports=imports)
        typer.echo(json.dumps(diagnosis.as_dict(), indent=2))
    else:
        with console.status("Looking around…"):
            diagnosis = diagnose(imports=imports)
        _show_diagnosis(console, diagnosis)
    if not diagnosis.healthy:
        raise typer.Exit(1)


def _show_diagnosis(console: Console, diagnosis: Diagnosis) -> None:
    console.print(f"composer-replication {diagnosis.version} on Python {diagnosis.python}, {diagnosis.platform}")
    console.print(
        f"{diagnosis.cores} cores, {diagnosis.memory_gib} GiB of memory, accelerator: {diagnosis.accelerator}"
    )
    console.print(f"bfloat16 on the CPU: {diagnosis.bfloat16}\n")
    core = Table("core package", "installed", "required")
    for package in diagnosis.core:
        core.add_row(package.name, _mark(package.fits, package.installed or "missing"), package.required)
    console.print(core)
    extras = Table("extra", "for", "state")
    for extra in diagnosis.extras:
        versions = ", ".join(f"{package.name} {package.installed}" for package in extra.packages)
        state = _mark(extra.works, versions if extra.works else extra.problem)
        extras.add_row(extra.name, extra.purpose, state + (f"\n{escape(extra.note)}" if extra.note else ""))
    console.print(extras)
    console.print(f"Weights of the model smollm2: {diagnosis.smollm2}", markup=False, soft_wrap=True)
    console.print(f"To install an extra: {install_command('EXTRA')}", markup=False, soft_wrap=True)


def _mark(good: bool, text: str) -> str:
    return f"[green]{escape(text)}[/]" if good else f"[yellow]{escape(text)}[/]"


def quickstart(
    steps: Annotated[int, typer.Option(min=2, help="Optimiser steps.")] = 20,
    alpha_sdpo: Annotated[float, typer.Option(min=0.0, max=1000.0, help="Weight of hint self-distillation.")] = 1.0,
    beta_replay: Annotated[float, typer.Option(min=0.0, max=1000.0, help="Weight of the preference pairs.")] = 0.5,
    template: Annotated[Literal["qwen2_5", "llama3_1"], typer.Option(help="The chat template.")] = "qwen2_5",
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of the random model and of the traces.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Train a small model out of a wrong tool call, with all three loss channels.

    Two sample traces contain a wrong call. Three local teachers, served over HTTP on this machine, are asked what they
    would have done; where they agree against the student, there is a preference pair. A random model is taught to make
    the wrong calls, and to make the right ones after a hint. Then it trains on the traces and the pairs, and the table
    shows whether it makes the right call without the hint.

    Needs no download and no accelerator. Set a weight to 0 to see the other channels alone; without the preference
    pairs, no teacher is asked.
    """
    require_all({"train": ["trl"], "replay": EXTRAS["replay"].modules if beta_replay else ()})
    import torch

    from composer_replication._tiny import run_loss_demo

    torch.set_num_threads(1)  # for a model this small, a second thread costs more than it saves
    console = Console()
    replay = None
    if beta_replay:
        from composer_replication._tiny import replay_samples

        replay = replay_samples(seed)
        if not as_json:
            _show_replay(console, replay)
    demo = run_loss_demo(
        steps=steps,
        template=template,
        alpha_sdpo=alpha_sdpo,
        beta_replay=beta_replay,
        seed=seed,
        pairs=replay.pairs if replay is not None else None,
    )
    if as_json:
        figures = replay.as_dict() if replay is not None else None
        typer.echo(json.dumps({"replay": figures, "steps": [asdict(step) for step in demo]}))
        return
    table = Table("step", "trace", "total", "lm_ce", "sdpo_jsd", "replay_dpo", "p(right)")
    by_trace: dict[str, list[DemoStep]] = {}
    for step in track(demo, "Warming up, then training", total=steps, console=console, transient=True):
        losses = [f"{step.losses[name]:.4f}" for name in ("total", *step.active_tokens)]
        table.add_row(str(step.step), step.trace, *losses, f"{step.right_call:.3f}")
        by_trace.setdefault(step.trace, []).append(step)
    console.print(table)
    for trace, its_steps in by_trace.items():
        tokens = ", ".join(f"{name} {count}" for name, count in its_steps[0].active_tokens.items())
        console.print(f"{trace}: tokens behind each loss: {tokens}")
        before, after = its_steps[0].right_call, its_steps[-1].right_call
        console.print(f"{trace}: probability of the right call without the hint: {before:.3f} → {after:.3f}")


def _show_replay(console: Console, replay: SampleReplay) -> None:
    asked = f"{len(replay.states)} states, {len(replay.answers)} calls, ${replay.cost_usd:.4f}"
    agreed = f"{replay.by_meaning} pairs by meaning, {replay.by_text} by text"
    kept = f"{len(replay.pairs)} kept by the recipe {replay.recipe}"
    if replay.recipe is None:
        kept = f"not normalised: that needs {install_command('replaysim')}"
    console.print(
        f"{len(replay.teachers)} local teachers at {replay.base_url}: {asked}; {agreed}; {kept}",
        markup=False,
        soft_wrap=True,
    )


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
