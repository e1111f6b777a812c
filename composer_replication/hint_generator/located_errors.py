"""The error that a checker, a compiler or a test run reports: its file, its line, and the cause, as one line.

Many tools spread these over several lines; here they read `file:line:column: cause`.
"""

from __future__ import annotations

import re

# A place stands in `place`, or in parts: `file`, `line`, `column`.
_FILE = r"(?P<file>[^\s:][^\n:]*\.\w+)"
_PLACE = r"(?P<place>[^\s:]+\.\w+:\d+(?::\d+)?)"
# Nobody's own code.
_FOREIGN = r"(?!\S*(?:node_modules|node:|/pkg/mod/|(?:go[\d.]*|libexec|x64)/src/(?:testing|runtime|internal|reflect)/))"
_FRAME = rf"{_FOREIGN}(?P<place>(?:file://)?[^\s:()]+:\d+:\d+)"
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
    # Go, with testify or without, and where it panics
    r"^ +(?P<place>\w+_test\.go:\d+): *\n\s+Error Trace:"
    r"[\s\S]{1,500}?\n\s+Error:\s+(?P<cause>[\s\S]{1,500}?)\n\s+Test:",
    r"^ +(?P<place>\w+_test\.go:\d+): (?P<cause>\S[^\n]*)",
    rf"^(?P<cause>panic: [^\n]+)\n{_MORE}\t{_FOREIGN}(?P<place>/\S+\.go:\d+)",
    # vitest; jest; others of Node
    rf"^(?P<cause>\w*Error: [^\n]+)\n{_MORE} *(?:❯ (?:\S+ )?|File: ){_FRAME}",
    rf"^ +● [^\n]+\n\n +(?P<cause>\S[^\n]*)\n{_MORE} +at (?:[^\n(]*\()?{_FRAME}",
    rf"^ *(?P<cause>(?:\w*E|e)rror(?: \[\w+\])?: [^\n]+)\n{_MORE} +at (?:[^\n(]*\()?{_FRAME}",
    rf"^ +error: (?:\|-\n +)?(?P<cause>\S[^\n]*)\n{_MORE} +stack: \|-\n[^\n(]*\(?{_FRAME}",
    # rspec, mix
    rf"^ +Failure/Error: (?P<cause>[^\n]+)\n{_MORE} +# (?P<place>\./[^\s:]+:\d+)",
    r"^ +(?P<place>test/\S+\.exs:\d+)\n +(?P<cause>\S[^\n]*)",
    # Rust, unittest
    r"panicked at (?P<place>[^\s:']+:\d+:\d+):\n(?P<cause>[^\n]+)",
    r"panicked at '(?P<cause>[^\n]+)', (?P<place>[^\s:]+:\d+:\d+)",
    r'^ +File "(?P<file>[^"\n]+)", line (?P<line>\d+), in [^\n]+\n(?:    [^\n]*\n)*'
    r"(?P<cause>[A-Za-z_][\w.]*(?:: [^\n]+)?)$",
)
_PATTERNS = {"test_failure": _TESTS + _CHECKS[:-1], "type_or_lint_error": _CHECKS, "compile_error": _CHECKS}


def located_error(kind: str, output: str) -> str | None:
    """The first error of a kind that names a place, or None."""
    for pattern in _PATTERNS.get(kind, ()):
        found = pattern.search(output)
        if found is not None:
            return _line(found.groupdict())
    return None


def _line(found: dict[str, str | None]) -> str:
    if found.get("whole"):
        return str(found["whole"]).strip()
    place = found.get("place") or ":".join(str(found[key]) for key in ("file", "line", "column") if found.get(key))
    parts = (place, found.get("rule"), found["cause"])
    return " ".join(": ".join(part for part in parts if part).split())
