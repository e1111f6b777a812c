"""Searches, whichever tool does them: patterns in one dialect, files by globs, what is shown of a match."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from composer_replication.coding_tools import word_set
from composer_replication.shell_syntax import globs_as_text
from composer_replication.teacher_replay.agreement.shell.lines import Form, Line, normal_path, read_line, seen_from

FILE_TYPES = {
    "py": "*.py", "python": "*.py", "rust": "*.rs", "rs": "*.rs", "js": "*.js", "javascript": "*.js", "ts": "*.ts",
    "typescript": "*.ts", "tsx": "*.tsx", "jsx": "*.jsx", "go": "*.go", "java": "*.java", "ruby": "*.rb", "rb": "*.rb",
    "c": "*.c", "cpp": "*.cpp", "md": "*.md", "markdown": "*.md", "json": "*.json", "yaml": "*.yaml", "html": "*.html",
    "css": "*.css", "php": "*.php", "sh": "*.sh", "toml": "*.toml", "sql": "*.sql", "swift": "*.swift",
    "kotlin": "*.kt", "scala": "*.scala", "vue": "*.vue", "lua": "*.lua", "elixir": "*.ex", "cs": "*.cs",
}  # fmt: skip
_MODES = {"-l": "files", "-c": "count", "-L": "files without", "-q": "whether"}
_UNDERSTOOD = word_set(
    "-r -i -w -x -v -E -F -P -G -o -e -A -B -C -S -m -U -g -t --include --exclude --exclude-dir"
) | set(_MODES)
_NEEDLESS_ESCAPE = re.compile(r"\\([\"'/:=,@#%&!~_ `;])")
_META = re.compile(r"([.\[\]()*+?{}|^$\\])")
_BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")
_MOST_GLOBS = 64


def search_form(
    pattern: str,
    paths: Iterable[str],
    *,
    globs: Iterable[str] = (),
    mode: str = "content",
    flags: Iterable[str] = (),
    before: int = 0,
    after: int = 0,
    directory: str | None = None,
) -> Form:
    """Return the form of a search; `pattern` is an extended regular expression."""
    flagged = set(flags)
    pattern = usual_pattern(pattern)
    if not flagged & {"-o", "-x", "-w"}:
        # Whatever stands around a match, the line is the same.
        pattern = re.sub(r"^(?:\.\*)+|(?<!\\)(?:\.\*)+$", "", pattern) or pattern
    if (found := re.fullmatch(r"\\b([^|()]+)\\b", pattern)) is not None:
        pattern, flagged = found[1], {*flagged, "-w"}
    if "-i" in flagged:
        pattern = pattern.lower()
    if mode != "content":
        before = after = 0
    seen = tuple(sorted(seen_from(directory, path) for path in paths))
    return ("search", pattern, seen, usual_globs(globs), mode, tuple(sorted(flagged)), before, after)


def line_search_form(line: Line, directory: str | None, *, is_filter: bool = False) -> Form | None:
    """Return the form of a `grep` or `rg`; None if it does something else than search."""
    if line.name not in ("grep", "rg") or any(option not in _UNDERSTOOD for option, _ in line.options):
        return None
    patterns = [globs_as_text(value) for value in line.values("-e")]
    operands = list(line.operands)
    if not patterns:
        if not operands:
            return None
        patterns = [globs_as_text(operands.pop(0))]
    dialect = "fixed" if line.option("-F") is not None else "extended"
    if line.name == "grep" and dialect != "fixed" and line.option("-E") is None and line.option("-P") is None:
        dialect = "basic"
    recursive = line.name == "rg" or line.option("-r") is not None
    if not operands and recursive and not is_filter:
        operands = ["."]
    flags = {option for option in ("-w", "-x", "-v", "-o", "-U") if line.option(option) is not None}
    pattern = "|".join(extended_pattern(one, dialect) for one in patterns)
    if line.name == "grep" and dialect != "fixed" and line.option("-P") is None:
        # Only other dialects mean a digit by it.
        pattern = pattern.replace(r"\d", "d")
    if line.option("-i") is not None or (line.option("-S") is not None and pattern == pattern.lower()):
        flags.add("-i")
    if (most := line.option("-m")) is not None:
        flags.add(f"-m{most}")
    globs = [
        *line.values("--include"),
        *line.values("-g"),
        *(FILE_TYPES.get(kind, f"type:{kind}") for kind in line.values("-t")),
    ]
    globs += [
        f"!{glob}" for glob in (*line.values("--exclude"), *(f"{name}/**" for name in line.values("--exclude-dir")))
    ]
    around = _number(line.option("-C"))
    return search_form(
        pattern,
        operands,
        globs=map(globs_as_text, globs),
        mode=next((mode for option, mode in _MODES.items() if line.option(option) is not None), "content"),
        flags=flags,
        before=_number(line.option("-B")) or around,
        after=_number(line.option("-A")) or around,
        directory=directory,
    )


def extended_pattern(pattern: str, dialect: str) -> str:
    """A pattern of grep's basic or fixed kind as an extended one."""
    if dialect == "fixed":
        return _META.sub(r"\\\1", pattern)
    if dialect == "extended":
        return pattern
    # What is special with a backslash in one is special without it in the other.
    return re.sub(r"\\?([|()+?{}])|\\.", lambda found: _swapped(found[0]), pattern)


def _swapped(text: str) -> str:
    if len(text) == 1:
        return f"\\{text}"
    return text[1] if text[1] in "|()+?{}" else text


