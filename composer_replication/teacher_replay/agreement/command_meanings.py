"""Commands that say the same in other words: two names of one deed, options that imply each other, defaults."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from composer_replication.teacher_replay.agreement.command_lines import Line

_SUBSTITUTION = re.compile(r"s([^\w\s\\])(.*)\1([gimI0-9]*)", re.DOTALL)


def usual_line(line: Line) -> Line:
    """The line in the words that stand for all its equals."""
    rule = _RULES.get(line.name) or _RULES.get(line.name.partition(" ")[0])
    return line if rule is None else rule(line)


def _git_log(line: Line) -> Line:
    return replace(line, operands=tuple(_revision(operand) for operand in line.operands if operand != "HEAD"))


def _git_revisions(line: Line) -> Line:
    operands = tuple(_revision(operand) for operand in line.operands)
    if line.name == "git show" and operands == ("HEAD",):
        operands = ()
    return replace(line, operands=operands)


def _revision(operand: str) -> str:
    return re.sub(r"^@(?=$|[~^])", "HEAD", re.sub(r"\^(?=$|[~^.])", "~1", operand)).replace("HEAD~1~1", "HEAD~2")


def _git_branch(line: Line) -> Line:
    if line.option("-D") is not None:
        return replace(line.without("-D"), options=(("-d", ""), ("-f", "")))
    return line


def _git_rev_parse(line: Line) -> Line:
    if line.option("--abbrev-ref") is not None and line.operands == ("HEAD",):
        return replace(line, name="git branch", options=(("--show-current", ""),), operands=())
    return line


def _git_switch(line: Line) -> Line:
    """`git switch` in the words of `git checkout`."""
    names = {"-c": "-b", "-C": "-B"}
    options = tuple(sorted((names.get(option, option), value) for option, value in line.options))
    return replace(line, name="git checkout", options=options)


def _git_reset(line: Line) -> Line:
    """`git reset [HEAD] FILE` takes a file back from the index, as `git restore --staged FILE` does."""
    if line.options in ((), (("--mixed", ""),)):
        files = tuple(operand for operand in line.operands if operand != "HEAD")
        if files and all(re.search(r"[./]", name) and "~" not in name and "^" not in name for name in files):
            return replace(line, name="git restore", options=(("-S", ""),), operands=files)
        return replace(line, options=(), operands=files)
    return replace(line, operands=tuple(_revision(operand) for operand in line.operands if operand != "HEAD"))


def _git_stash(line: Line) -> Line:
    if line.operands[:1] in (("push",), ("save",)):
        message = line.operands[1:] if line.operands[0] == "save" else ()
        options = (*line.options, *(("-m", text) for text in message))
        return replace(line, options=tuple(sorted(options)), operands=line.operands[1:] if not message else ())
    return line


def _git_commit(line: Line) -> Line:
    return line


def _pytest(line: Line) -> Line:
    if line.option("--maxfail") == "1":
        line = replace(line.without("--maxfail"), options=(*line.without("--maxfail").options, ("-x", "")))
    options = tuple(option for option in line.options if option != ("-p", "no:cacheprovider"))
    return replace(line, options=tuple(sorted(set(options))))


def _curl(line: Line) -> Line:
    method = (line.option("-X") or "").upper()
    sends = any(line.option(name) is not None for name in ("-d", "--data-raw", "--data-binary", "-F", "--data-urlencode", "--json"))
    implied = "HEAD" if line.option("-I") is not None else "POST" if sends and line.option("-G") is None else "GET"
    options = [("-d", value) if name == "--data-raw" and not value.startswith("@") else (name, value) for name, value in line.without("-X").options]
    if method and method != implied:
        options.append(("-X", method))
    operands = tuple(operand.rstrip("/") if operand.count("/") <= 3 else operand for operand in line.operands)
    return replace(line, options=tuple(sorted(options)), operands=operands)


def _tar(line: Line) -> Line:
    # What packed an archive is seen from it when it is unpacked.
    return line.without("-z", "-j", "-J") if line.option("-x") is not None or line.option("-t") is not None else line


def _sed(line: Line) -> Line:
    """The script as an operand, its delimiter a slash where that reads the same."""
    scripts = line.values("-e")
    operands = (*scripts, *line.operands) if len(scripts) == 1 else line.operands
    if not operands:
        return line
    script = operands[0]
    found = _SUBSTITUTION.fullmatch(script)
    if found is not None and found[1] != "/" and "/" not in found[2] and found[2].count(found[1]) == 1:
        script = f"s/{found[2].replace(found[1], '/')}/{found[3]}"
    return replace(line.without("-e") if len(scripts) == 1 else line, operands=(script, *operands[1:]))


def _sql(line: Line) -> Line:
    options = tuple((name, sql_form(value) if name in ("-c", "-e") else value) for name, value in line.options)
    operands = tuple(sql_form(word) if " " in word else word for word in line.operands)
    return replace(line, options=options, operands=operands)


def _go(line: Line) -> Line:
    return line if line.operands or line.name not in ("go test", "go build", "go vet") else replace(line, operands=(".",))


def _cargo(line: Line) -> Line:
    return replace(line, operands=tuple(word for word in line.operands if word != "--nocapture"))


def _version(line: Line) -> Line:
    if not line.operands and line.options in ((("-V", ""),), (("--version", ""),)):
        return replace(line, options=(("--version", ""),))
    if line.name in ("node", "npm") and not line.operands and line.options == (("-v", ""),):
        return replace(line, options=(("--version", ""),))
    return line


def _kubectl(line: Line) -> Line:
    kinds = {"po": "pods", "pod": "pods", "svc": "services", "service": "services", "deploy": "deployments",
             "deployment": "deployments", "ns": "namespaces", "no": "nodes", "node": "nodes", "cm": "configmaps",
             "ing": "ingresses", "ds": "daemonsets", "sts": "statefulsets", "ev": "events"}  # fmt: skip
    first, *rest = line.operands or ("",)
    if first in ("get", "describe", "delete") and rest:
        return replace(line, operands=(first, kinds.get(rest[0], rest[0]), *rest[1:]))
    return line


def _identity(line: Line) -> Line:
    return replace(line, name="whoami", options=()) if line.options == (("-un", ""),) else line


_RULES: dict[str, Callable[[Line], Line]] = {
    "git log": _git_log,
    "git diff": _git_revisions,
    "git show": _git_revisions,
    "git branch": _git_branch,
    "git rev-parse": _git_rev_parse,
    "git switch": _git_switch,
    "git reset": _git_reset,
    "git stash": _git_stash,
    "pytest": _pytest,
    "curl": _curl,
    "tar": _tar,
    "sed": _sed,
    "psql": _sql,
    "sqlite3": _sql,
    "mysql": _sql,
    "go": _go,
    "cargo": _cargo,
    "python": _version,
    "node": _version,
    "npm": _version,
    "kubectl": _kubectl,
    "id": _identity,
}


def sql_form(statement: str) -> str:
    """A statement with its words in one case, single spaces and no closing semicolon; quoted text stays as it is."""
    parts = re.split(r"('(?:[^']|'')*'|\"[^\"]*\")", statement.strip().rstrip(";"))
    plain = [
        re.sub(r"\s*([=<>!,()*+/]+)\s*", r"\1", re.sub(r"\s+", " ", part)).lower() if place % 2 == 0 else part
        for place, part in enumerate(parts)
    ]
    return "".join(plain).strip()
