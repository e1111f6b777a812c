"""Pairs beside rollouts: the same tools and system prompt, or a word about what differs."""

from __future__ import annotations

from typing import Any

import pytest

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
