"""Commands that only look."""

from __future__ import annotations

import pytest

from composer_replication.teacher_replay.agreement.shell.reading import only_reads
from composer_replication.teacher_replay.agreement.shell.steps import shell_steps


def reads(command: str) -> bool:
    (step,) = shell_steps(command)
    return all(only_reads(line) for line in step.stages)


@pytest.mark.parametrize(
    "command",
    [
        *(
            "ls",
            "cat a",
            "grep x f",
            "git status",
            "git diff",
            "git branch -a",
            "git stash list",
            "git tag",
            "df -h",
            "pwd",
        ),
        *(
            "find . -name a",
            "sed -n 1p a",
            "ruff check .",
            "black --check .",
            "eslint src",
            "curl http://h.test",
            "jq . a",
        ),
        *(
            "pytest -q",
            "npm test",
            "npm run lint:fix-check",
            "make test lint",
            "make check V=1",
            "cargo clippy",
            "go vet ./...",
        ),
        *("kubectl get pods", "npx tsc --noEmit", "uv run pytest", "node --version", "foo --help", "docker ps | wc -l"),
    ],
)
def test_it_only_looks(command: str) -> None:
    assert reads(command)


@pytest.mark.parametrize(
    "command",
    [
        *(
            "rm a",
            "ls > a",
            "git add a",
            "git branch x",
            "git branch -d x",
            "git stash",
            "git tag v1",
            "find . -delete",
        ),
        *("find . -exec rm {} +", "sed -i s/a/b/ f", "ruff check --fix .", "black .", "eslint --fix src", "unknown"),
        *(
            "curl -d x http://h.test",
            "curl -o a http://h.test",
            "npm install",
            "npm run build",
            "make",
            "make test install",
        ),
        *(
            "kubectl",
            "kubectl delete pod x",
            "npx prettier --write .",
            "uv run python x.py",
            "python x.py",
            "cat a | tee b",
        ),
    ],
)
def test_it_may_change_something(command: str) -> None:
    assert not reads(command)
