"""Marks a trace's failed calls: what went wrong, whose mistake it was, and what a hint can be made of.

Most results are no errors, and a log has gigabytes of them: an ordinary turn costs a look at its flag.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice
from typing import Any, NamedTuple

from composer_replication.coding_tools import command_of
from composer_replication.hint_generator.charge import Outcome, charges
from composer_replication.hint_generator.classifier import classify, telling_line
from composer_replication.hint_generator.envelope import open_envelope
from composer_replication.hint_generator.errors import OUTCOME_KINDS, is_students_mistake
from composer_replication.hint_generator.findings import own_frame
from composer_replication.hint_generator.hidden_failures import flag_failures
from composer_replication.hint_generator.written_files import changes_anything
from composer_replication.traces import ToolCall, Trace, Turn, dump_json

REPEAT_WINDOW = 3
"""An identical call counts as a repetition if it is made within this many calls."""

_MESSAGE_CHARACTERS = 400
_COMMAND_CHARACTERS = 200
_MOST_NAMES = 40
_SCHEMA_CHARACTERS = 1000
_MOST_CHOICES = 6
_NEARBY = 64
_MOST_RECENT = 16

# Errors whose hint says what the tool takes.
_ARGUMENT_KINDS = frozenset({"type_error", "json_decode", "malformed_call"})

# Kinds that say nothing about the cause; arguments that are not JSON then are the cause.
_VAGUE_KINDS = frozenset({"runtime_error", "command_failed", "mcp_error", "type_error", "malformed_call"})

# Code that is part of the command: `python -c`, `node -e`, a here-document.
_INLINE_CODE = re.compile(r"\b(?:python[\d.]*|node|ruby|perl|php|deno|bun|(?:ba|z)?sh)\b[^|;&\n]*\s-[cepr]\s|<<")


class _Place(NamedTuple):
    """A call: the index of the turn that made it, and its position among that turn's calls."""

    turn: int
    position: int


class _Failed(NamedTuple):
    """A failed call of the student's: where and what it was, how often it failed in a row, and as what at first."""

    place: _Place
    identity: str
    times: int
    first_kind: str


class _Tools:
    """The tools of a trace, trimmed to what hints need: every error has a copy of this in the output."""

    def __init__(self, trace: Trace) -> None:
        self._turns = trace.turns
        self._definitions = _tool_definitions(trace)
        self._schemas: dict[str, dict[str, Any] | None] = {}
        self._seen = 0
        self._called: dict[str, str] = {}
        self._worked: dict[str, None] = {}

    def schema(self, name: str) -> dict[str, Any] | None:
        """The parameters that a tool takes, if the log defines it and they are few."""
        if name not in self._schemas:
            self._schemas[name] = _small_schema(self._definitions.get(name))
        return self._schemas[name]

    def names(self, index: int) -> list[str]:
        """The tools that the log defines. Where it defines none: those that worked before this turn, so they exist."""
        if self._definitions:
            return list(islice(self._definitions, _MOST_NAMES))
        # Errors come in order, so each turn is looked at once for all of them.
        for number in range(self._seen, index):
            turn = self._turns[number]
            for call in turn.tool_calls:
                self._called[call.id] = call.name
            if turn.role == "tool" and not turn.is_error and turn.tool_call_id in self._called:
                self._worked[self._called[turn.tool_call_id]] = None
        self._seen = max(self._seen, index)
        return list(islice(self._worked, _MOST_NAMES))


