"""What the tests of the sandbox share: programs that are recognised on the host, and a search for them."""

from __future__ import annotations

import uuid
from pathlib import Path

from composer_replication.envs.sandbox import Limits, Sandbox, SandboxResult

# No test depends on how long something takes.
PATIENT = Limits(wall_seconds=600, cpu_seconds=600)


def new_mark() -> str:
    return f"mark{uuid.uuid4().hex}"


def run_marked(
    sandbox: Sandbox, mark: str, program: str, *arguments: object, limits: Limits = PATIENT
) -> SandboxResult:
    """Run a Python program whose processes have the mark in their environment, also after `exec`."""
    command = ["/usr/bin/env", f"MARK={mark}", *sandbox.python, "-I", "-S", "-c", program, *map(str, arguments)]
    return sandbox.run(command, limits=limits)


def run_python(sandbox: Sandbox, program: str, *arguments: object, limits: Limits = PATIENT) -> SandboxResult:
    return sandbox.run([*sandbox.python, "-I", "-S", "-c", program, *map(str, arguments)], limits=limits)


def processes_with(mark: str) -> list[int]:
    """The processes of this machine, sandboxes included, that have the mark in their environment."""
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        try:
            text = environment.read_bytes()
        except OSError:  # it has ended, or is none of ours
            continue
        if mark.encode() in text:
            found.append(int(environment.parent.name))
    return found
