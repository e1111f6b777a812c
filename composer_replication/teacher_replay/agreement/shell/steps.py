"""A shell command as steps: pipelines one after the other, each with the directory and the variables it runs in.

`cd`, `export`, wrappers such as `timeout` and `bash -c`, and echoes that only announce are taken into account and are
no steps themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from composer_replication.teacher_replay.agreement.paths import seen_from
from composer_replication.teacher_replay.agreement.shell.grouping import (
    ASSIGNMENT,
    BETWEEN,
    OPENS,
    inside_parentheses,
    items,
    levels,
    split,
    straightened,
)
from composer_replication.teacher_replay.agreement.shell.lines import Form, Line, is_plain, read_line
from composer_replication.teacher_replay.agreement.shell.reading import only_reads
from composer_replication.teacher_replay.agreement.shell.simple_commands import (
    activated,
    is_shown_redirect,
    script_of,
    simple_command,
)
from composer_replication.teacher_replay.agreement.shell.words import (
    ACTIVE,
    Operator,
    Redirect,
    ShellSyntaxError,
    Token,
    Word,
    shell_tokens,
)

_DEEPEST = 5
_PICKS = ("head", "tail", "grep", "rg", "less", "more", "wc", "sort", "cat", "nl", "column", "tee")
# Nobody makes what follows depend on these.
_HARDLY_FAILS = (
    "ls", "cat", "head", "tail", "pwd", "echo", "printf", "git status", "git diff", "git log", "find", "date",
    "git add",
)  # fmt: skip
# Options that say where a program runs.
_OWN_DIRECTORY = {"git": "-C", "make": "-C", "npm": "--prefix", "yarn": "--cwd", "pnpm": "-C", "go": "-C"}


@dataclass(frozen=True)
class Step:
    """A pipeline. `directory` is None if nothing says where it runs; `documents` are the here-documents of its stages,
    by stage; `raw` is set instead of stages for what is not a plain pipeline (loops, conditions, alternatives). `joint`
    is "&&" if it runs only where a step before it succeeded that might have failed, ";" if it runs in any case. `limit`
    is the time it may take, as a precaution."""

    stages: tuple[Line, ...] = ()
    directory: str | None = None
    documents: tuple[str | None, ...] = ()
    in_background: bool = False
    raw: Form | None = None
    joint: str = ""
    limit: str = ""


@dataclass
class _Surroundings:
    directory: str | None = None
    variables: list[str] = field(default_factory=list)
    before: list[str | None] = field(default_factory=list)
    known: dict[str, str] = field(default_factory=dict)
    stops: bool = False

    def go(self, directory: str | None) -> None:
        self.before.append(self.directory)
        self.directory = None if directory == "." else directory


def shell_steps(command: str, directory: str | None = None) -> list[Step]:
    """The steps of a command that runs in a directory.

    Raises:
        ShellSyntaxError: it cannot be read.
    """
    around = _Surroundings(None if directory == "." else directory)
    steps = list(_steps(shell_tokens(command), around, 0))
    if not steps:
        # Nothing is done but that the shell stands elsewhere, or knows a variable.
        return [Step(raw=(around.directory or "", *sorted(around.variables), *sorted(around.known.items())))]
    doing = [step for step in steps if not _only_tells(step)]
    return doing or steps


def _steps(tokens: Sequence[Token], around: _Surroundings, depth: int) -> Iterator[Step]:
    if depth > _DEEPEST:
        raise ShellSyntaxError("too many shells inside each other")
    before: list[Step] = []
    for item, in_background in items(tokens):
        alternatives = split(item, "||")
        while len(alternatives) > 1 and _is_harmless(alternatives[-1]):
            alternatives.pop()
        if len(alternatives) > 1:
            flat = tuple(("||", *_flat(alternative)) for alternative in alternatives)
            yield Step(directory=around.directory, raw=flat, in_background=in_background)
            continue
        for place, pipeline in enumerate(split(alternatives[0], "&&")):
            for step in _pipeline(pipeline, around, depth):
                joint = "&&" if place > 0 or around.stops else ";"
                if not step.joint and any(_decides(one, step) for one in before):
                    step = replace(step, joint=joint)
                before.append(step)
                yield replace(step, in_background=step.in_background or in_background)


def _pipeline(tokens: list[Token], around: _Surroundings, depth: int) -> Iterator[Step]:
    if (inside := inside_parentheses(tokens)) is not None:
        yield from _steps(inside, replace(around, variables=list(around.variables)), depth + 1)
    elif tokens[0] == Word("{") and tokens[-1] == Word("}"):
        yield from _steps(tokens[1:-1], around, depth + 1)
    elif (straight := straightened(tokens)) is not None:
        yield from _steps(straight, around, depth + 1)
    elif any(level > 0 for _, level in levels(tokens)) or tokens[0] in (Word("!"), Word("function")):
        yield Step(directory=around.directory, raw=_flat(tokens))
    else:
        yield from _plain_pipeline(tokens, around, depth)


def _plain_pipeline(tokens: list[Token], around: _Surroundings, depth: int) -> Iterator[Step]:
    commands = [simple_command(part, around.known) for whole in split(tokens, "|") for part in split(whole, "|&")]
    first = commands[0]
    if len(commands) == 1:
        if not first.words:
            # Not handed to programs: they are put in where they are used.
            around.known.update((name, value) for name, _, value in (one.partition("=") for one in first.variables))
            return
        if (script := script_of(first.words)) is not None and not first.redirects:
            inner = _Surroundings(around.directory, [*around.variables, *first.variables])
            for step in _steps(shell_tokens(script), inner, depth + 1):
                raw = None if step.raw is None else (*first.variables, *step.raw)
                yield replace(step, raw=raw, limit=step.limit or first.limit)
            return
        if _changes_surroundings(first.words, around):
            return
    stages = []
    for command in commands:
        if not command.words:
            raise ShellSyntaxError("a pipeline has an empty part")
        variables = tuple(sorted({*around.variables, *command.variables}))
        stages.append(replace(read_line(command.words), variables=variables, redirects=command.redirects))
    for place, stage in enumerate(stages):
        if _is_data(stage, stages[place + 1 :]):
            stages[place] = stage.as_data()
    directory = around.directory
    own = _OWN_DIRECTORY.get(stages[0].name.partition(" ")[0])
    if own is not None and len(stages) == 1 and (moved := stages[0].option(own)) is not None:
        directory = seen_from(directory, moved)
        stages[0] = stages[0].without(own)
    limit = "|".join(command.limit for command in commands).rstrip("|")
    yield Step(tuple(stages), directory, tuple(command.document for command in commands), limit=limit)


def _is_data(stage: Line, following: Sequence[Line]) -> bool:
    """Whether what a stage prints is kept, or read by a program that does more than trim, pick or count."""
    if any(operator.lstrip("0123456789") != "<" and path != "/dev/null" for operator, path in stage.redirects):
        return True
    return any(line.name not in _PICKS or line.redirects for line in following)


def _changes_surroundings(words: Sequence[str], around: _Surroundings) -> bool:
    """Whether a command only changes where, and with which variables, the next ones run."""
    name = words[0]
    if name in ("cd", "pushd"):
        target = next((word for word in words[1:] if not word.startswith("-")), f"{ACTIVE}${{HOME}}")
        back = words[1:2] == ["-"] and around.before
        around.go(around.before[-1] if back else seen_from(around.directory, target))
        return True
    if name == "popd" and around.before:
        around.go(around.before[-1])
        return True
    if (variable := activated(words)) is not None:
        around.variables.append(variable)
        return True
    if name == "export" and len(words) > 1 and all(ASSIGNMENT.match(word) for word in words[1:]):
        around.variables += words[1:]
        return True
    if name == "set" and all(re.fullmatch(r"[-+][euxo]+|pipefail", word) for word in words[1:]):
        around.stops = around.stops or any(re.match(r"-\w*e", word) for word in words[1:])
        return True
    return False


def _decides(before: Step, step: Step) -> bool:
    """Whether it matters that a step succeeded before another one: not if it hardly ever fails, and not for
    what only reads, unless something was to be done for it."""
    if before.raw is not None or _only_tells(before) or all(line.name in _HARDLY_FAILS for line in before.stages):
        return False
    if all(map(only_reads, before.stages)):
        return step.raw is not None or not (_only_tells(step) or all(map(only_reads, step.stages)))
    return not _only_tells(step)


def _is_harmless(tokens: Sequence[Token]) -> bool:
    """What stands behind `||` only so that nothing looks like a failure."""
    if any(isinstance(one, Operator) or (isinstance(one, Redirect) and not is_shown_redirect(one)) for one in tokens):
        return False
    words = [token.text for token in tokens if isinstance(token, Word)]
    return words in (["true"], [":"], ["exit", "0"]) or words[:1] == ["echo"]


def _only_tells(step: Step) -> bool:
    """Whether a step prints a text of its own, or the exit status, and nothing else."""
    if step.raw is not None or len(step.stages) != 1 or step.in_background:
        return False
    line = step.stages[0]
    if line.redirects or step.documents[0] is not None:
        return False
    status = re.compile(f"{ACTIVE}\\$\\{{(?:\\?|PIPESTATUS)[^}}]*\\}}")
    tells = line.name in ("echo", "printf") and all(is_plain(status.sub("", word)) for word in line.operands)
    return tells or line.name in ("true", ":", "clear")


def _flat(tokens: Sequence[Token]) -> Form:
    """What is no plain pipeline, as the words and operators that it consists of."""
    parts: list[object] = []
    for token in tokens:
        if isinstance(token, Redirect):
            if not is_shown_redirect(token):
                parts.append((token.descriptor, token.operator, token.target))
        elif isinstance(token, Operator):
            # A newline before or behind a keyword, or a doubled separator, says nothing.
            if token.text != ";" or (parts and parts[-1] not in (*BETWEEN, *OPENS, ";", "{", "(")):
                parts.append(token.text)
        else:
            parts.append(token.text)
    return tuple(parts)
