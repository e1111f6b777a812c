"""Tool definitions for teachers where a log has none: those of its agent, if known, and those inferred from calls.

Inference uses the calls of the whole trace: names and types, not values, which would tell a teacher what the student
did later.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from composer_replication.agent_tool_sets import known_tools
from composer_replication.ingestion.loose_json import tool_definition
from composer_replication.traces import Message, Step, ToolCall, Trace, parse_arguments

# OpenAI's endpoints take no other names.
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
# Claude's take no other names of parameters, and refuse a whole request for one that a student made up.
_PARAMETER_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
# The description is the mark of a definition that was inferred: it goes wherever the definition goes.
_INFERRED = "The {} tool of this session."
_TYPES: dict[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}
# Kinds of errors that say nothing for the arguments of a call: they were refused, or are those of a call before.
_REFUSED = ("type_error", "malformed_call", "repeated_failure")


def offered_tools(trace: Trace) -> list[dict[str, Any]]:
    """Return the tools that teachers are offered at every step of a trace, sorted by name unless the log defines them.

    Definitions of the log win. Otherwise they are the known tools of its agent and version, and other tools that it
    calls (of an MCP server, say). A name that the harness refused was made up by the student, or was not for this
    agent. Unknown arguments that a known tool accepted are added to its schema; arguments that a call omitted are not
    required.
    """
    if given := complete_tools(trace.tools, ()):
        return given
    called: dict[str, _Tool] = {}
    refused, worked = set(), set()
    for _, call, result in trace.calls():
        kind = result.error_kind if result is not None else None
        if kind == "tool_not_found":
            refused.add(call.name)
        elif is_tool_name(call.name) and call.raw_arguments is None:
            tool = called.setdefault(call.name, _Tool())
            if kind not in _REFUSED:
                tool.add(call.arguments)
        if result is not None and not result.is_error:
            worked.add(call.name)
    made_up = refused - worked
    tools = {name: _definition(name, tool.schema()) for name, tool in called.items()}
    source = trace.source
    for known in known_tools(source.format, source.version, called.keys() - made_up, subagent=trace.parent is not None):
        schema = known.parameters()
        shown = called[known.name].schema()["properties"] if known.name in called else {}
        schema["properties"] |= {name: shown[name] for name in shown if name not in schema["properties"]}
        if known.name in called and "required" in schema:
            schema["required"] = [name for name in schema["required"] if called[known.name].always_has(name)]
        tools[known.name] = _definition(known.name, schema, known.description)
    return [tools[name] for name in sorted(tools.keys() - made_up)]


def infer_tools(steps: Sequence[Step]) -> list[dict[str, Any]]:
    """Return definitions of every tool that is called in these steps, sorted by name so that prompts begin alike."""
    seen: dict[str, _Tool] = {}
    for call in _calls(steps):
        if call.raw_arguments is None and is_tool_name(call.name):
            seen.setdefault(call.name, _Tool()).add(call.arguments)
    return [_definition(name, seen[name].schema()) for name in sorted(seen)]


def complete_tools(given: Iterable[Mapping[str, Any]], steps: Sequence[Step]) -> list[dict[str, Any]]:
    """Return the given definitions in OpenAI's form; without any, those inferred from the calls.

    A called tool that is not among those given may be made up by the student: teachers must not be offered it. Of
    several definitions of one name, the first counts: endpoints refuse duplicate names.
    """
    tools: dict[str, dict[str, Any]] = {}
    for tool in map(_openai_form, given):
        if tool is not None:
            tools.setdefault(tool["function"]["name"], tool)
    return list(tools.values()) or infer_tools(steps)


def is_inferred(tool: Mapping[str, Any]) -> bool:
    """Return whether a definition in OpenAI's form comes from `infer_tools`: its arguments are a guess."""
    function = tool["function"]
    return bool(function.get("description") == _INFERRED.format(function["name"]))


def is_tool_name(name: str) -> bool:
    """Return whether endpoints accept this name of a function."""
    return _TOOL_NAME.fullmatch(name) is not None


def _definition(name: str, parameters: dict[str, Any], description: str | None = None) -> dict[str, Any]:
    described = description or _INFERRED.format(name)
    return {"type": "function", "function": {"name": name, "description": described, "parameters": parameters}}


def _openai_form(tool: Mapping[str, Any]) -> dict[str, Any] | None:
    """A definition of whatever form (OpenAI's, nested or flat, Anthropic's) in the one that endpoints take."""
    definition = tool_definition(tool)
    if definition is None or not is_tool_name(definition["function"]["name"]):
        return None
    function = definition["function"]
    # No endpoint does without these two.
    parameters = {"type": "object", "properties": {}, **function.get("parameters", {})}
    described = str(function.get("description", ""))
    return {
        "type": "function",
        "function": {"name": function["name"], "description": described, "parameters": parameters},
    }


def _calls(steps: Sequence[Step]) -> Iterator[ToolCall]:
    """Every call in the histories and actions. Steps of one trace share their messages: each is looked at once."""
    # By identity. The message is kept too: a new one must not pass for one that is gone.
    looked_at: dict[int, Message] = {}
    for step in steps:
        for message in step.messages:
            if id(message) in looked_at:
                continue
            looked_at[id(message)] = message
            for call in message.get("tool_calls") or ():
                function = call.get("function") or {}
                arguments, raw = parse_arguments(function.get("arguments"))
                yield ToolCall(str(call.get("id")), str(function.get("name")), arguments, raw)
        yield from step.turn.tool_calls


@dataclass
class _Tool:
    calls: int = 0
    parameters: dict[str, _Parameter] = field(default_factory=dict)

    def add(self, arguments: Mapping[str, Any]) -> None:
        self.calls += 1
        for name, value in arguments.items():
            if _PARAMETER_NAME.fullmatch(name) is None:
                continue
            self.parameters.setdefault(name, _Parameter()).add(value)

    def always_has(self, name: str) -> bool:
        """Return whether every call has this argument."""
        return (name in self.parameters and self.parameters[name].times == self.calls) or not self.calls

    def schema(self) -> dict[str, Any]:
        properties = {name: self.parameters[name].schema() for name in sorted(self.parameters)}
        always = [name for name, parameter in sorted(self.parameters.items()) if parameter.times == self.calls]
        return {"type": "object", "properties": properties, **({"required": always} if always else {})}


@dataclass
class _Parameter:
    times: int = 0
    types: set[str] = field(default_factory=set)
    items: _Parameter | None = None

    def add(self, value: Any) -> None:
        self.times += 1
        self.types.add(_TYPES.get(type(value), "string"))
        if isinstance(value, list):
            self.items = self.items or _Parameter()
            for item in value:
                self.items.add(item)

    def schema(self) -> dict[str, Any]:
        types = sorted(self.types - {"null"}) or ["string"]
        if "number" in types and "integer" in types:
            types.remove("integer")
        schema: dict[str, Any] = {"type": types[0] if len(types) == 1 else types}
        if "array" in types:
            schema["items"] = self.items.schema() if self.items is not None and self.items.types else {}
        return schema
