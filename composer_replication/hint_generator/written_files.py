"""Tracks the files of a trace: which call wrote which line, as far as the log shows it.

A log has no file system. It has whole files (a write, a read from the first line on), numbered parts of files, and
edits of text in them. After anything else that may have changed a file, its line numbers are unknown until it is shown
again; the texts of its lines stay known. Precision comes first.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias

from composer_replication.coding_tools import (
    AGENT_TOOLS,
    CHANGE_KEYS,
    CHANGE_TOOLS,
    CONTENT_KEYS,
    command_of,
    path_of,
    plain_name,
    runs_commands,
    text_of,
)
from composer_replication.traces import ToolCall, Turn, content_of

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
# A shorter line stands in many places and identifies none.
_SHORTEST = 6

Author: TypeAlias = tuple[int, int]
"""A call: the index of the turn that made it, and its position among that turn's calls."""

# Effects of commands.
_GIT_RESTORES = "checkout|restore|reset|stash|revert|switch|merge|rebase|pull|apply|am|clean|cherry-pick"
_IN_PLACE = r"(?:sed|perl)\s+-\w*i"
_REDIRECTION = r"(?<![<>&\d-])>>?\s*[\w./~$\"'-]"
_CHANGING = re.compile(
    rf"(?:^|[\s;&|(])(?:{_IN_PLACE}|mv|cp|rm|mkdir|touch|chmod|ln|tee|patch|kill|pkill|export"
    rf"|git\s+(?:{_GIT_RESTORES}|add|commit|init|config|fetch)"
    r"|(?:\S*pip3?|npm|pnpm|yarn|bun|uv|poetry|brew|apt|apt-get|cargo|go|gem|bundle|mix)\s+"
    rf"(?:install|i|ci|add|remove|sync|get|mod|generate|deps\.get|fmt))\b|{_REDIRECTION}"
)
# A file may have been replaced.
_RESTORING = re.compile(rf"\bgit\b[^|;&\n]*\b(?:{_GIT_RESTORES})\b|\bgh pr checkout\b")
# Its lines may have moved.
_FORMATTING = re.compile(
    r"(?<![\w-])(?:fmt|format|fix)\b|[\w:-]+:(?:fix|format)\b|--(?:fix|write|apply|in-place)\b|\bpre-commit run\b"
    r"|\b(?:gofmt|goimports|gofumpt|prettier|black|isort|yapf|autopep8|rustfmt|codegen|generate)\b"
)
_REWRITING = re.compile(
    rf"\b{_IN_PLACE}|\b(?:mv|cp|patch|tee|rm|ed|truncate)\s|{_REDIRECTION}"
    r"|\bopen\(|\bwrite|\b(?:python[\d.]*|node|ruby|perl|bash|sh)\s+(?!-)\S+\s+\S"
)
_MANY_FILES = re.compile(r"[*?]|\bfind\b|\bxargs\b|\$\w")
_READING = re.compile(r"read|view|open|cat|grep|glob|search|list|find|\bls\b", re.IGNORECASE)
# The result says that somebody else changed a file.
_TOLD = re.compile(r"files were modified by this hook|was modified, either by the user|(?:modified|changed) since")
_WORD = re.compile(r"[A-Za-z_]\w*")


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
    """Yield a call's changes of files, by the shape of its arguments."""
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


def changes_anything(call: ToolCall) -> bool:
    """Whether a call changes files, packages or the environment, so that a call that failed before may now work."""
    if plain_name(call.name) in CHANGE_TOOLS:
        # Editors that also show files say so in their `command`.
        return call.arguments.get("command") != "view"
    command = command_of(call.arguments)
    return command is not None and _CHANGING.search(command[:4000]) is not None


def shown_lines(result: str) -> dict[int, str]:
    """Return the numbered lines of a result that shows a file."""
    return {int(found["number"]): found["text"] for found in _NUMBERED.finditer(result)}


class WrittenFile:
    """The known lines of one file and their authors."""

    def __init__(self) -> None:
        self._lines: dict[int, Line] = {}
        # Lines by their text. Two calls that wrote the same line: None.
        self._texts: dict[str, Author | None] = {}

    def apply(self, change: Change, author: Author) -> None:
        """Apply a change that succeeded."""
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
        """Record lines that a call has shown."""
        for number, text in lines.items():
            known = self._lines.get(number)
            if known is None or known.text != text:
                self._lines[number] = Line(text, self.author_of(text))

    def forget_numbers(self) -> None:
        """Drop the line numbers: the file may have changed."""
        self._lines.clear()

    def line(self, number: int) -> Line | None:
        """A line by its number."""
        return self._lines.get(number)

    def author_of(self, text: str) -> Author | None:
        """Return the author of a line with this text, if only one call wrote such a line and it is not too short."""
        stripped = text.strip()
        return self._texts.get(stripped) if len(stripped) >= _SHORTEST else None

    def _places(self, change: Change) -> list[tuple[int, list[str], list[str]]]:
        """Find where an edit applies: the number of the first line, the old lines and the new ones."""
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
        """Replace lines by others; the lines after them move."""
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


