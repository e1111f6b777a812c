"""`composer-replication quickstart`: the three loss channels on a small model."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from composer_replication._optional import EXTRAS, install_command, require_all

if TYPE_CHECKING:
    from composer_replication._tiny.loss_demo import DemoStep
    from composer_replication._tiny.sample_replay import SampleReplay


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
