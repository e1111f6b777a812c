"""Finds the places that checkers, compilers and test runs report: file, line, cause, and the line of code they quote.

Many tools spread these over several lines; here they read `file:line:column: cause`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

# A place stands in `place`, or in parts: `file`, `line`, `column`.
_FILE = r"(?P<file>[^\s:][^\n:]*\.\w+)"
_PLACE = r"(?P<place>(?:[^\s:]+\.\w+|[^\s:]*Makefile):\d+(?::\d+)?)"
# Nobody's own code.
_FOREIGN = r"(?!\S*(?:node_modules|node:|/pkg/mod/|(?:go[\d.]*|libexec|x64)/src/(?:testing|runtime|internal|reflect)/))"
_NODE_FRAME = rf"{_FOREIGN}(?P<place>(?:file://)?[^\s:()]+:\d+:\d+)"
_MORE = r"(?:[^\n]*\n){0,60}?"


def _compiled(*patterns: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern, re.MULTILINE) for pattern in patterns)


_CHECKS = _compiled(
    # ruff, ty, rustc: the cause above an arrow
    r"^(?P<cause>(?:error\[[\w-]+\]: |[A-Z]+\d+ |(?!warning|note|help)[a-z-]+: )[^\n]*)\n *--> (?P<place>\S+:\d+:\d+)$",
    # mypy, pyright, tsc, gcc, javac, swiftc
    rf"^ *(?P<whole>{_PLACE}(?: -|:) (?:fatal )?error\b[^\n]*)",
    r"^(?P<file>\S+)\((?P<line>\d+),(?P<column>\d+)\): (?P<cause>error [^\n]+)",
    r"^\[ERROR\] (?P<file>\S+):\[(?P<line>\d+),(?P<column>\d+)\] (?P<cause>[^\n]+)",
    # eslint: the file on a line of its own
    rf"^{_FILE}\n(?: +\d+:\d+ +warning [^\n]*\n)* +(?P<line>\d+):(?P<column>\d+) +(?P<cause>(?:error|✖) [^\n]+)",
    rf"^{_FILE}\n +(?P<line>\d+):(?P<column>\d+) +(?P<cause>(?:warning|⚠) [^\n]+)",
    # black; vite, webpack; kotlinc; mix
    r"^error: cannot format (?P<file>[^\s:]+): Cannot parse[^:\n]*: (?P<line>\d+):(?P<column>\d+): (?P<cause>[^\n]+)",
    rf"^(?P<cause>[^\n]+)\nfile: {_PLACE}",
    r"^ERROR in (?P<file>\S+?)[: ](?P<line>\d+):(?P<column>\d+)[^\n]*\n(?P<cause>[^\n]+)",
    rf"^e: (?:file://)?{_PLACE}:? (?P<cause>[^\n]+)",
    rf"^ *(?P<cause>error: [^\n]+)\n{_MORE} *└─ (?P<place>[^\s:]+:\d+:\d+)",
    # biome, svelte-check and next, esbuild, shellcheck
    rf"^{_PLACE} (?P<rule>[a-zA-Z]\S*)[^\n]*\n\s*[×✖] (?P<cause>[^\n]+)",
    rf"^{_PLACE}\n(?P<cause>(?:[A-Z][a-z]+ )?[Ee]rror\b[^\n]*)",
    rf"^✘ \[ERROR\] (?P<cause>[^\n]+)\n\s+{_PLACE}:$",
    r"^In (?P<file>\S+) line (?P<line>\d+):\n[^\n]*\n[^\n]*?(?P<cause>SC\d+ [^\n]+)",
    # Terraform
    r"^[│ ]*(?P<cause>Error: [^\n]+)\n[│ ]*\n[│ ]*on (?P<file>\S+\.tf) line (?P<line>\d+)",
    # Python, Node
    r'^ +File "(?P<file>[^"\n]+)", line (?P<line>\d+)\n(?: [^\n]*\n){1,3}(?P<cause>(?:\w+\.)*\w*Error: [^\n]+)',
    rf"^{_PLACE}\n(?:[^\n]*\n){{1,6}}?(?P<cause>SyntaxError: [^\n]+)",
    # Go and all others that put it on one line
    rf"^(?:vet: )?(?P<whole>{_PLACE}: (?!note:|warning:|in )[^\n]+)",
)
_TESTS = _compiled(
    # pytest: the cause above the place, or below it (`--tb=short`)
    rf"^E   +(?P<cause>\S[^\n]*)\n{_MORE}(?P<place>[^\s:]+\.\w+:\d+): [A-Z]\w*$",
    rf"^{_PLACE}: in [^\n]+\n(?: [^\n]*\n)*E   +(?P<cause>\S[^\n]*)",
    r"^E   +(?P<cause>\S[^\n]*)\n(?P<place>/[^\s:]+\.\w+:\d+): (?P=cause)$",
    r'^E +File "(?P<file>[^"\n]+)", line (?P<line>\d+)\n(?:E [^\n]*\n)+?E +(?P<cause>\w*Error: [^\n]+)',
    # Go, with testify or without, and where it panics
    r"^ +(?P<place>\w+_test\.go:\d+): *\n\s+Error Trace:"
    r"[\s\S]{1,500}?\n\s+Error:\s+(?P<cause>[\s\S]{1,500}?)\n\s+Test:",
    r"^ +(?P<place>\w+_test\.go:\d+): (?P<cause>\S[^\n]*)",
    rf"^(?P<cause>panic: [^\n]+)\n{_MORE}\t{_FOREIGN}(?P<place>/\S+\.go:\d+)",
    # vitest; jest; others of Node
    rf"^(?P<cause>\w*Error: [^\n]+)\n{_MORE} *(?:❯ (?:\S+ )?|File: ){_NODE_FRAME}",
    rf"^ +● [^\n]+\n\n +(?P<cause>\S[^\n]*)\n{_MORE} +at (?:[^\n(]*\()?{_NODE_FRAME}",
    rf"^ *(?P<cause>(?:\w*E|e)rror(?: \[\w+\])?: [^\n]+)\n{_MORE} +at (?:[^\n(]*\()?{_NODE_FRAME}",
    rf"^ +error: (?:\|-\n +)?(?P<cause>\S[^\n]*)\n{_MORE} +stack: \|-\n[^\n(]*\(?{_NODE_FRAME}",
    # rspec, mix
    rf"^ +Failure/Error: (?P<cause>[^\n]+)\n{_MORE} +# (?P<place>\./[^\s:]+:\d+)",
    r"^ +(?P<place>test/\S+\.exs:\d+)\n +(?P<cause>\S[^\n]*)",
    # Rust, unittest
    r"panicked at (?P<place>[^\s:']+:\d+:\d+):\n(?P<cause>[^\n]+)",
    r"panicked at '(?P<cause>[^\n]+)', (?P<place>[^\s:]+:\d+:\d+)",
    r'^ +File "(?P<file>[^"\n]+)", line (?P<line>\d+), in [^\n]+\n(?:    [^\n]*\n)*'
    r"(?P<cause>[A-Za-z_][\w.]*(?:: [^\n]+)?)$",
)
_SCRIPTS = _compiled(r"^(?P<file>[^\s:]+\.(?:ba|z)?sh): line (?P<line>\d+): (?P<cause>[^\n]+)")
_PATTERNS = {
    "test_failure": _TESTS + _CHECKS[:-1],
    "type_or_lint_error": _CHECKS,
    "compile_error": _CHECKS,
    "traceback": _SCRIPTS,
}
# What mise puts before each line of a task.
_TASK = re.compile(r"^\[[a-z][\w:.-]*\] (?!\$ )", re.MULTILINE)
# Frames of crashes. Python's innermost is the last one, that of Node and Java the first.
_FRAME = re.compile(
    r'^ +File "(?P<path>[^"\n]+)", line (?P<line>\d+)(?:, in [^\n]*)?(?:\n {4,}(?P<source>\S[^\n]*))?', re.MULTILINE
)
_STACK = re.compile(
    r"^[ \t]+at (?:[^\n(]*\()?(?:file://)?(?P<path>[^\s():]+|\[eval\]\S*?):(?P<line>\d+)(?::\d+)?\)?$", re.MULTILINE
)
_PASSED = re.compile(r"^(?P<path>[^\s:]+\.py):(?P<line>\d+):(?: in [^\n]+| [A-Z]\w*| )?$", re.MULTILINE)
_RAISED = re.compile(
    r"^(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Warning|Failure)\b[^\n]*$", re.MULTILINE
)
_LIBRARY = re.compile(
    r"site-packages/|dist-packages/|/lib/python\d|node_modules/|^node:|^<frozen |/\.cargo/|/rustlib/|/go/pkg/mod/"
)
# The line of code: with its number, above a pointer, after pytest's mark, or below the place.
_NUMBERED = r"^ *>? *{line} +[|│] (?:/ )?(?P<source>[^\n]*\S)"
_POINTED = re.compile(r"\s*^ *(?:\d+ +)?(?:[|│] ?)?(?P<source>[^\n]*\S)\n[ \t\d|│]*[\^~]+", re.MULTILINE)
_MARKED = re.compile(r"^> +(?P<source>\S[^\n]*)", re.MULTILINE)
_BELOW = re.compile(r": in [^\n]+\n    (?P<source>\S[^\n]*)")
_MOST = 40
TRACEBACK = "Traceback (most recent call last):"
# Frames, then what was raised; after it at most the prompt of SWE-agent's shell.
_TO_THE_END = re.compile(r"\n(?:[ \t][^\n]*\n)+[A-Za-z_][\w.]*(?:: [^\n]*)?\s*(?:\([A-Z][^\n]*\)\s*|bash-\$\s*)*\Z")
_WINDOW = 600


class Finding(NamedTuple):
    """One complaint. `message` is one line that names the place; `source` is the line of code, if the output has it."""

    path: str
    line: int
    message: str
    source: str = ""


def plain_output(output: str) -> str:
    """Remove the task names that a task runner puts before each line."""
    return _TASK.sub("", output)


def located_error(kind: str, output: str) -> str | None:
    """The first error of a kind that names a place, or None."""
    for pattern in _PATTERNS.get(kind, ()):
        found = pattern.search(output)
        if found is not None:
            return _message(found.groupdict())
    return None


def findings(output: str, kind: str) -> list[Finding]:
    """The complaints in the output of a command that failed as `kind`, each place once; of many, the first."""
    output = plain_output(output)
    found = {(finding.path, finding.line): finding for finding in _crashes(output)}
    for pattern in _PATTERNS.get(kind, ()):
        for match in pattern.finditer(output):
            path, line = _place(match.groupdict())
            if path and (path, line) not in found:
                found[path, line] = Finding(path, line, _message(match.groupdict()), _source(output, match, line))
    return list(found.values())[:_MOST]


def own_places(output: str) -> list[tuple[str, int]]:
    """Every file and line that a crash passed through, as Python, Node and pytest show them."""
    frames = [(frame["path"], int(frame["line"])) for frame in _own_frames(output)]
    return frames + [(found["path"], int(found["line"])) for found in _PASSED.finditer(output)]


def own_frame(output: str) -> str | None:
    """The innermost place of the last crash that is not inside a library: a file, or `<stdin>` and the like."""
    frames = _own_frames(output)
    if frames:
        return frames[-1]["path"]
    script = _SCRIPTS[0].search(output)
    return script["file"] if script is not None else None


def ends_in_a_traceback(text: str) -> bool:
    """Whether a text's last lines, after others, are a Python traceback, to the line that names what was raised."""
    start = text.rfind(f"\n{TRACEBACK}\n")
    return start >= 0 and _TO_THE_END.match(text, start + len(TRACEBACK) + 1) is not None


