"""The places that compilers, checkers and test runs complain about: file, line, message, and the line they quote."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_PATH = r"(?P<path>[\w@~.+/\\-]*[\w/\\-]\.[A-Za-z]\w{0,9}|(?:[\w.-]*/)*(?:Makefile|Dockerfile))"
# `a.go:3:2: undefined: X`, `a.ts:3:5 - error TS2304: …`, `a.ts(3,5): error TS2304: …`, perhaps after other words
_PLACED = re.compile(
    rf"(?:^|(?<=[\s\[(])){_PATH}(?::(?P<line>\d+)(?::\d+)?|\((?P<row>\d+)(?:,\d+)?\))(?: -|:) +(?P<message>\S[^\n]*)",
    re.MULTILINE,
)
# `F401 [*] unused\n --> a.py:1:8` of ruff, ty and rustc
_ARROW = re.compile(rf"^(?P<message>\S[^\n]*)\n *--> {_PATH}:(?P<line>\d+):\d+$", re.MULTILINE)
# eslint: the file on a line of its own, then its findings
_FILE_ALONE = re.compile(rf"{_PATH}\Z")
_LISTED = re.compile(r"\s+(?P<line>\d+):\d+\s+error\s+(?P<message>\S.*)")
_FRAME = re.compile(
    r'^ +File "(?P<path>[^"\n]+)", line (?P<line>\d+)(?:, in [^\n]*)?(?:\n {4,}(?P<source>\S[^\n]*))?', re.MULTILINE
)
_CRASH = re.compile(
    r"^(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Warning|Failure)\b[^\n]*$", re.MULTILINE
)
_STACK = re.compile(
    r"^[ \t]+at (?:[^\n(]*\()?(?:file://)?(?P<path>[^\s():]+|\[eval\]\S*?):(?P<line>\d+)(?::\d+)?\)?$", re.MULTILINE
)
_LIBRARY = re.compile(
    r"site-packages/|dist-packages/|/lib/python\d|node_modules/|^node:|^<frozen |/\.cargo/|/rustlib/|/go/pkg/mod/"
)
_MINOR = re.compile(r"(?:warning|note|info|hint|help)\b", re.IGNORECASE)
# What Node shows of a file that it cannot parse.
_UNPARSED = re.compile(
    r"^(?:file://)?(?P<path>/[^\s:]+):(?P<line>\d+)\n(?P<source>[^\n]*)\n[ \t]*\^+\n\n(?P<message>SyntaxError: [^\n]*)",
    re.MULTILINE,
)
# Rust; a failing assertion accuses nobody.
_PANIC = re.compile(rf"panicked at {_PATH}:(?P<line>\d+):\d+:\n(?P<message>(?!assertion)\S[^\n]*)")
# biome: the place, then the message in a line of its own
_BIOME = re.compile(rf"^{_PATH}:(?P<line>\d+):\d+ lint/[^\n]*\n\s+[×✖] (?P<message>[^\n]+)", re.MULTILINE)
# What pytest writes below the failing line of each frame: the exception's name, if it is the last one.
# A failing assertion accuses nobody: the test may be wrong, or the code.
_RAISED = re.compile(r"(?!AssertionError)(?:\w+\.)*\w*(?:Error|Exception)\Z")
# `--tb=short`
_SHORT = re.compile(
    rf"^{_PATH}:(?P<line>\d+): in [^\n]+\n    (?P<source>\S[^\n]*)\n(?: [^\n]*\n)*"
    r"E   +(?P<message>(?!assert|AssertionError)\S[^\n]*)",
    re.MULTILINE,
)
_POINTED = re.compile(r"^ *(?:\d+ +)?(?:\| ?)?(?P<source>[^\n]*\S)\n[ \t\d|]*[\^~]+")
# Task runners name the task before each line of its output.
_TASK = re.compile(r"^\[[\w:.-]+\] ", re.MULTILINE)
_NUMBERED = r"^ *{line} +\| (?:/ )?(?P<source>[^\n]*\S)"
_MOST = 40
_WINDOW = 600


class Finding(NamedTuple):
    """One complaint. `message` is one line that names the place; `source` is the line of code, if the output has it."""

    path: str
    line: int
    message: str
    source: str = ""


def findings(output: str, kind: str) -> list[Finding]:
    """The complaints in the output of a command that failed as `kind`, in order; of many, the first."""
    output = _TASK.sub("", output)
    found = _crashes(output)
    if kind in ("test_failure", "traceback"):
        found += [*_all(_PANIC, output), *_raised(output)]
    else:
        found += [*_all(_UNPARSED, output), *_arrows(output), *_all(_BIOME, output), *_placed(output), *_listed(output)]
    return found[:_MOST]


def own_frame(output: str) -> str | None:
    """The innermost place of the last crash that is not inside a library: a file, or `<stdin>` and the like."""
    frames = _own_frames(output)
    return frames[-1]["path"] if frames else None


def _own_frames(output: str) -> list[re.Match[str]]:
    """From the outermost to the innermost."""
    start = output.rfind("Traceback (most recent call last)")
    if start >= 0:
        found = _FRAME.finditer(output, start)
        return [frame for frame in found if not _LIBRARY.search(frame["path"])]
    return [frame for frame in _STACK.finditer(output) if not _LIBRARY.search(frame["path"])][::-1]


def _crashes(output: str) -> list[Finding]:
    frames = _own_frames(output)
    if not frames or frames[-1]["path"].startswith(("<", "[")):
        return []
    frame = frames[-1]
    if frame.re is _FRAME:
        crash = _CRASH.search(output, frame.end())
        message = crash[0] if crash is not None else ""
    else:
        # What was thrown stands before the first frame.
        message = next(iter(re.split(r"\n[ \t]+at ", output[: frame.end()], maxsplit=1))).rpartition("\n")[2]
    if not message:
        return []
    return [_finding(frame["path"], frame["line"], message, frame.groupdict().get("source") or "")]


def _all(pattern: re.Pattern[str], output: str) -> Iterator[Finding]:
    for found in pattern.finditer(output):
        yield _finding(found["path"], found["line"], found["message"], found.groupdict().get("source") or "")


def _raised(output: str) -> Iterator[Finding]:
    """pytest's own frames: `>   the line`, `E   KeyError: 'x'`, `a.py:3: KeyError`."""
    yield from _all(_SHORT, output)
    for found in _PLACED.finditer(output):
        if not _RAISED.match(found["message"]):
            continue
        before = output[max(0, found.start() - 4 * _WINDOW) : found.start()].splitlines()
        said = next((line[1:].strip() for line in reversed(before) if line.startswith("E   ")), found["message"])
        source = next((line[1:].strip() for line in reversed(before) if line.startswith(">  ")), "")
        yield _finding(found["path"], found["line"] or found["row"], said, source)


def _arrows(output: str) -> Iterator[Finding]:
    for found in _ARROW.finditer(output):
        if not _MINOR.match(found["message"]):
            numbered = re.compile(_NUMBERED.format(line=found["line"]), re.MULTILINE)
            quoted = numbered.search(output, found.end(), found.end() + _WINDOW)
            yield _finding(found["path"], found["line"], found["message"], quoted["source"] if quoted else "")


def _placed(output: str) -> Iterator[Finding]:
    for found in _PLACED.finditer(output):
        if not _MINOR.match(found["message"]):
            quoted = _POINTED.match(output[found.end() : found.end() + _WINDOW].lstrip("\n"))
            source = quoted["source"] if quoted else ""
            yield _finding(found["path"], found["line"] or found["row"], found["message"], source)


def _listed(output: str) -> Iterator[Finding]:
    path = ""
    for line in output.splitlines():
        alone = _FILE_ALONE.match(line.strip())
        if alone is not None:
            path = alone["path"]
        elif path and (found := _LISTED.match(line)) is not None:
            yield _finding(path, found["line"], " ".join(found["message"].split()), "")


def _finding(path: str, line: str, message: str, source: str) -> Finding:
    return Finding(path, int(line), f"{path}:{line}: {message.strip()}", source.strip())
