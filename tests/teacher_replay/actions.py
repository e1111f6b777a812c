"""Actions for tests of agreement, written as texts: calls, the labelled pairs, and comparers that take texts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from composer_replication.teacher_replay.agreement.comparison import Comparer, Comparison
from composer_replication.traces import parse_action


def on_texts(comparer: Comparer) -> Callable[[str, str], Comparison]:
    """A comparer of the actions that texts stand for."""
    return lambda first, second: comparer(parse_action(first), parse_action(second))


def call(name: str, **arguments: Any) -> str:
    return f"[TOOL_USE] name={name} input={json.dumps(arguments)}"


def bash(command: str, **more: Any) -> str:
    return call("Bash", command=command, **more)


def labelled(half: str) -> list[dict[str, Any]]:
    """The rows of one half ("dev", "test") of the labelled pairs."""
    return _rows(f"actions_{half}.jsonl")


def command_pairs() -> list[tuple[str, str, bool]]:
    """Pairs of shell commands, and whether they do the same."""
    return [(row["first"], row["second"], row["same"]) for row in _rows("command_pairs.jsonl")]


def _rows(name: str) -> list[dict[str, Any]]:
    lines = (Path(__file__).parent / "fixtures" / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]
