"""Hints from templates: what to do instead, in at most two sentences, from what is known of the error.

A hint stands before the turn that erred when that turn is scored again. So it says what to do; it does not speak of an
error, which in that context has not happened yet.
"""

from __future__ import annotations

from collections.abc import Callable

from composer_replication.hint_generator import command_templates, file_templates
from composer_replication.hint_generator.context import HintContext
from composer_replication.hint_generator.kinds import is_students_mistake
from composer_replication.hint_generator.wording import (
    call_shape,
    closest,
    code,
    error_line,
    names,
    parameter_type,
    tool,
)


def hint_tool_not_found(ctx: HintContext) -> str:
    """Name the tools there are, and the one that was probably meant."""
    wanted = ctx.get("name") or ctx.get("tool_name")
    available = [name for name in ctx.get("available_tools") or [] if name != wanted]
    signatures = ctx.get("signatures") or []
    meant = ctx.get("suggestion") or (closest(wanted, available) if wanted and available else None)
    if meant is not None:
        signature = next((text for text in signatures if text.startswith(f"{meant}(")), meant)
        first = f"There is no tool named {code(str(wanted))} here: use {code(signature, 160)}."
    elif wanted:
        first = f"There is no tool named {code(wanted)} here."
    else:
        first = "Call only tools that exist here, by their exact names."
    return f"{first} Available tools: {names(available)}." if available else first


def hint_json_decode(ctx: HintContext) -> str:
    """Say what valid arguments look like."""
    shape = call_shape(ctx.get("tool_schema"))
    if shape is not None:
        return f"Reminder: tool arguments must be valid JSON. Call {tool(ctx)} with one object such as {shape}."
    called = f"Call {tool(ctx)} with" if ctx.get("tool_name") else "Send"
    return (
        "Reminder: tool arguments must be valid JSON. "
        f"{called} one complete object: double-quoted keys, newlines and quotes inside strings escaped."
    )


def hint_type_error(ctx: HintContext) -> str:
    """Say which parameters the tool takes."""
    schema = ctx.get("tool_schema")
    called = tool(ctx)
    orders = []
    if missing := ctx.get("missing_parameters"):
        orders.append(f"always give {names(missing)}")
    if unexpected := ctx.get("unexpected_parameters"):
        orders.append(f"leave out {names(unexpected)}")
    for name, expected in (ctx.get("expected_types") or {}).items():
        orders.append(f"give {code(name)} as {parameter_type(schema, name) or expected}")
    shape = f"{called} takes {code(ctx['signature'], 200)}" if ctx.get("signature") else None
    if shape is None and (skeleton := call_shape(schema)) is not None:
        shape = f"{called} takes {skeleton}"
    if orders:
        first = f"When you call {called}, {_joined(orders)}."
        return f"{first} {_capital(shape)}." if shape else first
    if shape:
        return f"{_capital(shape)}. Use these parameter names and types exactly."
    line = error_line(ctx)
    if line:
        return f"Match the arguments of {called} to its schema: {line}."
    return f"Match the arguments of {called} to its schema: every required parameter, no others, the right types."


def hint_runtime_error(ctx: HintContext) -> str:
    """Say what to avoid, in the tool's own words."""
    line = error_line(ctx)
    if line:
        return f"Called like this, {tool(ctx)} would answer: {line}. Choose a call that avoids it."
    return f"Check that what {tool(ctx)} needs is in place before you call it, and that its arguments are right."


def hint_repeated_failure(ctx: HintContext) -> str:
    """Say that the same call fails again, and what its first failure asked for."""
    first = f"Do not make the same call{_of_tool(ctx)} again unchanged: it fails the same way."
    original = ctx.get("original_kind")
    advice = dispatch(original, ctx) if original and original != "repeated_failure" else None
    if advice is None:
        line = error_line(ctx)
        return f"{first} Change what makes it fail: {line}." if line else f"{first} Change it, or take another way."
    # Two sentences are the limit, and the first of the original advice carries it.
    return f"{first} {advice.partition('. ')[0].rstrip('.')}."


