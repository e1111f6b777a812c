"""`composer-replication warm-up`: teach a model the form of an environment's tool calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def warm_up(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A folder with a whole model, an id on the hub, smollm2 or laboratory."),
    ],
    environment: Annotated[str, typer.Option("--env", help="An environment that has lessons: house_style.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="A new folder for the model.")],
    steps: Annotated[int, typer.Option(min=1, help="Optimiser steps.")] = 30,
    batch_size: Annotated[int, typer.Option(min=1, help="Lessons per step; each is seen once.")] = 1,
    lora_r: Annotated[int, typer.Option(min=0, help="Rank of adapters, merged at the end; 0: every weight.")] = 16,
    learning_rate: Annotated[
        float | None, typer.Option("--lr", help="Learning rate.", show_default="0.001; for every weight 0.0001")
    ] = None,
    chat_template: Annotated[
        str, typer.Option(help="keep: the model's own; qwen2_5 or another that trl ships; or a Jinja file.")
    ] = "keep",
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of lessons and adapters.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Teach a model the form of tool calls, before reinforcement learning.

    A model that makes no call that can be read earns no reward. The lessons are conversations with right calls, with
    and without hints and errors, in tasks of the train split; in house_style every one is in another house, so that no
    house's names are learned. DIR gets the whole model with its tokenizer and chat template, for `train`,
    `serve-teacher` and any other program.
    """
    from composer_replication.cli.train import quiet_loading
    from composer_replication.cli.train_views import StepProgress
    from composer_replication.run.sections import LoraSection, ModelSection
    from composer_replication.run.warm_up import warm_up as run_warm_up

    quiet_loading()
    adapters = LoraSection(r=lora_r, alpha=2 * lora_r) if lora_r else None
    with StepProgress(Console(stderr=True, highlight=False), steps, is_shown=not as_json) as progress:
        losses = run_warm_up(
            ModelSection(name=model, chat_template=chat_template, lora=adapters),
            environment,
            output,
            steps=steps,
            batch_size=batch_size,
            learning_rate=learning_rate,
            seed=seed,
            on_log=progress.came,
        )
    if as_json:
        typer.echo(json.dumps({"output_dir": str(output), "steps": steps, "losses": losses}))
    else:
        typer.echo(f"{steps:,} steps, loss {losses[0]:.4f} at first, {losses[-1]:.4f} at last")
        typer.echo(f"model, for AutoModelForCausalLM.from_pretrained: {output}")
