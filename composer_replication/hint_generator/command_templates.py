"""Hints about commands, by what their output shows."""

from __future__ import annotations

import re
from collections.abc import Callable

from composer_replication.hint_generator.context import HintContext
from composer_replication.hint_generator.git_refusals import advice_on
from composer_replication.hint_generator.wording import code, error_line, names, path

_ERROR = re.compile(r"\A(?:(?P<program>\S+): )?(?:[Ee]rror|ERROR|fatal): ")
_SHELL = re.compile(r"\A\S*sh: (?:line \d+: )?")
# What a program says of its own waiting, not a harness of a command.
_WAITED = re.compile(r"\A(?!(?:The )?[Cc]ommand\b).*(?:\btimed out\b|TimeoutError)")
_CREATING = re.compile(r"\b(?:cannot (?:create|touch)|failed to create|mkdir:)")


def _command(ctx: HintContext, otherwise: str = "the command") -> str:
    name = ctx.get("command_name")
    return code(name) if isinstance(name, str) and name else otherwise


def _because(ctx: HintContext) -> str:
    line = error_line(ctx)
    return f": {line}" if line else ""


def hint_command_not_found(ctx: HintContext) -> str:
    name = ctx.get("name") or ctx.get("command_name")
    if name and "/" in name:
        return f"There is no program {code(name)}. Check its path with `ls` before you run it."
    if name:
        return f"{code(name)} is not installed here. Use a program that is, or install it first."
    return "Use only programs that are installed here; `command -v` tells."


def hint_shell_syntax(ctx: HintContext) -> str:
    name, line = ctx.get("name"), error_line(ctx)
    if name and "no matches found" in line:
        return f"Put {code(name)} in single quotes, so that the shell passes it on as it stands."
    if name and "read-only variable" in line:
        return f"{code(name)} cannot be set in this shell: choose another name for the variable."
    return (
        "Quote the command for the shell: close every quote and bracket, and put text with quotes, `$`, `!` or `*` "
        "in single quotes. Put long or nested text into a file and run that."
    )


def hint_bad_option(ctx: HintContext) -> str:
    line, program = error_line(ctx).partition(". ")[0], _command(ctx, "The command")
    if (prefix := _ERROR.match(line)) is not None:
        program = code(prefix["program"]) if prefix["program"] else program
        line = line[prefix.end() :]
    line = line.removeprefix(f"{ctx.get('command_name')}: ")
    if line.lower().startswith("usage: "):
        return f"Call {_command(ctx)} as its usage says: {line[len('usage: ') :]}."
    if line:
        if ctx.get("suggestion"):
            then = f"Use {code(ctx['suggestion'])}."
        elif ctx.get("available_names"):
            then = f"Available: {names(ctx['available_names'], 30)}."
        else:
            then = "Look its options up with `--help` first."
        return f"{program} would answer: {line}. {then}"
    return f"Use only options that {_command(ctx)} has; `--help` lists them."


def hint_missing_file_in_command(ctx: HintContext) -> str:
    if not ctx.get("path"):
        why = _because(ctx).partition(". ")[0]
        return f"A file that this needs does not exist where it runs{why}. Check with `pwd` and `ls` first."
    if _CREATING.search(error_line(ctx)) is not None:
        return f"The folder of {path(ctx, '')} does not exist: create it first."
    if "ot a directory" in error_line(ctx):
        return f"{path(ctx, '')} is no directory. Look with `ls` where it lies, and name a directory."
    if ctx["path"].startswith(("/", "~")):
        return f"{path(ctx, '')} does not exist. List its folder, and use a path that exists."
    return (
        f"{path(ctx, '')} does not exist in the directory where the command runs. "
        "Check with `pwd` and `ls`, and use a path that exists."
    )


def hint_test_failure(ctx: HintContext) -> str:
    return _write_so_that(ctx, "the tests pass", "they would stop at")


def hint_type_or_lint_error(ctx: HintContext) -> str:
    return _write_so_that(ctx, "the checker accepts it", "it would report")


def hint_compile_error(ctx: HintContext) -> str:
    return _write_so_that(ctx, "it compiles", "the compiler would report")


def _write_so_that(ctx: HintContext, works: str, otherwise: str) -> str:
    """For the turn that wrote what fails, not for the one that ran into it."""
    line = error_line(ctx)
    return f"Write this so that {works}: {otherwise} {line}." if line else f"Write this so that {works}."


def hint_git_error(ctx: HintContext) -> str:
    line = _ERROR.sub("", error_line(ctx))
    if not line:
        return "Make sure that git can do this in the repository as it stands."
    answers = "`gh`" if ctx.get("command_name") == "gh" else "git"
    return f"{answers} would answer: {line}. {advice_on(line)}".rstrip()


def hint_traceback(ctx: HintContext) -> str:
    if ctx.get("reported_by"):
        return _write_so_that(ctx, "it runs", "it would stop with")
    line = error_line(ctx)
    if line:
        return f"The program would stop with {line}. Prevent this before you run it."
    return "Check the inputs and imports of the program before you run it: it would stop with an exception."


def hint_timeout(ctx: HintContext) -> str:
    line = error_line(ctx)
    if _WAITED.search(line) is not None:
        return f"This would wait in vain: {line}. Make sure that what it waits for comes."
    return (
        f"{_command(ctx, 'This')} takes longer than is allowed here. "
        "Do less at once, set a longer timeout, or run it in the background."
    )


def hint_command_failed(ctx: HintContext) -> str:
    line, exit_code = error_line(ctx), ctx.get("exit_code")
    if line:
        line = _SHELL.sub("", line).removeprefix(f"{ctx.get('command_name')}: ")
        return f"{_command(ctx, 'The command')} would fail: {line}. Change the command or what it works on."
    ends = f"end with exit code {exit_code}" if exit_code is not None else "fail"
    return (
        f"{_command(ctx, 'The command')} would {ends} and print nothing. "
        "Let the command handle that case, or have it print what it finds."
    )


TEMPLATES: dict[str, Callable[[HintContext], str]] = {
    "command_not_found": hint_command_not_found,
    "shell_syntax": hint_shell_syntax,
    "bad_option": hint_bad_option,
    "missing_file_in_command": hint_missing_file_in_command,
    "test_failure": hint_test_failure,
    "type_or_lint_error": hint_type_or_lint_error,
    "compile_error": hint_compile_error,
    "git_error": hint_git_error,
    "traceback": hint_traceback,
    "timeout": hint_timeout,
    "command_failed": hint_command_failed,
}
