"""One simple command, taken apart: its name, its options whatever their spelling and order, its operands; and paths as
they are meant."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from composer_replication.coding_tools import word_set
from composer_replication.shell_syntax import ACTIVE
from composer_replication.teacher_replay.agreement.shell.commands import UNKNOWN, Command, commands, subcommands
from composer_replication.teacher_replay.agreement.shell.meanings import usual_line, usual_words

Form = tuple[object, ...]
"""The form in which commands are compared; it can be hashed."""

# Said by any program about what it prints.
_SHOWN_ANYWHERE = re.compile(r"--(?:no-)?(?:colou?rs?|pager|progress)(?:=.*)?|--(?:quiet|silent|verbose)")
_SHORT_SHOWN = ("-q", "-v", "-vv")
# What goes without saying where nobody looks on, or concerns errors alone.
_PRINTED_ANYHOW = {("ls", "-1"), ("ls", "-C"), ("grep", "-s"), ("grep", "-I"), ("cmp", "-s"), ("rg", "-N")}
_SWITCHES = ("true", "false", "always", "never", "auto")
# Options that take no value wherever they are met.
_FLAG = re.compile(
    r"--(?:no|skip|only|enable|disable|dry)-.*"
    r"|--(?:force|fix|check|watch|all|debug|strict|yes|json|recursive|update|list|reload|keepdb|noinput|release|dev)"
    r"|--(?:staged|overwrite|apply|write|clean|full|interactive|parallel|headless)"
)
_ATTACHED_NUMBER = re.compile(r"(-[A-Za-z])(\d+)")
_LONG_FOR_SHORT = {"--verbose": "-v", "--quiet": "-q", "-h": "--help"}
_NUMBER_OPTION = re.compile(r"-(\d+)")
_SYSTEM_FOLDERS = ("/bin/", "/usr/bin/", "/usr/local/bin/", "/usr/sbin/", "/sbin/")
_PROGRAM_NAMES = {
    "python3": "python", "pip3": "pip", "py.test": "pytest", "apt": "apt-get", "nodejs": "node", ".": "source",
    "[": "test", "[[": "test",
}  # fmt: skip
# Modules that are programs too: `python -m pytest` is `pytest`.
_MODULE_PROGRAMS = word_set(
    "pytest pip black ruff mypy flake8 isort pylint coverage tox nox uvicorn gunicorn flask alembic celery jupyter "
    "twine virtualenv pyright bandit poetry uv mkdocs pipenv pdm ipython hatch streamlit"
)
# Programs that run the command after them in another environment or as another user.
_PREFIXES = (
    "uv run", "poetry run", "pipenv run", "pdm run", "hatch run", "rye run", "bundle exec", "npx", "sudo", "bunx",
)  # fmt: skip
# After the name of a script stand its own arguments.
_RUN_SCRIPTS = ("npm run", "yarn run", "pnpm run")
# Programs whose words are a language of their own.
_TAKEN_AS_WRITTEN = ("find", "awk", "echo", "printf", "test", "expr", "cd", "source", "export")
# Paths: what is not spelled out, and what is on another machine.
_OPAQUE = ("~", "$", "\0")
_ELSEWHERE = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://|[\w.-]+@[\w.-]+:")


@dataclass(frozen=True)
class Line:
    """A simple command. `options` are sorted by name, those of one name in their order; `inner` is the command that it
    runs; `code` is a program given on the line; `shown` are the options about what it prints, which are left out."""

    name: str
    options: tuple[tuple[str, str], ...] = ()
    operands: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    redirects: tuple[tuple[str, str], ...] = ()
    inner: Line | None = None
    code: str | None = None
    command: Command = UNKNOWN
    shown: tuple[tuple[str, str], ...] = ()

    def option(self, name: str) -> str | None:
        """An option's value, "" for one without; None if it is not there. The last one counts."""
        return next((value for given, value in reversed(self.options) if given == name), None)

    def values(self, name: str) -> tuple[str, ...]:
        """The values of an option that is given several times."""
        return tuple(value for given, value in self.options if given == name)

    def without(self, *names: str) -> Line:
        """The line without some options."""
        return replace(self, options=tuple(option for option in self.options if option[0] not in names))

    def as_data(self) -> Line:
        """The line for a file or a program that reads what it prints: how it is printed counts."""
        inner = None if self.inner is None else self.inner.as_data()
        if not self.command.has("reads"):
            # What these leave out are messages beside their output.
            return replace(self, inner=inner)
        kept = [
            option
            for option in self.shown
            if not _SHOWN_ANYWHERE.fullmatch(option[0]) and (self.name, option[0]) not in _PRINTED_ANYHOW
        ]
        options = tuple(sorted((*self.options, *kept), key=lambda option: option[0]))
        return replace(self, options=options, shown=(), inner=inner)

    def form(self, directory: str | None) -> Form:
        """Return the form in which the line is compared, its operands seen from a directory."""
        operands = tuple(self._operand(operand, directory) for operand in self.operands)
        if self.name == "rsync":
            # What is in a folder, or the folder.
            marks = ["/" if given.endswith("/") else "" for given in self.operands[:-1]]
            operands = (*(one + mark for one, mark in zip(operands, marks, strict=False)), *operands[-1:])
        if self.command.has("any_order"):
            operands = tuple(sorted(operands))
        inner = None if self.inner is None else self.inner.form(directory)
        return (self.name, self.options, operands, self.variables, self.redirects, inner, self.code)

    def _operand(self, operand: str, directory: str | None) -> str:
        if self.command.has("words"):
            return operand
        if self.command.has("bound") or "/" in operand or re.search(r"\.\w+$", operand):
            return tidy(operand, directory)
        return tidy(operand, None)


