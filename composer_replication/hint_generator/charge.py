"""Charges the turns that wrote what a test, a checker or a compiler fails on; where that is not certain, nobody."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from composer_replication.hint_generator.arguments import command_of, path_of, runs_commands
from composer_replication.hint_generator.findings import Finding, findings
from composer_replication.hint_generator.written_lines import Author, Line, WrittenFile, changes, shown_lines
from composer_replication.traces import ToolCall, Turn

_TEST_FILE = re.compile(
    r"(?:^|/)(?:tests?|__tests__|specs?|e2e)/|(?:^|[/_.-])(?:tests?|specs?)[_.]|_test\.\w+$|(?:^|/)conftest\."
)
# A test may come before what it tests: that a name is missing is then as it should be.
_MISSING_NAME = re.compile(
    r"undefined\b|undeclared|not defined|not found|cannot find|could not find|no module named|cannot import|unresolved"
    r"|does not exist|has no (?:exported member|attribute|field|method|member)|is not a function"
    r"|unknown (?:field|import)|unexpected keyword|no required module|TS2(?:304|305|307|339|551|724)\b|F821",
    re.IGNORECASE,
)
_NAMES = re.compile(r"[`'\"‘“]([A-Za-z_]\w*)[`'\"’”]|\bundefined: (?:\w+\.)?(\w+)|\bnot used: (\w+)")
_NEARBY = 4
# Where many places are complained about, those that an edit merely had around it may be old.
_FEW = 5
# Commands after which a file may be another one altogether, and those that may move its lines.
_RESTORING = re.compile(
    r"\bgit\s+(?:-\S+\s+)*(?:checkout|restore|reset|stash|revert|switch|merge|rebase|pull|apply|am|clean)\b"
)
_FORMATTING = re.compile(
    r"\bfmt\b|\bformat\b|--fix\b|--write\b|\b(?:gofmt|goimports|gofumpt|prettier|black|isort|rustfmt|codegen|generate)\b"
)
_REWRITING = re.compile(
    r"\b(?:sed|perl)\s+-\w*i|\b(?:mv|cp|patch|tee|rm)\s|(?<![<>&\d-])>>?\s*[\w./~$\"'-]|\bopen\(|\bwrite"
)


class Outcome(NamedTuple):
    """A result that reports on earlier work: the index of its turn, the kind, and what the command printed."""

    turn: int
    kind: str
    output: str


class Charge(NamedTuple):
    """A call that wrote what fails: the outcome that shows it, the call, and the failure's own line."""

    outcome: int
    author: Author
    path: str
    message: str


def charges(turns: Sequence[Turn], makers: Mapping[str, Author], outcomes: Sequence[Outcome]) -> list[Charge]:
    """What the outcomes of a trace can be charged to, in their order.

    Args:
        turns: the trace's.
        makers: the call of each `tool_call_id`.
        outcomes: in the order of their turns.
    """
    reported = {outcome.turn: _certain(outcome) for outcome in outcomes}
    wanted = {_name(finding.path) for found in reported.values() for finding in found}
    if not wanted:
        return []
    files = _Files(wanted)
    charged: list[Charge] = []
    for index in range(outcomes[-1].turn + 1):
        turn = turns[index]
        if turn.follows is not None and turn.follows >= 0:
            files.forget()
        maker = makers.get(turn.tool_call_id or "") if turn.role == "tool" else None
        if maker is None:
            continue
        files.take(turns[maker[0]].tool_calls[maker[1]], maker, turn)
        complaints = reported.get(index, [])
        for finding in complaints:
            found = files.author(finding, is_one_of_few=len(complaints) <= _FEW)
            if found is not None and not any(one.outcome == index and one.author == found[0] for one in charged):
                charged.append(Charge(index, *found, finding.message))
    return charged


class _Files:
    """The files that a trace has written so far, those of the wanted names."""

    def __init__(self, wanted: set[str]) -> None:
        self._wanted = wanted
        self._files: dict[str, WrittenFile] = {}

    def forget(self) -> None:
        """Every file may be another one."""
        self._files.clear()

    def take(self, call: ToolCall, author: Author, result: Turn) -> None:
        """Take into account what a call did."""
        if not result.is_error:
            written = [change for change in changes(call) if _name(change.path) in self._wanted]
            for change in written:
                self._file(change.path).apply(change, author)
            path = path_of(call.arguments)
            if path is not None and _name(path) in self._wanted:
                self._file(path).show(shown_lines(result.content))
        command = command_of(call.arguments) if runs_commands(call.name, call.arguments) else None
        if command is None:
            return
        if _RESTORING.search(command) is not None:
            self.forget()
        elif not any(changes(call)):
            formats = _FORMATTING.search(command) is not None
            rewrites = _REWRITING.search(command) is not None
            for path, file in self._files.items():
                if formats or (rewrites and _name(path) in command):
                    file.forget_numbers()

    def author(self, finding: Finding, *, is_one_of_few: bool) -> tuple[Author, str] | None:
        """Who wrote the line that a finding is about, and the file as the call names it."""
        matching = [path for path in self._files if _is_same(path, finding.path)]
        if len(matching) != 1:
            return None
        file = self._files[matching[0]]
        line = file.line(finding.line)
        author = None
        if line is not None and (line.text.strip() == finding.source if finding.source else _fits(line, file, finding)):
            author = line.author or (line.editor if is_one_of_few else None)
        elif finding.source:
            author = file.author_of(finding.source)
        return (author, matching[0]) if author is not None else None

    def _file(self, path: str) -> WrittenFile:
        known = next((one for one in self._files if _is_same(one, path)), None)
        return self._files.setdefault(known or path, WrittenFile())


def _certain(outcome: Outcome) -> list[Finding]:
    """The findings that blame the line they name. A failing assertion does not: test or code may be wrong."""
    found = []
    for finding in findings(outcome.output, outcome.kind):
        if "AssertionError" in finding.message or "AssertionError" in finding.source:
            continue
        if _TEST_FILE.search(finding.path) and (
            outcome.kind in ("test_failure", "traceback") or _MISSING_NAME.search(finding.message)
        ):
            continue
        found.append(finding)
    return found


def _fits(line: Line, file: WrittenFile, finding: Finding) -> bool:
    """Whether a line can be the one that is meant, by what the message names.

    If the name stands in a line nearby, the numbers have moved; and a bare file name may be that of another file.
    """
    names = {name for groups in _NAMES.findall(finding.message) for name in groups if name}
    patterns = [re.compile(rf"\b{name}\b") for name in names]
    if any(pattern.search(line.text) for pattern in patterns):
        return True
    return "/" in finding.path and not any(
        pattern.search(text) for pattern in patterns for text in file.near(finding.line, _NEARBY)
    )


def _name(path: str) -> str:
    return path.replace("\\", "/").rpartition("/")[2]


def _is_same(one: str, other: str) -> bool:
    """Whether two paths, absolute or relative to some folder, may be of one file."""
    first, second = (re.sub(r"^(?:\.{1,2}/)+", "", path.replace("\\", "/")) for path in (one, other))
    return first == second or first.endswith(f"/{second}") or second.endswith(f"/{first}")
