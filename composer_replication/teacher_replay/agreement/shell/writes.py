"""Files that a command writes or changes: here-documents, echoes, substitutions of plain text."""

from __future__ import annotations

import re

from composer_replication.teacher_replay.agreement.shell.lines import Line, is_plain

_SUBSTITUTION = re.compile(r"s/((?:[^/\\]|\\.)*)/((?:[^/\\]|\\.)*)/(g?)")
_KINDS = {">": "write", ">|": "write", ">>": "append"}


def written(line: Line, document: str | None) -> tuple[str, str, str] | None:
    """How a file is written ("write", "append"), which one, and with what; None if the command does not only that."""
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
    """What `sed -i s/old/new/` replaces by what, whether everywhere in a line, in which files; None if it is no plain
    text."""
    if line.name != "sed" or line.options != (("-i", ""),) or len(line.operands) < 2:
        return None
    found = _SUBSTITUTION.fullmatch(line.operands[0])
    if found is None:
        return None
    old, new = re.sub(r"\\([./\[\]*^$+?(){}|-])", "\0\\1", found[1]), found[2].replace("\\/", "/")
    if re.search(r"(?<!\0)[.\[\]*^$\\]", old) or re.search(r"[\\&]", new):
        return None
    return old.replace("\0", ""), new, bool(found[3]), line.operands[1:]
