"""Files that a command shows, and commands that only look."""

from __future__ import annotations

import pytest

from composer_replication.teacher_replay.agreement.shell.files import Lines, only_reads, viewed
from composer_replication.teacher_replay.agreement.shell.steps import shell_steps


def shown(command: str) -> tuple[tuple[str, ...], Lines] | None:
    (step,) = shell_steps(command)
    return viewed(step.stages)


@pytest.mark.parametrize(
    ("command", "lines"),
    [
        ("cat a", (1, None)),
        ("less -N a", (1, None)),
        ("nl -ba a", (1, None)),
        ("cat -n a | cat", (1, None)),
        ("head a", (1, 10)),
        ("head -n 30 a", (1, 30)),
        ("cat a | head -30", (1, 30)),
        ("tail a", (-10, None)),
        ("tail -n 5 a", (-5, None)),
        ("tail -n +20 a", (20, None)),
        ("tail -n +20 a | head -5", (20, 24)),
        ("head -60 a | tail -20", (41, 60)),
        ("head -5 a | tail -20", (1, 5)),
        ("head -20 a | tail -n +15", (15, 20)),
        ("head -20 a | head -50", (1, 20)),
        ("sed -n '10,20p' a", (10, 20)),
        ("sed -n '10p' a", (10, 10)),
        ("sed -n '10,$p' a", (10, None)),
        ("sed -n '10,20p;21q' a", (10, 20)),
        ("nl -ba a | sed -n '5,9p'", (5, 9)),
    ],
)
def test_lines_of_a_file(command: str, lines: Lines) -> None:
    assert shown(command) == (("a",), lines)


def test_several_files() -> None:
    assert shown("cat a b") == (("a", "b"), (1, None))
    assert shown("head -5 a b") is None
    assert shown("cat a b | head -5") is None


@pytest.mark.parametrize(
    "command",
    [
        *("ls a", "cat", "cat *.py", "cat $x", "cat a > b", "X=1 cat a", "cat a | wc -l", "cat a | cat b"),
        *("cat a | head -5 b", "head -c 5 a", "head -n -5 a", "tail -f a", "tail -50 a | head -5"),
        *("tail -50 a | tail -n +5", "tail -5 a | sed -n '1,2p'", "sed '10,20p' a", "sed -n '/x/p' a"),
        *("sed -i '10,20p' a", "sed -n '10,20p'", "tail -n +5 a | sed -n '1,2p'", "awk '{print $1}' a"),
    ],
)
def test_what_does_not_only_show_files(command: str) -> None:
    assert shown(command) is None


def reads(command: str) -> bool:
    (step,) = shell_steps(command)
    return all(only_reads(line) for line in step.stages)


@pytest.mark.parametrize(
    "command",
    [
        *("ls", "cat a", "grep x f", "git status", "git diff", "git branch -a", "git stash list", "git tag", "df -h"),
        *("pwd", "find . -name a", "sed -n 1p a", "ruff check .", "black --check .", "eslint src"),
        *("curl http://h.test", "jq . a", "pytest -q", "npm test", "npm run lint:fix-check", "make test lint"),
        *("make check V=1", "cargo clippy", "go vet ./...", "kubectl get pods", "npx tsc --noEmit", "uv run pytest"),
        *("node --version", "foo --help", "docker ps | wc -l"),
    ],
)
def test_it_only_looks(command: str) -> None:
    assert reads(command)


@pytest.mark.parametrize(
    "command",
    [
        *("rm a", "ls > a", "git add a", "git branch x", "git branch -d x", "git stash", "git tag v1"),
        *("find . -delete", "find . -exec rm {} +", "sed -i s/a/b/ f", "ruff check --fix .", "black ."),
        *("eslint --fix src", "unknown", "curl -d x http://h.test", "curl -o a http://h.test", "npm install"),
        *("npm run build", "make", "make test install", "kubectl", "kubectl delete pod x", "npx prettier --write ."),
        *("uv run python x.py", "python x.py", "cat a | tee b"),
    ],
)
def test_it_may_change_something(command: str) -> None:
    assert not reads(command)