def _own_frames(output: str) -> list[re.Match[str]]:
    """From the outermost to the innermost."""
    start = output.rfind("Traceback (most recent call last)")
    if start >= 0:
        return [frame for frame in _FRAME.finditer(output, start) if not _LIBRARY.search(frame["path"])]
    return [frame for frame in _STACK.finditer(output) if not _LIBRARY.search(frame["path"])][::-1]


def _crashes(output: str) -> Iterator[Finding]:
    frames = _own_frames(output)
    if not frames or frames[-1]["path"].startswith(("<", "[")):
        return
    frame = frames[-1]
    if frame.re is _FRAME:
        raised = _RAISED.search(output, frame.end())
        message = raised[0] if raised is not None else ""
    else:
        # What was thrown stands before the first frame.
        message = re.split(r"\n[ \t]+at ", output[: frame.end()], maxsplit=1)[0].rpartition("\n")[2].strip()
    if message:
        source = (frame.groupdict().get("source") or "").strip()
        yield Finding(frame["path"], int(frame["line"]), f"{frame['path']}:{frame['line']}: {message}", source)


def _place(found: dict[str, str | None]) -> tuple[str, int]:
    if not found.get("place"):
        return str(found["file"]), int(found["line"] or 0)
    path, line = re.split(r":(?=\d)", str(found["place"]), maxsplit=1)
    return path.removeprefix("file://"), int(line.partition(":")[0])


def _message(found: dict[str, str | None]) -> str:
    if found.get("whole"):
        return str(found["whole"]).strip()
    place = found.get("place") or ":".join(str(found[key]) for key in ("file", "line", "column") if found.get(key))
    parts = (place, found.get("rule"), found["cause"])
    return " ".join(": ".join(part for part in parts if part).split())


def _source(output: str, match: re.Match[str], line: int) -> str:
    end = match.end() + _WINDOW
    quoted = (
        re.compile(_NUMBERED.format(line=line), re.MULTILINE).search(output, match.start(), end)
        or _BELOW.search(match[0])
        or _POINTED.match(output, match.end(), end)
    )
    if quoted is None and match[0].startswith("E "):
        marks = [*_MARKED.finditer(output, max(0, match.start() - 4 * _WINDOW), match.start())]
        quoted = marks[-1] if marks else None
    return quoted["source"].strip() if quoted is not None else ""
