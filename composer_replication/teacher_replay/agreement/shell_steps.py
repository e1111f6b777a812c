"""A shell command as steps: pipelines one after the other, each with the directory and the variables it runs in.

`cd`, `export`, wrappers such as `timeout` and `bash -c`, and echoes that only announce are taken into account and are
no steps themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from composer_replication.teacher_replay.agreement.command_lines import Form, Line, is_plain, program_name, read_line
from composer_replication.teacher_replay.agreement.paths import seen_from
from composer_replication.teacher_replay.agreement.shell_words import (
    ACTIVE,
    Operator,
    Redirect,
    ShellSyntaxError,
    Token,
    Word,
    shell_tokens,
)

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_OPENS = {"for", "while", "until", "if", "case", "select"}
_CLOSES = {"done", "fi", "esac"}
_BETWEEN = {"do", "then", "else", "elif", "in", "function"}
_SHELLS = {"bash", "sh", "zsh", "dash"}
# Variables about how output looks.
_SHOWN_VARIABLES = ("NO_COLOR=", "FORCE_COLOR=0", "PAGER=cat", "GIT_PAGER=", "TERM=dumb", "PYTHONUNBUFFERED=", "CLICOLOR=")
_DEEPEST = 5


@dataclass(frozen=True)
class Step:
    """A pipeline. `directory` is None if nothing says where it runs; `documents` are the here-documents of its stages,
    by stage; `raw` is set instead of stages for what is not a plain pipeline (loops, conditions, alternatives)."""

    stages: tuple[Line, ...] = ()
    directory: str | None = None
    documents: tuple[str | None, ...] = ()
    in_background: bool = False
    raw: Form | None = None


@dataclass
class _Surroundings:
    directory: str | None = None
    variables: list[str] = field(default_factory=list)


def shell_steps(command: str, directory: str | None = None) -> list[Step]:
    """The steps of a command that runs in a directory.

    Raises:
        ShellSyntaxError: it cannot be read.
    """
    steps = list(_steps(shell_tokens(command), _Surroundings(directory), 0))
    doing = [step for step in steps if not _only_tells(step)]
    return doing or steps


def _steps(tokens: Sequence[Token], around: _Surroundings, depth: int) -> Iterator[Step]:
    if depth > _DEEPEST:
        raise ShellSyntaxError("too many shells inside each other")
    for item, in_background in _items(tokens):
        alternatives = _split(item, "||")
        while len(alternatives) > 1 and _is_harmless(alternatives[-1]):
            alternatives.pop()
        if len(alternatives) > 1:
            flat = tuple(("||", *_flat(alternative)) for alternative in alternatives)
            yield Step(directory=around.directory, raw=flat, in_background=in_background)
            continue
        for pipeline in _split(alternatives[0], "&&"):
            for step in _pipeline(pipeline, around, depth):
                yield replace(step, in_background=step.in_background or in_background)


def _items(tokens: Sequence[Token]) -> Iterator[tuple[list[Token], bool]]:
    """What stands between `;`, newlines and `&`, outside of groups and loops; and whether an `&` ends it."""
    item: list[Token] = []
    for token, level in _levels(tokens):
        if level == 0 and isinstance(token, Operator) and token.text in (";", "&"):
            if item:
                yield item, token.text == "&"
            item = []
        else:
            item.append(token)
    if item:
        yield item, False


def _levels(tokens: Sequence[Token]) -> Iterator[tuple[Token, int]]:
    """Each token, with how many groups, loops and conditions it stands in."""
    level, begins = 0, True
    for token in tokens:
        if isinstance(token, Operator):
            level += (token.text == "(") - (token.text == ")")
            begins = token.text != ")"
            yield token, level
            continue
        if isinstance(token, Word):
            if begins and token.text in (*_OPENS, "{"):
                level += 1
            yield token, level
            if begins and token.text in (*_CLOSES, "}"):
                level -= 1
            begins = begins and (token.text in (*_OPENS, *_BETWEEN, "{", "!") or bool(_ASSIGNMENT.match(token.text)))
        else:
            yield token, level
        level = max(level, 0)


def _split(tokens: Sequence[Token], operator: str) -> list[list[Token]]:
    parts: list[list[Token]] = [[]]
    for token, level in _levels(tokens):
        if level == 0 and isinstance(token, Operator) and token.text == operator:
            parts.append([])
        else:
            parts[-1].append(token)
    return [part for part in parts if part]


def _pipeline(tokens: list[Token], around: _Surroundings, depth: int) -> Iterator[Step]:
    if isinstance(tokens[0], Operator) and tokens[0].text == "(" and _closes_at_end(tokens):
        yield from _steps(tokens[1:-1], replace(around, variables=list(around.variables)), depth + 1)
        return
    if tokens[0] == Word("{") and tokens[-1] == Word("}"):
        yield from _steps(tokens[1:-1], around, depth + 1)
        return
    if any(level > 0 for _, level in _levels(tokens)) or tokens[0] in (Word("!"), Word("function")):
        yield Step(directory=around.directory, raw=_flat(tokens))
        return
    stages, documents = [], []
    parts = _split(tokens, "|")
    for part in [piece for whole in parts for piece in _split(whole, "|&")]:
        words, variables, redirects, document = _simple(part)
        words = _unwrapped(words, variables)
        if len(parts) == 1:
            if not words:
                around.variables += variables
                return
            if program_name(words[0]) in _SHELLS and (script := _script(words)) is not None and not redirects:
                inside = _Surroundings(around.directory, [*around.variables, *variables])
                yield from _steps(shell_tokens(script), inside, depth + 1)
                return
            if _changes_surroundings(words, around):
                return
        if not words:
            raise ShellSyntaxError("a pipeline has an empty part")
        line = read_line(words)
        kept = tuple(sorted({*around.variables, *variables} - _shown({*around.variables, *variables})))
        stages.append(replace(line, variables=(*kept, *line.variables), redirects=redirects))
        documents.append(document)
    directory = around.directory
    for place, line in enumerate(stages):
        # `git -C dir`, `make -C dir`, `npm --prefix dir`: where it runs, said in its own way.
        moved = _own_directory(line)
        if moved is not None and len(stages) == 1:
            directory = seen_from(directory, moved)
            stages[place] = line.without("-C", "--prefix", "--cwd")
    yield Step(tuple(stages), directory, tuple(documents))


def _closes_at_end(tokens: Sequence[Token]) -> bool:
    levels = [level for _, level in _levels(tokens)]
    return tokens[-1] == Operator(")") and all(level > 0 for level in levels[:-1])


def _simple(tokens: Sequence[Token]) -> tuple[list[str], list[str], tuple[tuple[str, str], ...], str | None]:
    """A simple command's words, the variables set before them, its redirections and its here-document."""
    words: list[str] = []
    variables: list[str] = []
    redirects: list[tuple[str, str]] = []
    document: str | None = None
    for token in tokens:
        if isinstance(token, Redirect):
            if token.operator == "<<":
                document = token.target if token.is_literal else f"{ACTIVE}{token.target}"
            elif not _is_shown(token):
                descriptor = token.descriptor if token.descriptor != "1" else ""
                redirects.append((descriptor + token.operator, token.target))
        elif isinstance(token, Operator):
            raise ShellSyntaxError(f"{token.text!r} stands in a simple command")
        elif not words and _ASSIGNMENT.match(token.text):
            variables.append(token.text)
        else:
            words.append(token.text)
    return words, variables, tuple(sorted(redirects)), document


