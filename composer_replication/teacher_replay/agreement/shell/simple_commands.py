"""A simple command: its words, the variables set for it, where its output goes, and what wraps it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from composer_replication.shell_syntax import ACTIVE, Command, Redirect, globs_as_text, spelled_out
from composer_replication.teacher_replay.agreement.shell.lines import is_plain, program_name

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
        if re.search(rf"\$[^\s]*\b{name}\b", text):
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
            rest = _behind_options(rest, valued=())
        elif name == "env" and rest and not rest[0].startswith("-"):
            while rest and ASSIGNMENT.match(rest[0]):
                found.variables.append(rest.pop(0))
        elif name in ("timeout", "gtimeout"):
            given, (time, *rest) = rest, _behind_options(rest, valued=("-k", "-s", "--signal", "--kill-after")) or [""]
            if rest:
                _limit(found, time, given[: len(given) - len(rest) - 1])
        elif name == "nice":
            rest = _behind_options(rest, valued=("-n",))
        elif name == "stdbuf":
            rest = _behind_options(rest, valued=("-o", "-i", "-e"))
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


def _behind_options(words: list[str], valued: Sequence[str]) -> list[str]:
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
