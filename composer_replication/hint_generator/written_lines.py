"""The lines that a trace's calls wrote into a file: which call wrote the line that is now number n, as far as it shows.

A log has no file system. It has whole files (a write, a read from the first line on), parts of them with their numbers,
and edits of text that stands in them. What changed the file otherwise makes its numbers unknown; the texts stay.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias

from composer_replication.coding_tools import CHANGE_KEYS, CONTENT_KEYS, command_of, path_of, text_of
from composer_replication.traces import ToolCall

_OLD_KEYS, _NEW_KEYS = zip(*CHANGE_KEYS, strict=True)
_PATCH = re.compile(r"^\*\*\* Begin Patch\n(?P<body>.*?)^\*\*\* End Patch", re.MULTILINE | re.DOTALL)
_PATCHED_FILE = re.compile(r"^\*\*\* (?P<action>Add|Update) File: (?P<path>[^\n]+)\n", re.MULTILINE)
HEREDOC = re.compile(
    r"\b(?:cat|tee)\s*(?P<mode>>{0,2}|-a)\s*(?P<path>[\w./~-]+)\s*<<-?\s*['\"]?(?P<end>\w+)['\"]?\n(?P<text>.*?)\n(?P=end)(?:\n|\Z)"
    r"|\bcat\s*<<-?\s*['\"]?(?P<stop>\w+)['\"]?\s*(?P<sign>>{1,2})\s*(?P<to>[\w./~-]+)\n(?P<body>.*?)\n(?P=stop)(?:\n|\Z)",
    re.DOTALL,
)
_MOST_HEREDOCS = 50
_NUMBERED = re.compile(r"^ *(?P<number>\d+)(?:→|\t|:)(?P<text>[^\n]*)", re.MULTILINE)
# A line that says so little that it stands in many places is no evidence.
_SHORTEST = 6

Author: TypeAlias = tuple[int, int]
"""A call: the index of the turn that made it, and its position among that turn's calls."""


class Change(NamedTuple):
    """A call's change of a file: `old` is replaced by `new`; without `old`, `new` is the whole file.

    With an empty `old`, `new` is put in after line `after`, or at the end.
    """

    path: str
    old: str | None
    new: str
    everywhere: bool = False
    after: int | None = None


class Line(NamedTuple):
    """A line as a file has it, and who wrote it, if it is known."""

    text: str
    author: Author | None


def changes(call: ToolCall) -> Iterator[Change]:
    """The files that a call writes, by the shape of its arguments."""
    given = call.arguments
    path = path_of(given)
    if path is not None:
        content = text_of(given, CONTENT_KEYS)
        # Editors of many commands are given every argument, most of them empty.
        if content or (content is not None and "command" not in given):
            yield Change(path, None, content)
        inserted, after = text_of(given, (*_NEW_KEYS, "insert_text")), given.get("insert_line")
        if inserted is not None and isinstance(after, int):
            yield Change(path, "", inserted, after=after)
            return
        edits = given.get("edits")
        for edit in edits if isinstance(edits, list) else [given]:
            if isinstance(edit, Mapping):
                old, new = text_of(edit, _OLD_KEYS), text_of(edit, _NEW_KEYS)
                if old and new is not None:
                    yield Change(path, old, new, edit.get("replace_all") is True)
        return
    text = call.raw_arguments or text_of(given, ("input", "patch")) or command_of(given) or ""
    if "*** Begin Patch" in text:
        yield from _patched(text)
    elif 0 < text.count("<<") <= _MOST_HEREDOCS:
        for found in HEREDOC.finditer(text):
            text = found["text"] if found["path"] else found["body"]
            is_added = (found["mode"] or found["sign"]) in (">>", "-a")
            yield Change(found["path"] or found["to"], "" if is_added else None, f"{text}\n")


def shown_lines(result: str) -> dict[int, str]:
    """The numbered lines of a result that shows a file."""
    return {int(found["number"]): found["text"] for found in _NUMBERED.finditer(result)}


