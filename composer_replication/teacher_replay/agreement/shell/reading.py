"""Commands that only read (they ask, test or check, and may change places), and commands that destroy or publish."""

from __future__ import annotations

import re

from composer_replication.teacher_replay.agreement.shell.lines import Line


def _names(table: str) -> frozenset[str]:
    return frozenset(name.strip() for name in table.split(","))


# These rewrite files if told so, and those unless told otherwise.
_FIXERS = {"ruff check": "--fix", "eslint": "--fix", "cargo clippy": "--fix"}
_FORMATTERS = {"black": "--check", "isort": "--check", "ruff format": "--check", "prettier": "-c"}
_ASKS = _names(
    "pwd, whoami, date, env, hostname, uptime, nproc, id, uname, stat, file, cut, tr, awk, test, npm ls,"
    "npm view, npm outdated, pip list, pip show, pip freeze, pip check, docker image ls, docker inspect, docker info,"
    "cargo tree, go list, go env, go version, git blame, git describe, git ls-files, git ls-remote, git ls-tree,"
    "git shortlog, git rev-list, git merge-base, cargo test, phpunit, rspec, jest, tox, mix test, flake8, pyright,"
    "pylint, bandit, tsc, shellcheck, golangci-lint, rubocop, python -m unittest"
)
_RUNS = _names("npm run, yarn run, pnpm run, make, mvn, gradle, tox, just, rake")
_CHECK = re.compile(r"(?:test|lint|check|typecheck|type-check|types|vet|audit)(?:[:-][\w:-]+)?")
_SENDS_OR_SAVES = ("-X", "-d", "-F", "-o", "-O", "-T", "--json", "--data-binary", "--data-raw")
_LISTS = ("-a", "-r", "-v", "-vv", "--list", "--show-current")
_KUBECTL_ASKS = ("get", "describe", "logs", "top", "version", "explain")
_DESTROY_OR_PUBLISH = _names(
    "rm, rmdir, mv, truncate, dd, shred, git reset, git clean, git push, git restore, git rm, npm publish,"
    "yarn publish, pnpm publish, cargo publish, twine, terraform, docker push, rsync, poetry publish, uv publish,"
    "gh release"
)


def destroys_or_publishes(line: Line) -> bool:
    """Whether a command does what cannot be taken back."""
    if line.name == "find":
        return not only_reads(line)
    if line.name == "sed":
        return line.option("-i") is not None
    if line.name == "git checkout":
        # Of files, not of a branch.
        names_files = any(re.fullmatch(r"\.|.*\.\w+|.*/", operand) for operand in line.operands)
        return names_files or line.option("-f") is not None
    if line.name == "git stash":
        return line.operands[:1] in (("drop",), ("clear",))
    if line.name == "git branch":
        return line.option("-d") is not None
    if line.inner is not None and line.inner.name:
        return destroys_or_publishes(line.inner)
    return line.name in _DESTROY_OR_PUBLISH


def only_reads(line: Line) -> bool:
    """Whether a command changes nothing that another one could see."""
    if line.redirects:
        return False
    if line.name == "find":
        return not any(word in ("-delete", "-exec", "-execdir", "-ok") for word in line.operands)
    if line.name in _FIXERS:
        return line.option(_FIXERS[line.name]) is None
    if line.name in _FORMATTERS:
        return line.option(_FORMATTERS[line.name]) is not None
    if line.name == "sed":
        return line.option("-i") is None
    if line.name == "curl":
        return all(line.option(name) is None for name in _SENDS_OR_SAVES)
    if line.name == "kubectl":
        return line.operands[:1] != () and line.operands[0] in _KUBECTL_ASKS
    if line.inner is not None and line.inner.name:
        return only_reads(line.inner)
    if line.name == "git stash":
        return line.operands[:1] in (("list",), ("show",))
    if line.name in ("git branch", "git tag", "git remote"):
        return not line.operands and all(option in _LISTS for option, _ in line.options)
    if line.name in _RUNS:
        return bool(line.operands) and all(_CHECK.fullmatch(operand) or "=" in operand for operand in line.operands)
    asks = any(option in ("--version", "--help", "-V") for option, _ in line.options)
    return asks or line.command.has("reads") or line.name in _ASKS
