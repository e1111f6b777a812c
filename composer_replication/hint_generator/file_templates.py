"""Hints about files and edits."""

from __future__ import annotations

import re
from collections.abc import Callable

from composer_replication.hint_generator.context import HintContext
from composer_replication.hint_generator.wording import code, error_line, one_line, path

_SYNTAX = re.compile(r"\b[EF]\d{3} [^\r\n]+|\b\w*(?:Syntax|Indentation|Tab)Error: [^\r\n]+")


def hint_edit_before_read(ctx: HintContext) -> str:
    return f"Read {path(ctx, 'the file')} before you edit or overwrite it."


def hint_edit_no_match(ctx: HintContext) -> str:
    file = path(ctx, "the file")
    return f"Read {file} and copy the text to replace exactly as it stands there, every space, tab and line break."


def hint_edit_multiple_matches(ctx: HintContext) -> str:
    matches = ctx.get("matches")
    stands = f"stands {matches} times" if matches else "stands more than once"
    return (
        f"The text to replace {stands} in {path(ctx, 'the file')}. "
        "Give enough of the lines around it to make it unique, or replace all occurrences on purpose."
    )


def hint_edit_stale(ctx: HintContext) -> str:
    return f"Read {path(ctx, 'the file')} again before you edit it: it has changed since you read it."


def hint_edit_no_change(ctx: HintContext) -> str:
    return (
        f"Edit {path(ctx, 'the file')} only where the new text differs from the old. "
        "If it already says what you want, go on."
    )


def hint_edit_syntax_error(ctx: HintContext) -> str:
    wrong = _SYNTAX.search(str(ctx.get("error_message") or ""))
    says = f" ({one_line(wrong[0])})" if wrong is not None else ""
    return (
        f"Write the edit of {path(ctx, 'the file')} so that the file still parses{says}. "
        "Keep the indentation of the lines around it and replace whole statements."
    )


def hint_file_not_found(ctx: HintContext) -> str:
    if ctx.get("suggestion"):
        return f"There is no file {path(ctx, 'of that name')}: use {code(ctx['suggestion'], 120)}."
    if ctx.get("path"):
        return f"There is no file {path(ctx, '')}. Find the right path by listing or searching before you open it."
    return "Find the file's path by listing or searching before you open it."


def hint_path_not_found(ctx: HintContext) -> str:
    if ctx.get("suggestion"):
        return f"There is no path {path(ctx, 'of that name')}: use {code(ctx['suggestion'], 120)}."
    if ctx.get("path"):
        return f"There is no path {path(ctx, '')}. List its parent folder and use a path that exists."
    return "List the parent folder first, and use a path that exists."


def hint_is_directory(ctx: HintContext) -> str:
    line = error_line(ctx)
    if line.startswith(("rm: ", "cp: ")):
        return f"{path(ctx, 'That path')} is a directory: give `{line[:2]}` the option `-r`, or name a file."
    do = "name" if ctx.get("command") else "open"
    return f"{path(ctx, 'That path')} is a directory: list it, and {do} a file in it."


def hint_file_exists(ctx: HintContext) -> str:
    do = "use" if ctx.get("command") else "edit"
    return f"{path(ctx, 'That file')} exists already: {do} it, or choose another name."


def hint_file_too_large(ctx: HintContext) -> str:
    limit = f" (the limit is {ctx['limit']})" if ctx.get("limit") else ""
    if not ctx.get("path"):
        return f"What this asks for is too large for one answer{limit}. Ask for less, by a filter, a range or a limit."
    return (
        f"{path(ctx, '')} is too large to read at once{limit}. "
        "Search it for what you need, or read a part of it with an offset and a limit."
    )


def hint_unsupported_file(ctx: HintContext) -> str:
    return f"{path(ctx, 'The file')} is not a text file: inspect it with a command made for its type."


def hint_permission_denied(ctx: HintContext) -> str:
    line = error_line(ctx)
    if ctx.get("exit_code") == 126 and ctx.get("path"):
        return f"{path(ctx, '')} is not executable: run it with its interpreter, or `chmod +x` it first."
    where = f" at {path(ctx, '')}" if ctx.get("path") else ""
    reason = f": {line}" if line and not where else ""
    return f"You have no permission for this{where}{reason}. Work inside the project, or ask for access first."


def hint_bad_pattern(ctx: HintContext) -> str:
    line = error_line(ctx)
    if line.startswith("sed: "):
        return (
            f"sed would answer: {line.removeprefix('sed: ')}. "
            "End every part of its script with the delimiter; on macOS `-i` takes a suffix, as in `-i ''`."
        )
    return "Escape the special characters of the search pattern, such as ( [ { . * ?, or search for fixed text."


def hint_blocked_command(ctx: HintContext) -> str:
    name = ctx.get("name") or ctx.get("command_name")
    what = code(name) if name else "commands that wait for input or run without end"
    instead = error_line(ctx).partition(". ")[2].partition(". ")[0] or "Use a command that ends by itself"
    return f"Do not run {what} here: this environment does not allow it. {instead}."


TEMPLATES: dict[str, Callable[[HintContext], str]] = {
    "edit_before_read": hint_edit_before_read,
    "edit_no_match": hint_edit_no_match,
    "edit_multiple_matches": hint_edit_multiple_matches,
    "edit_stale": hint_edit_stale,
    "edit_no_change": hint_edit_no_change,
    "edit_syntax_error": hint_edit_syntax_error,
    "file_not_found": hint_file_not_found,
    "path_not_found": hint_path_not_found,
    "is_directory": hint_is_directory,
    "file_exists": hint_file_exists,
    "file_too_large": hint_file_too_large,
    "unsupported_file": hint_unsupported_file,
    "permission_denied": hint_permission_denied,
    "bad_pattern": hint_bad_pattern,
    "blocked_command": hint_blocked_command,
}
