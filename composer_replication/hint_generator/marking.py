"""Marks a trace's failed calls: what went wrong, whose mistake it was, and what a hint can be made of.

Most results are no errors, and a log has gigabytes of them: an ordinary turn costs a look at its flag.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from composer_replication.hint_generator.arguments import command_of
from composer_replication.hint_generator.classifier import classify
from composer_replication.hint_generator.command_output import telling_line
from composer_replication.hint_generator.envelope import open_envelope
from composer_replication.hint_generator.kinds import is_students_mistake
from composer_replication.traces import ToolCall, Trace, Turn, dump_json

REPEAT_WINDOW = 3
"""An identical call counts as a repetition if it is made within this many calls."""

_MESSAGE_CHARACTERS = 400
_COMMAND_CHARACTERS = 200
_MOST_NAMES = 100

# Kinds that say nothing about the cause; arguments that are not JSON then are the cause.
_VAGUE_KINDS = frozenset({"runtime_error", "command_failed", "mcp_error", "type_error", "malformed_call"})

_FILE_TOOLS = frozenset(
    [
        "edit",
        "write",
        "multiedit",
        "notebookedit",
        "apply_patch",
        "str_replace_editor",
        "str_replace_based_edit_tool",
        "create",
        "insert",
        "str_replace",
        "write_file",
        "edit_file",
        "create_file",
        "replace",
        "search_replace",
        "delete_file",
        "update_file",
        "patch",
        "file_editor",
        "undo_edit",
        "append_file",
    ]
)
_CHANGING_COMMAND = re.compile(
    r"(?:^|[\s;&|(])(?:sed\s+-\w*i|perl\s+-\w*i|mv|cp|rm|mkdir|touch|chmod|ln|tee|patch|kill|pkill|export"
    r"|git\s+(?:checkout|stash|apply|reset|restore|merge|rebase|pull|add|commit|init|config|switch|clean|fetch)"
    r"|(?:\S*pip3?|npm|pnpm|yarn|bun|uv|poetry|brew|apt|apt-get|cargo|go|gem|bundle|mix)\s+"
    r"(?:install|i|ci|add|remove|sync|get|mod|generate|deps\.get|fmt))\b|(?<![<>&\d-])>>?\s*[\w./~$\"'-]"
)


@dataclass
class _Failures:
    """The student's failed calls of the last few calls, by what was called."""

    seen: dict[str, tuple[int, int, int, str]] = field(default_factory=dict)
    """Of a call: its number, the index of its turn, how often it has failed, and the kind."""
    last: int = -(10**9)
    changed_at: int = -1

    def is_watching(self, number: int) -> bool:
        return number - self.last <= REPEAT_WINDOW

    def add(self, call: ToolCall, number: int, turn_index: int, kind: str) -> tuple[int, str]:
        """Note a failure. Returns how often the call has now failed in a row, and the kind it failed with first."""
        key = _identity(call)
        times, first_kind = 1, kind
        before = self.seen.get(key)
        if before is not None:
            earlier, earlier_turn, earlier_times, earlier_kind = before
            is_near = number - earlier <= REPEAT_WINDOW
            # Two equal calls in one turn were made before either had failed.
            if is_near and earlier_turn != turn_index and not earlier < self.changed_at < number:
                times, first_kind = earlier_times + 1, earlier_kind
        self.seen = {other: entry for other, entry in self.seen.items() if number - entry[0] < REPEAT_WINDOW}
        self.seen[key] = (number, turn_index, times, first_kind)
        self.last = number
        return times, first_kind


