"""Calls and results of chats, in every form and order that logs have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from composer_replication.ingestion import IngestionStats, read_traces
from composer_replication.ingestion.chat_conversation import OpenCalls, distinct_id
from composer_replication.traces import ToolCall, Turn


def test_an_id_that_is_taken_gets_a_number() -> None:
    assert distinct_id("c", ()) == "c"
    assert distinct_id("c", ("c", "c#2")) == "c#3"


def test_a_result_goes_to_the_latest_call_of_its_id() -> None:
    calls = OpenCalls()
    for expected in ("c", "c#2"):
        turn = Turn(role="assistant", tool_calls=[ToolCall(id="c", name="f")])
        calls.made(turn)
        assert turn.tool_calls[0].id == expected
        assert calls.answered("c") == expected
    assert calls.waiting == []
    assert calls.answered("c") == "c#2"
    assert calls.answered("unknown") == "unknown"
    assert calls.answered(None) is None


Message = dict[str, Any]
CALL = {"name": "read", "arguments": {"path": "a.py"}}


def read(directory: Path, *messages: Any, name: str = "messages") -> tuple[list[Turn], IngestionStats]:
    path = directory / "log.jsonl"
    path.write_text(json.dumps({name: list(messages)}) + "\n")
    stats = IngestionStats()
    (trace,) = read_traces(path, stats=stats)
    list(trace.states())
    json.dumps(trace.example())
    return trace.turns, stats


def said(*parts: Any, role: str = "assistant") -> Message:
    return {"role": role, "content": list(parts)}


def part(kind: str, value: Any, **more: Any) -> Message:
    return {"type": kind, "value": value, **more}


ASKED = said(part("text", "Fix a.py"), role="user")
AGREED = {"n_tool_use_blocks": 1, "n_tool_results": 1, "results_without_call": 0, "calls_without_result": 0}


def agree(stats: IngestionStats) -> None:
    assert {name: getattr(stats, name) for name in AGREED} == AGREED
    assert not stats.skipped


CALLS = ("tool_call", "tool-call", "tool_use", "function_call", "tool_calls", "function")
RESULTS = ("tool_result", "tool-result", "tool_response", "tool_output", "observation", "function_response")


@pytest.mark.parametrize(
    "value",
    [
        CALL,
        json.dumps(CALL),
        str(CALL),
        [CALL],
        json.dumps([CALL]),
        {"name": "read", "input": {"path": "a.py"}},
        {"name": "read", "args": {"path": "a.py"}},
        {"name": "read", "parameters": {"path": "a.py"}},
        {"type": "function", "function": {"name": "read", "arguments": '{"path": "a.py"}'}},
    ],
)
def test_calls_under_a_value(tmp_path: Path, value: Any) -> None:
    for kind in CALLS:
        turns, stats = read(
            tmp_path,
            ASKED,
            said(part("reasoning", "Look first."), part("text", "I read it."), part(kind, value)),
            said(part("text", "x = 1"), role="tool"),
        )
        assert [turn.role for turn in turns] == ["user", "assistant", "tool"]
        assert (turns[0].content, turns[1].content, turns[1].thinking) == ("Fix a.py", "I read it.", "Look first.")
        assert [(call.name, call.arguments) for call in turns[1].tool_calls] == [("read", {"path": "a.py"})]
        assert (turns[2].tool_call_id, turns[2].content) == (turns[1].tool_calls[0].id, "x = 1")
        agree(stats)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x = 1", "x = 1"),
        ({"tool_call_id": "c1", "name": "read", "output": "x = 1"}, "x = 1"),
        ({"id": "c1", "name": "read", "content": "x = 1"}, "x = 1"),
        ({"tool_use_id": "c1", "content": [part("text", "x ="), part("text", "1")]}, "x =\n1"),
        ({"rows": 2}, '{"rows": 2}'),
        ({"id": "7", "name": "bob"}, '{"id": "7", "name": "bob"}'),
        ({"id": "7", "result": "x", "size": 3}, '{"id": "7", "result": "x", "size": 3}'),
        ({"status": "ok", "result": 5}, '{"status": "ok", "result": 5}'),
        ({"type": "number", "value": 5}, '{"type": "number", "value": 5}'),
        ([{"key": "a", "value": "b"}], '{"key": "a", "value": "b"}'),
        (["a", part("text", "b"), 7], "a\nb\n7"),
        ([part("text", "x"), {"type": "text", "text": "y"}], "x\ny"),
        (7, "7"),
        (None, ""),
        ("", ""),
    ],
)
@pytest.mark.parametrize("role", ["user", "tool", "ipython"])
def test_results_under_a_value(tmp_path: Path, value: Any, text: str, role: str) -> None:
    called = said(part("tool_call", {**CALL, "id": "c1"}))
    for kind in RESULTS:
        turns, stats = read(tmp_path, ASKED, called, said(part(kind, value), role=role))
        assert [turn.role for turn in turns] == ["user", "assistant", "tool"]
        assert (turns[2].tool_call_id, turns[2].content, turns[2].is_error) == ("c1", text, False)
        agree(stats)


@pytest.mark.parametrize(
    "value",
    [
        {"tool_call_id": "c1", "content": "no such file", "is_error": True},
        {"tool_call_id": "c1", "content": "no such file", "status": "error"},
        {"stdout": "no such file", "exit_code": 1},
        '{"stderr": "no such file", "returncode": 1}',
    ],
)
def test_results_that_failed(tmp_path: Path, value: Any) -> None:
    called = said(part("tool_call", {**CALL, "id": "c1"}))
    turns, stats = read(tmp_path, called, said(part("tool_result", value), role="tool"))
    assert turns[1].is_error
    assert turns[0].tool_error is not None
    assert "no such file" in turns[1].content
    agree(stats)


def test_results_find_their_calls(tmp_path: Path) -> None:
    """By the id of the part or of its message, else in their order."""
    two = [part("tool_call", {**CALL, "name": name}, id=name) for name in "ab"]
    given = [part("tool_result", "of b", tool_call_id="b"), part("tool_result", "of a", tool_use_id="a")]
    for results in (
        [said(*given, role="tool")],
        [said(one, role="tool") for one in given],
        [said(*given, role="user")],
    ):
        turns, _ = read(tmp_path, said(*two), *results)
        assert [(turn.tool_call_id, turn.content) for turn in turns[1:]] == [("a", "of a"), ("b", "of b")]
    last = {**said(part("tool_result", "of b"), role="tool"), "tool_call_id": "b", "is_error": True}
    turns, _ = read(tmp_path, said(*two), last)
    assert (turns[1].tool_call_id, turns[1].is_error) == ("b", True)
    plain = [part("tool_result", "first"), part("tool_result", "second")]
    turns, _ = read(tmp_path, said(*two), said(*plain, role="tool"))
    assert [turn.content for turn in turns[1:]] == ["first", "second"]


def test_parts_of_the_ai_sdk(tmp_path: Path) -> None:
    call = {"type": "tool-call", "toolCallId": "c1", "toolName": "read", "input": {"path": "a.py"}}
    older = {"type": "tool-call", "toolCallId": "c2", "toolName": "read", "args": {"path": "b.py"}}
    outputs = [part("json", {"x": 1}), part("error-text", "no such file")]
    results = [
        {"type": "tool-result", "toolCallId": one, "toolName": "read", "output": output}
        for one, output in zip(("c1", "c2"), outputs, strict=True)
    ]
    turns, stats = read(
        tmp_path,
        {"role": "user", "content": "Fix a.py"},
        said({"type": "reasoning", "text": "Look."}, {"type": "text", "text": "I read."}, call, older),
        said(*results, role="tool"),
    )
    assert [call.arguments for call in turns[1].tool_calls] == [{"path": "a.py"}, {"path": "b.py"}]
    told = [(turn.tool_call_id, turn.content, turn.is_error) for turn in turns[2:]]
    assert told == [("c1", '{"x": 1}', False), ("c2", "no such file", True)]
    assert (turns[1].content, turns[1].thinking, stats.skipped) == ("I read.", "Look.", {})


def used(call_id: str, name: str, state: str, **more: Any) -> Message:
    return {"type": f"tool-{name}", "toolCallId": call_id, "state": state, **more}


def invoked(call_id: str, **more: Any) -> Message:
    invocation = {"toolCallId": call_id, "toolName": "read", "args": {"path": "a.py"}, **more}
    return {"type": "tool-invocation", "toolInvocation": invocation}


@pytest.mark.parametrize(
    ("tool_part", "text", "failed"),
    [
        (invoked("c1", state="result", result="x = 1"), "x = 1", False),
        (invoked("c1", state="result", result={"rows": 2}), '{"rows": 2}', False),
        (invoked("c1", state="result", result={"exitCode": 1}), '{"exitCode": 1}', True),
        (invoked("c1", state="error", result="no such file"), "no such file", True),
        (invoked("c1", state="result"), "", False),
        (used("c1", "read", "output-available", input={"path": "a.py"}, output="x = 1"), "x = 1", False),
        (used("c1", "read", "output-available", input={"path": "a.py"}, output=False), "false", False),
        (used("c1", "read", "output-error", input={"path": "a.py"}, errorText="no such file"), "no such file", True),
        (used("c1", "read", "output-error", rawInput={"path": "a.py"}, errorText="bad input"), "bad input", True),
        (
            {**used("c1", "", "output-available", input={"path": "a.py"}, output=1), "type": "dynamic-tool"}
            | {"toolName": "read"},
            "1",
            False,
        ),
    ],
)
def test_ui_messages_of_the_ai_sdk(tmp_path: Path, tool_part: Message, text: str, failed: bool) -> None:
    texts = [{"type": "text", "text": one} for one in ("I look.", "Done.")]
    thought = {"type": "reasoning", "reasoning": "Hm."}
    parts = [{"type": "step-start"}, thought, texts[0], tool_part, {"type": "step-start"}, texts[1]]
    for beside in ({}, {"content": ""}, {"content": None}, {"content": "I look.Done."}):
        turns, stats = read(
            tmp_path,
            {"role": "user", "parts": [{"type": "text", "text": "Fix a.py"}]},
            {"id": "m1", "role": "assistant", "parts": parts, **beside},
        )
        assert [(turn.role, turn.content, turn.thinking) for turn in turns] == [
            ("user", "Fix a.py", ""),
            ("assistant", "I look.", "Hm."),
            ("tool", text, ""),
            ("assistant", "Done.", ""),
        ]
        (call,) = turns[1].tool_calls
        assert (call.id, call.name, call.arguments) == ("c1", "read", {"path": "a.py"})
        assert (turns[2].tool_call_id, turns[2].is_error) == ("c1", failed)
        agree(stats)


def test_calls_of_one_step_are_one_turn(tmp_path: Path) -> None:
    a, b, c = (used(one, "read", "output-available", input={}, output=f"of {one}") for one in "abc")
    older = [
        invoked(one, state="result", result=f"of {one}", step=step) for one, step in zip("abc", (0, 0, 1), strict=True)
    ]
    for parts in ([a, b, {"type": "step-start"}, c], older):
        turns, _ = read(tmp_path, ASKED, {"role": "assistant", "parts": parts})
        assert [(turn.role, turn.content, len(turn.tool_calls)) for turn in turns[1:]] == [
            ("assistant", "", 2),
            ("tool", "of a", 0),
            ("tool", "of b", 0),
            ("assistant", "", 1),
            ("tool", "of c", 0),
        ]


def test_tool_invocations_beside_the_content(tmp_path: Path) -> None:
    """Before UI messages had parts; those that have both have each call twice."""
    part_of = invoked("c1", state="result", result="x = 1")
    for parts in ({}, {"parts": []}, {"parts": [{"type": "text", "text": "I look."}, part_of]}):
        message = {"role": "assistant", "content": "I look.", "toolInvocations": [part_of["toolInvocation"]], **parts}
        turns, stats = read(tmp_path, ASKED, message)
        assert [(turn.role, turn.content) for turn in turns[1:]] == [("assistant", "I look."), ("tool", "x = 1")]
        agree(stats)


@pytest.mark.parametrize("state", ["partial-call", "call", "input-available", "output-denied", "odd"])
def test_a_call_of_the_ai_sdk_that_has_no_result(tmp_path: Path, state: str) -> None:
    for one in (invoked("c1", state=state), used("c1", "read", state, input={"path": "a.py"})):
        turns, stats = read(tmp_path, ASKED, {"role": "assistant", "content": "I look.", "parts": [one]})
        assert [(turn.role, turn.content) for turn in turns[1:]] == [("assistant", "I look.")]
        assert [call.arguments for call in turns[1].tool_calls] == [{"path": "a.py"}]
        assert (stats.calls_without_result, stats.skipped) == (1, {})


def test_parts_of_ui_messages_that_are_unknown_are_counted(tmp_path: Path) -> None:
    odd = [
        {"type": "data-weather", "data": {"t": 1}},
        {"type": "tool-invocation", "toolInvocation": 7},
        {"type": "tool-read", "state": "output-available"},
        {"type": "tool-invocation", "toolInvocation": {"toolCallId": "c1", "state": "call"}},
        {"type": "dynamic-tool", "toolCallId": "c2", "state": "input-available"},
        {"text": "b"},
    ]
    turns, stats = read(tmp_path, ASKED, {"role": "assistant", "content": "", "parts": [*odd, part("text", "a")]})
    assert turns[1].content == "[data-weather]\n[tool-invocation]\n[tool-read]\nb\na"
    expected = {"part: data-weather": 1, "part: tool-invocation": 1, "part: tool-read": 1, "not a tool call": 2}
    assert stats.skipped == expected


def test_parts_of_no_type_do_not_replace_the_content(tmp_path: Path) -> None:
    for odd in (7, "x", [], [7], ["x"], [{"text": "b"}], {"type": "text"}, None):
        turns, stats = read(tmp_path, ASKED, {"role": "assistant", "content": "a", "parts": odd})
        assert (turns[1].content, stats.skipped) == ("a", {})


def test_a_part_without_its_list(tmp_path: Path) -> None:
    turns, stats = read(
        tmp_path,
        {"role": "user", "content": part("text", "Fix a.py")},
        {"role": "assistant", "content": part("tool_call", CALL)},
        {"role": "tool", "content": part("tool_result", "x = 1")},
        {"role": "assistant", "content": {"type": "thinking", "thinking": "Hm."}},
        {"role": "assistant", "content": {"type": "text", "text": "Done."}},
    )
    assert [(turn.role, turn.content, turn.thinking) for turn in turns] == [
        ("user", "Fix a.py", ""),
        ("assistant", "", ""),
        ("tool", "x = 1", ""),
        ("assistant", "", "Hm."),
        ("assistant", "Done.", ""),
    ]
    agree(stats)
    turns, stats = read(tmp_path, ASKED, {"role": "assistant", "content": {"type": "odd", "data": 1}})
    assert (turns[1].content, stats.skipped) == ("[odd]", {"part: odd": 1})


@pytest.mark.parametrize(
    ("content", "text", "failed"),
    [
        ({"type": "run", "exit_code": 1}, '{"type": "run", "exit_code": 1}', True),
        ({"type": "run", "output": "x = 1"}, "x = 1", False),
        ({"type": "text", "text": "x = 1"}, "x = 1", False),
        ({"type": "text", "value": "x = 1"}, "x = 1", False),
        ({"type": "image", "data": "iVBO"}, "[image]", False),
        ({"type": "audio", "data": "iVBO"}, "[audio]", False),
        (part("tool_response", "x = 1"), "x = 1", False),
    ],
)
def test_an_object_that_a_tool_returned(tmp_path: Path, content: Message, text: str, failed: bool) -> None:
    turns, stats = read(tmp_path, said(part("tool_call", CALL)), {"role": "tool", "content": content})
    assert (turns[1].content, turns[1].is_error) == (text, failed)
    agree(stats)


@pytest.mark.parametrize(
    ("more", "text", "failed"),
    [
        ({"result": "x = 1"}, "x = 1", False),
        ({"result": "x = 1", "isError": True}, "x = 1", True),
        ({"content": "x = 1", "state": "error"}, "x = 1", True),
        ({"output": part("content", [{"type": "text", "text": "x"}, part("text", "y")])}, "x\ny", False),
        ({"output": part("error-json", {"a": 1})}, '{"a": 1}', True),
        ({"output": "x = 1", "providerOptions": {}, "input": {"a": 1}}, "x = 1", False),
        ({"text": "x = 1"}, "x = 1", False),
    ],
)
def test_results_beside_their_type(tmp_path: Path, more: Message, text: str, failed: bool) -> None:
    result = {"type": "tool-result", "toolCallId": "c1", "toolName": "read", **more}
    turns, stats = read(tmp_path, said(part("tool-call", {**CALL, "id": "c1"})), said(result, role="tool"))
    assert (turns[1].tool_call_id, turns[1].content, turns[1].is_error) == ("c1", text, failed)
    agree(stats)


def test_a_result_of_an_unknown_form_is_counted(tmp_path: Path) -> None:
    turns, stats = read(tmp_path, ASKED, said({"type": "tool-result", "toolCallId": "c1", "data": 1}, role="tool"))
    assert turns[1].content == "[tool-result]"
    assert stats.skipped == {"part: tool-result": 1}


def test_what_follows_a_result_in_one_message_is_another_turn(tmp_path: Path) -> None:
    turns, stats = read(
        tmp_path,
        {
            **said(
                part("text", "I look."), part("tool_call", CALL), part("tool_result", "x = 1"), part("text", "Done.")
            ),
            "reasoning": "Hm.",
        },
    )
    expected = [("assistant", "I look.", "Hm."), ("tool", "x = 1", ""), ("assistant", "Done.", "")]
    assert [(turn.role, turn.content, turn.thinking) for turn in turns] == expected
    agree(stats)


def test_parts_that_stand_alone(tmp_path: Path) -> None:
    turns, stats = read(
        tmp_path,
        {"role": "user", "content": "Fix a.py"},
        part("tool_call", {**CALL, "id": "c1"}),
        part("tool_output", {"tool_call_id": "c1", "output": "x = 1"}),
        part("text", "who says so?"),
        {"role": "assistant", "content": "Done."},
    )
    assert [turn.role for turn in turns] == ["user", "assistant", "tool", "assistant"]
    assert turns[1].tool_calls[0].arguments == {"path": "a.py"}
    assert stats.skipped == {"item: text": 1}


@pytest.mark.parametrize("payload", [{"value": "v"}, {"value": None}, {"value": {"a": 1}}, {"data": "v"}, {}])
@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_unknown_parts_are_counted_and_named(tmp_path: Path, payload: Message, role: str) -> None:
    for kind in ("odd", "tools", "text_delta"):
        turns, stats = read(tmp_path, ASKED, said({"type": kind, **payload}, part("text", "a"), role=role))
        assert turns[1].content == f"[{kind}]\na"
        assert stats.skipped == {f"part: {kind}": 1}


@pytest.mark.parametrize("kind", ["image_url", "image", "video_url", "audio", "thinking", "input_text", "refusal"])
def test_known_parts_are_not_counted(tmp_path: Path, kind: str) -> None:
    key = kind if kind in ("thinking", "refusal") else "text"
    payload = {"value": "https://example.com/a.png"} if "_url" in kind or kind in ("image", "audio") else {key: "a"}
    turns, stats = read(tmp_path, ASKED, said({"type": kind, **payload}, {"type": "text", "text": "b"}))
    assert turns[1].content.splitlines()[-1] == "b"
    assert "example.com" not in turns[1].content
    assert not stats.skipped


NO_CALLS: list[Any] = [None, 7, True, "", "x", "{", [], [None], [[]], {}, {"name": None}, {"name": 7}, {"function": 7}]


@pytest.mark.parametrize("odd", NO_CALLS)
def test_calls_that_are_none_are_counted(tmp_path: Path, odd: Any) -> None:
    for kind in CALLS:
        mixed = said(part("text", "a"), part(kind, odd)), said(part("text", "b"), part(kind, CALL))
        turns, stats = read(tmp_path, ASKED, *mixed)
        assert [(turn.content, len(turn.tool_calls)) for turn in turns[1:]] == [("a", 0), ("b", 1)]
        assert stats.skipped == {"not a tool call": 1}
    _, stats = read(tmp_path, ASKED, said(part("tool_call", odd)))
    assert stats.skipped == {"not a tool call": 1, "message without content": 1}
    turns, stats = read(tmp_path, ASKED, said(part("tool_calls", [CALL, odd, odd])))
    assert (len(turns[1].tool_calls), stats.skipped) == (1, {"not a tool call": 2})


@pytest.mark.parametrize("odd", [*NO_CALLS, 1.5, [7], {"type": "text"}, {"type": 7, "value": []}])
@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool", "gpt"])
def test_odd_values_never_crash(tmp_path: Path, odd: Any, role: str) -> None:
    for kind in ("text", "reasoning", "tool_result", "observation", "image_url", "odd"):
        parts = said(part(kind, odd), role=role), said(part("text", odd), part(kind, [odd]), role=role)
        turns, stats = read(tmp_path, ASKED, *parts, said(part("text", "b")))
        assert (turns[0].content, turns[-1].content) == ("Fix a.py", "b")
        assert (stats.skipped["part without content"] > 0) == (odd is None)
    turns, _ = read(tmp_path, ASKED, said(part("text", odd), role=role))
    if odd in (7, 1.5, {}, {"name": 7}):
        assert turns[1].content == json.dumps(odd)


def test_a_call_that_is_not_the_assistants_is_counted(tmp_path: Path) -> None:
    for role in ("user", "system", "tool"):
        _, stats = read(tmp_path, ASKED, said(part("text", "a"), part("tool_call", CALL), role=role))
        assert stats.skipped == {"tool call that is not the assistant's": 1}


def test_results_inside_results(tmp_path: Path) -> None:
    deep: Any = "x"
    for _ in range(400):
        deep = [part("tool_result", deep)]
    turns, _ = read(tmp_path, ASKED, said(part("tool_call", CALL)), said(*deep, role="tool"))
    assert [turn.role for turn in turns] == ["user", "assistant", "tool"]


@pytest.mark.parametrize(
    "content", ['{"a": D}', '[{"type": "text", "value": D}]', '[{"type": "tool_result", "value": D}]']
)
def test_values_nested_too_deeply_for_json(tmp_path: Path, content: str) -> None:
    path = tmp_path / "log.jsonl"
    rows = [
        '{"messages": [{"role": "tool", "content": '
        + content.replace("D", '{"a":' * depth + "1" + "}" * depth)
        + "}]}\n"
        for depth in range(880, 990)
    ]
    path.write_text("".join(rows))
    texts = [trace.turns[0].content for trace in read_traces(path)]
    assert all(text == "[content]" or text.startswith('{"a": ') for text in texts)


# ---- ShareGPT


def spoken(*messages: tuple[str, Any]) -> list[Message]:
    return [{"from": who, "value": value} for who, value in messages]


def test_sharegpt_with_parts(tmp_path: Path) -> None:
    turns, stats = read(
        tmp_path,
        *spoken(
            ("human", [part("text", "Fix a.py")]),
            ("gpt", [part("text", "I look."), part("tool_call", json.dumps(CALL))]),
            ("observation", [part("text", "x = 1")]),
        ),
        name="conversations",
    )
    expected = [("user", "Fix a.py"), ("assistant", "I look."), ("tool", "x = 1")]
    assert [(turn.role, turn.content) for turn in turns] == expected
    agree(stats)


@pytest.mark.parametrize(
    "value", [json.dumps(CALL), CALL, str(CALL), json.dumps([CALL]), [CALL], [part("tool_call", CALL)]]
)
def test_sharegpt_function_calls(tmp_path: Path, value: Any) -> None:
    turns, stats = read(tmp_path, *spoken(("human", "go"), ("function_call", value), ("observation", "x = 1")))
    assert turns[1].tool_calls[0].arguments == {"path": "a.py"}
    assert turns[1].content == ""
    agree(stats)


def tagged(*calls: Any) -> str:
    return "\n".join(f"<tool_call>\n{one if isinstance(one, str) else json.dumps(one)}\n</tool_call>" for one in calls)


@pytest.mark.parametrize("who", ["from", "role"])
def test_calls_between_tags(tmp_path: Path, who: str) -> None:
    body = "value" if who == "from" else "content"
    result = '<tool_response>\n{"tool_call_id": "x", "name": "%s", "content": "%s"}\n</tool_response>'
    turns, stats = read(
        tmp_path,
        {who: "user", body: "go"},
        {who: "assistant", body: f"I use <tool_call> now.\n{tagged(CALL, str(CALL | {'name': 'run'}))}\n"},
        {who: "tool", body: (result % ("run", "ran")) + "\n" + (result % ("read", "x = 1"))},
        {who: "assistant", body: tagged(CALL)},
        {who: "tool", body: "<tool_response>plain</tool_response>"},
        {who: "assistant", body: "Done."},
    )
    assert [turn.role for turn in turns] == ["user", "assistant", "tool", "tool", "assistant", "tool", "assistant"]
    assert (turns[1].content, turns[4].content) == ("I use <tool_call> now.", "")
    assert [call.name for call in turns[1].tool_calls] == ["read", "run"]
    assert [turn.content for turn in turns if turn.role == "tool"] == ["x = 1", "ran", "plain"]
    assert (stats.results_without_call, stats.calls_without_result, stats.skipped) == (0, 0, {})


def test_a_tag_without_a_call_before_one_with_it(tmp_path: Path) -> None:
    for other in ("<tool_call>{</tool_call>", tagged([CALL, 7]), "<tool_call>"):
        turns, _ = read(tmp_path, *spoken(("human", "go"), ("gpt", f"So: {other}\n{tagged(CALL)}")))
        assert (turns[1].content, len(turns[1].tool_calls)) == (f"So: {other}", 1)


def test_the_last_call_between_tags_has_no_result(tmp_path: Path) -> None:
    turns, stats = read(tmp_path, *spoken(("human", "go"), ("gpt", tagged(CALL) + "\n")))
    assert (turns[1].tool_calls[0].name, turns[1].content) == ("read", "")
    assert stats.calls_without_result == 1


@pytest.mark.parametrize("value", ["no json", [7], None, "[]"])
def test_sharegpt_function_calls_that_are_none(tmp_path: Path, value: Any) -> None:
    turns, stats = read(tmp_path, *spoken(("human", "go"), ("function_call", value)))
    assert ([turn.role for turn in turns], stats.skipped) == (["user"], {"not a tool call": 1})
    turns, stats = read(tmp_path, *spoken(("human", "go"), ("function_call", [CALL, value])))
    assert (len(turns[1].tool_calls), stats.skipped) == (1, {"not a tool call": 1})


@pytest.mark.parametrize(
    "text", ["<tool_call>{</tool_call>", "<tool_call>{}</tool_call>", "</tool_call>", tagged("read")]
)
def test_tags_without_a_call_stay_text(tmp_path: Path, text: str) -> None:
    turns, stats = read(tmp_path, *spoken(("human", "go"), ("gpt", text), ("tool", "<tool_response>x")))
    assert (turns[1].content, turns[1].tool_calls) == (text, [])
    assert turns[2].content == "<tool_response>x"
    assert stats.skipped == {"not a tool call": 1}


def test_tags_that_are_talked_about_stay_text(tmp_path: Path) -> None:
    """A call ends what the model says; elsewhere only a result shows that a text was taken for one."""
    quoted = f"Write it so:\n{tagged(CALL)}\nand stop."
    turns, _ = read(tmp_path, *spoken(("human", "how?"), ("gpt", quoted), ("human", "thanks")))
    assert (turns[1].content, turns[1].tool_calls) == (quoted, [])
    told = [{"role": "assistant", "content": "How?"}, {"role": "user", "content": tagged(CALL)}]
    turns, _ = read(tmp_path, *told, {"role": "tool", "content": "x"})
    assert [(turn.content, turn.tool_calls) for turn in turns] == [("How?", []), (tagged(CALL), []), ("x", [])]
    both = {"role": "assistant", "content": tagged(CALL), "tool_calls": [{"id": "c1", "function": CALL}]}
    turns, _ = read(tmp_path, both, *({"role": "tool", "tool_call_id": one, "content": "x"} for one in ("c1", "c9")))
    assert (turns[0].content, len(turns[0].tool_calls)) == (tagged(CALL), 1)
    refused = [{"role": "assistant", "content": tagged(CALL)}, {"role": "user", "content": "That is no call."}]
    turns, _ = read(tmp_path, ASKED, *refused)
    assert (turns[1].content, turns[1].tool_calls) == (tagged(CALL), [])
