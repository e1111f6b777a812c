"""Whether two pieces of code are the same: comments in other words and the style of quotes do not count."""

from __future__ import annotations

import ast
import posixpath
import re
from functools import lru_cache

from composer_replication.coding_tools import DIRECTORY_KEYS, PATH_KEYS, word_set
from composer_replication.python_syntax import parse_python
from composer_replication.teacher_replay.agreement.prose import likeness
from composer_replication.teacher_replay.agreement.shell.lines import normal_path

_HASH = word_set(
    "py pyi sh bash zsh rb yml yaml toml cfg ini mk r pl conf tf dockerfile makefile ex exs jl nim cr ps1 "
    "graphql dockerignore editorconfig"
)
# After a value, a hash belongs to it.
_HASH_LINES = word_set("cfg ini conf dockerfile dockerignore editorconfig")
_SLASH = word_set("js jsx mjs cjs ts tsx go c h cc cpp hpp rs java kt swift scala cs php dart scss proto vue")
# Text stands here between tags, with slashes that are its own.
_MARKUP = word_set("jsx tsx vue")
_DASH = word_set("sql lua hs")
# Comments that a tool obeys.
_DIRECTIVE = re.compile(
    r"\s*(?:#+|/{2,}|/\*+|-{2,}|<!--)\s*"
    r"(?:!|-\*-|\+build\b|@ts-|@jsx|@flow|<reference|\[if|go:|type:|mypy:|ruff:|isort:|fmt:|noqa|nosec|nolint|pragma"
    r"|pylint|eslint|prettier-|biome-|istanbul|shellcheck|rubocop|syntax\s*=|escape\s*=|coding[:=]|frozen_string_literal"
    r"|(?<=//)export\s|#include)",
    re.IGNORECASE,
)
_OPENS_BODY = re.compile(r"\s*(?:(?:async\s+)?def\b|class\b|\)).*:")
_BLANK_OR_COMMENT = re.compile(r"(?:[ \t]*(?:#[^\n]*)?\n)*")
_EITHER_QUOTE = word_set("py pyi js jsx mjs cjs ts tsx vue css scss yml yaml toml rb php html lua r sh bash")
# A single quote opens a string here only around one character.
_CHARACTERS = word_set("rs go c h cc cpp hpp java kt cs swift scala")
_STRING = r'"""(?:.|\n)*?"""|\'\'\'(?:.|\n)*?\'\'\'|"(?:\\.|[^"\\\n])*"|`(?:\\.|[^`\\])*`'
_QUOTED = r"'(?:\\.|[^'\\\n])*'"
_CHARACTER = r"'(?:\\.|[^'\\\n])'"
_LONGEST = 200_000

# Functions that agents are given in a notebook, by the places of their arguments.
_SIGNATURES = {
    "open_file": ("path", "line_number", "context_lines"),
    "goto_line": ("line_number",),
    "create_file": ("filename",),
    "search_dir": ("search_term", "dir_path"),
    "search_file": ("search_term", "file_path"),
    "find_file": ("file_name", "dir_path"),
    "edit_file_by_replace": ("file_name", "to_replace", "new_content"),
    "edit_file_by_line": ("file_name", "start_line", "end_line", "new_content"),
    "edit_file": ("file_name", "start", "end", "content"),
    "insert_content_at_line": ("file_name", "line_number", "content"),
    "append_file": ("file_name", "content"),
}

_DEFAULTS: dict[str, object] = {"line_number": 1, "context_lines": 100, "dir_path": "."}


def same_code(first: str, second: str, path: str = "") -> bool:
    """Whether two texts of one file do the same by their words."""
    if first.rstrip() == second.rstrip():
        return True
    if len(first) + len(second) > _LONGEST:
        return False
    code, comments = without_comments(first, path)
    other_code, other_comments = without_comments(second, path)
    return code.rstrip() == other_code.rstrip() and same_comments(comments, other_comments)


def same_comments(first: tuple[str, ...], second: tuple[str, ...]) -> bool:
    """Whether comments say the same; none says something else than some."""
    if first == second:
        return True
    return bool(first) and bool(second) and likeness(" ".join(first), " ".join(second), is_aside=True).same


