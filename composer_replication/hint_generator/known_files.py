"""What a trace knows of its files at a moment: who wrote which line, and when to stop trusting that.

Precision first: after anything that may have changed a file, its line numbers are unknown until it is shown again.
"""

from __future__ import annotations

import re

from composer_replication.coding_tools import AGENT_TOOLS, command_of, path_of, plain_name, runs_commands
from composer_replication.hint_generator.written_lines import (
    HEREDOC,
    Author,
    Change,
    Line,
    WrittenFile,
    changes,
    shown_lines,
)
from composer_replication.traces import ToolCall, Turn, content_of

# Commands after which a file may be another one altogether, and those that may move its lines.
_RESTORING = re.compile(
    r"\bgit\b[^|;&\n]*\b(?:checkout|restore|reset|stash|revert|switch|merge|rebase|pull|apply|am|clean|cherry-pick)\b"
    r"|\bgh pr checkout\b"
)
_FORMATTING = re.compile(
    r"(?<![\w-])(?:fmt|format|fix)\b|[\w:-]+:(?:fix|format)\b|--(?:fix|write|apply|in-place)\b|\bpre-commit run\b"
    r"|\b(?:gofmt|goimports|gofumpt|prettier|black|isort|yapf|autopep8|rustfmt|codegen|generate)\b"
)
_REWRITING = re.compile(
    r"\b(?:sed|perl)\s+-\w*i|\b(?:mv|cp|patch|tee|rm|ed|truncate)\s|(?<![<>&\d-])>>?\s*[\w./~$\"'-]"
    r"|\bopen\(|\bwrite|\b(?:python[\d.]*|node|ruby|perl|bash|sh)\s+(?!-)\S+\s+\S"
)
_MANY_FILES = re.compile(r"[*?]|\bfind\b|\bxargs\b|\$\w")
_READING = re.compile(r"read|view|open|cat|grep|glob|search|list|find|\bls\b", re.IGNORECASE)
# How a result says that somebody else changed a file.
_TOLD = re.compile(r"files were modified by this hook|was modified, either by the user|(?:modified|changed) since")
_WORD = re.compile(r"[A-Za-z_]\w*")


class KnownFiles:
    """The files of the wanted names that the calls of a trace have written or shown so far."""

    def __init__(self, wanted: set[str]) -> None:
        self._wanted = wanted
        self._files: dict[str, WrittenFile] = {}
        # The last turn that changed the file, and a line with the word.
        self._changed_file: dict[str, int] = {}
        self._changed_word: dict[str, int] = {}

    def forget(self) -> None:
        """Every file may be another one."""
        self._files.clear()

    def take(self, call: ToolCall, author: Author, result: Turn) -> None:
        """Take into account what a call did."""
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
        """Who wrote a line, the file as the call names it, and the line.

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
    """Whether a failed command has surely made a change: nothing that may have failed comes before it."""
    if command is None or "*** Begin Patch" in command:
        return False
    return "&&" not in command.partition("<<")[0]


def file_name(path: str) -> str:
    """The last part of a path."""
    return path.replace("\\", "/").rpartition("/")[2]
