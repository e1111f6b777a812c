"""`composer-replication init`: a first configuration for `train`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer


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
