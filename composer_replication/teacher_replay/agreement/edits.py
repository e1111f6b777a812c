"""Changes of files by their effect, edits and patches: the same change, with more or less of the text around it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from composer_replication.teacher_replay.agreement.code import same_comments, without_comments

_MOST_PLACES = 50
_WORD = re.compile(r"\w")
_FILE = re.compile(r"\*\*\* (Add|Update|Delete) File: (.+)")
_MOVE = re.compile(r"\*\*\* Move to: (.+)")
_UNIFIED_FILE = re.compile(r"\+\+\+ (?:b/)?(\S+)")
_HUNK = re.compile(r"@@(?: -\d+(?:,\d+)? \+\d+(?:,\d+)? @@)?(.*)")


@dataclass(frozen=True)
class Edit:
    """`old` becomes `new`, everywhere if `all_places`.

    `header` is a line that stands somewhere before it, or several, one below the other. `in_each_line` says that every
    line is changed, or as much of it as there is: text around it would make it another edit.
    """

    old: str
    new: str
    all_places: bool = False
    header: str | None = None
    in_each_line: bool = False


def same_edit(first: Edit, second: Edit, path: str = "") -> bool:
    """Whether two edits of one file do the same to it."""
    if first == second:
        return True
    if first.all_places != second.all_places:
        return False
    one, one_comments = _code_only(first, path)
    other, other_comments = _code_only(second, path)
    for comments, other_ones in zip(one_comments, other_comments, strict=True):
        if not same_comments(comments, other_ones):
            return False
    if first.all_places or (first.in_each_line and second.in_each_line):
        one, other = _without_end(one), _without_end(other)
        return (one.old, one.new) == (other.old, other.new)
    if not _headers_meet(one, other):
        return False
    return _same_effect(_without_end(one), _without_end(other)) or _same_effect(one, other)


def _same_effect(first: Edit, second: Edit) -> bool:
    is_equal = (first.old, first.new) == (second.old, second.new)
    return is_equal or _contains(first, second) or _contains(second, first) or _overlap(first, second)


def _without_end(edit: Edit) -> Edit:
    """An edit without closing newlines, which are left out or put in as it happens."""
    return replace(edit, old=edit.old.rstrip("\n"), new=edit.new.rstrip("\n"))


def are_independent(first: Edit, second: Edit) -> bool:
    """Whether two edits of one file may change places."""
    texts = [(first.old, second.old), (first.old, second.new), (second.old, first.new)]
    return (
        all(part and whole is not None and part not in whole for part, whole in texts) and second.old not in first.old
    )


def _code_only(edit: Edit, path: str) -> tuple[Edit, tuple[tuple[str, ...], tuple[str, ...]]]:
    """The edit without comments, and the comments that it adds and takes away."""
    old, old_comments = without_comments(edit.old, path, is_part=True)
    new, new_comments = without_comments(edit.new, path, is_part=True)
    added = tuple(comment for comment in new_comments if comment not in old_comments)
    removed = tuple(comment for comment in old_comments if comment not in new_comments)
    return replace(edit, old=old, new=new), (added, removed)


def _headers_meet(first: Edit, second: Edit) -> bool:
    """Whether the lines that two edits name as their place may be one place."""
    if first.header is None or second.header is None or first.header.strip() == second.header.strip():
        return True
    return _names_place_in(first.header, second.old) or _names_place_in(second.header, first.old)


def _names_place_in(header: str, text: str) -> bool:
    return all(line.strip() in text for line in header.split("\n"))


def _overlap(first: Edit, second: Edit) -> bool:
    """Whether two edits make one change, one with more above it and the other with more below it, around a line that
    both have: without one, these may be two places."""
    before, *change, after = _trimmed(first)
    other_before, *other_change, other_after = _trimmed(second)
    if change != other_change or not _ends_alike(before, other_before) or not _begins_alike(after, other_after):
        return False
    above, more_above = sorted((before, other_before), key=len)
    below, more_below = sorted((after, other_after), key=len)
    shared = f"{above}{change[0]}{below}"
    begins_line = more_above.removesuffix(above).endswith("\n")
    ends_line = shared.endswith("\n") or more_below[len(below) :].startswith("\n")
    return begins_line and ends_line and _WORD.search(shared) is not None


def _trimmed(edit: Edit) -> tuple[str, str, str, str]:
    """Split an edit into the text before the change, the old text, the new text and the text after it."""
    head = _common_length(edit.old, edit.new)
    tail = min(_common_length(edit.old[::-1], edit.new[::-1]), min(len(edit.old), len(edit.new)) - head)
    old_end, new_end = len(edit.old) - tail, len(edit.new) - tail
    return edit.old[:head], edit.old[head:old_end], edit.new[head:new_end], edit.old[old_end:]


def _common_length(first: str, second: str) -> int:
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[:middle] == second[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _ends_alike(first: str, second: str) -> bool:
    short, long = sorted((first, second), key=len)
    return long.endswith(short) and not _cuts_word(long, len(long) - len(short))


def _begins_alike(first: str, second: str) -> bool:
    short, long = sorted((first, second), key=len)
    return long.startswith(short) and not _cuts_word(long, len(short))


def _cuts_word(text: str, place: int) -> bool:
    """Whether a place is inside a word: a text that ends there is not the end of the same name."""
    if not 0 < place < len(text):
        return False
    return (text[place - 1].isalnum() or text[place - 1] == "_") and (text[place].isalnum() or text[place] == "_")


def _contains(large: Edit, small: Edit) -> bool:
    """Whether an edit is another one with text around it."""
    if not small.old or len(large.old) < len(small.old):
        return False
    place = large.old.find(small.old)
    for _ in range(_MOST_PLACES):
        if place < 0:
            return False
        before, after = large.old[:place], large.old[place + len(small.old) :]
        whole = not _cuts_word(large.old, place) and not _cuts_word(large.old, place + len(small.old))
        if whole and large.new == before + small.new + after:
            return True
        place = large.old.find(small.old, place + 1)
    return False


def is_patch(text: str) -> bool:
    """Whether a text is a patch of a kind that is understood."""
    stripped = text.strip()
    return (stripped.startswith("*** Begin Patch") and stripped.endswith("*** End Patch")) or (
        stripped.startswith(("--- ", "diff --git ")) and "\n+++ " in stripped and "\n@@" in stripped
    )


def patch_changes(text: str) -> Iterator[tuple[str, str, str | Edit]]:
    """Yield the changes that a patch makes, file by file: (kind, path, what).

    The kinds: "edit" with an `Edit`, "write" with the content, "move" with the new path, "delete" and "patch" with "";
    "patch" is a part that is not understood, and its path is its text.
    """
    lines = text.strip().split("\n")
    if lines[0].startswith("***"):
        for section in _sections(lines[1:-1]):
            yield from _section_changes(section)
    else:
        for path, body in _unified(lines):
            yield from (("edit", path, edit) for edit in _edits(body))


def _sections(lines: Sequence[str]) -> Iterator[list[str]]:
    section: list[str] = []
    for line in lines:
        if _FILE.match(line) and section:
            yield section
            section = []
        section.append(line)
    if section:
        yield section


def _section_changes(section: list[str]) -> Iterator[tuple[str, str, str | Edit]]:
    found = _FILE.match(section[0])
    if found is None:
        yield "patch", "\n".join(line.rstrip() for line in section), ""
        return
    kind, path, body = found[1], found[2].strip(), section[1:]
    if kind == "Add":
        yield "write", path, "\n".join(line[1:] for line in body if line.startswith("+"))
    elif kind == "Delete":
        yield "delete", path, ""
    else:
        yield from (("edit", path, edit) for edit in _edits(body))
        yield from (("move", path, moved[1].strip()) for line in body if (moved := _MOVE.match(line)) is not None)


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


def _edits(body: Sequence[str]) -> Iterator[Edit]:
    hunks: list[tuple[str | None, list[str]]] = []
    for line in body:
        if line.startswith("***"):
            continue
        if (found := _HUNK.match(line)) is not None:
            header = found[1].strip().removesuffix("@@").strip() or None
            if hunks and not hunks[-1][1]:
                # A header right after another looks inside it.
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
            yield Edit("\n".join(old), "\n".join(new), header=header)