class KnownFiles:
    """The files of the wanted names that the calls of a trace have written or shown so far."""

    def __init__(self, wanted: set[str]) -> None:
        self._wanted = wanted
        self._files: dict[str, WrittenFile] = {}
        # The last turn that changed the file, and a line with the word.
        self._changed_file: dict[str, int] = {}
        self._changed_word: dict[str, int] = {}

    def forget(self) -> None:
        """Drop everything: every file may have been replaced."""
        self._files.clear()

    def take(self, call: ToolCall, author: Author, result: Turn) -> None:
        """Record the effect of a call."""
        command = command_of(call.arguments) if runs_commands(call.name, call.arguments) else None
        content = content_of(result)
        written = [change for change in changes(call) if not result.is_error or _worked_alone(change, command)]
        for change in written:
            self._apply(change, author)
        path = path_of(call.arguments)
        if path is not None and file_name(path) in self._wanted and not result.is_error:
            lines = shown_lines(content)
            is_shown = call.arguments.get("command") == "view" or _READING.search(call.name) is not None
            if not lines and not written and not is_shown:
                self._file(path).forget_numbers()
            self._file(path).show(lines)
        if plain_name(call.name) in AGENT_TOOLS or _TOLD.search(content) is not None:
            self._forget_numbers(every=True)
        if command is not None:
            self._take_command(command, written)

    def author(self, path: str, number: int, source: str, folder: str) -> tuple[Author, str, Line] | None:
        """Return the author of a line, the path of its file as the call gave it, and the line.

        Args:
            path: as the output names the file.
            number: of the line.
            source: the line itself, if the output quotes it.
            folder: where the command ran.
        """
        place = f"{folder}/{path}" if folder else path
        matching = [known for known in self._files if is_same(known, place)]
        if len(matching) != 1:
            return None
        file = self._files[matching[0]]
        line = file.line(number)
        if source and (line is None or line.text.strip() != source):
            line = Line(source, file.author_of(source))
        if line is None or line.author is None:
            return None
        return line.author, matching[0], line

    def is_file_changed_since(self, path: str, author: Author) -> bool:
        """Whether a later turn changed the file."""
        return self._changed_file.get(path, -1) > author[0]

    def is_word_changed_since(self, words: set[str], author: Author) -> bool:
        """Whether a later turn changed a line, in any file, that has one of the words."""
        return any(self._changed_word.get(word, -1) > author[0] for word in words)

    def _apply(self, change: Change, author: Author) -> None:
        old, new = set((change.old or "").split("\n")), set(change.new.split("\n"))
        for line in old ^ new:
            self._changed_word.update(dict.fromkeys(_WORD.findall(line), author[0]))
        if file_name(change.path) in self._wanted:
            self._file(change.path).apply(change, author)
            self._changed_file[self._key(change.path)] = author[0]

    def _take_command(self, command: str, written: list[Change]) -> None:
        # What it writes by a here-document is known; the rest may do anything to other files.
        rest = HEREDOC.sub(" ", command) if written else command
        if _RESTORING.search(rest) is not None:
            self.forget()
        elif _FORMATTING.search(rest) is not None or (_REWRITING.search(rest) and _MANY_FILES.search(rest)):
            self._forget_numbers(every=True)
        elif _REWRITING.search(rest) is not None or "open(" in command or "write" in command:
            self._forget_numbers(rest if _REWRITING.search(rest) is not None else command)

    def _forget_numbers(self, command: str = "", *, every: bool = False) -> None:
        for path, file in self._files.items():
            if every or file_name(path) in command:
                file.forget_numbers()

    def _key(self, path: str) -> str:
        return next((known for known in self._files if is_same(known, path)), path)

    def _file(self, path: str) -> WrittenFile:
        return self._files.setdefault(self._key(path), WrittenFile())


def is_same(one: str, other: str) -> bool:
    """Whether two paths, absolute or relative to some folder, may be of one file."""
    first, second = (re.sub(r"^(?:\.{1,2}/)+", "", path.replace("\\", "/")) for path in (one, other))
    return first == second or first.endswith(f"/{second}") or second.endswith(f"/{first}")


def _worked_alone(change: Change, command: str | None) -> bool:
    """Whether a failed command certainly made a change: nothing before it can have failed."""
    if command is None or "*** Begin Patch" in command:
        return False
    return "&&" not in command.partition("<<")[0]


def file_name(path: str) -> str:
    """The last part of a path."""
    return path.replace("\\", "/").rpartition("/")[2]
