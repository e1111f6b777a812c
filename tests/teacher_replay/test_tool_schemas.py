"""Tool definitions for teachers: given ones in any form, and inferred ones that say nothing of what came later."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from ingestion.claude_sessions import Session
from jsonschema import Draft202012Validator

from composer_replication.ingestion import ReadOptions, read_traces
from composer_replication.teacher_replay.prompts import PromptWriter
from composer_replication.teacher_replay.tool_schemas import complete_tools, infer_tools, offered_tools
from composer_replication.traces import Source, Step, ToolCall, Trace, Turn, dump_json


def steps_of(*calls: tuple[str, Any]) -> list[Step]:
    """A trace with one call a turn; arguments that are a text are none that can be read."""
    turns = [Turn("user", "go on")]
    for number, (name, arguments) in enumerate(calls):
        raw = arguments if isinstance(arguments, str) else None
        turns.append(Turn("assistant", tool_calls=[ToolCall(f"c{number}", name, {} if raw else arguments, raw)]))
        turns.append(Turn("tool", "done", tool_call_id=f"c{number}"))
    return list(Trace("t", turns, Source("t.jsonl", "test")).steps())


def schema(*arguments: Any) -> dict[str, Any]:
    (tool,) = infer_tools(steps_of(*(("Tool", one) for one in arguments)))
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
    tools = infer_tools(steps_of(("Write", {"path": "a"}), ("Bash", {"command": "ls"}), ("Read", {})))
    assert [tool["function"]["name"] for tool in tools] == ["Bash", "Read", "Write"]
    assert {tool["type"] for tool in tools} == {"function"}


def test_the_last_action_counts_though_no_history_has_it() -> None:
    steps = steps_of(("Bash", {"command": "ls"}), ("Finish", {"answer": "yes"}))
    assert "Finish" not in str([list(step.messages) for step in steps])
    assert [tool["function"]["name"] for tool in infer_tools(steps)] == ["Bash", "Finish"]


@pytest.mark.parametrize("name", ["", "a tool", "functions.shell", "läuft", "x" * 65, "a/b", "a\n"])
def test_a_name_that_endpoints_refuse_is_left_out(name: str) -> None:
    assert infer_tools(steps_of((name, {"a": 1}), ("x" * 64, {}))) == infer_tools(steps_of(("x" * 64, {})))
    assert complete_tools([{"name": name}], []) == []


def test_a_parameter_that_endpoints_refuse_is_left_out_and_the_tool_stays() -> None:
    assert schema({"path": "a", "line number": 3, "größe": 1, "": 2, "a.b-c_9": 4})["properties"] == {
        "a.b-c_9": {"type": "integer"},
        "path": {"type": "string"},
    }


def test_calls_whose_arguments_cannot_be_read_say_nothing() -> None:
    assert infer_tools(steps_of(("Bash", '{"command": "ls'), ("Read", "[1]"))) == []
    assert schema({"a": 1}, '{"b": 2')["required"] == ["a"]


def test_no_value_of_any_step_is_in_a_schema() -> None:
    values = {
        "s": "TELLTALE",
        "l": ["TELLTALE"],
        "d": {"TELLTALE": "TELLTALE"},
        "n": 8675309,
        "deep": [[{"k": "TELLTALE"}]],
    }
    text = dump_json(infer_tools(steps_of(("Tool", values), ("Tool", {**values, "s": "TELLTALE too"}))))
    assert "TELLTALE" not in text
    assert "8675309" not in text


def test_the_order_of_the_steps_does_not_matter() -> None:
    calls = [("Bash", {**({"all": True} if number > 2 else {}), "command": f"ls {number}"}) for number in range(6)]
    steps = [step._replace(messages=[]) for step in steps_of(*calls)]
    # As text: prompts begin alike byte for byte.
    assert dump_json(infer_tools(list(reversed(steps)))) == dump_json(infer_tools(steps))


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
    assert complete_tools([given], steps_of(("Read", {"other": 1}))) == [
        {"type": "function", "function": {"name": "Read", "description": "Reads.", "parameters": SCHEMA}}
    ]


@pytest.mark.parametrize(
    "given", [{"name": "Read"}, {"name": "Read", "input_schema": {}}, {"name": "Read", "parameters": 3}]
)
def test_what_no_endpoint_does_without_is_filled_in(given: dict[str, Any]) -> None:
    (tool,) = complete_tools([given], [])
    assert tool["function"] == {"name": "Read", "description": "", "parameters": {"type": "object", "properties": {}}}


def test_calls_are_looked_at_only_if_no_definition_can_be_used() -> None:
    steps = steps_of(("Bash", {"command": "ls"}), ("Zap", {}), ("Read", {}))

    def names(*given: dict[str, Any]) -> list[str]:
        return [tool["function"]["name"] for tool in complete_tools(given, steps)]

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
    step = Step("s", MadeAnew(texts), Turn("assistant"))
    assert [tool["function"]["name"] for tool in infer_tools([step])] == [f"Tool{number:02d}" for number in range(20)]


# The tools of a trace, as its agent's log shows it.


def claude_trace(folder: Path, *calls: tuple[str, dict[str, Any], str], version: str = "2.1.39") -> Trace:
    """A session with these calls and what they gave; one that begins with an error is an error."""
    session = Session(version=version)
    session.prompt("look at it")
    for number, (name, arguments, result) in enumerate(calls):
        session.calls(f"m{number}", f"c{number}", name, **arguments)
        session.result(f"c{number}", result, is_error=result.startswith("<tool_use_error>") or None)
    session.says("end", "Done.")
    (trace,) = read_traces(session.write(folder))
    return trace


def codex_trace(folder: Path, *items: dict[str, Any], version: str = "0.66.0") -> Trace:
    payloads = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "look"}]}, *items]
    records = [{"type": "session_meta", "payload": {"id": "s", "cli_version": version}}]
    records += [{"type": "response_item", "payload": payload} for payload in payloads]
    path = folder / "rollout.jsonl"
    path.write_text("".join(json.dumps({"timestamp": "2026-01-02T10:00:00Z", **one}) + "\n" for one in records))
    (trace,) = read_traces(path)
    return trace


def by_name(trace: Trace) -> dict[str, dict[str, Any]]:
    tools = {tool["function"]["name"]: tool["function"] for tool in offered_tools(trace)}
    assert list(tools) == sorted(tools)
    return tools


READ = ("Read", {"file_path": "a.py"}, "1\tx = 1")
PATCH = "*** Begin Patch\n*** Add File: a\n+x\n*** End Patch"


def test_a_session_that_only_reads_could_have_written(tmp_path: Path) -> None:
    tools = by_name(claude_trace(tmp_path, READ))
    assert set(tools) >= {"Bash", "Edit", "Read", "Task", "Write"}
    assert tools["Write"]["description"].startswith("Create a file")
    assert tools["Write"]["parameters"] == {
        "type": "object",
        "properties": {"file_path": {"type": "string"}, "content": {"type": "string"}},
        "required": ["file_path", "content"],
    }


def test_the_version_of_the_log_decides(tmp_path: Path) -> None:
    assert {"MultiEdit", "LS"} <= set(by_name(claude_trace(tmp_path, READ, version="1.0.80")))
    assert not {"MultiEdit", "LS"} & set(by_name(claude_trace(tmp_path, READ, version="2.0.28")))


def test_what_comes_later_changes_nothing_in_the_tools_that_are_known(tmp_path: Path) -> None:
    later = [("Write", {"file_path": "b", "content": "c"}, "done"), ("Bash", {"command": "ls"}, "b"), READ]
    beginning, whole = (offered_tools(claude_trace(tmp_path, *calls)) for calls in ([READ], [READ, *later]))
    assert dump_json(beginning) == dump_json(whole)


def test_what_a_call_went_without_is_not_required(tmp_path: Path) -> None:
    tools = by_name(claude_trace(tmp_path, READ, ("Write", {"file_path": "a"}, "done")))
    assert tools["Write"]["parameters"]["required"] == ["file_path"]
    assert tools["Read"]["parameters"]["required"] == ["file_path"]


def test_a_tool_that_is_called_and_not_known_is_added_and_one_that_is_made_up_is_not(tmp_path: Path) -> None:
    refused = "<tool_use_error>Error: No such tool available: {}</tool_use_error>"
    trace = claude_trace(
        tmp_path,
        READ,
        ("mcp__db__query", {"sql": "select 1"}, "1"),
        ("SearchCode", {"text": "x"}, refused.format("SearchCode")),
        ("MultiEdit", {"file_path": "a", "edits": []}, refused.format("MultiEdit")),
        ("mcp__db__down", {"a": 1}, refused.format("mcp__db__down")),
        ("mcp__db__down", {"a": 1}, "up"),
    )
    known = set(by_name(claude_trace(tmp_path, READ)))
    tools = by_name(trace)
    assert set(tools) - known == {"mcp__db__query", "mcp__db__down"}
    assert tools["mcp__db__query"]["parameters"] == {
        "type": "object",
        "properties": {"sql": {"type": "string"}},
        "required": ["sql"],
    }


def test_a_name_that_codex_does_not_have_is_not_offered(tmp_path: Path) -> None:
    call = {"type": "function_call", "name": "read_files", "call_id": "c", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "unsupported call: read_files"}
    assert "read_files" not in by_name(codex_trace(tmp_path, call, output))
    assert "read_files" in by_name(codex_trace(tmp_path, call, {**output, "output": "ok"}))


def test_an_argument_that_worked_is_in_the_schema_and_not_required(tmp_path: Path) -> None:
    trace = claude_trace(
        tmp_path,
        ("Read", {"file_path": "a", "encoding": "utf-8", "größe": 1, "offset": "3"}, "x"),
        (
            "Read",
            {"path": "a"},
            "<tool_use_error>InputValidationError: Read failed: file_path is missing</tool_use_error>",
        ),
    )
    parameters = by_name(trace)["Read"]["parameters"]
    assert parameters["properties"]["encoding"] == {"type": "string"}
    assert parameters["properties"]["offset"] == {"type": "number"}
    assert not {"path", "größe"} & set(parameters["properties"])
    assert parameters["required"] == ["file_path"]
    # The table is not changed by it.
    assert "encoding" not in by_name(claude_trace(tmp_path, READ))["Read"]["parameters"]["properties"]


def test_the_shell_of_codex_by_version_and_by_what_was_called(tmp_path: Path) -> None:
    shells = {"shell", "shell_command", "exec_command"}
    call = {"type": "function_call", "name": "shell", "call_id": "c", "arguments": '{"command": ["ls"]}'}
    assert shells & set(by_name(codex_trace(tmp_path))) == {"shell_command"}
    assert shells & set(by_name(codex_trace(tmp_path, version="0.99.0"))) == {"exec_command"}
    assert shells & set(by_name(codex_trace(tmp_path, call))) == {"shell"}
    refused = {"type": "function_call_output", "call_id": "c", "output": "unsupported call: shell"}
    assert shells & set(by_name(codex_trace(tmp_path, call, refused, {**call, "call_id": "d"}))) == {"shell_command"}


def test_a_freeform_patch_is_a_call_of_a_tool_that_is_offered(tmp_path: Path) -> None:
    call = {"type": "custom_tool_call", "name": "apply_patch", "call_id": "c", "input": PATCH}
    output = {"type": "custom_tool_call_output", "call_id": "c", "output": "Success."}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]}
    trace = codex_trace(tmp_path, call, output, said)
    schema = by_name(trace)["apply_patch"]["parameters"]
    *_, step = trace.steps()
    prompt = PromptWriter([step.messages], offered_tools(trace)).prompt(step.messages)
    (sent,) = (one for message in prompt.messages for one in message.get("tool_calls", ()))
    arguments = json.loads(sent["function"]["arguments"])
    assert arguments == {"input": PATCH}
    Draft202012Validator(schema).validate(arguments)


def test_a_sub_agent_is_not_offered_to_start_another(tmp_path: Path) -> None:
    session = Session(version="1.0.108")
    session.prompt("look at it")
    session.calls("m1", "c1", "Task", prompt="look", description="look", subagent_type="Explore")
    session.prompt("look", isSidechain=True)
    session.fragment("m2", {"type": "text", "text": "Seen."}, isSidechain=True)
    session.result("c1", "Seen.")
    main, agent = read_traces(session.write(tmp_path), ReadOptions(subagents=True))
    assert (main.parent, "Task" in by_name(main)) == (None, True)
    assert (agent.parent is None, "Task" in by_name(agent)) == (False, False)


def test_definitions_of_the_log_win_over_what_is_known(tmp_path: Path) -> None:
    trace = claude_trace(tmp_path, READ, ("Grep", {"pattern": "x"}, "a"))
    trace.tools = [{"name": "Read", "input_schema": SCHEMA}]
    (tool,) = offered_tools(trace)
    assert tool["function"]["parameters"] == SCHEMA


def test_of_an_unknown_agent_the_calls_tell() -> None:
    turns = [
        Turn("user", "go"),
        Turn("assistant", tool_calls=[ToolCall("a", "Zap", {"n": 1}), ToolCall("b", "Made", {})]),
        Turn("tool", "done", tool_call_id="a"),
        Turn("tool", "no", tool_call_id="b", is_error=True, error_kind="tool_not_found"),
        Turn("assistant", tool_calls=[ToolCall("c", "Made", {}), ToolCall("d", "Last", raw_arguments="{")]),
    ]
    trace = Trace("t", turns, Source("t.jsonl", "test"))
    assert offered_tools(trace) == infer_tools(steps_of(("Zap", {"n": 1})))
