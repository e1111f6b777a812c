"""The pieces of messages in OpenAI's forms."""

from __future__ import annotations

from typing import Any

import pytest

from composer_replication.ingestion.chat_messages import call_of, text_of, thinking_of
from composer_replication.traces import ToolCall


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ("a", "a"),
        (["a", {"type": "text", "text": "b"}, {"type": "text", "text": ""}], "a\nb"),
        ({"type": "tool_result", "content": [{"text": "c"}]}, "c"),
        ([{"type": "image_url", "image_url": {"url": "u"}}], "[image]"),
        ([{"type": "image", "source": {"path": "p.png"}}], "[image: p.png]"),
        ([{"type": "thinking", "thinking": "t"}, {"type": "tool_use", "id": "c"}, "a"], "a"),
        ({"rows": 2}, '{"rows": 2}'),
        (7, "7"),
        ([[[[[["deep"]]]]]], "[content]"),
    ],
)
def test_text_of_content(content: Any, text: str) -> None:
    assert text_of(content) == text


@pytest.mark.parametrize(
    "message",
    [
        {"reasoning_content": "a"},
        {"thinking": "a"},
        {"reasoning_details": [{"type": "reasoning.text", "text": "a"}]},
        {"thinking_blocks": [{"type": "thinking", "thinking": "a"}, {"type": "redacted_thinking", "data": "x"}]},
        {"content": [{"type": "reasoning_text", "text": "a"}, {"type": "text", "text": "b"}]},
    ],
)
def test_thinking(message: dict[str, Any]) -> None:
    assert thinking_of(message) == "a"


@pytest.mark.parametrize(
    "given",
    [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
        {"id": "item", "call_id": "c", "type": "function_call", "name": "f", "arguments": '{"a": 1}'},
        {"id": "c", "type": "tool_use", "name": "f", "input": {"a": 1}},
        {"tool_call_id": "c", "function_name": "f", "arguments": {"a": 1}},
    ],
)
def test_calls(given: dict[str, Any]) -> None:
    assert call_of(given, "made up") == ToolCall(id="c", name="f", arguments={"a": 1})


def test_a_call_of_nothing() -> None:
    assert call_of(None, "made up") == ToolCall(id="made up", name="")
