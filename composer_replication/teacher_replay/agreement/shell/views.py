"""Which lines of a file a command shows: `cat`, `head`, `tail`, `sed -n`, and pipelines of them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from composer_replication.teacher_replay.agreement.shell.lines import Form, Line, is_plain

_SHOWS_ALL = ("cat", "less", "more", "nl", "bat")
_RANGE = re.compile(r"(\d+)(?:,(\d+|\$))?p(?:;\d*q)?")
_ROWS = re.compile(r"NR\s*>=?\s*(\d+)\s*&&\s*NR\s*<=?\s*(\d+)(?:\s*\{\s*print(?: \$0)?\s*\})?")

Lines = tuple[int, int | None]
"""The first and the last line that are shown; a negative first one counts from the end, None is the end."""


def viewed(stages: Sequence[Line]) -> tuple[tuple[str, ...], Lines] | None:
    """The files that a pipeline shows, and which of their lines; None if it does not only show files."""
    first, *others = stages
    if any(stage.redirects or stage.variables for stage in stages):
        return None
    files, shown = _files(first), _lines(first, (1, None))
    if not files or shown is None or not is_plain(*files):
        return None
    if len(files) > 1 and (others or shown != (1, None)):
        return None
    for stage in others:
        if _files(stage):
            return None
        shown = _lines(stage, shown)
        if shown is None:
            return None
    return files, shown


def _files(line: Line) -> tuple[str, ...]:
    return line.operands[1:] if line.name in ("sed", "awk") else line.operands


def _lines(line: Line, shown: Lines) -> Lines | None:
    start, stop = shown
    if line.name in _SHOWS_ALL:
        return shown if not line.options or line.name == "nl" else None
    if line.name == "head" and {option for option, _ in line.options} <= {"-n"}:
        count = line.option("-n") or "10"
        return _within(shown, start, start + int(count) - 1) if count.isdigit() and start > 0 else None
    if line.name == "tail" and {option for option, _ in line.options} <= {"-n"}:
        count = line.option("-n") or "10"
        if count.startswith("+") and count[1:].isdigit() and start > 0:
            return _within(shown, start + int(count[1:]) - 1, stop)
        if count.isdigit() and start > 0:
            return (max(start, stop - int(count) + 1), stop) if stop is not None else (-int(count), None)
        return None
    if line.name == "sed" and line.options == (("-n", ""),) and line.operands:
        found = _RANGE.fullmatch(line.operands[0].replace(" ", ""))
        if found is None or start != 1:
            return None
        last = None if found[2] == "$" else int(found[2] or found[1])
        return _within(shown, int(found[1]), last)
    if line.name == "awk" and line.operands and start == 1:
        found = _ROWS.fullmatch(line.operands[0].strip())
        exact = found is not None and line.operands[0].count("=") == 2
        return _within(shown, int(found[1]), int(found[2])) if found is not None and exact else None
    return None


def _within(shown: Lines, start: int, stop: int | None) -> Lines:
    end = shown[1]
    return start, end if stop is None else stop if end is None else min(stop, end)


def view_form(path: str, shown: Lines) -> Form:
    """What showing a file is compared by."""
    return ("view", path, shown)
