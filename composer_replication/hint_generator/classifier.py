"""What went wrong with a tool call, from the text of its result.

Structure first (exit code, error tags, the tool's name), text second; the texts are those of real logs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from composer_replication.coding_tools import command_of, path_of, runs_commands
from composer_replication.hint_generator.argument_errors import available_names, suggested_name, wrong_parameters
from composer_replication.hint_generator.beginnings import TRACEBACK, begins_like_an_error, ends_in_a_traceback
from composer_replication.hint_generator.command_output import classify_output, telling_line
from composer_replication.hint_generator.envelope import Envelope, clean, open_envelope
from composer_replication.hint_generator.rules import Rules
from composer_replication.hint_generator.shell_steps import shows_files
from composer_replication.hint_generator.tool_texts import (
    ARGUMENT_TEXTS,
    FILE_TEXTS,
    OTHER_TEXTS,
    OTHERS_TEXTS,
    UNKNOWN_TOOL_TEXTS,
)

_TOOL_TEXTS = UNKNOWN_TOOL_TEXTS + FILE_TEXTS + ARGUMENT_TEXTS + OTHER_TEXTS
# For a command that a harness refused to run: what it says of the call comes before what it says of files.
_REFUSAL_TEXTS = UNKNOWN_TOOL_TEXTS + ARGUMENT_TEXTS + OTHER_TEXTS + FILE_TEXTS
_RPC_KINDS = {-32700: "json_decode", -32601: "tool_not_found", -32602: "type_error"}
_HEAD = 1500
# How a harness begins that answers for a command without running it and without an error tag. What a command prints
# may hold any other text.
_REFUSAL = re.compile(
    r"(?:No such tool|Unknown tool|unsupported (?:custom tool )?call:|Tool \S+ (?:is )?not (?:found|available)"
    r"|failed to parse function arguments|InputValidationError|Missing required (?:parameter|argument)"
    r"|Your (?:output|response) (?:could not be parsed|was not formatted)|Please always provide EXACTLY ONE)"
)
# The file of an edit that was refused: SWE-agent's, OpenHands'.
_EDITED = re.compile(r"^(?:\[File: (?P<path>\S+) \(|(?P<named>/\S+):\d+$)", re.MULTILINE)
# What a harness says behind a path.
_REMARK = re.compile(r"\.? (?:Note: your current|Did you mean)")
# More than a tool's name where the name should stand alone: the call was not written in the harness's format.
_NAME_AND_MORE = re.compile(r"""\b(?:tool(?: available)?|call): (?P<name>[\w.-]+)(?:["'<>{(=]|\s+\w+=)""")
_CALLED_WITH_MORE = re.compile(r"""["'<\s]*(?P<name>[\w.-]+)["'<>{}()=\s]""")
# Words before the message itself.
_PREFIXES = ("Error executing tool", "Error calling tool", "Error:", "ERROR:", "error:")


def classify(
    text: str, *, tool_name: str = "", arguments: Mapping[str, Any] | None = None, is_error: bool = True
) -> tuple[str, dict[str, Any]]:
    """The kind of an error and its details.

    Details, those that are known: `error_line` (the line that says what failed), `exit_code`, `path`, `command`,
    `command_name`, `name` (of a tool, skill, agent … that does not exist), `available_tools`, `available_names`,
    `suggestion`, `signatures`, `signature`, `missing_parameters`, `unexpected_parameters`, `expected_types`, `matches`,
    `status`, `test`.

    Args:
        text: the result as the model saw it.
        tool_name: the tool that was called; without it, a call with a command and no path counts as a command.
        arguments: the call's arguments, as far as they could be parsed.
        is_error: what the log says. If it says nothing (False), a text that does not look like an error is of kind "".
    """
    given = arguments or {}
    command = command_of(given)
    if not is_error and not looks_like_error(text, command):
        return "", {}
    envelope = open_envelope(text)
    kind, found = _kind(envelope, tool_name, given, command)
    details: dict[str, Any] = {key: value for key, value in found.items() if value not in (None, "")}
    if envelope.exit_code is not None:
        details["exit_code"] = envelope.exit_code
    if command is not None and runs_commands(tool_name, given):
        details["command"] = command
    path = path_of(given)
    if path is not None:
        details.setdefault("path", path)
    return kind, details


def looks_like_error(text: str, command: str | None = None) -> bool:
    """Whether a result reads as a failed call, for logs without a flag. A text that merely tells of errors is none.

    `command` is the command line that was run, if it was one: a traceback may be what a program died of, or a file's.
    """
    if not text:
        return False
    envelope = open_envelope(text)
    if envelope.failed is not None:
        return envelope.failed
    if command is not None and TRACEBACK in envelope.body:
        if shows_files(command):
            return False
        if ends_in_a_traceback(envelope.body):
            return True
    return begins_like_an_error(envelope.body)


def _kind(
    envelope: Envelope, tool_name: str, arguments: Mapping[str, Any], command: str | None
) -> tuple[str, dict[str, Any]]:
    body = _without_prefix(envelope.body)
    others = OTHERS_TEXTS.find(body)
    # Codex takes a patch as a command too.
    is_patch = command is not None and "*** Begin Patch" in command
    is_command = not is_patch and (envelope.exit_code is not None or runs_commands(tool_name, arguments))
    # A command's own output may tell of a server's answer; it is then the command that failed.
    if others is not None and not (
        is_command and others[0] == "service_unavailable" and "api" not in others[1].re.groupindex
    ):
        return others[0], {"error_line": telling_line(body), **_status(others[1].groupdict())}
    refused = envelope.refused or (envelope.exit_code is None and _REFUSAL.match(body) is not None)
    if is_command and not refused:
        return classify_output(envelope.body, command, envelope.exit_code)
    found = _by_text(body, _REFUSAL_TEXTS if is_command else _TOOL_TEXTS)
    if found is None and envelope.code in _RPC_KINDS:
        found = _RPC_KINDS[envelope.code], {}
    if found is None:
        found = _last_resort(body, command, tool_name, envelope)
    kind, details = found
    if kind == "tool_not_found":
        malformed = _NAME_AND_MORE.search(body) or _CALLED_WITH_MORE.match(tool_name)
        if malformed is not None:
            return "malformed_call", {"name": malformed["name"], "error_line": telling_line(body)}
    return kind, {**details, **_named_in(kind, body), "error_line": details.get("error_line") or telling_line(body)}


def _by_text(body: str, rules: Rules) -> tuple[str, dict[str, Any]] | None:
    # The first line is the message; what follows often quotes the call, and may contain anything.
    first_line = body.partition("\n")[0][:_HEAD]
    found = rules.find(first_line) or rules.find(body[:_HEAD])
    if found is None:
        return None
    kind, match = found
    renamed = {"missing": "path", "found": "matches", "blocked": "name", "code": "status"}
    groups = {renamed.get(key, key): value for key, value in match.groupdict().items() if value}
    if "matches" in groups:
        groups["matches"] = int(groups["matches"])
    if "path" in groups:
        groups["path"] = _REMARK.split(groups["path"])[0].strip().rstrip(".")
    return kind, {**groups, **_status(groups)}


def _last_resort(body: str, command: str | None, tool_name: str, envelope: Envelope) -> tuple[str, dict[str, Any]]:
    kind, details = classify_output(body, command, envelope.exit_code)
    if kind not in ("command_failed", "git_error"):
        return kind, details
    if tool_name.startswith("mcp__") or envelope.code is not None:
        return "mcp_error", {}
    return "runtime_error", {}


def _named_in(kind: str, body: str) -> dict[str, Any]:
    """What the text says about the right call."""
    if kind in ("type_error", "json_decode", "mcp_error", "runtime_error"):
        return wrong_parameters(body)
    if kind == "edit_syntax_error" and (edited := _EDITED.search(body)) is not None:
        return {"path": edited["path"] or edited["named"]}
    if kind in ("file_not_found", "path_not_found"):
        return suggested_name(body)
    if kind in ("tool_not_found", "unknown_name"):
        offered = available_names(body) | suggested_name(body)
        if "available" in offered:
            key = "available_tools" if kind == "tool_not_found" else "available_names"
            offered[key] = offered.pop("available")
        return offered
    return {}


def _status(groups: Mapping[str, Any]) -> dict[str, int]:
    status = groups.get("status")
    return {} if status is None else {"status": int(status)}


def _without_prefix(body: str) -> str:
    text = clean(body).lstrip()
    for prefix in _PREFIXES:
        if text.startswith(prefix):
            rest = text[len(prefix) :]
            # "Error executing tool read_file: the message"
            return rest.partition(":")[2].strip() or rest.strip() if prefix.endswith("tool") else rest.strip()
    return text
