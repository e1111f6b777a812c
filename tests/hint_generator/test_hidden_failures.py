"""Commands that failed though the log says they worked, and commands whose output only tells of failures.

The cases are transcripts: `$ ` before a command, its output below, `␛` for an escape character.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from composer_replication.hint_generator import OUTCOME_KINDS, STUDENT_KINDS
from composer_replication.hint_generator.classifier import classify
from composer_replication.hint_generator.errors import EVIDENCE
from composer_replication.hint_generator.hidden_failures import shows_failure

FIXTURES = Path(__file__).parent / "fixtures"
TRACEBACK = 'Traceback (most recent call last):\n  File "/w/a.py", line 3, in <module>\n    f()\nValueError: bad'


def transcript(name: str) -> list[tuple[str, str]]:
    cases: list[tuple[list[str], list[str]]] = []
    for line in (FIXTURES / name).read_text(encoding="utf-8").replace("␛", "\x1b").splitlines():
        if line.startswith("$ ") and (not cases or cases[-1][1]):
            cases.append(([line[2:]], []))
        elif line.startswith("$ "):
            cases[-1][0].append(line[2:])
        elif not line.startswith("## "):
            cases[-1][1].append(line)
    return [("\n".join(command), "\n".join(output)) for command, output in cases]


@pytest.mark.parametrize(("command", "text"), transcript("hidden_failures.txt"))
def test_a_failure_that_the_command_hides(command: str, text: str) -> None:
    assert shows_failure(text, command)
    kind, _ = classify(text, tool_name="Bash", arguments={"command": command})
    assert kind in (STUDENT_KINDS | OUTCOME_KINDS) - {"no_match"}


def test_every_line_that_counts_has_a_case() -> None:
    texts = "\n".join(text for _, text in transcript("hidden_failures.txt"))
    assert [pattern for _, pattern in EVIDENCE if re.search(pattern, texts, re.MULTILINE) is None] == []


@pytest.mark.parametrize(("command", "text"), transcript("commands_that_worked.txt"))
def test_a_command_that_worked(command: str, text: str) -> None:
    assert not shows_failure(text, command)


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("pytest -q", "1 failed, 1 passed in 0.13s"),
        ("python a.py", f"step 1\nstep 2\n{TRACEBACK}"),
        ("cat nothere", "cat: nothere: No such file or directory"),
        ("cd /w && git checkout nothing", "error: pathspec 'nothing' did not match any file(s) known to git"),
    ],
)
def test_without_flags_a_command_need_not_hide_its_failure(command: str, text: str) -> None:
    assert not shows_failure(text, command)
    assert shows_failure(text, command, masked_only=False)


def test_a_long_output_is_read_at_its_beginning_and_at_its_end() -> None:
    bulk = "an ordinary line\n" * 5000
    failed = "FAILED a.py::test_b\n"
    assert shows_failure(failed + bulk, "pytest | tee log")
    assert shows_failure(bulk + failed, "pytest | tee log")
    assert not shows_failure(bulk + failed + bulk, "pytest | tee log")