@lru_cache(maxsize=256)
def without_comments(text: str, path: str, *, is_part: bool = False) -> tuple[str, tuple[str, ...]]:
    """Code with one kind of quotes and without comments, and the comments; lines keep their indent.

    `is_part` says that the text is a piece of the file: what it begins with may stand anywhere. Comments that a tool
    obeys are code.
    """
    language = _language(path)
    comment = _comment_pattern(language, has_tags=language in _MARKUP or "</" in text or "/>" in text)
    if comment is None and language not in _EITHER_QUOTE:
        return "\n".join(line.rstrip() for line in text.split("\n")), ()
    quoted = _CHARACTER if language in _CHARACTERS else _QUOTED
    pattern = re.compile(f"(?P<string>{_STRING}|{quoted})" + (f"|(?P<comment>{comment})" if comment else ""))
    comments: list[str] = []

    def replaced(found: re.Match[str]) -> str:
        if found["string"] is None and _DIRECTIVE.match(found[0]):
            return found[0]
        if found["string"] is None or (language in ("py", "pyi") and _is_docstring(found, is_part=is_part)):
            comments.append(found[0].strip("#/*-<>!'\" \t\n"))
            return "\1"
        return _usual_quotes(found[0]) if language in _EITHER_QUOTE else found[0]

    lines = [line.rstrip() for line in pattern.sub(replaced, text).split("\n")]
    kept = [line.replace("\1", "").rstrip() for line in lines if line.strip() != "\1"]
    return "\n".join(kept), tuple(comments)


def _is_docstring(found: re.Match[str], *, is_part: bool) -> bool:
    """Whether a string says what the code around it does: the first statement of a file or of a body, and no more."""
    if not found[0].startswith(('"""', "'''")):
        return False
    before = found.string[: found.start()]
    after = found.string[found.end() :].partition("\n")[0].strip()
    if before.rpartition("\n")[2].strip() or (after and not after.startswith("#")):
        return False
    if _OPENS_BODY.fullmatch(before.rstrip().rpartition("\n")[2]):
        return True
    return not is_part and _BLANK_OR_COMMENT.fullmatch(before) is not None


def _usual_quotes(string: str) -> str:
    inside = string[1:-1]
    if string[0] == "'" and not string.startswith("'''") and not re.search(r"[\"'\\$#`]", inside):
        return f'"{inside}"'
    return string


def _language(path: str) -> str:
    name = posixpath.basename(path).lower().replace(".ipynb", ".py")
    return name.rpartition(".")[2] if "." in name else name


def _comment_pattern(language: str, *, has_tags: bool) -> str | None:
    if language in _HASH_LINES:
        return r"(?m:^[ \t]*)#[^\n]*"
    if language in _HASH:
        return r"(?<!\S)#[^\n]*"
    if language in _SLASH and has_tags:
        return r"(?m:^[ \t]*)//[^\n]*|(?:(?m:^[ \t]*)|(?<=\{)|(?<=\{ ))/\*(?:.|\n)*?\*/"
    if language in _SLASH:
        return r"(?<!\S)//[^\n]*|(?<!\S)/\*(?:.|\n)*?\*/"
    if language in ("html", "xml", "svg"):
        return r"<!--(?:.|\n)*?-->"
    if language == "css":
        return r"/\*(?:.|\n)*?\*/"
    return r"(?<!\S)--[^\n]*" if language in _DASH else None


def python_form(code: str) -> str | None:
    """Return the tree of a piece of Python as a text, with named arguments in order; None if it is not Python."""
    tree = _tree(code)
    if tree is None:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            _name_arguments(node)
    try:
        return ast.dump(tree)
    except RecursionError:
        return None


def python_call(code: str) -> tuple[str, dict[str, object]] | None:
    """The name and the named arguments of code that is one call with plain values; None for any other code."""
    tree = _tree(code)
    if tree is None or len(tree.body) != 1 or not isinstance(tree.body[0], ast.Expr):
        return None
    call = tree.body[0].value
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        return None
    _name_arguments(call)
    if call.args or not all(isinstance(keyword.value, ast.Constant) for keyword in call.keywords):
        return None
    return call.func.id, {keyword.arg or "": ast.literal_eval(keyword.value) for keyword in call.keywords}


def _tree(code: str) -> ast.Module | None:
    if len(code) > _LONGEST:
        return None
    try:
        return parse_python(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _name_arguments(call: ast.Call) -> None:
    """Put names to the arguments of known functions, in one order; what is the default, or how a path is spelled, does
    not count."""
    names = _SIGNATURES.get(call.func.id, ()) if isinstance(call.func, ast.Name) else ()
    if names and len(call.args) <= len(names):
        call.keywords = [
            *(ast.keyword(name, value) for name, value in zip(names, call.args, strict=False)),
            *call.keywords,
        ]
        call.args = []
        for keyword in call.keywords:
            value = keyword.value
            if (
                isinstance(value, ast.Constant)
                and isinstance(value.value, str)
                and keyword.arg in (*PATH_KEYS, *DIRECTORY_KEYS)
            ):
                keyword.value = ast.Constant(normal_path(value.value))
        call.keywords = [
            keyword
            for keyword in call.keywords
            if not isinstance(keyword.value, ast.Constant)
            or _DEFAULTS.get(keyword.arg or "", keyword) != keyword.value.value
        ]
    if all(keyword.arg is not None for keyword in call.keywords):
        call.keywords.sort(key=lambda keyword: keyword.arg or "")
