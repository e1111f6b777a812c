"""`composer-replication quickstart`: the three loss channels at work on a small model."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table


def quickstart(
    steps: Annotated[int, typer.Option(min=2, help="Optimiser steps.")] = 20,
    template: Annotated[Literal["qwen2_5", "llama3_1"], typer.Option(help="Whose chat template.")] = "qwen2_5",
    seed: Annotated[int, typer.Option(help="Of the random model and of the traces.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Train a small random model on two short agent traces, with all three channels live.

    Needs no download and no accelerator. Shows for every step each channel's loss and how many tokens it saw.
    """
    import torch

    from composer_replication._tiny import run_loss_demo

    torch.set_num_threads(1)  # for a model this small, handing work to a second thread costs more than the work
    demo = run_loss_demo(steps=steps, template=template, seed=seed)
    if as_json:
        typer.echo(json.dumps({"steps": [asdict(step) for step in demo]}))
        return
    console = Console()
    table = Table("step", "trace", "total", "lm_ce (tokens)", "sdpo_jsd (tokens)", "trace_replay_dpo (tokens)")
    totals: dict[str, list[float]] = {}
    for step in track(demo, "Training", total=steps, console=console, transient=True):
        channels = [f"{step.losses[name]:.4f} ({tokens})" for name, tokens in step.active_tokens.items()]
        table.add_row(str(step.step), step.batch, f"{step.losses['total']:.4f}", *channels)
        totals.setdefault(step.batch, []).append(step.losses["total"])
    console.print(table)
    for name, values in totals.items():
        console.print(f"{name}: total loss {values[0]:.4f} → {values[-1]:.4f}")
