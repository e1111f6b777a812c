"""Pairs for the tests of replaysim, and recipes on the disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

LONG_ENOUGH = "Read the failing test before anything else."


def pair(number: int = 0, chosen: str = LONG_ENOUGH, rejected: str = "Rewrite the module at once.", **more: Any) -> Any:
    """A pair that the default recipe keeps, unless it is told otherwise; each number is a state of its own."""
    return {
        "state_id": f"state-{number:03d}",
        "state_messages": [{"role": "user", "content": f"Task {number}"}],
        "chosen": chosen,
        "rejected": rejected,
        "n_teachers_agreeing": 2,
        **more,
    }


def call(command: str) -> str:
    """An action that runs a command."""
    return f'[TOOL_USE] name=Bash input={{"command": "{command}"}}'


def recipe_file(folder: Path, *steps: str) -> Path:
    """A recipe of these steps, each a line of YAML."""
    path = folder / "recipe.yaml"
    path.write_text("process:\n" + "".join(f"  - {step}\n" for step in steps) if steps else "process: []", "utf-8")
    return path