def _is_shown(redirect: Redirect) -> bool:
    """Errors beside the output, or thrown away; nothing to read."""
    if redirect.descriptor == "2":
        return redirect.target in ("1", "/dev/null", "/dev/stdout")
    return redirect.operator == "<" and redirect.target == "/dev/null"


def _shown(variables: set[str]) -> set[str]:
    return {variable for variable in variables if variable.startswith(_SHOWN_VARIABLES)}


def _unwrapped(words: list[str], variables: list[str]) -> list[str]:
    """The command behind `time`, `timeout 60`, `env X=1` and the like."""
    while words:
        name, rest = program_name(words[0].removeprefix("\\")), words[1:]
        if name in ("time", "nohup", "exec", "builtin", "unbuffer") or (name == "command" and rest[:1] not in (["-v"], ["-V"])):
            rest = _behind_options(rest, valued=())
        elif name == "env" and rest:
            rest = _behind_options(rest, valued=("-u",))
            while rest and _ASSIGNMENT.match(rest[0]):
                variables.append(rest.pop(0))
        elif name in ("timeout", "gtimeout"):
            rest = _behind_options(rest, valued=("-k", "-s", "--signal", "--kill-after"))[1:]
        elif name == "nice":
            rest = _behind_options(rest, valued=("-n",))
        elif name == "stdbuf":
            rest = _behind_options(rest, valued=("-o", "-i", "-e"))
        else:
            return [name, *rest] if words[0].startswith("\\") else words
        if not rest:
            return words
        words = rest
    return words


