"""Shell commands as deeds."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

from composer_replication.teacher_replay.agreement.code import python_form
from composer_replication.teacher_replay.agreement.command_lines import Form, Line, is_plain
from composer_replication.teacher_replay.agreement.deeds import Deed, deed
from composer_replication.teacher_replay.agreement.patches import is_patch, patch_deeds
from composer_replication.teacher_replay.agreement.paths import seen_from
from composer_replication.teacher_replay.agreement.searches import files_form, find_form, has_glob, line_search_form
from composer_replication.teacher_replay.agreement.shell_steps import Step, shell_steps
from composer_replication.teacher_replay.agreement.shell_words import ACTIVE, ShellSyntaxError, globs_as_text
from composer_replication.teacher_replay.agreement.views import view_form, viewed

_LINE_EDIT = re.compile(r"edit (\d+):(\d+)\n(.*?)\n?end_of_edit\s*", re.DOTALL)
_CHECKS = {"ruff check": "--fix", "eslint": "--fix"}
_DRY = {"black": "--check", "isort": "--check", "ruff format": "--check", "prettier": "-c", "cargo fmt": "--check"}
_PRETTY_PRINTERS = (("jq", (".",)), ("python -m json.tool", ()))


def shell_deeds(command: str, directory: str | None = None) -> list[Deed]:
    """What a command does, step by step; a command that cannot be read is one deed, compared by its text."""
    if (found := _LINE_EDIT.fullmatch(command.strip())) is not None:
        return [line_edit(int(found[1]), int(found[2]), found[3])]
    try:
        return [one for step in shell_steps(command, directory) for one in _step_deeds(step)]
    except (ShellSyntaxError, RecursionError):
        text = "\n".join(line.rstrip() for line in command.strip().splitlines())
        return [Deed(("unread", text), ("unread", text), directory)]


def line_edit(start: int, stop: int, text: str) -> Deed:
    """Lines of the open file replaced by a text."""
    return deed("line edit", start, stop, text.rstrip(), touches=None)


def _step_deeds(step: Step) -> Iterator[Deed]:
    if step.raw is not None:
        form = ("raw", step.in_background, step.raw)
        yield Deed(form, form, step.directory)
        return
    if not step.in_background:
        known = list(_known_deeds(step))
        if known:
            yield from known
            return
    stages = _without_shown(step)
    local = _pipeline_form(stages, step, None)
    resolved = _pipeline_form(stages, step, step.directory)
    is_bound = all(stage.command.bound or stage.name == "find" for stage in stages) and all(
        not stage.redirects for stage in stages
    )
    prose: tuple[str, ...] = ()
    if stages[-1].name == "git commit" and len(stages) == 1:
        prose = stages[0].values("-m")
        prose = ("\n".join(prose),) if prose else ()
    yield Deed(
        local, resolved, step.directory, is_bound, prose=prose, reads=_reads(stages, step), touches=_touched(stages, step)
    )


def _known_deeds(step: Step) -> Iterator[Deed]:
    """Deeds that other tools do too: showing, writing, deleting and moving files, patches."""
    first = step.stages[0]
    shown = viewed(step.stages) if step.documents == (None,) * len(step.stages) else None
    if shown is not None:
        for file in shown[0]:
            path = seen_from(step.directory, file)
            yield _by_path(step, lambda at: view_form(at, shown[1]), file, reads=True, touches=frozenset({path}))
        return
    if len(step.stages) != 1 or first.variables:
        return
    document = step.documents[0]
    if first.name in ("apply_patch", "applypatch"):
        text = document if document is not None else " ".join(first.operands)
        if is_patch(text.replace(ACTIVE, "")):
            yield from patch_deeds(text.replace(ACTIVE, ""), step.directory)
        return
    written = _written(first, document)
    if written is not None:
        kind, target, content = written
        yield _by_path(
            step, lambda at: (kind, at), target, code=(content,), touches=frozenset({seen_from(step.directory, target)})
        )
        return
    if first.redirects or document is not None or not is_plain(*first.operands):
        return
    if first.command.each and not first.inner and len(first.operands) >= 1:
        for operand in first.operands:
            one = replace(first, operands=(operand,))
            where = seen_from(step.directory, operand)
            form = ("delete",) if first.name == "rm" and not first.options else None
            yield _by_path(
                step,
                (lambda at, line=one: line.form(None)[:2] + (at,)) if form is None else (lambda at: ("delete", at)),
                operand,
                touches=frozenset({f"index of git:{where}" if first.name.startswith("git") else where}),
                is_bound=first.command.bound,
            )
    elif first.name == "mv" and not first.options and len(first.operands) == 2:
        source, target = first.operands
        local = ("move", seen_from(None, source), seen_from(None, target))
        paths = (seen_from(step.directory, source), seen_from(step.directory, target))
        yield Deed(local, ("move", *paths), step.directory, is_bound=True, touches=frozenset(paths))


def _by_path(step: Step, form, path: str, *, is_bound: bool = True, **fields) -> Deed:  # type: ignore[no-untyped-def]
    resolved = seen_from(step.directory, path)
    return Deed(form(seen_from(None, path)), form(resolved), step.directory, is_bound, path=path, **fields)


def _written(line: Line, document: str | None) -> tuple[str, str, str] | None:
    """How a file is written by a redirection, which one, and with what: `cat > f <<EOF`, `echo text > f`, `tee f`."""
    target = _target(line)
    if target is None or not is_plain(target[1]):
        return None
    content = document
    if document is None and line.name == "echo":
        words = list(line.operands)
        closing = "" if words[:1] == ["-n"] else "\n"
        words = words[1:] if words[:1] in (["-n"], ["-e"]) else words
        content = " ".join(words) + closing
        if line.operands[:1] == ("-e",):
            content = content.replace("\\n", "\n").replace("\\t", "\t")
    elif document is None and line.name == "printf" and len(line.operands) == 1 and "%" not in line.operands[0]:
        content = line.operands[0].replace("\\n", "\n").replace("\\t", "\t")
    elif document is None or line.name not in ("cat", "tee"):
        return None
    return None if content is None or not is_plain(content) else (target[0], target[1], content)


def _target(line: Line) -> tuple[str, str] | None:
    redirects = [redirect for redirect in line.redirects if redirect != (">", "/dev/null")]
    if line.name == "tee" and len(line.operands) == 1 and not redirects:
        return ("append" if line.option("-a") is not None else "write", line.operands[0])
    if len(line.redirects) != 1 or line.name == "tee" or (line.name == "cat" and line.operands):
        return None
    operator, path = line.redirects[0]
    kinds = {">": "write", ">|": "write", ">>": "append"}
    return (kinds[operator], path) if operator in kinds else None


def _without_shown(step: Step) -> tuple[Line, ...]:
    """A pipeline without what only trims or arranges its output, and without a needless `cat` before it."""
    stages = list(step.stages)
    trims = False
    while len(stages) > 1:
        last = stages[-1]
        if last.redirects or last.variables or step.documents[len(stages) - 1] is not None:
            break
        if last.name in ("head", "tail") and not last.operands and {option for option, _ in last.options} <= {"-n"}:
            if last.option("-n") in ("0", "1"):
                break
            trims = True
        elif last.name == "sort" and not last.operands and last.option("-u") is None:
            # The first of an order is a choice, not a trim.
            if trims:
                return tuple(stages) + step.stages[len(stages) :]
        elif last.name not in ("cat", "less", "more", "nl", "column") or last.operands:
            if (last.name, last.operands) not in _PRETTY_PRINTERS:
                break
        stages.pop()
    first = stages[0]
    if len(stages) > 1 and first.name == "cat" and len(first.operands) == 1 and not first.redirects and not first.options:
        second = stages[1]
        takes = {"grep": 1, "awk": 1, "sed": 1, "rg": 1}.get(second.name, 0) if not second.values("-e") else 0
        if second.command.bound or second.name == "awk":
            if len(second.operands) == takes and second.name not in ("tee", "xargs"):
                stages[:2] = [replace(second, operands=(*second.operands, first.operands[0]))]
    elif len(stages) == 1 and first.redirects and first.command.bound and not first.operands:
        source = [path for operator, path in first.redirects if operator == "<"]
        if len(source) == 1 and len(first.redirects) == 1:
            stages[0] = replace(first, operands=(source[0],), redirects=())
    return tuple(_sorted_once(stages))


def _sorted_once(stages: list[Line]) -> Iterator[Line]:
    """`sort | uniq` is `sort -u`."""
    place = 0
    while place < len(stages):
        line = stages[place]
        following = stages[place + 1] if place + 1 < len(stages) else None
        if line.name == "sort" and following is not None and following.name == "uniq" and not following.options:
            yield replace(line, options=tuple(sorted({*line.options, ("-u", "")})))
            place += 2
        else:
            yield line
            place += 1


def _pipeline_form(stages: tuple[Line, ...], step: Step, directory: str | None) -> Form:
    forms = tuple(
        _stage_form(stage, directory, step.documents[place] if len(stages) == len(step.stages) else None, place > 0)
        for place, stage in enumerate(stages)
    )
    if len(forms) == 1 and not step.in_background:
        return forms[0]
    return ("pipeline", forms, step.in_background)


def _stage_form(line: Line, directory: str | None, document: str | None, is_filter: bool) -> Form:
    if not line.redirects and not line.variables and document is None:
        if line.name == "find":
            return find_form(line, directory)
        if line.name in ("grep", "rg"):
            found = line_search_form(line, directory, is_filter=is_filter)
            if found is not None:
                return found
        if line.name == "rg" and line.option("--files") is not None and {name for name, _ in line.options} <= {"--files", "-g"}:
            globs = line.values("-g")
            if len(globs) == 1:
                name = globs_as_text(globs[0])
                below = name if "/" in name else f"**/{name}"
                return files_form(below, (*line.operands, ".")[0], directory=directory)
        if line.name == "ls" and not line.options and len(line.operands) == 1 and has_glob(line.operands[0]):
            return files_form(globs_as_text(line.operands[0]), directory=directory)
    if line.name == "python" and document is not None and line.operands in ((), ("-",)) and not line.options:
        return ("python -c", (), (), line.variables, line.redirects, None, _python(document.removeprefix(ACTIVE)))
    if line.name == "python -c" and line.code is not None:
        line = replace(line, code=_python(line.code))
    if line.name == "git commit":
        line = line.without("-m") if line.option("-m") else line
    form = line.form(directory)
    return (*form, document) if document is not None else form


def _python(code: str) -> str:
    return python_form(code) or code.strip()


def _reads(stages: tuple[Line, ...], step: Step) -> bool:
    return not step.in_background and all(_line_reads(stage) for stage in stages)


def _line_reads(line: Line) -> bool:
    if line.redirects:
        return False
    if line.name == "find":
        return not any(word in ("-delete", "-exec", "-execdir", "-ok") for word in line.operands)
    if line.name in _CHECKS:
        return line.option(_CHECKS[line.name]) is None
    if line.name in _DRY:
        return line.option(_DRY[line.name]) is not None
    if line.name == "sed":
        return line.option("-i") is None
    if line.inner is not None and not line.name:
        return _line_reads(line.inner)
    if not line.options and not line.operands and line.name in ("pwd", "whoami", "date", "env", "hostname", "uptime"):
        return True
    return line.command.reads


def _touched(stages: tuple[Line, ...], step: Step) -> frozenset[str] | None:
    line = stages[0]
    if len(stages) == 1 and line.command.bound and line.command.paths and line.name not in ("kill", "pkill") and not line.redirects:
        return frozenset(seen_from(step.directory, operand) for operand in line.operands)
    return None


def literal_python(code: str) -> ast.Module | None:
    """The tree of a piece of Python; None if it is none."""
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