def mark_errors(trace: Trace, stats_counter: Counter[str] | None = None) -> None:
    """Set `error_kind` on failed results, and `tool_error` and `error_meta` on the turns that made the calls.

    `error_meta` is what hints are made of (`HintContext`). Of several failed calls in a turn, the first that is the
    student's mistake counts, else the first. A call that failed and is made again unchanged within the next three
    calls, with nothing changed in between, is a `repeated_failure`. Turns that are copies (`repeats`) get no
    `tool_error`, so that nothing is learnt from them twice, and are not counted.

    Args:
        trace: changed in place. Texts go into `error_meta` as they are: redact the trace first.
        stats_counter: counts the kinds of all failed results.
    """
    turns = trace.turns
    if not any(turn.is_error for turn in turns):
        return
    tools = _tool_definitions(trace)
    owners: dict[str, tuple[Turn, ToolCall, int, int]] = {}
    worked: dict[str, None] = {}
    failures = _Failures()
    number = 0
    for index, turn in enumerate(turns):
        if turn.role == "assistant":
            for call in turn.tool_calls:
                owners[call.id] = (turn, call, number, index)
                number += 1
            continue
        if turn.role != "tool":
            continue
        owner = owners.get(turn.tool_call_id or "")
        if not turn.is_error:
            if owner is not None:
                _, call, call_number, _ = owner
                worked[call.name] = None
                if failures.is_watching(call_number) and _changes_files(call):
                    failures.changed_at = max(failures.changed_at, call_number)
            continue
        kind, meta = _describe(turn, owner[1] if owner else None)
        if owner is not None:
            made_by, call, call_number, turn_index = owner
            if is_students_mistake(kind):
                times, first_kind = failures.add(call, call_number, turn_index, kind)
                if times > 1:
                    kind, meta["original_kind"], meta["repeats"] = "repeated_failure", first_kind, times - 1
            meta["error_kind"] = kind
            _add_tools(meta, tools, call.name, worked)
            if not made_by.repeats:
                _blame(made_by, kind, meta)
        turn.error_kind = kind
        if stats_counter is not None and not (owner is not None and owner[0].repeats):
            stats_counter[kind] += 1


def _describe(turn: Turn, call: ToolCall | None) -> tuple[str, dict[str, Any]]:
    name, arguments = (call.name, call.arguments) if call is not None else ("", {})
    kind, details = classify(turn.content, tool_name=name, arguments=arguments)
    raw = call.raw_arguments if call is not None else None
    # Some tools take free text, such as a patch: theirs is not JSON, and need not be.
    if raw is not None and kind in _VAGUE_KINDS and not raw.lstrip().startswith("*** Begin"):
        kind = "json_decode"
    meta: dict[str, Any] = {"error_kind": kind, "students_mistake": is_students_mistake(kind)}
    if name:
        meta["tool_name"] = name
    if turn.tool_call_id:
        meta["tool_call_id"] = turn.tool_call_id
    line = str(details.pop("error_line", ""))
    meta["error_message"] = _message(turn.content, line)
    meta.update((key, _trimmed(key, value)) for key, value in details.items())
    return kind, meta


def _message(text: str, line: str) -> str:
    """The line that says what failed and what follows it."""
    body = open_envelope(text).body
    if not line:
        line = telling_line(body)
    start = body.find(line) if line else -1
    return body[start : start + _MESSAGE_CHARACTERS].strip() if start >= 0 else line[:_MESSAGE_CHARACTERS]


def _trimmed(key: str, value: Any) -> Any:
    if isinstance(value, str):
        return value[: _COMMAND_CHARACTERS if key == "command" else _MESSAGE_CHARACTERS]
    return value


def _blame(turn: Turn, kind: str, meta: dict[str, Any]) -> None:
    if turn.tool_error is None or (is_students_mistake(kind) and not is_students_mistake(turn.tool_error)):
        turn.tool_error = kind
        turn.error_meta = meta


def _tool_definitions(trace: Trace) -> dict[str, Any]:
    """The parameters of each tool that the log defines (OpenAI's form, or the function alone)."""
    definitions = {}
    for tool in trace.tools:
        function = tool.get("function", tool)
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            definitions[function["name"]] = function.get("parameters") or function.get("input_schema")
    return definitions


def _add_tools(meta: dict[str, Any], tools: Mapping[str, Any], name: str, worked: Mapping[str, None]) -> None:
    if tools:
        meta["available_tools"] = list(tools)[:_MOST_NAMES]
        if isinstance(tools.get(name), Mapping):
            meta["tool_schema"] = tools[name]
    elif (
        "available_tools" not in meta and "tool_not_found" in (meta["error_kind"], meta.get("original_kind")) and worked
    ):
        # The log does not say which tools there are, but those that worked exist.
        meta["available_tools"] = list(worked)[:_MOST_NAMES]


def _identity(call: ToolCall) -> str:
    given = call.raw_arguments
    if given is None:
        given = dump_json(dict(sorted(call.arguments.items())))
    return f"{call.name}\n{given}"


def _changes_files(call: ToolCall) -> bool:
    name = call.name.lower().rpartition("__")[2]
    if name in _FILE_TOOLS:
        # Editors that also show files say so in their `command`.
        return call.arguments.get("command") != "view"
    command = command_of(call.arguments)
    return command is not None and _CHANGING_COMMAND.search(command[:4000]) is not None