def into_folder(line: Line) -> Line:
    """`mv a.py folder/` with the name that it gets there."""
    if len(line.operands) == 2 and line.operands[1].endswith("/") and line.operands[1].strip("./"):
        source, target = line.operands
        return replace(line, operands=(source, target + posixpath.basename(source.rstrip("/"))))
    return line


def tidy(word: str, directory: str | None = None) -> str:
    """A word with its path in normal form, if it is one; the node of a test (`a.py::test`) stays after it."""
    path, separator, rest = word.partition("::")
    if not path or path.startswith("-") or path.endswith("...") or re.search(r"[\s=:|(<>@,^~]", path[1:]):
        return word
    return seen_from(directory, path) + separator + rest


def program_name(word: str) -> str:
    """A program's usual name."""
    for folder in _SYSTEM_FOLDERS:
        if word.startswith(folder):
            word = word.removeprefix(folder)
    return _PROGRAM_NAMES.get(word, word)


def read_line(words: Sequence[str]) -> Line:
    """Take a command apart; `words` are not empty and hold neither assignments nor redirections."""
    name, arguments = program_name(words[0]), list(words[1:])
    if "node_modules/.bin/" in name:
        name, arguments = "npx", [posixpath.basename(name), *arguments]
    if name == "printenv" and not arguments:
        name = "env"
    if name in ("egrep", "fgrep"):
        name, arguments = "grep", ["-E" if name == "egrep" else "-F", *arguments]
    if name == "docker-compose":
        name, arguments = "docker", ["compose", *arguments]
    if name == "test" and arguments and arguments[-1] in ("]", "]]"):
        arguments.pop()
    if name in _TAKEN_AS_WRITTEN:
        return usual_line(Line(name, operands=tuple(arguments)))
    if name == "python":
        return _read_python(arguments)
    name, arguments = usual_words(name, arguments)
    for prefix in _PREFIXES:
        own = prefix.split()
        if [name, *arguments[: len(own) - 1]] == own:
            return _read_prefixed(prefix, arguments[len(own) - 1 :])
    before: list[tuple[str, str]] = []
    while name in subcommands():
        given, rest = _options(arguments, subcommands()[name], stops=True)
        before += given
        if not rest:
            arguments = []
            break
        name, arguments = usual_words(f"{name} {rest[0]}", rest[1:])
    if name in _PREFIXES:
        return _read_prefixed(name, arguments)
    return usual_line(_read(name, arguments, before))