def mark_errors(trace: Trace, *, flags_errors: bool = True) -> None:
    """Set `error_kind` on failed results, and `tool_error` and `error_meta` on the turns that made the calls.

    `error_meta` is what hints are made of (`HintContext`). Of several failed calls in a turn, the first that is the
    student's mistake counts, else the first. A call that failed and is made again unchanged within the next three
    calls, with nothing changed in between, is a `repeated_failure`. Turns that are copies (`repeats`) get no
    `tool_error`, so that nothing is learnt from them twice.

    `flags_errors` says that the log itself marks failing results. Where it does not, results are judged by their text;
    where it does, only commands that hide their failures are (`masked`).

    The trace is changed in place. Texts go into `error_meta` as they are; `redact_trace` covers `error_meta` too.
    """
    flag_failures(trace, flags_errors=flags_errors)
    turns = trace.turns
    failing = [index for index, turn in enumerate(turns) if turn.is_error]
    if not failing:
        return
    tools = _Tools(trace)
    makers: dict[str, _Place] | None = None
    recent: list[_Failed] = []
    outcomes: list[Outcome] = []
    for index in failing:
        turn = turns[index]
        place = _maker_nearby(turns, index)
        if place is None:
            makers = makers if makers is not None else _all_makers(turns)
            place = makers.get(turn.tool_call_id or "")
        made_by = turns[place.turn] if place is not None else None
        call = made_by.tool_calls[place.position] if made_by is not None and place is not None else None
        output = open_envelope(turn.content).body
        kind, meta = _describe(turn, call, output)
        if _is_outcome(kind, output, call):
            turn.error_kind, turn.outcome, turn.charged_to = kind, True, []
            outcomes.append(Outcome(index, kind, output))
            continue
        if call is not None and made_by is not None and place is not None:
            if is_students_mistake(kind):
                # Results out of order are never far apart, so there is a limit too.
                recent = [
                    one for one in recent[-_MOST_RECENT:] if _calls_apart(turns, one.place, place) <= REPEAT_WINDOW
                ]
                failed = _failed(turns, recent, place, call, kind)
                recent.append(failed)
                if failed.times > 1:
                    kind, meta["original_kind"], meta["repeats"] = (
                        "repeated_failure",
                        failed.first_kind,
                        failed.times - 1,
                    )
            meta["error_kind"] = kind
            _add_tools(meta, tools, call.name, index)
            if not made_by.repeats:
                _blame(made_by, kind, meta)
        turn.error_kind = kind
    if outcomes:
        _charge(turns, makers if makers is not None else _all_makers(turns), outcomes)


def _is_outcome(kind: str, output: str, call: ToolCall | None) -> bool:
    """Whether a failure says nothing against the call that ran into it.

    A program that crashes in a file reports on that file; one that crashes in code that stands in the command does not.
    """
    if kind != "traceback" and not (kind == "compile_error" and "SyntaxError" in output):
        return kind in OUTCOME_KINDS
    if call is not None and isinstance(call.arguments.get("code"), str):
        return False  # a tool that runs code
    place = own_frame(output)
    if place is not None:
        return not place.startswith(("<", "["))
    command = command_of(call.arguments) if call is not None else None
    return command is not None and _INLINE_CODE.search(command) is None


def _charge(turns: list[Turn], makers: Mapping[str, _Place], outcomes: list[Outcome]) -> None:
    for charge in charges(turns, makers, outcomes):
        result, (writer, position) = turns[charge.outcome], charge.author
        if turns[writer].repeats:
            continue
        result.charged_to.append(writer)
        if makers[result.tool_call_id or ""] == charge.author:
            result.outcome = False  # it ran what it had just written
        call = turns[writer].tool_calls[position]
        meta = {
            "error_kind": result.error_kind,
            "students_mistake": True,
            "tool_name": call.name,
            "tool_call_id": call.id,
            "path": charge.path,
            "error_message": charge.message[:_MESSAGE_CHARACTERS],
        }
        if call.id != result.tool_call_id:
            meta["reported_by"] = result.tool_call_id
        _blame(turns[writer], str(result.error_kind), meta)


def _maker_nearby(turns: list[Turn], index: int) -> _Place | None:
    """The call that a result answers, if it was made a few turns before: nearly all are."""
    wanted = turns[index].tool_call_id
    for earlier in range(index - 1, max(-1, index - _NEARBY), -1):
        for position, call in enumerate(turns[earlier].tool_calls):
            if call.id == wanted:
                return _Place(earlier, position)
    return None


def _all_makers(turns: list[Turn]) -> dict[str, _Place]:
    return {
        call.id: _Place(index, position)
        for index, turn in enumerate(turns)
        for position, call in enumerate(turn.tool_calls)
    }