def usual_pattern(pattern: str) -> str:
    """An extended pattern in its usual spelling: no needless escapes, alternatives in order."""
    pattern = _NEEDLESS_ESCAPE.sub(r"\1", pattern)
    pattern = re.sub(r"\[([.*+?$(){}|])\]", r"\\\1", pattern)
    pattern = re.sub(r"\[(\w)\]", r"\1", pattern)
    pattern = re.sub(r"^\(([^()]*)\)$", r"\1", pattern).replace("[a-zA-Z0-9_]", r"\w").replace("[A-Za-z0-9_]", r"\w")
    pattern = pattern.replace(r"\<", r"\b").replace(r"\>", r"\b")
    pattern = pattern.replace("[[:space:]]", r"\s").replace("[0-9]", r"\d").replace("[[:digit:]]", r"\d")
    pattern = re.sub(r"(?<!\\)\{(?!\d+(?:,\d*)?\})", r"\\{", pattern)
    if "|" in pattern and not re.search(r"[()\[\]\\]", pattern):
        pattern = "|".join(sorted(set(pattern.split("|"))))
    return pattern


def usual_globs(globs: Iterable[str]) -> tuple[str, ...]:
    """Globs with their braces spelled out; one without a folder matches at every depth."""
    return tuple(sorted({one for glob in globs for one in _spelled_out(glob)}))


def _spelled_out(glob: str) -> list[str]:
    tidy = [re.sub(r"^(!?)\./", r"\1", one) for one in _choices(glob)]
    return [re.sub(r"^(!?)\*\*/(?=[^/]*$)", r"\1", one) for one in tidy]


def _choices(glob: str) -> list[str]:
    found = [glob]
    while any(_BRACES.search(one) for one in found) and len(found) < _MOST_GLOBS:
        found = [
            one[: place.start()] + choice + one[place.end() :] if place else one
            for one in found
            for place in [_BRACES.search(one)]
            for choice in (place[1].split(",") if place else [""])
        ]
    return found


def files_form(pattern: str, path: str = ".", *, directory: str | None = None) -> Form:
    """Return the form of a search for files by name."""
    return ("files", tuple(sorted(_file_globs(pattern, path, directory))), ())


def _file_globs(pattern: str, path: str, directory: str | None) -> set[str]:
    folder = seen_from(directory, path)
    joined = pattern if folder == "." or pattern.startswith("/") else f"{folder}/{pattern}"
    # Here a leading "**/" stays: a bare name is looked for in one folder only.
    return {normal_path(one) for one in _choices(joined)}


def find_form(line: Line, directory: str | None) -> Form:
    """Return the form of a `find`: the names it looks for, or its tests in any order if they only test."""
    paths, words = _paths_and_tests(line)
    named = _names(words)
    if named is not None:
        names, flags = named
        globs = {glob for path in paths for name in names for glob in _file_globs(f"**/{name}", path, directory)}
        return ("files", tuple(sorted(globs)), flags)
    seen = tuple(sorted(seen_from(directory, path) for path in paths))
    units: list[tuple[str, ...]] = []
    for word in words:
        if word.startswith(("-", "!", "(", ")")) and not (units and units[-1] == ("!",)):
            units.append(("!",) if word == "-not" else (word,))
        else:
            units[-1] = (*units[-1], word)
    tests = [unit for unit in units if unit not in (("-print",), ("-delete",))]
    if units[-1:] != [("-delete",)] and ("-delete",) in units:
        tests = units
    ordered = any(unit[0] in ("-o", "-or", "-exec", "-execdir", "-delete", "(", ")", "-prune", "-ok") for unit in tests)
    return ("find", seen, tuple(units if ordered else sorted(tests)), ("-delete",) in units)


def searched_in_found(find: Line, search: Line | None = None) -> Line | None:
    """`find -name '*.py' | xargs grep x`, or with `-exec`, as the `grep` that looks in these files by itself."""
    if find.name != "find" or find.redirects or find.variables:
        return None
    paths, words = _paths_and_tests(find)
    if search is None and "-exec" in words:
        place = words.index("-exec")
        command = words[place + 1 :]
        if len(command) < 3 or command[-2] != "{}" or command[-1] not in ("+", ";"):
            return None
        search, words = read_line(command[:-2]), words[:place]
    named = _names(words)
    takes = 0 if search is not None and search.values("-e") else 1
    if search is None or search.name != "grep" or named is None or named[1] != ():
        return None
    if len(search.operands) != takes:
        return None
    options = (*search.options, ("-r", ""), *(("--include", name) for name in named[0]))
    return replace(search, options=tuple(sorted(options)), operands=(*search.operands, *paths))


def _paths_and_tests(line: Line) -> tuple[list[str], list[str]]:
    words = [globs_as_text(word) for word in line.operands]
    paths: list[str] = []
    while words and not words[0].startswith(("-", "!", "(")):
        paths.append(words.pop(0))
    return paths or ["."], words


def _names(words: Sequence[str]) -> tuple[list[str], tuple[str, ...]] | None:
    """The names that a `find` looks for, and how; None if it tests anything else."""
    names: list[str] = []
    flags: set[str] = set()
    alternatives = 0
    place = 0
    while place < len(words):
        test, value = words[place], words[place + 1] if place + 1 < len(words) else ""
        place += 2
        if test in ("-name", "-iname"):
            names.append(value)
            flags |= {"-i"} if test == "-iname" else set()
        elif test == "-type" and value in ("f", "d"):
            flags |= {"-d"} if value == "d" else set()
        elif test in ("-o", "-or", "(", ")", "-print"):
            alternatives += test in ("-o", "-or")
            place -= 1
        else:
            return None
    # Several names without "or" between them must all match, which is another question.
    return (names, tuple(sorted(flags))) if names and len(names) - 1 == alternatives else None


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdigit() else 0
