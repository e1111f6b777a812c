"""The table of errors: every kind with its owner, the texts that show it, and its hint.

A new kind is one row in one of `calls`, `files`, `commands` and `checks`; what is below is made of the rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from composer_replication.hint_generator.errors import calls, checks, commands, files  # noqa: F401 - they fill the table
from composer_replication.hint_generator.errors.form import CRASH, ERRORS, RUN, Answer, Begin, Output, Owner
from composer_replication.pattern_set import FirstMatch, Gates

STUDENT_KINDS = frozenset(name for name, error in ERRORS.items() if error.owner is Owner.STUDENT)
OUTCOME_KINDS = frozenset(name for name, error in ERRORS.items() if error.owner is Owner.OUTCOME)
OTHERS_KINDS = frozenset(name for name, error in ERRORS.items() if error.owner is Owner.OTHERS)

# What task runners put before a line.
_TASK = r"^(?:\d+[:-]|#\d+ [\d.]+ )?(?:\[[\w:@/.-]+\] |[\w@/.-]+:[\w:.-]+: )?"
_LINE_BEGINS = {RUN: _TASK + r"[ \t]*", CRASH: _TASK}
_LINE_BEGIN = re.compile(r"(?<![\[(:\\])\^")
_LONGEST_MESSAGE = 2_000


def is_students_mistake(kind: str, meta: Mapping[str, Any] | None = None) -> bool:
    """Whether a hint may be given to a turn that is charged with an error.

    Args:
        kind: of the error. Kinds that a user registered are the student's.
        meta: the turn's `error_meta`. Its `students_mistake` may say that this error was not the student's.
    """
    return kind not in OTHERS_KINDS and (meta or {}).get("students_mistake") is not False


def _patterns(places: Iterable[Begin | Answer | Output]) -> list[tuple[str, str]]:
    """The patterns of these places, in the places' order and then in that of the table, each with its kind."""
    return [
        (name, pattern)
        for place in places
        for name, error in ERRORS.items()
        for texts in error.texts
        if texts.place is place
        for pattern in texts.patterns
    ]


_AFTER_OTHERS = [place for place in Answer if place is not Answer.OTHERS]
OTHERS_ANSWERS = FirstMatch(re.IGNORECASE, _patterns([Answer.OTHERS]))
TOOL_ANSWERS = FirstMatch(re.IGNORECASE, _patterns(_AFTER_OTHERS))
REFUSALS = FirstMatch(re.IGNORECASE, _patterns(sorted(_AFTER_OTHERS, key=lambda place: place is Answer.FILES)))
"""The answers of a harness that refused to run a command: what they say of files comes last."""
OUTPUT = FirstMatch(re.MULTILINE, _patterns(Output))

EVIDENCE = tuple(
    (who, _LINE_BEGIN.sub(_LINE_BEGINS.get(who, "^").replace("\\", r"\\"), pattern))
    for error in ERRORS.values()
    for texts in error.texts
    if isinstance(who := texts.place, str)
    for pattern in texts.patterns
)
"""Lines that only a failure prints: who prints them, and their pattern."""


def evidence_in(text: str) -> list[int]:
    """Return the numbers of the `EVIDENCE` that matches in a text."""
    return _evidence_gates().matching(text.encode("utf-8", "replace"))


@cache
def evidence(number: int) -> tuple[str, re.Pattern[str]]:
    """Return who prints the lines of this number, and their pattern."""
    who, pattern = EVIDENCE[number]
    return who, re.compile(pattern, re.MULTILINE)


@cache
def _evidence_gates() -> Gates:
    return Gates(f"(?m){pattern}" for _, pattern in EVIDENCE)


def begins_like_an_error(text: str) -> bool:
    """Whether a text begins as the errors of known harnesses and tools do. A file about errors does not."""
    head = text[:600].lstrip()
    if _beginning(Begin.SURELY).match(head) is not None:
        return True
    return len(text) <= _LONGEST_MESSAGE and _beginning(Begin.IF_SHORT).match(head) is not None


def is_refusal(text: str) -> bool:
    """Whether a harness answers for a command that it did not run."""
    return _beginning(Begin.REFUSAL).match(text) is not None


@cache
def _beginning(place: Begin) -> re.Pattern[str]:
    return re.compile("|".join(pattern for _, pattern in _patterns([place])))
