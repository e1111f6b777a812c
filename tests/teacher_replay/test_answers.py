"""What an answer is worth: an action, or a reason why it is none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from composer_replication.teacher_replay.answers import AnswerReader, CallChecks, Reading
from composer_replication.teacher_replay.ledger import Answer
from composer_replication.teacher_replay.prices import Tokens
from composer_replication.teacher_replay.tool_schemas import complete_tools
from composer_replication.traces import Step, parse_action

READ = {
    "name": "Read",
    "input_schema": {
        "type": "object",
        "properties": {
            "file_path": {"type": "string"},
            "limit": {"type": "integer"},
            "mode": {"enum": ["text", "bytes"]},
            "ranges": {"type": "array", "items": {"$ref": "#/$defs/range"}},
        },
        "required": ["file_path"],
        "additionalProperties": False,
        "$defs": {"range": {"type": "object", "required": ["start"]}},
    },
}


def call(name: str, **arguments: Any) -> str:
    return f"[TOOL_USE] name={name} input={json.dumps(arguments)}"


def problem(action: str, *tools: dict[str, Any]) -> str | None:
    return CallChecks(tools).problem(parse_action(action))


def steps(*actions: str) -> list[Step]:
    return [Step(str(number), [], parse_action(action)) for number, action in enumerate(actions)]


def read(text: str, finish: str, completion: int = 1) -> Reading:
    return AnswerReader([READ]).read(Answer(parse_action(text), finish, Tokens(1, completion), 5, 0.1), 64)


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ("Done.", None),
        (call("Read", file_path="a"), None),
        (call("Read", file_path="a", limit=3, mode="text", ranges=[{"start": 1}]), None),
        (call("Grep", pattern="a"), "the answer calls Grep, which is none of the tools that were offered"),
        (call("Read"), "the answer's call of Read does not fit the tool: 'file_path' is a required property"),
        (call("Read", file_path=3), "the answer's call of Read does not fit the tool: file_path (type)"),
        (call("Read", file_path="a", limit="3"), "the answer's call of Read does not fit the tool: limit (type)"),
        (call("Read", file_path="a", mode="x"), "the answer's call of Read does not fit the tool: mode (enum)"),
        (call("Read", file_path="a", ranges=[{}]),
         "the answer's call of Read does not fit the tool: ranges.0: 'start' is a required property"),
        (call("Read", file_path="a", other=1),
         "the answer's call of Read does not fit the tool: its arguments (additionalProperties)"),
        (f"{call('Read', file_path='a')}\n{call('Read')}",
         "the answer's call of Read does not fit the tool: 'file_path' is a required property"),
        ('[TOOL_USE] name=Read input={"file_path": "a',
         "the answer's call of Read has arguments that are no JSON object"),
        ("[TOOL_USE] name=Read input=[1]", "the answer's call of Read has arguments that are no JSON object"),
    ],
)  # fmt: skip
def test_calls_fit_the_tools_that_were_offered(action: str, reason: str | None) -> None:
    assert problem(action, READ) == reason


def test_without_tools_only_calls_that_do_not_parse_are_refused() -> None:
    assert problem(call("Read", any=1)) is None
    assert problem('[TOOL_USE] name=Read input={"file_path": "a') is not None


def test_an_inferred_definition_is_checked_for_its_name_alone() -> None:
    """Its types and what it requires are a guess: the student's calls may all have had an argument by chance."""
    inferred = complete_tools([], steps(call("Bash", command="ls", timeout=5), call("Bash", command="pwd", timeout=5)))
    twice = complete_tools(inferred, [])
    assert inferred[0]["function"]["parameters"]["required"] == ["command", "timeout"]
    for tools in (inferred, twice, json.loads(json.dumps(twice))):
        assert problem(call("Bash", command="ls"), *tools) is None
        assert problem(call("Bash", command=["ls"], timeout="5"), *tools) is None
        assert problem(call("Read", file_path="a"), *tools) is not None
        assert problem(call("Read"), READ, *tools) is not None


def test_a_schema_that_is_none_refuses_nothing_and_nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[Any] = []
    monkeypatch.setattr("urllib.request.urlopen", lambda request, *_, **__: fetched.append(request))
    for broken in ({"type": "no such type"}, {"properties": {"a": 5}}, {"required": 7}, {"$ref": "https://a.test/b"},
                   {"$ref": "#/$defs/missing"}, {"properties": {"a": {"pattern": "("}}}, {"$ref": "#"}):  # fmt: skip
        tool = {"name": "Odd", "input_schema": {"type": "object", **broken}}
        assert problem(call("Odd", a="x"), tool) is None, broken
        assert problem(call("Other", a="x"), tool) is not None
    assert fetched == []


@pytest.mark.parametrize("finish", ["length", "max_tokens", "MAX_TOKENS", "model_length", "max_output_tokens"])
def test_an_answer_that_was_cut(finish: str) -> None:
    reading = read("Half", finish)
    assert reading.turn is None
    assert reading.is_cut
    assert reading.problem == "the answer was cut at 64 tokens: raise max_output_tokens"


def test_an_answer_of_all_tokens_that_does_not_say_how_it_ended_was_cut() -> None:
    assert read("Half", "", 64).is_cut
    assert read("Whole", "", 63).turn == parse_action("Whole")
    assert read("Whole", "stop", 64).turn == parse_action("Whole")


def test_none_for_what_need_not_be_given_is_as_good_as_nothing() -> None:
    assert problem(call("Read", file_path="a", limit=None), READ) is None
    assert problem(call("Read", file_path=None), READ) is not None


@pytest.mark.parametrize(
    ("text", "finish", "reason"),
    [
        ("x", "content_filter", "the endpoint broke the answer off, or kept it back (content_filter)"),
        ("x", "SAFETY", "the endpoint broke the answer off, or kept it back (safety)"),
        ("x", "error", "the endpoint broke the answer off, or kept it back (error)"),
        (" \n", "stop", "the answer is empty"),
        (call("Grep"), "tool_calls", "the answer calls Grep, which is none of the tools that were offered"),
    ],
)
def test_an_answer_that_cannot_be_used(text: str, finish: str, reason: str) -> None:
    reading = read(text, finish)
    assert reading == Reading(problem=reason)


def test_an_answer_that_can_be_used_stays_as_it_is() -> None:
    text = f"So.\n{call('Read', file_path='a')}"
    reading = read(text, "tool_calls")
    assert reading == Reading(parse_action(text))
