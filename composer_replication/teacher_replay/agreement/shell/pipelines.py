"""Pipelines without the stages that only trim or arrange what is printed, and without detours."""

from __future__ import annotations

from dataclasses import replace

from composer_replication.teacher_replay.agreement.shell.lines import Line
from composer_replication.teacher_replay.agreement.shell.searches import searched_in_found
from composer_replication.teacher_replay.agreement.shell.steps import Step

_ARRANGES = ("cat", "less", "more", "nl", "column")
_VIEWERS = ("cat", "head", "tail", "sed", "nl", "bat", "less")
# How many words stand before the files that a filter reads.
_BEFORE_FILES = {"grep": 1, "rg": 1, "awk": 1, "sed": 1, "jq": 1}

Stages = tuple[tuple[Line, ...], tuple[str | None, ...]]
"""The stages of a pipeline, and the here-document of each."""


def shortened(step: Step) -> Stages:
    """A step's pipeline in its shortest form."""
    stages, documents = list(step.stages), list(step.documents)
    while _trims(stages, documents):
        stages.pop()
        documents.pop()
    _without_cat(stages, documents)
    _without_find(stages, documents)
    _read_from_file(stages)
    if len(stages) == 2 and stages[1].name == "wc" and stages[1].options == (("-l", ""),) and _finds_lines(stages[0]):
        stages[:] = [replace(stages[0], options=tuple(sorted((*stages[0].options, ("-c", "")))))]
        documents.pop()
    for place in range(len(stages) - 1, 0, -1):
        before, line = stages[place - 1 : place + 1]
        if before.name == "sort" and line.name == "uniq" and not line.options and not line.operands:
            stages[place - 1] = replace(before, options=tuple(sorted({*before.options, ("-u", "")})))
            del stages[place], documents[place]
    return tuple(stages), tuple(documents)


def _finds_lines(line: Line) -> bool:
    """Whether a search shows the lines of one file that match: their number is what `-c` prints."""
    shows = ("-c", "-l", "-L", "-o", "-A", "-B", "-C", "-r", "-q", "-e")
    return line.name == "grep" and len(line.operands) == 2 and all(option not in shows for option, _ in line.options)


def _trims(stages: list[Line], documents: list[str | None]) -> bool:
    """Whether the last stage only trims or arranges the output of those before it."""
    last = stages[-1]
    if len(stages) < 2 or last.redirects or last.variables or documents[-1] is not None:
        return False
    if last.name in ("head", "tail"):
        if len(stages) == 2 and stages[0].name in _VIEWERS:
            # Of a file, it is the lines that were asked for.
            return False
        # One line is picked, not trimmed, and so are the first lines of an order.
        picks = last.option("-n") in ("0", "1") or _is_in_order(stages[-2], last)
        return not picks and not last.operands and all(option == "-n" for option, _ in last.options)
    if last.name == "grep" and stages[0].name == "ps":
        # Lest the search finds itself.
        return last.options == (("-v", ""),) and last.operands == ("grep",)
    if last.name == "sort":
        return not last.operands and last.option("-u") is None
    if last.name in _ARRANGES:
        return not last.operands
    return (last.name, last.operands) in (("jq", (".",)), ("python -m json.tool", ()))


def _is_in_order(line: Line, last: Line) -> bool:
    """Whether the end that is kept was asked for: what is printed has an order."""
    if line.name == "ls":
        return any(line.option(name) is not None for name in ("-t", "-S", "-r"))
    return line.name == "sort" or (line.name == "git log" and last.name == "tail")


def _without_cat(stages: list[Line], documents: list[str | None]) -> None:
    """`cat f | filter` is `filter f`."""
    if len(stages) < 2 or documents[0] is not None:
        return
    cat, line = stages[:2]
    if cat.name != "cat" or len(cat.operands) != 1 or cat.options or cat.redirects or cat.variables:
        return
    reads_files = line.command.has("bound") and not line.command.has("words") and line.name not in ("tee", "xargs")
    before = 0 if line.values("-e") else _BEFORE_FILES.get(line.name, 0)
    if (reads_files or line.name == "awk") and len(line.operands) == before:
        stages[:2] = [replace(line, operands=(*line.operands, cat.operands[0]))]
        del documents[0]


def _without_find(stages: list[Line], documents: list[str | None]) -> None:
    """A search in the files that another command finds first."""
    if len(stages) > 1 and stages[1].name == "xargs" and all(option in ("-0", "-r") for option, _ in stages[1].options):
        inner = stages[1].inner
        search = searched_in_found(stages[0], inner)
        if search is None and inner is not None and inner.name == "rm" and not inner.operands:
            search = _deleting(stages[0])
        if search is not None:
            stages[:2] = [search]
            del documents[0]
    elif (search := searched_in_found(stages[0])) is not None:
        stages[0] = search
    elif stages[0].name == "find" and stages[0].operands[-4:-2] == ("-exec", "rm") and stages[0].operands[-2] == "{}":
        stages[0] = _deleting(replace(stages[0], operands=stages[0].operands[:-4])) or stages[0]


def _deleting(find: Line) -> Line | None:
    """A `find` that deletes what it finds."""
    return replace(find, operands=(*find.operands, "-delete")) if find.name == "find" else None


def _read_from_file(stages: list[Line]) -> None:
    """`filter < f` is `filter f`."""
    line = stages[0]
    sources = [path for operator, path in line.redirects if operator == "<"]
    before = 0 if line.values("-e") else _BEFORE_FILES.get(line.name, 0)
    if (
        len(sources) == 1
        and line.command.has("bound")
        and not line.command.has("words")
        and len(line.operands) == before
    ):
        redirects = tuple(redirect for redirect in line.redirects if redirect[0] != "<")
        stages[0] = replace(line, operands=(*line.operands, sources[0]), redirects=redirects)
