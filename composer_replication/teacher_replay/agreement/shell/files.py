"""What a command does to files: those it shows (lines of `cat`, `head`, `sed -n`) or writes (here-documents, echoes,
substitutions), whether it only reads, and whether it destroys or publishes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from composer_replication.teacher_replay.agreement.shell.lines import Line, is_plain


def _names(table: str) -> frozenset[str]:
    return frozenset(name.strip() for name in table.split(","))


_SHOWS_ALL = ("cat", "less", "more", "nl", "bat")
_RANGE = re.compile(r"(\d+)(?:,(\d+|\$))?p(?:;\d*q)?")

Lines = tuple[int, int | None]
"""The first and the last line that are shown; a negative first one counts from the end, None is the end."""
_SUBSTITUTION = re.compile(r"s/((?:[^/\\]|\\.)*)/((?:[^/\\]|\\.)*)/(g?)")
_KINDS = {">": "write", ">|": "write", ">>": "append"}
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


def viewed(stages: Sequence[Line]) -> tuple[tuple[str, ...], Lines] | None:
    """The files that a pipeline shows, and which of their lines; None if it does not only show files."""
    first, *others = stages
    if any(stage.redirects or stage.variables for stage in stages):
        return None
    files, shown = _files(first), _lines(first, (1, None))
    if not files or shown is None or not is_plain(*files):
        return None
    if len(files) > 1 and (others or shown != (1, None)):
        return None
    for stage in others:
        if _files(stage):
            return None
        shown = _lines(stage, shown)
        if shown is None:
            return None
    return files, shown


def _files(line: Line) -> tuple[str, ...]:
    return line.operands[1:] if line.name == "sed" else line.operands


def _lines(line: Line, shown: Lines) -> Lines | None:
    start, stop = shown
    if line.name in _SHOWS_ALL:
        return shown if not line.options or line.name == "nl" else None
    if line.name == "head" and {option for option, _ in line.options} <= {"-n"}:
        count = line.option("-n") or "10"
        return _within(shown, start, start + int(count) - 1) if count.isdigit() and start > 0 else None
    if line.name == "tail" and {option for option, _ in line.options} <= {"-n"}:
        count = line.option("-n") or "10"
        if count.startswith("+") and count[1:].isdigit() and start > 0:
            return _within(shown, start + int(count[1:]) - 1, stop)
        if count.isdigit() and start > 0:
            return (max(start, stop - int(count) + 1), stop) if stop is not None else (-int(count), None)
        return None
    if line.name == "sed" and line.options == (("-n", ""),) and line.operands:
        found = _RANGE.fullmatch(line.operands[0].replace(" ", ""))
        if found is None or start != 1:
            return None
        last = None if found[2] == "$" else int(found[2] or found[1])
        return _within(shown, int(found[1]), last)
    return None


def _within(shown: Lines, start: int, stop: int | None) -> Lines:
    end = shown[1]
    return start, end if stop is None else stop if end is None else min(stop, end)


def written(line: Line, document: str | None) -> tuple[str, str, str] | None:
    """Return ("write" or "append", the file, its content) of a command that only writes a file; None for any other."""
    target = _target(line)
    content = document if document is not None and line.name in ("cat", "tee") else None
    if document is None:
        content = _echoed(line)
    if target is None or content is None or not is_plain(target[1], content):
        return None
    return *target, content


def _target(line: Line) -> tuple[str, str] | None:
    redirects = [redirect for redirect in line.redirects if redirect != (">", "/dev/null")]
    if line.name == "tee":
        kind = "append" if line.option("-a") is not None else "write"
        return (kind, line.operands[0]) if len(line.operands) == 1 and not redirects else None
    if line.name == "truncate" and line.options == (("-s", "0"),) and len(line.operands) == 1:
        return "write", line.operands[0]
    if len(line.redirects) != 1 or (line.name == "cat" and line.operands not in ((), ("/dev/null",))):
        return None
    operator, path = line.redirects[0]
    return (_KINDS[operator], path) if operator in _KINDS else None


def _echoed(line: Line) -> str | None:
    words = list(line.operands)
    if line.name in (":", "true", "truncate") or (line.name == "cat" and words == ["/dev/null"]):
        return ""
    if line.name == "printf":
        return _unescaped(words[0]) if len(words) == 1 and "%" not in words[0] else None
    if line.name != "echo":
        return None
    flags = []
    while words and words[0] in ("-n", "-e"):
        flags.append(words.pop(0))
    text = " ".join(words) + ("" if "-n" in flags else "\n")
    return _unescaped(text) if "-e" in flags else text


def _unescaped(text: str) -> str:
    return text.replace("\\n", "\n").replace("\\t", "\t")


def literal_substitution(line: Line) -> tuple[str, str, bool, tuple[str, ...]] | None:
    """Return (old, new, everywhere in a line, files) of a `sed -i s/old/new/` of plain text; None for any other."""
    if line.name != "sed" or line.options != (("-i", ""),) or len(line.operands) < 2:
        return None
    found = _SUBSTITUTION.fullmatch(line.operands[0])
    if found is None:
        return None
    old, new = re.sub(r"\\([./\[\]*^$+?(){}|-])", "\0\\1", found[1]), found[2].replace("\\/", "/")
    if re.search(r"(?<!\0)[.\[\]*^$\\]", old) or re.search(r"[\\&]", new):
        return None
    return old.replace("\0", ""), new, bool(found[3]), line.operands[1:]


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