def hint_malformed_call(ctx: HintContext) -> str:
    """Say how the action has to be written."""
    if "patch" in f"{ctx.get('tool_name', '')} {ctx.get('error_message', '')}":
        return (
            "Write the patch in the exact format, from `*** Begin Patch` to `*** End Patch`. "
            "Begin each line of a hunk with a space, `-` or `+`."
        )
    if ctx.get("name"):
        return f"Write the tool's name alone, {code(ctx['name'])}, and everything else into its arguments."
    return "Answer in the required format: exactly one complete action, written as the instructions show."


def hint_unknown_name(ctx: HintContext) -> str:
    """Name what there is."""
    wanted, available = ctx.get("name"), ctx.get("available_names") or []
    first = f"There is no {code(wanted)} here" if wanted else "Use only names that exist here"
    meant = ctx.get("suggestion") or (closest(wanted, available) if wanted and available else None)
    first += f": use {code(meant)}." if meant else "."
    if available:
        return f"{first} Available: {names(available)}."
    return first if meant else f"{first} List what exists, and use one of those names."


def hint_mcp_error(ctx: HintContext) -> str:
    """Say what the server needs, in its own words."""
    line = error_line({"error_message": str(ctx.get("error_message") or "").removeprefix("### Error").strip()})
    if line:
        return f"Called like this, {tool(ctx, 'the server')} would answer: {line}. Look at the current state first."
    return f"Look at the current state before you call {tool(ctx, 'the server')}, and use only what it shows."


def hint_http_error(ctx: HintContext) -> str:
    """Say what the status means for the address."""
    status = ctx.get("status")
    if status in (401, 403, 407):
        return f"That address answers {status}: it needs access that you do not have. Use a public source instead."
    if status in (404, 410):
        return f"That address answers {status}: there is no such page. Find the right address before you fetch it."
    line = error_line(ctx)
    if line and status is not None and 400 <= status < 500:
        return f"The server would refuse this request: {line}. Check what it is given."
    if line:
        return f"Check that the address is right and that its server answers: {line}."
    return "Check that the address is right and that its server answers before you rely on it."


def _of_tool(ctx: HintContext) -> str:
    return f" of {tool(ctx)}" if ctx.get("tool_name") else ""


def _joined(orders: list[str]) -> str:
    return ", and ".join(orders) if len(orders) < 3 else ", ".join(orders[:-1]) + f", and {orders[-1]}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


HINT_TEMPLATES: dict[str, Callable[[HintContext], str]] = {
    "tool_not_found": hint_tool_not_found,
    "json_decode": hint_json_decode,
    "type_error": hint_type_error,
    "runtime_error": hint_runtime_error,
    "repeated_failure": hint_repeated_failure,
    "malformed_call": hint_malformed_call,
    "unknown_name": hint_unknown_name,
    "mcp_error": hint_mcp_error,
    "http_error": hint_http_error,
    **file_templates.TEMPLATES,
    **command_templates.TEMPLATES,
}
"""The hint of each kind. `register` adds to it."""

VAGUE_TEMPLATES: dict[str, Callable[[HintContext], str]] = {
    kind: HINT_TEMPLATES[kind] for kind in ("runtime_error", "command_failed", "mcp_error")
}
"""Templates of kinds that say nothing about the cause: all they have is the error's own text."""


def dispatch(error_kind: str, ctx: HintContext | None = None) -> str | None:
    """The hint for an error, or None: for an unknown kind, and for one that is not the student's mistake."""
    template = HINT_TEMPLATES.get(error_kind)
    if template is None or not is_students_mistake(error_kind):
        return None
    return template(ctx if ctx is not None else {})


def register(error_kind: str, fn: Callable[[HintContext], str]) -> None:
    """Add a template, or replace one. Kinds that are not the student's mistake take none."""
    if not is_students_mistake(error_kind):
        raise ValueError(f"{error_kind!r} is not a mistake of the student's, so it gets no hint: choose another kind")
    HINT_TEMPLATES[error_kind] = fn


__all__ = [
    "HINT_TEMPLATES",
    "HintContext",
    "dispatch",
    "hint_json_decode",
    "hint_repeated_failure",
    "hint_runtime_error",
    "hint_tool_not_found",
    "hint_type_error",
    "register",
]
