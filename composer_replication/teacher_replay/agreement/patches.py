"""Patches as effects: the envelope of `apply_patch`, and unified diffs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from composer_replication.teacher_replay.agreement.edits import Edit
from composer_replication.teacher_replay.agreement.effects import Effect
from composer_replication.teacher_replay.agreement.paths import seen_from

_FILE = re.compile(r"\*\*\* (Add|Update|Delete) File: (.+)")
_MOVE = re.compile(r"\*\*\* Move to: (.+)")
_UNIFIED_FILE = re.compile(r"\+\+\+ (?:b/)?(\S+)")
_HUNK = re.compile(r"@@(?: -\d+(?:,\d+)? \+\d+(?:,\d+)? @@)?(.*)")


def is_patch(text: str) -> bool:
    """Whether a text is a patch of a kind that is understood."""
    stripped = text.strip()
    return (stripped.startswith("*** Begin Patch") and stripped.endswith("*** End Patch")) or (
        stripped.startswith(("--- ", "diff --git ")) and "\n+++ " in stripped and "\n@@" in stripped
    )


def patch_effects(text: str, directory: str | None = None) -> list[Effect]:
    """What a patch does to each file."""
    lines = text.strip().split("\n")
    if lines[0].startswith("***"):
        return [one for section in _sections(lines[1:-1]) for one in _section_effects(section, directory)]
    return [one for path, body in _unified(lines) for one in _edits(path, body, directory)]


def edit_effect(path: str, edit: Edit, directory: str | None = None) -> Effect:
    """A change of a file."""
    where = seen_from(directory, path)
    local, resolved = ("edit", seen_from(None, path)), ("edit", where)
    return Effect(local, resolved, directory, is_bound=True, path=where, edit=edit, touches=frozenset({where}))


def write_effect(path: str, content: str, directory: str | None = None) -> Effect:
    """A file made, or made anew, with a content."""
    where = seen_from(directory, path)
    local, resolved = ("write", seen_from(None, path)), ("write", where)
    return Effect(local, resolved, directory, is_bound=True, path=where, code=(content,), touches=frozenset({where}))


def move_effect(source: str, target: str, directory: str | None = None) -> Effect:
    """A file moved, or given another name."""
    seen = (seen_from(directory, source), seen_from(directory, target))
    local = ("move", seen_from(None, source), seen_from(None, target))
    return Effect(local, ("move", *seen), directory, is_bound=True, touches=frozenset(seen))


def _sections(lines: Sequence[str]) -> Iterator[list[str]]:
    section: list[str] = []
    for line in lines:
        if _FILE.match(line) and section:
            yield section
            section = []
        section.append(line)
    if section:
        yield section


def _section_effects(section: list[str], directory: str | None) -> Iterator[Effect]:
    found = _FILE.match(section[0])
    if found is None:
        text = "\n".join(line.rstrip() for line in section)
        yield Effect(("patch", text), ("patch", text), directory)
        return
    kind, path = found[1], found[2].strip()
    body = section[1:]
    where = seen_from(directory, path)
    if kind == "Add":
        yield write_effect(path, "\n".join(line[1:] for line in body if line.startswith("+")), directory)
    elif kind == "Delete":
        local, resolved = ("delete", seen_from(None, path)), ("delete", where)
        yield Effect(local, resolved, directory, is_bound=True, touches=frozenset({where}))
    else:
        yield from _edits(path, body, directory)
        for line in body:
            if (moved := _MOVE.match(line)) is not None:
                yield move_effect(path, moved[1].strip(), directory)


def _unified(lines: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    path, body = "", list[str]()
    for line in lines:
        if (found := _UNIFIED_FILE.match(line)) is not None:
            path, body = found[1], []
        elif line.startswith(("--- ", "diff --git ")):
            if path:
                yield path, body
            path, body = "", []
        elif path:
            body.append(line)
    if path:
        yield path, body


def _edits(path: str, body: Sequence[str], directory: str | None) -> Iterator[Effect]:
    hunks: list[tuple[str | None, list[str]]] = []
    for line in body:
        if line.startswith("***"):
            continue
        if (found := _HUNK.match(line)) is not None:
            header = found[1].strip().removesuffix("@@").strip() or None
            if hunks and not hunks[-1][1]:
                # A header right behind another looks inside it.
                header = "\n".join(one for one in (hunks.pop()[0], header) if one) or None
            hunks.append((header, []))
        else:
            if not hunks:
                hunks.append((None, []))
            hunks[-1][1].append(line)
    for header, lines in hunks:
        old = [line[1:] for line in lines if not line.startswith("+")]
        new = [line[1:] for line in lines if not line.startswith("-")]
        if old != new:
            yield edit_effect(path, Edit("\n".join(old), "\n".join(new), header=header), directory)
