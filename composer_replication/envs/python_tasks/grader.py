"""Grades a solution: its calls are made in a sandbox, and compared outside of it with what the bank's solution returns.

Expected results never enter the sandbox. A call passes if the text of its result equals the text of the expected one,
so no object of the solution takes part in the comparison.
"""

from __future__ import annotations

import inspect
import re
import secrets
from collections.abc import Sequence
from typing import NamedTuple

from composer_replication.envs.python_tasks import driver
from composer_replication.envs.python_tasks.bank import Function
from composer_replication.envs.python_tasks.driver import plain_text
from composer_replication.envs.sandbox import Sandbox, SandboxResult

_LINE = re.compile(r"(?P<beginning>\w+ \d+) (?P<returned>[01]) (?P<text>(?:[0-9a-f]{2})*)")
_ADDRESS = re.compile(r"(?<= at )0x[0-9a-f]+")
_LONGEST_TEXT = 500
_DRIVER = inspect.getsource(driver)


class Call(NamedTuple):
    """A call of a function, with its arguments as text: "(3, [1, 2])"."""

    function: Function
    arguments: str

    @property
    def shown(self) -> str:
        """The call as it is written."""
        return self.function.name + re.sub(r",\)\Z", ")", self.arguments)

    @property
    def expected(self) -> str:
        """The text of the right result."""
        return plain_text(self.function.expected(self.arguments))


class Outcome(NamedTuple):
    """Whether a call returned the right result, and if not, what happened; never what was expected."""

    passed: bool
    happened: str


def outcomes(sandbox: Sandbox, calls: Sequence[Call]) -> list[Outcome]:
    """Make the calls with the solution in the sandbox's scratch folder; one outcome for each.

    A call whose result is missing or out of order has failed. All have failed if there are results too many, or all of
    them and yet no regular end.
    """
    # The solution could find the mark. It keeps apart what gets between the results by accident.
    mark = secrets.token_hex(8)
    job = (mark, [(call.function.name, call.arguments) for call in calls])
    run = sandbox.run([*sandbox.python, "-S", "-c", _DRIVER], stdin=repr(job))
    lines = [line for line in run.stdout.split("\n") if line.startswith(mark)]
    ended = run.exit_code == 0 and run.killed_by is None
    if len(lines) > len(calls) or (len(lines) == len(calls) and not ended):
        return [Outcome(False, "no result: the solution interfered with the test run")] * len(calls)
    lines += [""] * (len(calls) - len(lines))
    return [_outcome(call, f"{mark} {number}", lines[number], run) for number, call in enumerate(calls)]


def failing_text(calls: Sequence[Call], found: Sequence[Outcome]) -> str | None:
    """Say which calls failed, what was expected of them and what happened; None if all passed."""
    lines: list[str] = []
    said: set[str] = set()
    for call, outcome in zip(calls, found, strict=True):
        if not outcome.passed:
            # A traceback is shown once.
            happened = outcome.happened if outcome.happened not in said else outcome.happened.rpartition("\n")[2]
            lines.append(f"FAILED {call.shown}: expected {call.expected}, got {happened}")
            said.add(outcome.happened)
    return "\n".join([f"{len(lines)} of {len(calls)} tests failed.", *lines]) if lines else None


def _outcome(call: Call, beginning: str, line: str, run: SandboxResult) -> Outcome:
    result = _LINE.fullmatch(line)
    if result is None or result["beginning"] != beginning:
        return Outcome(False, _missing(run))
    returned, text = result["returned"] == "1", bytes.fromhex(result["text"]).decode(errors="replace")
    if returned and text == call.expected:
        return Outcome(True, "")
    # An address differs from run to run.
    text = _ADDRESS.sub("0x0", text[:_LONGEST_TEXT])
    return Outcome(False, text if returned else f"an error:\n{text}")


def _missing(run: SandboxResult) -> str:
    if run.timed_out:
        return "no result: it took too long"
    if run.killed_by is not None:
        return f"no result: it went beyond the limit {run.killed_by}"
    return f"no result: the test run ended early, with exit code {run.exit_code}"
