"""Shell commands as effects."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from composer_replication.shell_syntax import ACTIVE
from composer_replication.teacher_replay.agreement.code import python_form
from composer_replication.teacher_replay.agreement.edits import Edit, is_patch
from composer_replication.teacher_replay.agreement.effects import Effect, effect, move_effect, on_path, patch_effects
from composer_replication.teacher_replay.agreement.shell.files import (
    destroys_or_publishes,
    literal_substitution,
    only_reads,
    viewed,
    written,
)
from composer_replication.teacher_replay.agreement.shell.lines import Form, Line, into_folder, is_plain, seen_from
from composer_replication.teacher_replay.agreement.shell.searches import (
    find_form,
    line_search_form,
    searched_in_found,
)
from composer_replication.teacher_replay.agreement.shell.steps import Step, UnreadableCommandError, shell_steps

_LONGEST = 200_000
_LINE_EDIT = re.compile(r"edit (\d+):(\d+)\n(.*?)\n?end_of_edit\s*", re.DOTALL)
_ARRANGES = ("cat", "less", "more", "nl", "column")
_VIEWERS = ("cat", "head", "tail", "sed", "nl", "bat", "less")
# How many words stand before the files that a filter reads.
_BEFORE_FILES = {"grep": 1, "rg": 1, "awk": 1, "sed": 1, "jq": 1}
Stages = tuple[tuple[Line, ...], tuple[str | None, ...]]
"""The stages of a pipeline, and the here-document of each."""


def shell_effects(command: str, directory: str | None = None, *, in_background: bool = False) -> list[Effect]:
    """Return the effects of a command, step by step; one that cannot be read is one effect, compared by its text."""
    if (found := _LINE_EDIT.fullmatch(command.strip())) is not None:
        return [line_edit(int(found[1]), int(found[2]), found[3])]
    try:
        if len(command) > _LONGEST:
            raise UnreadableCommandError("longer than any command that is worth reading")
        steps = shell_steps(command, directory)
        return [
            one
            for step in steps
            for one in _step_effects(replace(step, in_background=step.in_background or in_background))
        ]
    except (UnreadableCommandError, RecursionError):
        text = "\n".join(line.rstrip() for line in command.strip().splitlines())
        return [Effect(("unread", text, in_background), ("unread", text, in_background), directory)]


def line_edit(start: int, stop: int, text: str) -> Effect:
    """Lines of the open file replaced by a text."""
    return effect("line edit", start, stop, text.rstrip())


def _step_effects(step: Step) -> Iterator[Effect]:
    if step.raw is not None:
        form = ("raw", step.in_background, step.raw)
        yield Effect(form, form, step.directory, limit=step.limit)
        return
    known = [] if step.in_background else list(_known_effects(step))
    is_at_stake = any(map(destroys_or_publishes, step.stages))
    for one in known or [_pipeline_effect(step)]:
        yield replace(one, joint=step.joint, limit=step.limit, is_at_stake=is_at_stake)


def _pipeline_effect(step: Step) -> Effect:
    stages, documents = shortened(step)
    forms = [
        tuple(_stage_form(stage, at, documents[place], place > 0) for place, stage in enumerate(stages))
        for at in (None, step.directory)
    ]
    local, resolved = (
        form[0] if len(form) == 1 and not step.in_background else ("pipeline", form, step.in_background)
        for form in forms
    )
    messages = stages[0].values("-m") if len(stages) == 1 and stages[0].name == "git commit" else ()
    return Effect(
        local,
        resolved,
        step.directory,
        is_bound=all((line.command.has("bound") or line.name == "find") and not line.redirects for line in stages),
        prose=("\n".join(messages),) if messages else (),
        reads=not step.in_background and all(only_reads(line) for line in stages),
        touches=_touched(stages, step.directory),
    )


def _known_effects(step: Step) -> Iterator[Effect]:
    """Effects that other tools do too: showing, writing, changing, deleting and moving files, patches."""
    first, directory = step.stages[0], step.directory
    shown = viewed(step.stages) if step.documents == (None,) * len(step.stages) else None
    if shown is not None:
        files, lines = shown
        for file in files:
            yield on_path("view", file, lines, directory=directory, reads=True)
        return
    if len(step.stages) != 1 or first.variables:
        return
    document = step.documents[0]
    if first.name in ("apply_patch", "applypatch", "git apply", "patch"):
        text = (document if document is not None else " ".join(first.operands)).replace(ACTIVE, "")
        if is_patch(text):
            yield from patch_effects(text, directory)
            return
    if (found := written(first, document)) is not None:
        kind, target, content = found
        ending = "ended" if content.endswith("\n") else "open"
        yield on_path(kind, target, directory=directory, code=(content,), ending=ending)
        return
    if first.redirects or document is not None or not is_plain(*first.operands):
        return
    if (substituted := literal_substitution(first)) is not None:
        old, new, everywhere, files = substituted
        for file in files:
            yield on_path("edit", file, directory=directory, edit=Edit(old, new, everywhere, in_each_line=True))
    elif first.command.has("each") and first.operands:
        for operand in first.operands:
            yield _of_operand(directory, replace(first, operands=(operand,)))
    elif first.name == "mv" and not first.options and len(first.operands) == 2:
        source, target = into_folder(first).operands
        yield move_effect(source, target, directory)


def _of_operand(directory: str | None, line: Line) -> Effect:
    """One of the things that a command does for each of its operands."""
    (operand,) = line.operands
    where = seen_from(directory, operand)
    if line.name == "rm" and not line.options:
        return on_path("delete", operand, directory=directory)
    # What is staged is not the file itself: several `git add` may change places, with an edit they may not.
    touches = frozenset({f"{where}/staged" if line.name.startswith("git") else where})
    return Effect(line.form(None), line.form(directory), directory, line.command.has("bound"), touches=touches)


def _stage_form(line: Line, directory: str | None, document: str | None, is_filter: bool) -> Form:
    if not line.redirects and not line.variables and document is None:
        if line.name == "find":
            return find_form(line, directory)
        found = line_search_form(line, directory, is_filter=is_filter)
        if found is not None:
            return found
    if line.name == "python" and document is not None and line.operands in ((), ("-",)) and not line.options:
        line = replace(line, name="python -c", operands=(), code=document.removeprefix(ACTIVE))
        document = None
    if line.name == "python -c" and line.code is not None:
        line = replace(line, code=python_form(line.code) or line.code.strip())
    if line.name == "cp":
        line = into_folder(line)
    if line.name == "git commit":
        # Its message is compared as prose.
        line = line.without("-m")
    form = line.form(directory)
    return form if document is None else (*form, document)


def _touched(stages: tuple[Line, ...], directory: str | None) -> frozenset[str] | None:
    line = stages[0]
    if len(stages) > 1 or line.redirects or not line.command.has("bound") or line.command.has("words"):
        return None
    return frozenset(seen_from(directory, operand) for operand in line.operands)


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
