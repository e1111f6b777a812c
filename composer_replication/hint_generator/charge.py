"""Charges the turns that wrote what a test, a checker or a compiler fails on; where that is not certain, nobody."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from composer_replication.hint_generator.arguments import command_of, path_of, runs_commands
from composer_replication.hint_generator.findings import Finding, findings
from composer_replication.hint_generator.written_lines import Author, Line, WrittenFile, changes, shown_lines
from composer_replication.traces import ToolCall, Turn, content_of

_TEST_FILE = re.compile(
    r"(?:^|/)(?:tests?|__tests__|specs?|e2e)/|(?:^|[/_.-])(?:tests?|specs?)[_.]|_test\.\w+$|(?:^|/)conftest\."
)
# A test may come before what it tests: that a name is missing is then as it should be.
_MISSING_NAME = re.compile(
    r"\bundefined: |undeclared|not found|cannot find (?!name)|could not find|no module named|cannot import|unresolved"
    r"|does not exist|has no (?:exported member|attribute|field|method|member)|is not a function"
    r"|unknown (?:field|import)|unexpected keyword|no required module|TS2(?:305|307|339|551|724)\b",
    re.IGNORECASE,
)
_ASSERTION = re.compile(r"\bassert|\bexpect|\bwant\b|\bFailure/Error: ", re.IGNORECASE)
_MINOR = re.compile(r":\d+: (?:warning|⚠|note)\b")
_OWN_CODE = re.compile(r"\b(?:NameError|SyntaxError|IndentationError|TabError): ")
# What depends on how and where a program runs, and on code elsewhere.
_DEPENDS = re.compile(
    r"(?:FileNotFound|ModuleNotFound|NotADirectory|Permission|Connection\w*|Timeout)Error|No module named|ECONN|ENOENT"
    r"|No such file|undefined reference|Cannot find module"
)
_SURROUNDINGS = re.compile(r"\bargv\b|\benviron\b|\bgetenv\b|process\.env\b")
_NAMES = re.compile(r"[`'\"‘“](?:\w+\.)*([A-Za-z_]\w*)[`'\"’”]|\bundefined: (?:\w+\.)?(\w+)|\bnot used: (\w+)")
# Complaints about a name that stands in the very line.
_OF_NAME = re.compile(
    r"undefined|not defined|undeclared|unused|(?:not|never) used|cannot find (?:name|value)", re.IGNORECASE
)
# Types that messages name and every file has.
_COMMON = frozenset(
    ["int", "str", "float", "bool", "None", "list", "dict", "string", "number", "boolean", "void", "any", "object"]
)
# Tools behind which somebody else works on the files.
_OTHER_AGENTS = frozenset(["task", "agent", "delegate", "dispatch_agent"])
_CHANGED_BY_HOOK = "files were modified by this hook"
_CD = re.compile(r"(?:^|&&|;)\s*cd\s+(?P<folder>[\w./~-]+)")
_NEARBY = 4
# Commands after which a file may be another one altogether, and those that may move its lines.
_RESTORING = re.compile(
    r"\bgit\s+(?:-\S+\s+)*(?:checkout|restore|reset|stash|revert|switch|merge|rebase|pull|apply|am|clean)\b"
)
_FORMATTING = re.compile(
    r"(?<![\w-])(?:fmt|format)\b|--fix\b|--write\b|\b(?:gofmt|goimports|gofumpt|prettier|black|isort|rustfmt|codegen|generate)\b"
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
        call = turns[maker[0]].tool_calls[maker[1]]
        files.take(call, maker, turn)
        complaints = reported.get(index, [])
        moved = _CD.search(command_of(call.arguments) or "") if complaints else None
        for finding in complaints:
            folder = moved["folder"] if moved is not None else ""
            found = files.author(finding, folder)
            if found is not None and not any(one.outcome == index and one.author == found[0] for one in charged):
                charged.append(Charge(index, *found, finding.message))
    return charged


class _Files:
    """The files that a trace has written so far, those of the wanted names."""

    def __init__(self, wanted: set[str]) -> None:
        self._wanted = wanted
        self._files: dict[str, WrittenFile] = {}
        self._changed: list[tuple[Author, set[str]]] = []

    def forget(self) -> None:
        """Every file may be another one."""
        self._files.clear()

    def _forget_numbers(self) -> None:
        for file in self._files.values():
            file.forget_numbers()

    def take(self, call: ToolCall, author: Author, result: Turn) -> None:
        """Take into account what a call did."""
        command = command_of(call.arguments) if runs_commands(call.name, call.arguments) else None
        written = list(changes(call)) if command is not None or not result.is_error else []
        for change in written:
            old, new = set((change.old or "").split("\n")), set(change.new.split("\n"))
            self._changed.append((author, old ^ new))
            if _name(change.path) in self._wanted:
                self._file(change.path).apply(change, author)
        if not result.is_error:
            path = path_of(call.arguments)
            if path is not None and _name(path) in self._wanted:
                self._file(path).show(shown_lines(content_of(result)))
        if call.name.lower() in _OTHER_AGENTS or (command is not None and _CHANGED_BY_HOOK in content_of(result)):
            self._forget_numbers()
        if command is None:
            return
        if _RESTORING.search(command) is not None:
            self.forget()
        elif not written:
            formats = _FORMATTING.search(command) is not None
            rewrites = _REWRITING.search(command) is not None
            for path, file in self._files.items():
                if formats or (rewrites and _name(path) in command):
                    file.forget_numbers()

    def author(self, finding: Finding, folder: str) -> tuple[Author, str] | None:
        """Who wrote the line that a finding is about, and the file as the call names it.

        `folder` is where the command went first.
        """
        matching = [path for path in self._files if _is_same(path, finding.path)]
        if len(matching) > 1 and folder:
            matching = [path for path in matching if _is_same(path, f"{folder}/{finding.path}")]
        if len(matching) != 1:
            return None
        file = self._files[matching[0]]
        line = file.line(finding.line)
        author = None
        if line is not None and (line.text.strip() == finding.source if finding.source else _fits(line, file, finding)):
            author = line.author
        elif finding.source:
            author = file.author_of(finding.source)
        if author is None or self._is_changed_since(author, _names(finding.message) - _COMMON):
            return None
        return author, matching[0]

    def _is_changed_since(self, author: Author, names: set[str]) -> bool:
        """Whether a later turn changed a line with one of the names: that may be what broke it."""
        patterns = [re.compile(rf"\b{name}\b") for name in names]
        return any(
            pattern.search(line)
            for later, lines in self._changed
            if later[0] > author[0]
            for line in lines
            for pattern in patterns
        )

    def _file(self, path: str) -> WrittenFile:
        known = next((one for one in self._files if _is_same(one, path)), None)
        return self._files.setdefault(known or path, WrittenFile())


def _certain(outcome: Outcome) -> list[Finding]:
    """The findings that blame the line they name. A failing assertion does not: test or code may be wrong."""
    found = []
    for finding in findings(outcome.output, outcome.kind):
        if outcome.kind == "test_failure" and _ASSERTION.search(finding.message):
            continue
        if _MINOR.search(finding.message) or _DEPENDS.search(finding.message):
            continue
        if _SURROUNDINGS.search(finding.source):
            continue
        if _TEST_FILE.search(finding.path) and not _OWN_CODE.search(finding.message):
            is_run = outcome.kind in ("test_failure", "traceback")
            if is_run or _MISSING_NAME.search(finding.message):
                continue
        found.append(finding)
    return found


def _fits(line: Line, file: WrittenFile, finding: Finding) -> bool:
    """Whether a line can be the one that is meant, by what the message names.

    If the name stands in a line nearby, the numbers have moved; and a bare file name may be that of another file.
    """
    patterns = [re.compile(rf"\b{name}\b") for name in _names(finding.message)]
    if any(pattern.search(line.text) for pattern in patterns):
        return True
    if "/" not in finding.path:
        return False
    nearby = "\n".join(file.near(finding.line, _NEARBY))
    return _OF_NAME.search(finding.message) is None or not any(pattern.search(nearby) for pattern in patterns)


def _names(message: str) -> set[str]:
    return {name for groups in _NAMES.findall(message) for name in groups if name}


def _name(path: str) -> str:
    return path.replace("\\", "/").rpartition("/")[2]


def _is_same(one: str, other: str) -> bool:
    """Whether two paths, absolute or relative to some folder, may be of one file."""
    first, second = (re.sub(r"^(?:\.{1,2}/)+", "", path.replace("\\", "/")) for path in (one, other))
    return first == second or first.endswith(f"/{second}") or second.endswith(f"/{first}")
