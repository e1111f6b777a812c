"""Pairs in TRL's conversational preference format: real messages, in which a chat template finds the tool calls."""

from __future__ import annotations

from typing import Any

from composer_replication.histories import assistant_message
from composer_replication.teacher_replay.records import DPOPair
from composer_replication.traces import Message, parse_action, parse_arguments


def preference_row(pair: DPOPair) -> dict[str, Any]:
    """`prompt`, `chosen` and `rejected` as lists of messages, and `tools` if the pair has them.

    Arguments of tool calls are objects, not JSON text: chat templates write them out as they are, and would quote a
    text once more. Arguments that are no JSON object stay as the text they are.
    """
    row: dict[str, Any] = {
        "prompt": [message_for_templates(message) for message in pair["state_messages"]],
        "chosen": [action_message(pair["chosen"])],
        "rejected": [action_message(pair["rejected"])],
    }
    # Some templates take an empty list for tools that are there.
    if pair.get("tools"):
        row["tools"] = pair["tools"]
    return row


def action_message(action: str) -> Message:
    """An action as the assistant message that it is, without thinking."""
    return message_for_templates(assistant_message(parse_action(action)))


def message_for_templates(message: Message) -> Message:
    """A message in OpenAI's form with its calls' arguments as objects, or as the text they are if they are none."""
    calls = message.get("tool_calls")
    if not calls:
        # A template that looks for the key would find calls in an empty list.
        return {key: value for key, value in message.items() if key != "tool_calls"}
    return {**message, "tool_calls": [_call(call) for call in calls]}


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments, raw = parse_arguments(function.get("arguments"))
    return {**call, "function": {**function, "arguments": arguments if raw is None else raw}}