def _read(name: str, arguments: list[str], before: Sequence[tuple[str, str]] = ()) -> Line:
    command = commands().get(name) or commands().get(name.partition(" ")[0], UNKNOWN)
    if command.has("inner"):
        options, rest = _options(arguments, command, stops=True)
        if name == "xargs":
            line = _line(name, options, [], command)
            return replace(line, inner=read_line(rest)) if rest else line
        line = _line(name, [*before, *options], rest[:1], command)
        return replace(line, inner=_inner(name, rest)) if len(rest) > 1 else line
    options, operands = _options(arguments, command)
    if name in _RUN_SCRIPTS and len(operands) > 1:
        return replace(_line(name, [*before, *options], operands[:1], command), inner=_inner(name, operands))
    if not command.is_known:
        options = [(_LONG_FOR_SHORT.get(option, option), value) for option, value in options]
    return _line(name, [*before, *options], operands, command)


def _inner(name: str, rest: list[str]) -> Line | None:
    """The line of the program that runs inside; after a script of its own, its options and operands alone."""
    if name in ("docker run", "docker exec", "docker compose exec", "docker compose run"):
        return read_line(rest[1:])
    options, operands = _options(rest[1:], UNKNOWN)
    line = _line("", options, operands, UNKNOWN)
    return line if line.options or line.operands else None


def _read_prefixed(prefix: str, arguments: list[str]) -> Line:
    options: list[tuple[str, str]] = []
    while arguments and arguments[0].startswith("-"):
        if arguments[0] not in ("-y", "--yes", "-E", "-q", "--quiet", "--no-install", "--"):
            options.append((arguments[0], ""))
        arguments = arguments[1:]
    inner = read_line(arguments) if arguments else None
    return Line(prefix, tuple(sorted(options)), inner=inner, command=inner.command if inner else UNKNOWN)


def _read_python(arguments: list[str]) -> Line:
    command = commands()["python"]
    for place, word in enumerate(arguments):
        if word in ("-m", "-c") and place + 1 < len(arguments):
            before, _ = _options(arguments[:place], command)
            value, rest = arguments[place + 1], arguments[place + 2 :]
            if word == "-m" and value in _MODULE_PROGRAMS:
                return replace(read_line([value, *rest]), variables=())
            name = f"python -m {value}" if word == "-m" else "python -c"
            line = _read(name, rest, before) if word == "-m" else _line(name, before, rest, UNKNOWN)
            return line if word == "-m" else replace(line, code=value)
        if not word.startswith("-"):
            break
    return usual_line(_read("python", arguments))


def _line(name: str, options: Sequence[tuple[str, str]], operands: Sequence[str], command: Command) -> Line:
    is_script = not name or "/" in name
    alone = len(options) == 1 and not operands and not is_script
    kept = [
        (option, tidy(value) if _is_path(value) and name not in ("sed", "awk", "perl") else value)
        for option, value in options
        if not _is_shown(option, value, command, alone=alone, is_script=is_script)
    ]
    kept = [(option, value) for option, value in kept if command.defaults.get(option) != value]
    if command.has("here") and not operands:
        operands = ["."]
    shown = tuple(option for option in options if _is_shown(*option, command, alone=alone, is_script=is_script))
    return Line(name, tuple(sorted(kept, key=lambda option: option[0])), tuple(operands), command=command, shown=shown)


def _is_path(value: str) -> bool:
    """Whether an option's value cannot but be a path."""
    return value.startswith(("./", "../", "/")) or bool(re.fullmatch(r"[\w.@+-]+(?:/[\w.@+-]+)*/", value))


def _is_shown(option: str, value: str, command: Command, *, alone: bool, is_script: bool) -> bool:
    if option in command.shown:
        return True
    if command.is_known and option in command.spellings:
        return False
    if _SHOWN_ANYWHERE.fullmatch(option) and (not value or "colo" in option):
        return True
    # Of a program that the table does not know, "-v" may as well turn a search around.
    is_short = option in _SHORT_SHOWN if is_script else option == "-q"
    return not command.is_known and is_short and not value and not alone


