"""Commands as steps, with the directory and the variables that each runs in."""

from __future__ import annotations

import pytest

from composer_replication.shell_syntax import ACTIVE
from composer_replication.teacher_replay.agreement.shell.effects import shell_effects
from composer_replication.teacher_replay.agreement.shell.steps import UnreadableCommandError, shell_steps


def ran(command: str, directory: str | None = None) -> list[tuple[str | None, str]]:
    """Where each step runs, and the names in its pipeline; for what is no plain pipeline, the words as they are."""
    found = []
    for step in shell_steps(command, directory):
        names = [line.name for line in step.stages] if step.raw is None else [f"raw {step.raw[0]}".replace(ACTIVE, "")]
        found.append((step.directory, " | ".join(names)))
    return found


@pytest.mark.parametrize(
    ("command", "steps"),
    [
        ("a && b; c\nd", [(None, "a"), (None, "b"), (None, "c"), (None, "d")]),
        ("a | b |& c", [(None, "a | b | c")]),
        ("cd x && a; cd .. && b", [("x", "a"), (None, "b")]),
        ("cd /r; cd x; a", [("/r/x", "a")]),
        ("cd /r && a && cd - && b", [("/r", "a"), (None, "b")]),
        ("pushd /r; a; popd; b", [("/r", "a"), (None, "b")]),
        ("(cd x && a); b", [("x", "a"), (None, "b")]),
        ("{ cd x; a; }; b", [("x", "a"), ("x", "b")]),
        ("bash -c 'cd x && a'; b", [("x", "a"), (None, "b")]),
        ("git -C x status", [("x", "git status")]),
        ("if a; then b; fi", [(None, "a"), (None, "b")]),
        ("if a; then b; else c; fi", [(None, "raw if")]),
        ("for f in 1 2; do a $f; b; done", [(None, "a"), (None, "b"), (None, "a"), (None, "b")]),
        ("for f in *.py; do a $f; done", [(None, "raw for")]),
        ("for f in $(ls); do a; done", [(None, "raw for")]),
        ("while a; do b; done; c", [(None, "raw while"), (None, "c")]),
        ("case $x in a) b;; esac; c", [(None, "raw case"), (None, "c")]),
        ("! a", [(None, "raw !")]),
        ("f() { a; }; b", [(None, "raw f"), (None, "b")]),
        ("a || b", [(None, "raw ")]),
        ("a || true", [(None, "a")]),
        ("echo start; a; echo \"done $?\"", [(None, "a")]),
        ("echo a", [(None, "echo")]),
        ("echo $x; a", [(None, "echo"), (None, "a")]),
        ("set -euo pipefail; a", [(None, "a")]),
        ("time timeout -k 5 60 nice -n 5 env X=1 a", [(None, "a")]),
        ("nohup a", [(None, "a")]),
        ("# nothing\na # here", [(None, "a")]),
    ],
)  # fmt: skip
def test_steps(command: str, steps: list[tuple[str | None, str]]) -> None:
    assert ran(command) == steps


def test_a_directory_to_begin_with() -> None:
    assert ran("a; cd x; b", "/r") == [("/r", "a"), ("/r/x", "b")]
    assert ran("a", ".") == [(None, "a")]


def test_variables() -> None:
    (step,) = shell_steps("export A=1; B=2 C=3 x")
    assert step.stages[0].variables == ("A=1", "B=2", "C=3")
    (step,) = shell_steps("f=a.py; cat $f")
    assert step.stages[0].operands == ("a.py",)
    assert step.stages[0].variables == ()
    (step,) = shell_steps("NO_COLOR=1 x")
    assert step.stages[0].variables == ()
    (step,) = shell_steps("source .venv/bin/activate; x")
    assert step.stages[0].variables == ("VIRTUAL_ENV=.venv",)


def test_where_output_goes() -> None:
    for command in ("a > f", "a 1> f", "a &> f", "a >& f", "a > f 2>&1", "a > f 2>/dev/null < /dev/null"):
        (step,) = shell_steps(command)
        assert step.stages[0].redirects == ((">", "f"),)
    (step,) = shell_steps("a 2> f")
    assert step.stages[0].redirects == (("2>", "f"),)


def test_in_the_background() -> None:
    assert [step.in_background for step in shell_steps("a & b; c &")] == [True, False, True]
    assert [step.in_background for step in shell_steps("a && b &")] == [True, True]


def test_only_the_surroundings_change() -> None:
    assert shell_steps("cd x") != shell_steps("cd y")
    assert shell_steps("export A=1") != shell_steps("export A=2")
    assert shell_steps("a=1") != shell_steps("a=2")


@pytest.mark.parametrize("command", ["a | X=1", "a 'b", "bash -c 'bash -c \"'"])
def test_what_is_no_command(command: str) -> None:
    with pytest.raises(UnreadableCommandError):
        shell_steps(command)
    # It is compared by its text.
    assert shell_effects(command) == shell_effects(f"{command}  ")
    assert shell_effects(command) != shell_effects(f"{command} x")


def test_shells_inside_each_other_come_to_an_end() -> None:
    command = "ls"
    for _ in range(4):
        command = f"( {command} )"
    assert ran(command) == [(None, "ls")]
    for _ in range(10):
        command = f"( {command} )"
    with pytest.raises(UnreadableCommandError, match="too many shells"):
        shell_steps(command)


@pytest.mark.parametrize(
    "command",
    [
        *(
            "x={}; cat ${{x%.py}}",
            "x={}; a || b $x",
            "x={}; cat > f <<E\n$x\nE",
            "x=1; x+={}; a $x",
            "x=({}); a ${{x[@]}}",
        ),
        *("for f in {}; do a || b $f; done", "x={}; a > $x"),
    ],
)
def test_what_a_variable_holds_counts(command: str) -> None:
    assert shell_effects(command.format("a.py")) != shell_effects(command.format("b.py"))


def test_what_depends_on_a_condition() -> None:
    assert shell_effects("! a && b")[1].joint == shell_effects("if ! a; then b; fi")[1].joint == "&&"
    assert shell_effects("! a; b")[1].joint == ";"


def test_loops_are_compared_by_their_words() -> None:
    one = 'for f in *.py\ndo\n  wc -l "$f"\ndone'
    other = "for f in *.py; do wc -l $f; done"
    assert shell_effects(one) == shell_effects(other)
    assert shell_effects(one) != shell_effects(other.replace("-l", "-w"))