class WrittenFile:
    """What is known of a file's lines."""

    def __init__(self) -> None:
        self._lines: dict[int, Line] = {}
        # Lines by their text. Two calls that wrote the same line: None.
        self._texts: dict[str, Author | None] = {}

    def apply(self, change: Change, author: Author) -> None:
        """Take a change that worked into account."""
        if change.old is None:
            # Lines that stood there before are not this call's, although its text has them.
            before = [self._lines[number] for number in sorted(self._lines)]
            self._lines = dict(enumerate(self._edited(before, change.new.split("\n"), author), 1))
            return
        if not change.old:
            added = self._edited([], change.new.removesuffix("\n").split("\n"), author)
            if change.after is not None:
                self._move(change.after + 1, 0, added)
            return
        places = self._places(change)
        for start, old, new in reversed(places):
            before = [self._lines[number] for number in range(start, start + len(old))]
            self._move(start, len(old), self._edited(before, new, author))
        if not places:
            self._edited([Line(text, None) for text in change.old.split("\n")], change.new.split("\n"), author)
            self.forget_numbers()

    def show(self, lines: Mapping[int, str]) -> None:
        """Take lines into account that a call has shown."""
        for number, text in lines.items():
            known = self._lines.get(number)
            if known is None or known.text != text:
                self._lines[number] = Line(text, self.author_of(text))

    def forget_numbers(self) -> None:
        """The file may have changed: no number is sure any more."""
        self._lines.clear()

    def line(self, number: int) -> Line | None:
        """A line by its number."""
        return self._lines.get(number)

    def author_of(self, text: str) -> Author | None:
        """Who wrote a line of this text, if it was one call alone and the text says enough."""
        stripped = text.strip()
        return self._texts.get(stripped) if len(stripped) >= _SHORTEST else None

    def _places(self, change: Change) -> list[tuple[int, list[str], list[str]]]:
        """Where an edit applies among the known lines: the first line's number, the lines, and what they become."""
        assert change.old is not None
        numbers = sorted(self._lines)
        if change.everywhere:
            # Lines that are not known may be edited too: their number must not change.
            if "\n" in change.old + change.new:
                return []
            texts = [(number, self._lines[number].text) for number in numbers]
            return [
                (number, [text], [text.replace(change.old, change.new)]) for number, text in texts if change.old in text
            ]
        first = 0
        while first < len(numbers):
            last = first
            while last + 1 < len(numbers) and numbers[last + 1] == numbers[last] + 1:
                last += 1
            run = "".join(f"{self._lines[number].text}\n" for number in numbers[first : last + 1])
            at = run.find(change.old)
            if at >= 0:
                begin = run.rfind("\n", 0, at) + 1
                end = run.find("\n", at + len(change.old) - change.old.endswith("\n")) + 1
                old, new = run[begin:end], run[begin:at] + change.new + run[at + len(change.old) : end]
                # Without its line end, the last line would go on with the next.
                is_whole = not new or new.endswith("\n")
                start = numbers[first] + run.count("\n", 0, begin)
                return [(start, old.split("\n")[:-1], new.split("\n")[:-1])] if is_whole else []
            first = last + 1
        return []

    def _move(self, start: int, length: int, lines: list[Line]) -> None:
        """Put lines in the place of others; those after them move."""
        moved = {
            number + len(lines) - length if number >= start + length else number: line
            for number, line in self._lines.items()
            if not start <= number < start + length
        }
        self._lines = moved | dict(enumerate(lines, start))

    def _edited(self, before: list[Line], new: list[str], author: Author) -> list[Line]:
        """The lines of an edited place: those that stay keep their author."""
        matcher = difflib.SequenceMatcher(None, [line.text for line in before], new)
        after = [Line(text, author) for text in new]
        for block in matcher.get_matching_blocks():
            after[block.b : block.b + block.size] = before[block.a : block.a + block.size]
        standing = {line.text.strip() for line in before}
        for gone in standing.difference(map(str.strip, new)):
            self._texts.pop(gone, None)
        for text in map(str.strip, new):
            if text not in standing:
                self._texts[text] = author if self._texts.get(text, author) == author else None
        return after


def _patched(text: str) -> Iterator[Change]:
    """The changes of a patch in Codex's format: each hunk replaces its context and `-` lines."""
    found = _PATCH.search(text)
    parts = _PATCHED_FILE.split(found["body"]) if found is not None else []
    for action, path, body in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        lines = body.split("\n*** ")[0].removesuffix("\n").split("\n")
        if action == "Add":
            yield Change(path.strip(), None, "".join(f"{line[1:]}\n" for line in lines if line.startswith("+")))
            continue
        hunks: list[list[str]] = [[]]
        for line in lines:
            if line.startswith("@@"):
                hunks.append([])
            else:
                hunks[-1].append(line)
        for hunk in filter(None, hunks):
            old = [line[1:] for line in hunk if not line.startswith("+")]
            new = [line[1:] for line in hunk if not line.startswith("-")]
            yield Change(path.strip(), "\n".join(old), "\n".join(new))
