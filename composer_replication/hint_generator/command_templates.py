"""Hints about commands, by what their output shows."""

from __future__ import annotations

from collections.abc import Callable

from composer_replication.hint_generator.context import HintContext
from composer_replication.hint_generator.wording import code, error_line, path


def _command(ctx: HintContext, otherwise: str = "the command") -> str:
    name = ctx.get("command_name")
    return code(name) if isinstance(name, str) and name else otherwise


def _because(ctx: HintContext) -> str:
    line = error_line(ctx)
    return f": {line}" if line else ""


def hint_command_not_found(ctx: HintContext) -> str:
    name = ctx.get("name") or ctx.get("command_name")
    if name:
        return f"{code(name)} is not installed here. Use a program that is, or install it first."
    return "Use only programs that are installed here; `command -v` tells."


def hint_shell_syntax(ctx: HintContext) -> str:
    return (
        "Quote the command for the shell: close every quote and bracket, and put text with quotes, `$`, `!` or `*` "
        "in single quotes. Put long or nested text into a file and run that."
    )


def hint_bad_option(ctx: HintContext) -> str:
    line = error_line(ctx)
    if line and ctx.get("command_name"):
        return f"{_command(ctx)} does not take this ({line}). Look its options up with `--help`."
    return f"Use only options that {_command(ctx)} has; `--help` lists them."


def hint_missing_file_in_command(ctx: HintContext) -> str:
    missing = f"{path(ctx, '')} does not exist" if ctx.get("path") else "A file of this command does not exist"
    return f"{missing} in the directory where the command runs. Check with `pwd` and `ls`, and use a path that exists."


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
    line = error_line(ctx)
    if line:
        return f"git would refuse this: {line}. Look at `git status` and `git branch` first."
    return "Look at `git status` and `git branch` before you change the repository."


def hint_traceback(ctx: HintContext) -> str:
    if ctx.get("reported_by"):
        return _write_so_that(ctx, "it runs", "it would stop with")
    line = error_line(ctx)
    if line:
        return f"The program would stop with {line}. Prevent this before you run it."
    return "Check the inputs and imports of the program before you run it: it would stop with an exception."


def hint_timeout(ctx: HintContext) -> str:
    return (
        f"{_command(ctx, 'This')} takes longer than is allowed here. "
        "Do less at once, set a longer timeout, or run it in the background."
    )


def hint_command_failed(ctx: HintContext) -> str:
    line, exit_code = error_line(ctx), ctx.get("exit_code")
    if line:
        return f"{_command(ctx, 'The command')} would fail{_because(ctx)}. Change the command or what it works on."
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
