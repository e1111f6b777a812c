"""`composer-replication doctor`: which parts work here, and how to install the others."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from composer_replication._optional import install_command
from composer_replication.doctor import Diagnosis, diagnose


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
        _show(console, diagnosis)
    if not diagnosis.healthy:
        raise typer.Exit(1)


def _show(console: Console, diagnosis: Diagnosis) -> None:
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
    for name, state in diagnosis.models.items():
        console.print(f"The model {name}: {state}", markup=False, soft_wrap=True)
    console.print(f"Sandbox for model-written code: {diagnosis.sandbox}", markup=False, soft_wrap=True)
    console.print(f"To install an extra: {install_command('EXTRA')}", markup=False, soft_wrap=True)


def _mark(good: bool, text: str) -> str:
    return f"[green]{escape(text)}[/]" if good else f"[yellow]{escape(text)}[/]"