def _behind_options(words: list[str], valued: Sequence[str]) -> list[str]:
    place = 0
    while place < len(words) and words[place].startswith("-"):
        place += 2 if words[place] in valued else 1
    return words[place:]


def _script(words: Sequence[str]) -> str | None:
    """The text of `bash -c text`; None for any other way to start a shell."""
    for place, word in enumerate(words[1:], start=1):
        if not re.fullmatch(r"-[a-z]+", word):
            return None
        if "c" in word:
            rest = words[place + 1 :]
            return rest[0] if len(rest) == 1 and is_plain(rest[0]) else None
    return None


def _changes_surroundings(words: Sequence[str], around: _Surroundings) -> bool:
    name = words[0]
    if name in ("cd", "pushd"):
        target = next((word for word in words[1:] if not word.startswith("-")), "~")
        around.directory = seen_from(around.directory, "$OLDPWD" if words[1:2] == ["-"] else target)
        return True
    if name == "export" and len(words) > 1 and all(_ASSIGNMENT.match(word) for word in words[1:]):
        around.variables += words[1:]
        return True
    return name == "set" and all(re.fullmatch(r"[-+][euxo]+|pipefail", word) for word in words[1:])


def _own_directory(line: Line) -> str | None:
    program = line.name.partition(" ")[0]
    names = {"git": "-C", "make": "-C", "npm": "--prefix", "yarn": "--cwd", "pnpm": "-C", "go": "-C"}
    return line.option(names[program]) if program in names else None


def _is_harmless(tokens: Sequence[Token]) -> bool:
    """What stands behind `||` only so that nothing looks like a failure."""
    words = [token.text for token in tokens if isinstance(token, Word)]
    if len(words) != len([token for token in tokens if not isinstance(token, Redirect)]):
        return False
    return words in (["true"], [":"], ["exit", "0"]) or words[:1] == ["echo"]


def _only_tells(step: Step) -> bool:
    """Whether a step prints a text of its own, or the exit status, and nothing else."""
    if step.raw is not None or len(step.stages) != 1 or step.in_background:
        return False
    line = step.stages[0]
    if line.redirects or step.documents[0] is not None:
        return False
    if line.name in ("true", ":", "clear"):
        return True
    words = [*line.operands, *(value for _, value in line.options)]
    told = all(is_plain(re.sub(f"{ACTIVE}\\$\\{{(?:\\?|PIPESTATUS)[^}}]*\\}}", "", word)) for word in words)
    return line.name in ("echo", "printf") and told


def _flat(tokens: Sequence[Token]) -> Form:
    """What is no plain pipeline, as the words and operators that it consists of."""
    parts: list[object] = []
    for token in tokens:
        if isinstance(token, Redirect):
            if not _is_shown(token):
                parts.append((token.descriptor, token.operator, token.target))
        elif isinstance(token, Operator):
            # A newline before or behind a keyword, or a doubled separator, says nothing.
            if token.text != ";" or (parts and parts[-1] not in (*_BETWEEN, *_OPENS, ";", "{", "(")):
                parts.append(token.text)
        else:
            parts.append(token.text)
    return tuple(parts)
