"""Processes that tests start, and how to wait for what they do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]


def command(*arguments: object) -> list[str]:
    """`composer-replication` with these arguments, of the package beside these tests.

    Ctrl-C works in it as in a terminal: under `nohup` and on many CI runners, processes inherit an ignored SIGINT.
    """
    terminal = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    program = f"{terminal}; from composer_replication.cli import main; main()"
    return [sys.executable, "-c", program, *map(str, arguments)]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


def start(*arguments: object, cwd: Path | None = None, **more: str) -> subprocess.Popen[str]:
    """Start `composer-replication` in a session of its own, with `more` in its environment."""
    return subprocess.Popen(
        command(*arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=environment(**more),
        start_new_session=True,
    )


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait for a state. The limit only ends a test that would otherwise never end."""
    until = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)
