"""A shell command as steps: pipelines one after the other, each with the directory and the variables it runs in.

`cd`, `export`, wrappers such as `timeout` and `bash -c`, and echoes that only announce are taken into account and are
no steps themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from composer_replication.coding_tools import word_set
from composer_replication.shell_syntax import (
    ACTIVE,
    Command,
    Group,
    Item,
    Pipeline,
    Redirect,
    Script,
    flat_pipeline,
    globs_as_text,
    parse,
    spelled_out,
)
from composer_replication.teacher_replay.agreement.shell.files import only_reads
from composer_replication.teacher_replay.agreement.shell.lines import (
    Form,
    Line,
    is_plain,
    program_name,
    read_line,
    seen_from,
)

_DEEPEST = 5
_MOST_ROUNDS = 20
_PICKS = ("head", "tail", "grep", "rg", "less", "more", "wc", "sort", "cat", "nl", "column", "tee")
# Nobody makes what follows depend on these.
_HARDLY_FAILS = word_set("ls cat head tail pwd echo printf find date whoami hostname uname uptime nproc env df free ps")
_HARDLY_FAILS |= {"git status", "git diff", "git log", "git add"}
# Options that say where a program runs.
_OWN_DIRECTORY = {"git": "-C", "make": "-C", "npm": "--prefix", "yarn": "--cwd", "pnpm": "-C", "go": "-C"}
_STATUS = re.compile(f"{ACTIVE}\\$\\{{(?:\\?|PIPESTATUS)[^}}]*\\}}")
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
# Variables about how output looks.
_SHOWN_VARIABLES = (
    "NO_COLOR=", "FORCE_COLOR=0", "PAGER=cat", "GIT_PAGER=", "TERM=dumb", "PYTHONUNBUFFERED=", "CLICOLOR=",
)  # fmt: skip
_IN_ENVIRONMENT = re.compile(r"(?P<folder>(?:.*/)?\.?v?env)/bin/(?P<name>[\w.-]+)")
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)([smhd]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
# Whoever gives a command less than this expects it to run on: it is a server, or waits for something.
_SHORTEST_PRECAUTION = 30
_HERE = re.compile(rf"^{ACTIVE}\$\{{PWD\}}/")
# Brackets that belong to a name: the extras of a package, the parameters of a test.
_BRACKETED_NAME = re.compile(rf"[\w./-]*{ACTIVE}\[[\w,-]+\](?:[=<>~!].*)?|[^{ACTIVE}]*::.*")


class UnreadableCommandError(ValueError):
    """A command whose effects are not known: it does not parse, or shells are nested too deep."""


@dataclass(frozen=True)
class Step:
    """A pipeline.

    `directory` is None if nothing says where it runs. `documents` are the here-documents of its stages, by stage. `raw`
    is set instead of stages for what is not a plain pipeline (loops, conditions, alternatives). `joint` is "&&" if it
    runs only where a step before it succeeded that might have failed, ";" if it runs in any case. `limit` is the time
    it may take, as a precaution.
    """

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

    def learn(self, assignments: Iterable[str]) -> None:
        """Keep the values of variables that are not exported."""
        for one in assignments:
            name, _, value = one.partition("=")
            if name.endswith("+"):
                name = name[:-1]
                value = self.known.get(name, f"{ACTIVE}${{{name}}}") + value
            self.known[name] = value

    def go(self, directory: str | None) -> None:
        self.before.append(self.directory)
        self.directory = None if directory == "." else directory


def shell_steps(command: str, directory: str | None = None) -> list[Step]:
    """Return the steps of a command that runs in a directory.

    Raises:
        UnreadableCommandError: it cannot be read.
    """
    around = _Surroundings(None if directory == "." else directory)
    steps = list(_steps(_parsed(command), around, 0))
    if not steps:
        # Nothing is done but that the shell stands elsewhere, or knows a variable.
        return [Step(raw=(around.directory or "", *sorted(around.variables), *sorted(around.known.items())))]
    doing = [step for step in steps if not _only_tells(step)]
    return doing or steps


def _parsed(command: str) -> Script:
    script = parse(command)
    if script is None:
        raise UnreadableCommandError("the command does not parse")
    return script


def _steps(script: Script, around: _Surroundings, depth: int) -> Iterator[Step]:
    if depth > _DEEPEST:
        raise UnreadableCommandError("too many shells inside each other")
    before: list[Step] = []
    for item in script:
        pipelines = list(item.pipelines)
        while len(pipelines) > 1 and pipelines[-1][0] == "||" and _is_harmless(pipelines[-1][1]):
            pipelines.pop()
        if any(operator == "||" for operator, _ in pipelines):
            parts = (part for operator, one in pipelines for part in (ACTIVE + operator, *flat_pipeline(one)))
            yield Step(directory=around.directory, raw=_raw(parts, around.known), in_background=item.in_background)
            continue
        for operator, pipeline in pipelines:
            for step in _pipeline(pipeline, around, depth):
                joint = "&&" if operator or around.stops else ";"
                if not step.joint and any(_decides(one, step) for one in before):
                    step = replace(step, joint=joint)
                before.append(step)
                yield replace(step, in_background=step.in_background or item.in_background)


def _pipeline(pipeline: Pipeline, around: _Surroundings, depth: int) -> Iterator[Step]:
    first = pipeline[0]
    commands = [stage for stage in pipeline if isinstance(stage, Command)]
    if len(commands) == len(pipeline):
        yield from _plain_pipeline(commands, around, depth)
    elif len(pipeline) > 1 or isinstance(first, Command) or not all(map(is_shown_redirect, first.redirects)):
        yield Step(directory=around.directory, raw=_raw(flat_pipeline(pipeline), around.known))
    elif isinstance(first, Group):
        inner = replace(around, variables=list(around.variables)) if first.is_subshell else around
        yield from _steps(first.body, inner, depth + 1)
    elif first.condition is not None and (straight := _straightened(*first.condition)) is not None:
        yield from _steps(straight, around, depth + 1)
    elif first.loop is not None and 0 < len(first.loop[1]) <= _MOST_ROUNDS and is_plain(*first.loop[1]):
        # A loop over given words is its body for each of them.
        variable, values, body = first.loop
        for value in values:
            around.known[variable] = value
            yield from _steps(body, around, depth + 1)
    else:
        yield Step(directory=around.directory, raw=_raw(flat_pipeline(pipeline), around.known))


def _straightened(condition: Script, body: Script) -> Script | None:
    """`if a; then b; fi` as `a && b`; None if alternatives or the background are in the way."""
    items = (*condition, *body)
    if not condition or not body or any(item.in_background for item in items):
        return None
    if any(operator == "||" for item in items for operator, _ in item.pipelines):
        return None
    _, first = body[0].pipelines[0]
    meeting = Item((*condition[-1].pipelines, ("&&", first), *body[0].pipelines[1:]))
    return (*condition[:-1], meeting, *body[1:])


def _plain_pipeline(pipeline: Sequence[Command], around: _Surroundings, depth: int) -> Iterator[Step]:
    commands = [simple_command(command, around.known) for command in pipeline]
    first = commands[0]
    if len(commands) == 1:
        if not first.words:
            # Not passed to programs: they are put in where they are used.
            around.learn(first.variables)
            return
        if (script := script_of(first.words)) is not None and not first.redirects:
            yield from _inner_steps(script, first, around, depth)
            return
        if _changes_surroundings(first.words, around):
            return
    stages = []
    for command in commands:
        if not command.words:
            raise UnreadableCommandError("a pipeline has an empty part")
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


def _inner_steps(script: str, command: Simple, around: _Surroundings, depth: int) -> Iterator[Step]:
    """The steps of `bash -c script`."""
    inner = _Surroundings(around.directory, [*around.variables, *command.variables])
    for step in _steps(_parsed(script), inner, depth + 1):
        raw = None if step.raw is None else (*command.variables, *step.raw)
        yield replace(step, raw=raw, limit=step.limit or command.limit)


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
    if before.raw is None and (_only_tells(before) or all(map(_hardly_fails, before.stages))):
        return False
    if before.raw is None and all(map(only_reads, before.stages)):
        return step.raw is not None or not (_only_tells(step) or all(map(only_reads, step.stages)))
    return not _only_tells(step)


def _hardly_fails(line: Line) -> bool:
    return line.name in _HARDLY_FAILS or (line.name == "mkdir" and line.option("-p") is not None)


def _is_harmless(pipeline: Pipeline) -> bool:
    """Whether it stands after `||` only so that nothing looks like a failure."""
    first = pipeline[0]
    if len(pipeline) > 1 or not isinstance(first, Command) or not all(map(is_shown_redirect, first.redirects)):
        return False
    return first.words in (("true",), (":",), ("exit", "0")) or first.words[:1] == ("echo",)


def _only_tells(step: Step) -> bool:
    """Whether a step prints a text of its own, or the exit status, and nothing else."""
    if step.raw is not None or len(step.stages) != 1 or step.in_background:
        return False
    line = step.stages[0]
    if line.redirects or step.documents[0] is not None:
        return False
    tells = line.name in ("echo", "printf") and all(is_plain(_STATUS.sub("", word)) for word in line.operands)
    return tells or line.name in ("true", ":", "clear")


def _raw(parts: Iterable[str | Redirect], known: Mapping[str, str]) -> Form:
    """Return the words and operators of something that is not a plain pipeline."""
    return tuple(
        (part.descriptor, part.operator, filled_in(part.target, known))
        if isinstance(part, Redirect)
        else filled_in(part, known)
        for part in parts
        if not (isinstance(part, Redirect) and is_shown_redirect(part))
    )


@dataclass
class Simple:
    """The parts of a simple command; `document` is the text of its here-document, beginning with `ACTIVE` if the shell
    fills something in. `limit` is the time it may take, if that is no more than a precaution; a time that is meant to
    run out stands among the variables."""

    words: list[str] = field(default_factory=list)
    variables: list[str] = field(default_factory=list)
    limit: str = ""
    redirects: tuple[tuple[str, str], ...] = ()
    document: str | None = None


def simple_command(command: Command, known: Mapping[str, str]) -> Simple:
    """Take a simple command out of what only measures or wraps it; `known` are values of variables."""
    found = Simple(variables=[filled_in(one, known) for one in command.assignments])
    redirects: list[tuple[str, str]] = []
    for redirect in command.redirects:
        if redirect.operator == "<<":
            found.document = redirect.target if redirect.is_literal else f"{ACTIVE}{redirect.target}"
        elif not is_shown_redirect(redirect):
            redirects.append(_usual_redirect(replace(redirect, target=filled_in(redirect.target, known))))
    for word in command.words:
        found.words += [_usual_word(one) for one in spelled_out(filled_in(word, known))]
    found.redirects = tuple(sorted(redirects))
    if not found.words and redirects:
        # A redirection alone empties a file.
        found.words = [":"]
    _unwrap(found)
    _name_environment(found)
    found.variables = [one for one in found.variables if not one.startswith(_SHOWN_VARIABLES)]
    if known:
        found.variables += _still_used(found, known)
    return found


def filled_in(text: str, known: Mapping[str, str]) -> str:
    """A text with the values of variables that are known."""
    if ACTIVE in text:
        for name, value in known.items():
            text = text.replace(f"{ACTIVE}${{{name}}}", value)
    return text


def _still_used(found: Simple, known: Mapping[str, str]) -> Iterator[str]:
    """Known variables that are used in a way that is not followed: `${name%.py}`, or in a here-document."""
    words = [*found.words, *found.variables, *(target for _, target in found.redirects), found.document or ""]
    text = " ".join(word for word in words if ACTIVE in word)
    for name, value in known.items():
        if re.search(rf"\$[^\s]*\b{re.escape(name)}\b", text):
            yield f"{name}={value}"


def is_shown_redirect(redirect: Redirect) -> bool:
    """Errors beside the output, or thrown away; nothing to read."""
    if redirect.descriptor == "2":
        return redirect.target in ("1", "/dev/null", "/dev/stdout")
    return redirect.operator == "<" and redirect.target == "/dev/null"


def script_of(words: Sequence[str]) -> str | None:
    """The text of `bash -c text`; None for any other command."""
    if program_name(words[0]) not in ("bash", "sh", "zsh", "dash"):
        return None
    for place, word in enumerate(words[1:], start=1):
        if not re.fullmatch(r"-[a-z]+", word):
            return None
        if "c" in word:
            rest = words[place + 1 :]
            return rest[0] if len(rest) == 1 and is_plain(rest[0]) else None
    return None


def _usual_redirect(redirect: Redirect) -> tuple[str, str]:
    """Output by any name: `1>`, `&>` and `>&` are `>`, with or without the errors."""
    descriptor = "" if redirect.descriptor in ("1", "&") else redirect.descriptor
    operator = ">" if redirect.operator == ">&" and not redirect.target.isdigit() else redirect.operator
    return descriptor + operator, redirect.target


def _usual_word(word: str) -> str:
    """A word in which the shell finds no file by its marks: a URL, a test, a package with extras."""
    word = _HERE.sub("./", word)
    return globs_as_text(word) if "://" in word or _BRACKETED_NAME.fullmatch(word) else word


def _unwrap(found: Simple) -> None:
    """Take the command out of `time`, `timeout 60`, `env X=1` and the like."""
    while found.words:
        first, rest = found.words[0], found.words[1:]
        name = program_name(first.removeprefix("\\"))
        is_command = name == "command" and rest[:1] not in (["-v"], ["-V"])
        if name in ("time", "nohup", "exec", "builtin", "unbuffer") or is_command:
            rest = _after_options(rest, valued=())
        elif name == "env" and rest and not rest[0].startswith("-"):
            while rest and ASSIGNMENT.match(rest[0]):
                found.variables.append(rest.pop(0))
        elif name in ("timeout", "gtimeout"):
            given, (time, *rest) = rest, _after_options(rest, valued=("-k", "-s", "--signal", "--kill-after")) or [""]
            if rest:
                _limit(found, time, given[: len(given) - len(rest) - 1])
        elif name == "nice":
            rest = _after_options(rest, valued=("-n",))
        else:
            found.words[0] = name if first.startswith("\\") else first
            return
        if not rest:
            return
        found.words = rest


def _limit(found: Simple, time: str, options: list[str]) -> None:
    parts = _DURATION.fullmatch(time)
    seconds = float(parts[1]) * _SECONDS[parts[2]] if parts else None
    limit = " ".join([*options, time if seconds is None else f"{seconds:g}"])
    if seconds is None or 0 < seconds < _SHORTEST_PRECAUTION:
        found.variables.append(f"timeout {limit}")
    elif seconds:
        found.limit = limit


def _after_options(words: list[str], valued: Sequence[str]) -> list[str]:
    place = 0
    while place < len(words) and words[place].startswith("-"):
        place += 2 if words[place] in valued else 1
    return words[place:]


def _name_environment(found: Simple) -> None:
    """`.venv/bin/python` is `python` in that environment."""
    place = _IN_ENVIRONMENT.fullmatch(found.words[0]) if found.words else None
    if place is not None and place["name"] != "activate":
        found.words[0] = place["name"]
        found.variables.append(f"VIRTUAL_ENV={place['folder'].removeprefix('./')}")


def activated(words: Sequence[str]) -> str | None:
    """The variable that `source .venv/bin/activate` stands for; None for any other command."""
    place = _IN_ENVIRONMENT.fullmatch(words[1]) if words[0] in ("source", ".") and len(words) == 2 else None
    if place is None or place["name"] != "activate":
        return None
    return f"VIRTUAL_ENV={place['folder'].removeprefix('./')}"
