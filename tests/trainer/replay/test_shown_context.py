"""Pairs beside rollouts: the same tools and system prompt, or a word about what differs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers.utils import get_json_schema

from composer_replication.trainer.replay.shown_context import ShownContext, check_shown_context

SYSTEM = {"role": "system", "content": "You are a coding agent."}
USER = {"role": "user", "content": "Read a.py."}


def tool(name: str, description: str = "") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": {}}}


def say(text: str = "", *calls: str) -> list[dict[str, Any]]:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [{"type": "function", "function": {"name": name, "arguments": {}}} for name in calls]
    return [message]


def pair(*tools: dict[str, Any], prompt: Any = (SYSTEM, USER), calls: bool = True) -> dict[str, Any]:
    chosen, rejected = (say("", "read"), say("", "open")) if calls else (say("yes"), say("no"))
    return {"prompt": list(prompt), "chosen": chosen, "rejected": rejected, "tools": list(tools)}


ROLLOUTS = [ShownContext.of([SYSTEM, USER], [tool("read"), tool("open")])]


def test_the_same_context_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    check_shown_context([pair(tool("open"), tool("read"))], ROLLOUTS)
    check_shown_context([pair()], [ShownContext.of([SYSTEM, USER], None)])
    check_shown_context([pair()], [])
    assert caplog.text == ""


def test_tools_in_every_form_and_text_in_parts(caplog: pytest.LogCaptureFixture) -> None:
    def read(path: str) -> str:
        """Read a file.

        Args:
            path: The file.
        """
        return path

    definition = get_json_schema(read)
    properties = definition["function"]["parameters"]["properties"]
    filled = {"function": {**definition["function"], "parameters": {**definition["function"]["parameters"]}}}
    filled["function"]["parameters"]["properties"] = {**properties, "of_another_tool": None}
    system = {"role": "system", "content": [{"type": "text", "text": SYSTEM["content"]}]}
    rollouts = [ShownContext.of([SYSTEM, USER], [definition])]
    for tools in ([read], [definition], [json.dumps(definition)], json.dumps([definition]), [filled]):
        check_shown_context([{**pair(), "prompt": [system, USER], "tools": tools}], rollouts)
    assert caplog.text == ""
    for tools, words in (([5], "not 5"), ("read", "not JSON")):
        with pytest.raises(ValueError, match=f"pair 0: .* {words}"):
            check_shown_context([{**pair(), "tools": tools}], rollouts)


def test_calls_without_definitions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"replay_dataset: 1 of 2 pairs call tools .* rollouts show open, read: put"):
        check_shown_context([pair(tool("read"), tool("open")), pair()], ROLLOUTS)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (pair(tool("bash")), "1 of 1 pairs show other tools than the rollouts (pairs: bash; rollouts: open, read)"),
        (pair(tool("open"), tool("read", "Reads.")), "(the definitions of read differ)"),
        (pair(calls=False), "(pairs: none; rollouts: open, read)"),
        (
            pair(tool("read"), tool("open"), prompt=[USER]),
            "(pairs: none; rollouts: 'You are a coding agent.'): channel 3 trains a context in which",
        ),
    ],
)
def test_what_differs_is_said(given: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture) -> None:
    check_shown_context([given], ROLLOUTS)
    assert words in caplog.text
