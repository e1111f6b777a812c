"""What is read from a response: money that a failure cost, and errors without the key."""

from __future__ import annotations

import json
from typing import Any

import pytest

from composer_replication.teacher_replay.client import CallFailedError, _reply, without_key
from composer_replication.teacher_replay.teachers import resolve_teachers
from composer_replication.traces import ToolCall, Turn

KEY = "sk-proj-ABCDEFGHIJKLMNOPQRSTUVWX"


@pytest.fixture
def teacher(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("A_KEY", KEY)
    return resolve_teachers([{"slug": "t", "base_url": "http://127.0.0.1:9/v1", "api_key_variable": "A_KEY"}])[0]


def response(**fields: Any) -> bytes:
    choice = {"message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}
    return json.dumps({"choices": [choice], **fields}).encode()


def test_what_a_failure_was_billed_is_not_lost(teacher: Any) -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "cost": 3.5}
    with pytest.raises(CallFailedError) as raised:
        _reply(json.dumps({"choices": [], "usage": usage}).encode(), 0.0, teacher, {})
    assert (raised.value.billed, raised.value.report.cost_usd) == ("yes", 3.5)
    with pytest.raises(CallFailedError) as raised:
        _reply(response(error={"code": 502, "message": "it broke"}, usage=usage), 0.0, teacher, {})
    assert (raised.value.billed, raised.value.report.cost_usd, raised.value.retry) == ("yes", 3.5, True)
    with pytest.raises(CallFailedError) as raised:
        _reply(response(error={"code": 429, "message": "later"}), 0.0, teacher, {})
    assert raised.value.billed == "no"


def test_a_reply_is_a_turn_with_numbered_calls(teacher: Any) -> None:
    """Its thinking and calls may also be in its text, in the form of `render_action`."""
    given = [ToolCall("chatcmpl-7", "Read", {"path": "ü"}), ToolCall("toolu_9", "Bash", {}, '{"command": "l')]
    text = '[THINKING]\nhm\n[/THINKING]\nSo:\n[TOOL_USE] name=Grep input={"pattern": "x"}'
    message = {"content": text, "tool_calls": [call.message() for call in given], "reasoning_content": "left out"}
    reply = _reply(json.dumps({"choices": [{"message": message}]}).encode(), 0.0, teacher, {})
    assert reply.turn == Turn(
        "assistant",
        "So:",
        thinking="hm",
        tool_calls=[
            ToolCall("call_0", "Grep", {"pattern": "x"}),
            ToolCall("call_1", "Read", {"path": "ü"}),
            ToolCall("call_2", "Bash", {}, '{"command": "l'),
        ],
    )


@pytest.mark.parametrize(
    "shown",
    [
        f"wrong key {KEY}.",
        "wrong key sk-proj-ABCDEF*****STUVWX.",
        f"wrong key {KEY[:18]}\n{KEY[18:]}.",
        f"wrong key {KEY[3:]}{KEY}.",
    ],
)
def test_no_piece_of_the_key_is_shown(shown: str, teacher: Any) -> None:
    line = without_key(shown, teacher)
    assert line.startswith("wrong key [key]")
    assert line.endswith(".")
    assert not any(KEY[start : start + 4] in line for start in range(len(KEY) - 3))


def test_an_error_without_a_key_stays_as_it_is() -> None:
    (teacher,) = resolve_teachers([{"slug": "t", "base_url": "http://127.0.0.1:9/v1"}])
    assert without_key("a\n b", teacher) == "a b"
