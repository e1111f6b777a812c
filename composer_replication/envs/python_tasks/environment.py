"""The environment of Python tasks: one file, tools to read, edit and test it, and hidden tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from composer_replication._arguments import check_non_negative
from composer_replication.envs.python_tasks.bank import find_function
from composer_replication.envs.python_tasks.driver import SOLUTION
from composer_replication.envs.python_tasks.grader import Call, Outcome, failing_text, outcomes
from composer_replication.envs.sandbox import Limits, make_sandbox

LIMITS = Limits(wall_seconds=30.0, cpu_seconds=2)
"""Limits of a test run. An endless one ends by its CPU time, whatever else the machine does."""


class PythonTasks:
    """A function to write or to repair in solution.py, with a few examples to test it with.

    The reward is 1 if the function is right for all hidden inputs, less the cost of calls that failed. Tests that fail
    are no failed call. Hidden inputs are never in the workspace: the text of solution.py is tested with them in a
    sandbox of its own.

    Args:
        sandbox: kind of the sandbox in which solutions run. In "process", which must be asked for by name, a solution
            could read the bank's.
        failure_cost: taken off the reward for every call that fails; the reward is never below 0. A call of a tool or
            with an argument that does not exist does not reach the environment, and costs nothing.

    Raises:
        ValueError: an unknown kind of sandbox, or a negative cost.
        SandboxUnavailableError: the sandbox does not work on this machine.
    """

    def __init__(self, sandbox: Literal["auto", "bubblewrap", "process"] = "auto", failure_cost: float = 0.1) -> None:
        check_non_negative("failure_cost", failure_cost)
        self._kind = sandbox
        self._failure_cost = failure_cost
        self._workspace = make_sandbox(sandbox, LIMITS)
        self._begin([], [])

    def reset(self, function: str, solution: str, examples: Sequence[str], **row: Any) -> None:
        """Begin a task.

        Args:
            function: its name in the bank.
            solution: the text of solution.py to begin with.
            examples: arguments of the calls that run_tests makes, as text.
            row: the other columns of the task.

        Raises:
            ValueError: the bank has no such function.
        """
        found = find_function(function)
        hidden = [arguments for arguments in found.tests if arguments not in examples]
        self._begin(
            [Call(found, arguments) for arguments in examples], [Call(found, arguments) for arguments in hidden]
        )
        self._close()
        self._workspace = make_sandbox(self._kind, LIMITS)
        self._workspace.write(SOLUTION, solution)

    def get_reward(self) -> float:
        """Return 1.0 if all tests pass, less the cost of calls that failed."""
        found = self._grade()
        passed = bool(found) and all(outcome.passed for outcome in found)
        return max(0.0, passed - self._failure_cost * self._failures)

    def read_file(self, path: str) -> str:
        """Read a file.

        Args:
            path: The file, such as solution.py.
        """
        with self._counting():
            return self._text(path)

    def write_file(self, path: str, text: str) -> str:
        """Write a file; what it had before is gone.

        Args:
            path: The file: solution.py.
            text: The whole new text of the file.
        """
        with self._counting():
            return self._write(path, text)

    def replace_text(self, path: str, old: str, new: str) -> str:
        """Replace a part of a file.

        Args:
            path: The file: solution.py.
            old: The text to replace, exactly as it stands in the file, where it must occur once.
            new: The text to put in its place.
        """
        with self._counting():
            text = self._text(path)
            count = text.count(_checked("old", old)) if old else 0
            if count == 0:
                raise ValueError(f"String to replace not found in {path}: copy it exactly as read_file shows it.")
            if count > 1:
                raise ValueError(f"Found {count} matches of the string to replace in {path}: add lines around it.")
            return self._write(path, text.replace(old, _checked("new", new)))

    def run_tests(self) -> str:
        """Run the examples as tests, and say which of them fail."""
        failing = failing_text(self._examples, outcomes(self._workspace, self._examples))
        return failing or f"All {len(self._examples)} tests passed."

    def _feedback(self) -> str | None:
        """Say which examples fail; of hidden tests only that some do. None if all pass."""
        found = self._grade()
        if all(outcome.passed for outcome in found):
            return None
        failing = failing_text(self._examples, found[: len(self._examples)])
        return failing or "The examples pass, but other inputs fail: do what the description says for every input."

    def _close(self) -> None:
        """Free the workspace. `reset` makes another one."""
        self._workspace.close()

    def _begin(self, examples: list[Call], hidden: list[Call]) -> None:
        self._examples, self._hidden, self._failures = examples, hidden, 0
        self._graded: tuple[str, list[Outcome]] | None = None

    def _grade(self) -> list[Outcome]:
        """Test what solution.py is now, in a sandbox that has nothing else; once for each text of it."""
        calls = [*self._examples, *self._hidden]
        if SOLUTION not in self._workspace.files():
            return [Outcome(False, f"no result: there is no {SOLUTION}")] * len(calls)
        solution = self._workspace.read(SOLUTION)
        if self._graded is None or self._graded[0] != solution:
            with make_sandbox(self._kind, LIMITS) as sandbox:
                sandbox.write(SOLUTION, solution)
                self._graded = solution, outcomes(sandbox, calls)
        return self._graded[1]

    def _text(self, path: str) -> str:
        files = self._workspace.files()
        if path not in files:
            raise FileNotFoundError(f"File not found: {path}\nAvailable files: {', '.join(files)}")
        return self._workspace.read(path)

    def _write(self, path: str, text: str) -> str:
        if path != SOLUTION:
            raise PermissionError(f"Permission denied: {path}. Only {SOLUTION} can be written.")
        self._workspace.write(path, _checked("text", text))
        return f"Wrote {path}."

    @contextmanager
    def _counting(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            self._failures += 1
            raise


def _checked(name: str, text: Any) -> str:
    if not isinstance(text, str):
        raise TypeError(f"Invalid `{name}` parameter: it must be a string, not {type(text).__name__}.")
    return text
