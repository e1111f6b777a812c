"""The sandbox for model-written code: one scratch folder, many runs, each within limits. See docs/sandbox.md."""

from __future__ import annotations

from typing import Literal

from composer_replication._arguments import check_choice
from composer_replication.envs.sandbox.bubblewrap import BubblewrapSandbox, bubblewrap_problem
from composer_replication.envs.sandbox.contract import Limits, Sandbox, SandboxResult, SandboxUnavailableError
from composer_replication.envs.sandbox.process import ProcessSandbox

__all__ = [
    "BubblewrapSandbox",
    "Limits",
    "ProcessSandbox",
    "Sandbox",
    "SandboxResult",
    "SandboxUnavailableError",
    "bubblewrap_problem",
    "make_sandbox",
]

# "auto" is the strongest there is; the weak one is had by its name alone.
_KINDS = {"auto": BubblewrapSandbox, "bubblewrap": BubblewrapSandbox, "process": ProcessSandbox}


def make_sandbox(kind: Literal["auto", "bubblewrap", "process"] = "auto", limits: Limits | None = None) -> Sandbox:
    """Return a new sandbox with an empty scratch folder.

    Args:
        kind: "bubblewrap" confines; "process" hardly does, and warns; "auto" is the strongest there is.
        limits: of every run that has none of its own.

    Raises:
        SandboxUnavailableError: if it does not work on this machine.
    """
    check_choice("kind", kind, list(_KINDS))
    if kind != "process" and (problem := bubblewrap_problem()):
        way_out = "make it work, or allow code to run unconfined with kind='process'"
        raise SandboxUnavailableError(f"{problem} ({way_out})")
    return _KINDS[kind](limits)
