"""The form of a row in the table of errors: a kind, whose mistake it is, the texts that show it, and its hint.

    @student("edit_stale", says(Answer.FILES, r"modified since (?:last )?read"))
    def hint_edit_stale(ctx: HintContext) -> str:
        return f"Read {path(ctx, 'the file')} again before you edit it."

A hint says what to do instead, in at most two sentences. It stands before the turn that erred when that turn is scored
again, so it does not speak of an error, which in that context has not happened yet.

Groups of a pattern that have a name become details of the error (`HintContext`), `path2` and `path3` as `path`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import TypeAlias

from composer_replication.hint_generator.details import HintContext


class Owner(Enum):
    """Whose mistake an error is."""

    STUDENT = auto()
    """The turn that made the call erred: a hint can say what to do instead."""
    OUTCOME = auto()
    """A right action reports on earlier work: no hint for the turn that asked. The turn that wrote what fails is
    charged with the kind, where that is certain."""
    OTHERS = auto()
    """The user, the harness or a service: no hint."""


class Begin(Enum):
    """Beginnings of results, for logs without an error flag."""

    SURELY = auto()
    """A result of any length: nothing but a harness writes this."""
    IF_SHORT = auto()
    """A message. Ordinary texts begin like this too, if seldom, but are longer."""
    REFUSAL = auto()
    """The answer of a harness for a command that it did not run, without an error tag."""


class Answer(Enum):
    """Answers of tools and harnesses, in the order in which they are compared. Case does not matter."""

    OTHERS = auto()
    """Not the student's mistake. These begin a result, whatever the tool."""
    UNKNOWN_TOOL = auto()
    FILES = auto()
    """Files and edits. Of a command that was refused, they come last: it says more about the call."""
    FORM = auto()
    """The call could not be read at all."""
    JSON = auto()
    SCHEMA = auto()
    REST = auto()
    TIMEOUT = auto()
    SERVER = auto()


class Output(Enum):
    """Output of failed commands, in the order in which it is compared.

    A test run prints tracebacks, a traceback names missing files, git quotes hooks that lint: what says more about the
    cause comes first. Within one of these, the order of the table holds.
    """

    TIMEOUT = auto()
    OUTSIDE = auto()
    """A full disk, a command that is not allowed: everything else follows from it."""
    SCRIPT = auto()
    """A script that stops. What it says of itself comes before what the words mean in a command."""
    SHELL = auto()
    TARGET = auto()
    """The target that a task runner was asked for."""
    INLINE_CODE = auto()
    """Code, or the call of an editor, that stands in the command itself."""
    POINTED_AT = auto()
    """The files and options that a test runner or a checker was given."""
    SELECTED = auto()
    """The tests that a test runner was asked for."""
    GO_TEST = auto()
    GO_BUILD = auto()
    TESTS = auto()
    NETWORK = auto()
    """No network: compilers and git fail for it too."""
    CHECKS = auto()
    """Types and lint."""
    IMAGE = auto()
    MODULE = auto()
    BUILD = auto()
    ENTRY_POINT = auto()
    CRASH = auto()
    PATTERN = auto()
    USAGE = auto()
    GIT_FILES = auto()
    GIT = auto()
    DIED = auto()
    """Programs that died, as Node and others say it: the same words stand in texts that mean less."""
    CONNECTION = auto()
    PERMISSION = auto()
    MISSING = auto()
    DIRECTORY = auto()
    EXISTS = auto()
    HTTP = auto()
    WAITED = auto()
    LAST = auto()


# Who prints a line that only a failure prints. Others are names of programs, separated by spaces.
RUN = "RUN"  # summaries that only a failing run prints: of any program that runs something
CRASH = "CRASH"  # a program that died: those, and scripts inside the command
CUT = "CUT"  # what `tail` leaves of a crash: the same, unless what follows shows that it worked
ERROR = "ERROR"  # lines that begin like an error: any program that runs something, unless what follows shows otherwise
OWN = "OWN"  # lines that begin with a name: the program of that name
SHELL = "SHELL"  # the shell's own lines
SHORT = "SHORT"  # complaints of the programs named after it, if there is hardly anything else

Hint: TypeAlias = Callable[[HintContext], str]


@dataclass(frozen=True)
class Texts:
    """Patterns, in the order in which they are tried, and where they are looked for."""

    place: Begin | Answer | Output | str
    patterns: tuple[str, ...]


def says(place: Begin | Answer | Output, *patterns: str) -> Texts:
    """Texts that show the kind of an error, tried in their order.

    Of the alternatives of one pattern, the leftmost match counts. A long pattern continues on the next line.
    """
    return Texts(place, patterns)


def prints(who: str, *patterns: str) -> Texts:
    """Lines that only a failure prints, for commands whose exit code is lost.

    `^` is the beginning of a line; of RUN and CRASH, after the name that a task runner puts there. The patterns are for
    RE2: no lookaround.
    """
    return Texts(who, patterns)


@dataclass
class ErrorKind:
    """A row of the table. `is_vague` says that all its hint has is the error's own text."""

    name: str
    owner: Owner
    texts: tuple[Texts, ...]
    is_vague: bool
    hint: Hint | None = None


ERRORS: dict[str, ErrorKind] = {}
"""The rows in their order, filled by the modules beside this one."""


def _error(owner: Owner, name: str, *texts: Texts, is_vague: bool = False) -> Callable[[Hint], Hint]:
    row = ERRORS[name] = ErrorKind(name, owner, texts, is_vague)

    def with_hint(hint: Hint) -> Hint:
        row.hint = hint
        return hint

    return with_hint


student = partial(_error, Owner.STUDENT)
outcome = partial(_error, Owner.OUTCOME)
others = partial(_error, Owner.OTHERS)
