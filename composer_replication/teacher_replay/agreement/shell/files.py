"""Files that a command shows or writes: lines of `cat`, `head`, `sed -n`; here-documents, echoes, substitutions."""

from __future__ import annotations

import re
from collections.abc import Sequence

from composer_replication.teacher_replay.agreement.shell.lines import Line, is_plain

_SHOWS_ALL = ("cat", "less", "more", "nl", "bat")
_RANGE = re.compile(r"(\d+)(?:,(\d+|\$))?p(?:;\d*q)?")

Lines = tuple[int, int | None]
"""The first and the last line that are shown; a negative first one counts from the end, None is the end."""
_SUBSTITUTION = re.compile(r"s/((?:[^/\\]|\\.)*)/((?:[^/\\]|\\.)*)/(g?)")
_KINDS = {">": "write", ">|": "write", ">>": "append"}


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
    return line.operands[1:] if line.name == "sed" else line.operands


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
    return None


def _within(shown: Lines, start: int, stop: int | None) -> Lines:
    end = shown[1]
    return start, end if stop is None else stop if end is None else min(stop, end)


def written(line: Line, document: str | None) -> tuple[str, str, str] | None:
    """Return ("write" or "append", the file, its content) of a command that only writes a file; None for any other."""
    target = _target(line)
    content = document if document is not None and line.name in ("cat", "tee") else None
    if document is None:
        content = _echoed(line)
    if target is None or content is None or not is_plain(target[1], content):
        return None
    return *target, content


def _target(line: Line) -> tuple[str, str] | None:
    redirects = [redirect for redirect in line.redirects if redirect != (">", "/dev/null")]
    if line.name == "tee":
        kind = "append" if line.option("-a") is not None else "write"
        return (kind, line.operands[0]) if len(line.operands) == 1 and not redirects else None
    if line.name == "truncate" and line.options == (("-s", "0"),) and len(line.operands) == 1:
        return "write", line.operands[0]
    if len(line.redirects) != 1 or (line.name == "cat" and line.operands not in ((), ("/dev/null",))):
        return None
    operator, path = line.redirects[0]
    return (_KINDS[operator], path) if operator in _KINDS else None


def _echoed(line: Line) -> str | None:
    words = list(line.operands)
    if line.name in (":", "true", "truncate") or (line.name == "cat" and words == ["/dev/null"]):
        return ""
    if line.name == "printf":
        return _unescaped(words[0]) if len(words) == 1 and "%" not in words[0] else None
    if line.name != "echo":
        return None
    flags = []
    while words and words[0] in ("-n", "-e"):
        flags.append(words.pop(0))
    text = " ".join(words) + ("" if "-n" in flags else "\n")
    return _unescaped(text) if "-e" in flags else text


def _unescaped(text: str) -> str:
    return text.replace("\\n", "\n").replace("\\t", "\t")


def literal_substitution(line: Line) -> tuple[str, str, bool, tuple[str, ...]] | None:
    """Return (old, new, everywhere in a line, files) of a `sed -i s/old/new/` of plain text; None for any other."""
    if line.name != "sed" or line.options != (("-i", ""),) or len(line.operands) < 2:
        return None
    found = _SUBSTITUTION.fullmatch(line.operands[0])
    if found is None:
        return None
    old, new = re.sub(r"\\([./\[\]*^$+?(){}|-])", "\0\\1", found[1]), found[2].replace("\\/", "/")
    if re.search(r"(?<!\0)[.\[\]*^$\\]", old) or re.search(r"[\\&]", new):
        return None
    return old.replace("\0", ""), new, bool(found[3]), line.operands[1:]