def _options(
    arguments: Sequence[str], command: Command, *, stops: bool = False
) -> tuple[list[tuple[str, str]], list[str]]:
    """Options, each with its value, and operands; with `stops`, everything from the first operand on is an operand."""
    options: list[tuple[str, str]] = []
    operands: list[str] = []
    place = 0
    while place < len(arguments):
        word = arguments[place]
        place += 1
        if word == "--":
            operands += arguments[place:]
            break
        if not word.startswith("-") or word == "-":
            if stops:
                operands += arguments[place - 1 :]
                break
            operands.append(word)
            continue
        following = arguments[place] if place < len(arguments) else None
        for option, value, takes_next in _option(word, following, command):
            options.append((option, value))
            place += takes_next
    return options, operands


def _option(word: str, following: str | None, command: Command) -> list[tuple[str, str, bool]]:
    """The options in one word, with their values, and whether a value was the following word."""
    is_value = following is not None and (not following.startswith("-") or bool(_NUMBER_OPTION.fullmatch(following)))
    if word.startswith("--") or command.has("long_dash") or not command.is_known:
        name, equals, value = word.partition("=")
        if command.has("long_dash"):
            name = "-" + name.lstrip("-")
        standing = command.spellings.get(name, name if word.startswith("--") else _in_order(name))
        if equals:
            return [(standing, value, False)]
        if standing in command.valued:
            return [(standing, following or "", following is not None)]
        if following in _SWITCHES and word.startswith("--"):
            return [(standing, following, True)]
        if not command.is_known and (number := _ATTACHED_NUMBER.fullmatch(word)) is not None:
            return [(number[1], number[2], False)]
        is_flag = _FLAG.fullmatch(name) or _SHOWN_ANYWHERE.fullmatch(name)
        if is_flag or name in command.spellings or name in _SHORT_SHOWN or not is_value:
            return [(standing, "", False)]
        # Nothing says whether it takes the next word: taken so always, it compares the same with "=" and without.
        return [(standing, following or "", True)]
    if word in command.spellings:
        standing = command.spellings[word]
        takes = standing in command.valued and (standing != "-j" or (following or "").isdigit())
        return [(standing, following or "" if takes else "", takes and following is not None)]
    if (number := _NUMBER_OPTION.fullmatch(word)) is not None and "-n" in command.valued:
        return [("-n", number[1], False)]
    found: list[tuple[str, str, bool]] = []
    for place, letter in enumerate(word[1:], start=2):
        standing = command.spellings.get(f"-{letter}", f"-{letter}")
        if standing == "-j" and not word[place:] and not (following or "").isdigit():
            found.append((standing, "", False))
        elif standing in command.valued:
            rest = word[place:].removeprefix("=")
            found.append((standing, rest or following or "", not rest and following is not None))
            break
        else:
            found.append((standing, "", False))
    return found


def _in_order(cluster: str) -> str:
    """Letters after a dash in one order: whichever they are, they are the same ones."""
    return "-" + "".join(sorted(cluster[1:])) if re.fullmatch(r"-[A-Za-z]{2,6}", cluster) else cluster


def is_plain(*words: str) -> bool:
    """Whether the shell takes all of these words as they stand."""
    return not any(ACTIVE in word for word in words)


def normal_path(path: str) -> str:
    """The shortest spelling of a path; "." for an empty one. What is no path of this machine stays as it is."""
    if _ELSEWHERE.match(path) or "\n" in path:
        return path
    normal = posixpath.normpath(path)
    # Two leading slashes mean something to POSIX and nothing to agents.
    return normal[1:] if normal.startswith("//") else normal


def is_absolute(path: str) -> bool:
    """Whether a path says where it begins: at the root, at home, or at what a variable holds."""
    return path.startswith(("/", *_OPAQUE))


def seen_from(directory: str | None, path: str) -> str:
    """A path joined to the directory it is relative to; None is a directory that is not known."""
    if directory is None or is_absolute(path) or _ELSEWHERE.match(path):
        return normal_path(path)
    return normal_path(f"{directory}/{path}")
