"""Tool definitions for teachers: given ones in any form, and inferred ones that say nothing of what came later."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from composer_replication.teacher_replay.tool_schemas import complete_tools, infer_tools
from composer_replication.traces import Source, ToolCall, Trace, TraceState, Turn, dump_json


def states_of(*calls: tuple[str, Any]) -> list[TraceState]:
    """A trace with one call a turn; arguments that are a text are none that can be read."""
    turns = [Turn("user", "go on")]
    for number, (name, arguments) in enumerate(calls):
        raw = arguments if isinstance(arguments, str) else None
        turns.append(Turn("assistant", tool_calls=[ToolCall(f"c{number}", name, {} if raw else arguments, raw)]))
        turns.append(Turn("tool", "done", tool_call_id=f"c{number}"))
    return list(Trace("t", turns, Source("t.jsonl", "test")).states())


def schema(*arguments: Any) -> dict[str, Any]:
    (tool,) = infer_tools(states_of(*(("Tool", one) for one in arguments)))
    parameters: dict[str, Any] = tool["function"]["parameters"]
    return parameters


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (["a"], {"type": "string"}),
        ([1], {"type": "integer"}),
        ([1.5], {"type": "number"}),
        ([1, 1.5], {"type": "number"}),
        ([True], {"type": "boolean"}),
        ([None], {"type": "string"}),
        ([None, 3], {"type": "integer"}),
        (["a", 1], {"type": ["integer", "string"]}),
        ([{"secret": "plan"}], {"type": "object"}),
        ([[]], {"type": "array", "items": {}}),
        ([["a"], ["b"]], {"type": "array", "items": {"type": "string"}}),
        ([[1, "a"], [None]], {"type": "array", "items": {"type": ["integer", "string"]}}),
        ([[[1.5]]], {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}),
        ([["a"], "b"], {"type": ["array", "string"], "items": {"type": "string"}}),
    ],
)
def test_types_are_those_of_the_values_seen(values: list[Any], found: dict[str, Any]) -> None:
    assert schema(*({"x": value} for value in values))["properties"] == {"x": found}


def test_required_is_what_every_call_has() -> None:
    assert schema({"b": 1, "a": 2}, {"a": 3}, {"a": None, "c": 4}) == {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}, "c": {"type": "integer"}},
        "required": ["a"],
    }
    assert schema({"a": 1}, {}) == {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert schema({}) == {"type": "object", "properties": {}}


def test_tools_are_sorted_by_name_whatever_their_order_in_the_trace() -> None:
    tools = infer_tools(states_of(("Write", {"path": "a"}), ("Bash", {"command": "ls"}), ("Read", {})))
    assert [tool["function"]["name"] for tool in tools] == ["Bash", "Read", "Write"]
    assert {tool["type"] for tool in tools} == {"function"}


def test_the_last_action_counts_though_no_history_has_it() -> None:
    states = states_of(("Bash", {"command": "ls"}), ("Finish", {"answer": "yes"}))
    assert "Finish" not in str([list(state["messages"]) for state in states])
    assert [tool["function"]["name"] for tool in infer_tools(states)] == ["Bash", "Finish"]


@pytest.mark.parametrize("name", ["", "a tool", "functions.shell", "läuft", "x" * 65, "a/b", "a\n"])
def test_a_name_that_endpoints_refuse_is_left_out(name: str) -> None:
    assert infer_tools(states_of((name, {"a": 1}), ("x" * 64, {}))) == infer_tools(states_of(("x" * 64, {})))
    assert complete_tools([{"name": name}], []) == []


def test_a_parameter_that_endpoints_refuse_is_left_out_and_the_tool_stays() -> None:
    assert schema({"path": "a", "line number": 3, "größe": 1, "": 2, "a.b-c_9": 4})["properties"] == {
        "a.b-c_9": {"type": "integer"},
        "path": {"type": "string"},
    }


def test_calls_whose_arguments_cannot_be_read_say_nothing() -> None:
    assert infer_tools(states_of(("Bash", '{"command": "ls'), ("Read", "[1]"))) == []
    assert schema({"a": 1}, '{"b": 2')["required"] == ["a"]


def test_no_value_of_any_step_is_in_a_schema() -> None:
    values = {
        "s": "TELLTALE",
        "l": ["TELLTALE"],
        "d": {"TELLTALE": "TELLTALE"},
        "n": 8675309,
        "deep": [[{"k": "TELLTALE"}]],
    }
    text = dump_json(infer_tools(states_of(("Tool", values), ("Tool", {**values, "s": "TELLTALE too"}))))
    assert "TELLTALE" not in text
    assert "8675309" not in text


def test_the_order_of_the_steps_does_not_matter() -> None:
    calls = [("Bash", {**({"all": True} if number > 2 else {}), "command": f"ls {number}"}) for number in range(6)]
    states = [TraceState(**{**state, "messages": []}) for state in states_of(*calls)]
    # As text: prompts begin alike byte for byte.
    assert dump_json(infer_tools(list(reversed(states)))) == dump_json(infer_tools(states))


SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


@pytest.mark.parametrize(
    "given",
    [
        {
            "type": "function",
            "function": {"name": "Read", "description": "Reads.", "parameters": SCHEMA, "strict": True},
        },
        {"type": "function", "name": "Read", "description": "Reads.", "parameters": SCHEMA},
        {"name": "Read", "description": "Reads.", "input_schema": SCHEMA},
        {"name": "Read", "description": "Reads.", "inputSchema": SCHEMA},
    ],
)
def test_a_given_definition_of_any_form_becomes_the_one_that_endpoints_take(given: dict[str, Any]) -> None:
    assert complete_tools([given], states_of(("Read", {"other": 1}))) == [
        {"type": "function", "function": {"name": "Read", "description": "Reads.", "parameters": SCHEMA}}
    ]


@pytest.mark.parametrize(
    "given", [{"name": "Read"}, {"name": "Read", "input_schema": {}}, {"name": "Read", "parameters": 3}]
)
def test_what_no_endpoint_does_without_is_filled_in(given: dict[str, Any]) -> None:
    (tool,) = complete_tools([given], [])
    assert tool["function"] == {"name": "Read", "description": "", "parameters": {"type": "object", "properties": {}}}


def test_calls_are_looked_at_only_if_no_definition_can_be_used() -> None:
    states = states_of(("Bash", {"command": "ls"}), ("Zap", {}), ("Read", {}))

    def names(*given: dict[str, Any]) -> list[str]:
        return [tool["function"]["name"] for tool in complete_tools(given, states)]

    # A call of a tool that the agent did not have is one that the student made up.
    assert names({"name": "Zap"}, {"no": "name"}, {"name": "Unused"}) == ["Zap", "Unused"]
    assert names() == names({"no": "name"}) == ["Bash", "Read", "Zap"]


def test_of_two_definitions_of_one_name_the_first_counts() -> None:
    tools = complete_tools([{"name": "Read", "description": "first"}, {"name": "Read", "description": "second"}], [])
    assert [tool["function"]["description"] for tool in tools] == ["first"]


class MadeAnew(Sequence[Any]):
    """Messages that are new objects whenever they are asked for, as from a file."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: Any) -> Any:
        return json.loads(self.texts[index])

    def __iter__(self) -> Iterator[Any]:
        return map(json.loads, self.texts)


def test_messages_that_are_made_anew_are_all_looked_at() -> None:
    def message(number: int) -> dict[str, Any]:
        call = {"id": "c", "type": "function", "function": {"name": f"Tool{number:02d}", "arguments": "{}"}}
        return {"role": "assistant", "content": "", "tool_calls": [call]}

    texts = [json.dumps(message(number)) for number in range(20)]
    state = TraceState(state_id="s", messages=MadeAnew(texts), student_action="")
    assert [tool["function"]["name"] for tool in infer_tools([state])] == [f"Tool{number:02d}" for number in range(20)]
