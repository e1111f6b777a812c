"""From traces to linear conversations: what the model saw, each answer learned once."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from composer_replication.histories import CLEARED_RESULT, NO_RESULT
from composer_replication.traces import Source, ToolCall, Trace, Turn
from composer_replication.trainer.conversations import EARLIER, conversations, trace_turns

OBJECT = '{"y": 2}'


def trace(*turns: Turn) -> Trace:
    return Trace("t", list(turns), Source("t.jsonl", "test"))


def shape(turns: list[Turn]) -> list[tuple[list[str], list[str]]]:
    """For each conversation: all contents, and those that are learned."""
    return [
        ([message["content"] for message in one.messages], [one.messages[place]["content"] for place in one.learned])
        for one in conversations(turns)
    ]


def asks(text: str, **fields: Any) -> Turn:
    return Turn("user", text, **fields)


def says(text: str, *calls: str, **fields: Any) -> Turn:
    return Turn(
        "assistant", text, tool_calls=[ToolCall(name, "read_file", {"path": "a.py"}) for name in calls], **fields
    )


def returns(identity: str, text: str, **fields: Any) -> Turn:
    return Turn("tool", text, tool_call_id=identity, **fields)


def test_an_example_is_its_trace() -> None:
    whole = trace(
        Turn("system", "Be brief."),
        asks("go"),
        says("look", "c1", "c2", thinking="hm", tool_error="tool_not_found", error_meta={"tool": "x"}),
        returns("c1", "one"),
        returns("c2", "two", is_error=True, error_kind="tool_not_found"),
        says("done"),
    )
    assert trace_turns(whole.example()) == whole.turns
    # As JSON, a trace is an example itself.
    assert trace_turns(msgspec.json.decode(msgspec.json.encode(whole))) == whole.turns


def test_messages_are_what_templates_want() -> None:
    turns = [
        asks("go"),
        Turn(
            "assistant",
            "look",
            thinking="hm",
            tool_calls=[ToolCall("c1", "read_file", {"path": "ü"}), ToolCall("c2", "run", {}, raw_arguments="{broken")],
        ),
        returns("c2", "two"),
        returns("c1", "one"),
    ]
    (only,) = conversations(turns)
    assert only.messages[1] == {
        "role": "assistant",
        "content": "look",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "read_file", "arguments": {"path": "ü"}}},
            {"id": "c2", "type": "function", "function": {"name": "run", "arguments": "{broken"}},
        ],
    }
    assert only.turns == [0, 1, 2, 3]
    assert only.learned == [1]
    (thinking,) = conversations(turns, strip_thinking=False)
    assert thinking.messages[1] == {**only.messages[1], "reasoning_content": "hm"}
    assert [message.get("name") for message in only.messages] == [None, None, "run", "read_file"]


def test_turns_with_no_more_than_the_documented_fields_are_enough() -> None:
    turns = trace_turns(
        {
            "trace_id": "t",
            "turns": [
                {"role": "user", "content": "go"},
                {"role": "assistant", "content": "", "tool_call": {"name": "run", "arguments": {"x": 1}}},
                {"role": "tool", "content": "Error", "tool_error": "type_error", "error_meta": {"a": 1}},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_call": {"function": {"name": "f", "arguments": '{"y": 2}'}},
                },
                {"role": "tool", "content": "fine"},
                {"role": "assistant", "content": "done", "tool_call": None, "tool_error": None},
            ],
        }  # type: ignore[typeddict-item]
    )
    (only,) = conversations(turns)
    assert [message["role"] for message in only.messages] == ["user", *["assistant", "tool"] * 2, "assistant"]
    assert only.messages[3]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"y": 2}}
    assert only.messages[4]["tool_call_id"] == only.messages[3]["tool_calls"][0]["id"]
    # The error is on the result, but it is the call that went wrong.
    assert (turns[1].tool_error, turns[1].error_meta) == ("type_error", {"a": 1})
    assert only.learned == [1, 3, 5]


@pytest.mark.parametrize(
    ("turn", "message"),
    [
        ({"role": "developer", "content": ""}, r"trace 't', turn 0 has the role 'developer'"),
        ({"role": "assistant", "tool_call": {"arguments": {}}}, "turn 0 has a tool call without a name"),
        ({"role": "assistant", "tool_calls": ["run"]}, "turn 0 has a tool call without a name"),
        ({"role": "user", "content": 3}, "turn 0 cannot be read: Expected `str`, got `int`"),
        ("hello", "turn 0 has the role 'hello'"),
    ],
)
def test_a_turn_that_cannot_be_read_is_named(turn: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        trace_turns({"trace_id": "t", "turns": [turn]})


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        pytest.param(
            [
                *(Turn("system", "S"), asks("go"), says("one")),
                *(asks("summary", follows=-1, keeps=[2]), says("two"), asks("more"), says("three")),
            ],
            [
                (["S", "go", "one"], ["one"]),
                (["S", "summary", "one", "two", "more", "three"], ["two", "three"]),
            ],
            id="a compaction begins a conversation that keeps the system prompt",
        ),
        pytest.param(
            [asks("go"), says("one"), asks("wrong way"), says("two"), asks("other way", follows=1), says("three")],
            [(["go", "one", "wrong way", "two"], ["one", "two"]), (["go", "one", "other way", "three"], ["three"])],
            id="a rewind shares context and learns each answer once",
        ),
        pytest.param(
            [
                *(asks("go"), says("one", "c1"), returns("c1", "long")),
                *(says("two", clears=["c1"]), asks("on"), says("three")),
            ],
            [
                (["go", "one", "long"], ["one"]),
                (["go", "one", CLEARED_RESULT, "two", "on", "three"], ["two", "three"]),
            ],
            id="cleared results begin a conversation without them",
        ),
        pytest.param(
            [asks("go"), says("one"), asks("on", follows=1), says("two")],
            [(["go", "one", "on", "two"], ["one", "two"])],
            id="a turn that only says what it follows changes nothing",
        ),
        pytest.param(
            [asks("go"), says("one", repeats=True), asks("on"), says("two")],
            [(["go", "one", "on", "two"], ["two"])],
            id="repeated turns are context only",
        ),
        pytest.param([asks("go"), says("one", repeats=True)], [], id="nothing but repeated turns"),
    ],
)
def test_a_trace_becomes_the_conversations_that_the_model_saw(turns: list[Turn], expected: Any) -> None:
    assert shape(turns) == expected


def test_lost_beginnings_and_lost_results_are_filled_in() -> None:
    turns = [says("one", "c1"), asks("on"), says("two")]
    (only,) = conversations(turns)
    assert [message["content"] for message in only.messages] == [EARLIER, "one", NO_RESULT, "on", "two"]
    assert only.turns == [None, 0, None, 1, 2]
    assert only.learned == [1, 4]
