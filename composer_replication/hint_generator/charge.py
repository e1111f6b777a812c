"""Finds the turns that wrote the lines on which a test, a checker or a compiler fails; none if that is not certain."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from composer_replication.coding_tools import WORKING_DIRECTORY_KEYS, command_of, text_of
from composer_replication.hint_generator.findings import Finding, findings, own_places
from composer_replication.hint_generator.written_files import Author, KnownFiles, file_name
from composer_replication.traces import ToolCall, Turn

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
# What nobody but the line itself can have caused.
_OWN_CODE = re.compile(r"\b(?:NameError|SyntaxError|IndentationError|TabError): ")
# What depends on how and where a program runs, and on code elsewhere.
_DEPENDS = re.compile(
    r"(?:FileNotFound|ModuleNotFound|NotADirectory|Permission|Connection\w*|Timeout)Error|No module named|ECONN|ENOENT"
    r"|No such file|undefined reference|Cannot find module|stubs? not installed|library stub|could not be resolved"
    r"|no required module|unlinked crate"
)
_SURROUNDINGS = re.compile(
    r"\bargv\b|\benviron\b|\bgetenv\b|process\.env\b|^(?:raise|throw|assert|panic!?|unreachable!?)\b"
)
# What is reported elsewhere than where it was broken: a bracket, a return.
_STRUCTURAL = re.compile(
    r"SyntaxError|IndentationError|never closed|unexpected (?:token|EOF|end|indent)|unterminated|TS1\d\d\d\b"
    r"|[Mm]issing return|not all code paths|expected [‘'`\"]?[;)}\]]|mismatched|E0308",
)
_NAMES = re.compile(
    r"[`'\"‘“](?:[\w-]+[./])*([A-Za-z_]\w*)(?:\(\))?[`'\"’”]|\bundefined: (?:\w+\.)?(\w+)|\bnot used: (\w+)"
    r"|(\w+) declared (?:and|but) not used|\.(\w+) undefined\b|\bcall to (?:\w+\.)?(\w+)"
)
# Complaints about a name that stands in the very line.
_OF_NAME = re.compile(r"undefined|not defined|undeclared|unused|(?:not|never) used|cannot find (?:name|value)", re.I)
_CALLED = re.compile(r"([A-Za-z_]\w*)\s*\(")
# Types that messages name and every file has; words of the language.
_COMMON = frozenset(
    re.findall(
        r"\w+",
        "int str float bool None list dict string number boolean void any object"
        " if for while switch return print len range super def function func fn",
    )
)
_CD = re.compile(r"(?:^|&&|;)\s*cd\s+(?P<folder>[\w./~-]+)")


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
    """Return the calls to charge with the outcomes of a trace, in order; a turn at most once for each outcome.

    Args:
        turns: the trace's.
        makers: the call of each `tool_call_id`.
        outcomes: in the order of their turns.
    """
    reported = {outcome.turn: (outcome, _certain(outcome)) for outcome in outcomes}
    wanted = {
        file_name(path)
        for outcome, found in reported.values()
        for path in [finding.path for finding in found] + [path for path, _ in own_places(outcome.output) if found]
    }
    if not wanted:
        return []
    files = KnownFiles(wanted)
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
        if index in reported:
            charged += _charged(*reported[index], files, _folder(call))
    return charged


def _certain(outcome: Outcome) -> list[Finding]:
    """The findings that blame the line they name. A failing assertion does not: test or code may be wrong."""
    found = []
    for finding in findings(outcome.output, outcome.kind):
        if outcome.kind in ("test_failure", "traceback") and _ASSERTION.search(finding.message):
            continue
        if _MINOR.search(finding.message) or _DEPENDS.search(finding.message) or _SURROUNDINGS.search(finding.source):
            continue
        if _TEST_FILE.search(finding.path) and not _OWN_CODE.search(finding.message):
            is_run = outcome.kind in ("test_failure", "traceback")
            if is_run or _MISSING_NAME.search(finding.message):
                continue
        found.append(finding)
    return found


def _charged(outcome: Outcome, found: Sequence[Finding], files: KnownFiles, folder: str) -> list[Charge]:
    charged: dict[int, Charge] = {}
    callers = [files.author(*place, "", folder) for place in own_places(outcome.output)] if found else []
    for finding in found:
        written = files.author(finding.path, finding.line, finding.source, folder)
        if written is None or written[0][0] in charged:
            continue
        author, path, line = written
        names = {name for groups in _NAMES.findall(finding.message) for name in groups if name}
        if not finding.source and not _fits(line.text, finding, names):
            continue
        if files.is_word_changed_since((names or set(_CALLED.findall(line.text))) - _COMMON, author):
            continue
        if _STRUCTURAL.search(finding.message) and files.is_file_changed_since(path, author):
            continue
        is_crash = outcome.kind in ("test_failure", "traceback") and not _OWN_CODE.search(finding.message)
        if is_crash and any(caller is not None and caller[0][0] != author[0] for caller in callers):
            continue  # it may have been called wrongly
        charged[author[0]] = Charge(outcome.turn, author, path, finding.message)
    return list(charged.values())


def _fits(text: str, finding: Finding, names: set[str]) -> bool:
    """Whether a line can be the one that is meant, by what the message names. A bare path may be of another file."""
    if any(re.search(rf"\b{name}\b", text) for name in names):
        return True
    return "/" in finding.path and not (names and _OF_NAME.search(finding.message))


def _folder(call: ToolCall) -> str:
    """Return the directory in which a command ran, if the call says so."""
    moved = _CD.search(command_of(call.arguments) or "")
    folder = moved["folder"] if moved is not None else ""
    workdir = text_of(call.arguments, WORKING_DIRECTORY_KEYS)
    if workdir is None or folder.startswith(("/", "~")):
        return folder
    return f"{workdir}/{folder}".rstrip("/")