def _calls_apart(turns: list[Turn], first: _Place, second: _Place) -> int:
    """Count the calls between two places; far beyond the window, counting stops."""
    apart = second.position - first.position
    for turn in turns[first.turn : second.turn]:
        apart += len(turn.tool_calls)
        if apart > REPEAT_WINDOW + second.position:
            break
    return apart


def _failed(turns: list[Turn], recent: list[_Failed], place: _Place, call: ToolCall, kind: str) -> _Failed:
    identity = _identity(call)
    before = next((one for one in reversed(recent) if one.identity == identity), None)
    # Two equal calls in one turn were made before either had failed.
    if before is None or before.place.turn == place.turn or _changed_between(turns, before.place, place):
        return _Failed(place, identity, 1, kind)
    return _Failed(place, identity, before.times + 1, before.first_kind)


def _changed_between(turns: list[Turn], first: _Place, second: _Place) -> bool:
    """Whether a call between the two changed something, and worked."""
    changing = {
        call.id
        for index in range(first.turn, second.turn + 1)
        for position, call in enumerate(turns[index].tool_calls)
        if first < (index, position) < second and changes_anything(call)
    }
    if not changing:
        return False
    # The results of the second call's turn are the last that matter: to the end of the trace would be quadratic.
    for index in range(first.turn + 1, len(turns)):
        turn = turns[index]
        if turn.role == "tool":
            if not turn.is_error and turn.tool_call_id in changing:
                return True
        elif index > second.turn:
            break
    return False


def _describe(turn: Turn, call: ToolCall | None, output: str) -> tuple[str, dict[str, Any]]:
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
    if turn.masked:
        meta["masked"] = True
    line = str(details.pop("error_line", ""))
    meta["error_message"] = _message(output, line)
    meta.update((key, _trimmed(key, value)) for key, value in details.items())
    return kind, meta


def _message(output: str, line: str) -> str:
    """The line that says what failed and what follows it."""
    if not line:
        line = telling_line(output)
    start = output.find(line) if line else -1
    return output[start : start + _MESSAGE_CHARACTERS].strip() if start >= 0 else line[:_MESSAGE_CHARACTERS]


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


def _small_schema(given: Any) -> dict[str, Any] | None:
    """The names and types of a schema's parameters. Of many the required ones, and if those are many too, nothing."""
    properties = given.get("properties") if isinstance(given, Mapping) else None
    if not isinstance(properties, Mapping) or not properties:
        return None
    listed = given.get("required")
    required = [name for name in listed if name in properties] if isinstance(listed, list) else []
    for names in (list(properties), required):
        small = {
            "type": "object",
            "properties": {str(name): _small_type(properties[name]) for name in names},
            "required": required,
        }
        if names and len(dump_json(small)) <= _SCHEMA_CHARACTERS:
            return small
    return None


def _small_type(given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        return {}
    choices = given.get("enum")
    if isinstance(choices, list) and choices:
        return {"enum": [choice for choice in choices[:_MOST_CHOICES] if isinstance(choice, (str, int))]}
    if isinstance(given.get("type"), (str, list)):
        return {"type": given["type"]}
    options = given.get("anyOf")
    kinds = (
        [option.get("type") for option in options if isinstance(option, Mapping)] if isinstance(options, list) else []
    )
    return {"type": [kind for kind in kinds if isinstance(kind, str)]} if kinds else {}


def _add_tools(meta: dict[str, Any], tools: _Tools, name: str, index: int) -> None:
    kind = meta.get("original_kind", meta["error_kind"])
    if kind in _ARGUMENT_KINDS:
        schema = tools.schema(name)
        if schema is not None:
            meta["tool_schema"] = schema
    elif kind == "tool_not_found" and "available_tools" not in meta:
        names = tools.names(index)
        if names:
            meta["available_tools"] = names


def _identity(call: ToolCall) -> str:
    given = call.raw_arguments
    if given is None:
        given = dump_json(dict(sorted(call.arguments.items())))
    return f"{call.name}\n{given}"
