"""Messages of smolagents, which tells a model of its calls and of their results in texts.

A message of the role `tool-call` has the calls as Python prints them, one of the role `tool-response` names the call in
its first line. The calls of an agent that writes code are read in its answer: `repeats_answer` knows it again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from composer_replication.ingestion.loose_json import fields, python_literal, text_at
from composer_replication.ingestion.otel.messages import Message, text_of

_CALLING = "Calling tools:\n"
_RESULT = re.compile(r"(?:Call id: (\S+)\n)?(?=(Error:\n)|Observation:\n)")
_LONGEST_STOP = 16


def as_openai(message: Any) -> Any:
    """A message of smolagents in OpenAI's form; any other as it is."""
    role = message.get("role") if isinstance(message, Mapping) else None
    if role not in ("tool-call", "tool-response"):
        return message
    text = text_of(message.get("content"))
    if role == "tool-call":
        calls = python_literal(text[len(_CALLING) :]) if text.startswith(_CALLING + "[") else None
        if calls and all(text_at(fields(fields(call).get("function")), "name") for call in calls):
            return {"role": "assistant", "tool_calls": [_with_code(call) for call in calls]}
        return {"role": "assistant", "content": text}
    found = _RESULT.match(text)
    if found is None:
        return {"role": "tool", "content": text}
    failed = found[2] is not None
    if failed and not found[1]:
        return {"role": "user", "content": text}  # the agent found no call in the answer
    return {"role": "tool", "content": text[found.end() :], "tool_call_id": found[1], "is_error": failed}


def _with_code(call: dict[str, Any]) -> dict[str, Any]:
    """Code stands alone where other tools have their arguments."""
    code = call["function"].get("arguments")
    if call["function"]["name"] != "python_interpreter" or not isinstance(code, str):
        return call
    return {**call, "function": {**call["function"], "arguments": {"code": code}}}


def repeats_answer(answer: Message, later: Message) -> bool:
    """Whether a prompt has an answer with the stop sequence that ended it, and with the calls that were read in it."""
    text = answer.content.strip()
    return (
        bool(text and later.calls and not answer.calls)
        and later.role == answer.role == "assistant"
        and later.content.startswith(text)
        and len(later.content) - len(text) <= _LONGEST_STOP
    )
