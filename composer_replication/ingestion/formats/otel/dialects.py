"""The messages of a model call, in each family of attribute names.

The GenAI conventions have them as JSON (before that as span events), OpenLLMetry and OpenInference as numbered
attributes (`gen_ai.prompt.0.role`, `llm.input_messages.0.message.role`). A span may speak several of them; the first
that has messages is taken. What comes out are JSON messages of the shapes that `read_message` takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from composer_replication.ingestion.formats.otel.messages import REDACTED, Message, content_parts, read_message, text_of
from composer_replication.ingestion.formats.otel.spans import Attributes, Event, items_at, look, number_at, text_at
from composer_replication.ingestion.log_file import UNREADABLE
from composer_replication.ingestion.loose_json import decoded, items, objects
from composer_replication.traces import Role


class BadJsonError(Exception):
    """An attribute that should hold JSON does not: most often a limit on its length cut it."""


def given_messages(attributes: Attributes, events: list[Event]) -> list[Any]:
    """The prompt, without the system instructions, which are recorded apart."""
    return _recorded("input", "prompt", "llm.prompts", attributes, events)


def answer_messages(attributes: Attributes, events: list[Event]) -> tuple[list[Any], int]:
    """The answer, and how many further choices there were beside it."""
    return _first_choice(attributes, _recorded("output", "completion", "llm.choices", attributes, events))


def system_instructions(attributes: Attributes) -> Message | None:
    """The system message that the GenAI conventions keep apart from the prompt."""
    value = look(attributes, "gen_ai.system_instructions")
    if value is None or value == "":
        return None
    inner = decoded(value)
    if inner is UNREADABLE or not isinstance(inner, list | dict):
        return Message("system", text_of(value))
    parts = inner if isinstance(inner, list) else [inner]
    message = read_message({"role": "system", "parts": parts}, "system")[-1]
    return message if message.content else None


def _json_messages(value: Any) -> list[Any]:
    """Messages that are JSON text or already a value: a list, one message, or an object around a list."""
    if value is None or value == REDACTED:
        return []
    value = decoded(value)
    if value is UNREADABLE:
        raise BadJsonError
    if isinstance(value, dict):
        inside = value.get("messages")
        return inside if isinstance(inside, list) else [value]
    return items(value)


def _openinference(message: Any) -> dict[str, Any]:
    content = look(message, "message.content")
    if content in (None, ""):
        parts = [_openinference_part(one) for one in items_at(message, "message.contents")]
        content = [part for part in parts if part is not None] or content
    calls = [
        {
            "id": look(call, "tool_call.id"),
            "name": look(call, "tool_call.function.name"),
            "arguments": look(call, "tool_call.function.arguments"),
        }
        for call in items_at(message, "message.tool_calls")
    ]
    name = text_at(message, "message.function_call_name")
    if name:
        calls.append({"name": name, "arguments": look(message, "message.function_call_arguments_json")})
    return {
        "role": look(message, "message.role"),
        "content": content,
        "tool_calls": calls,
        "tool_call_id": look(message, "message.tool_call_id"),
        "name": look(message, "message.name"),
    }


def _openinference_part(part: Any) -> dict[str, Any] | None:
    kind = text_at(part, "message_content.type") or "text"
    if kind == "tool_use":  # also among the message's tool calls
        return None
    return {"type": kind, "text": look(part, "message_content.text")}


def _openllmetry(message: Any) -> Any:
    if not isinstance(message, dict):
        return message
    calls = items_at(message, "tool_calls")
    function = look(message, "function_call")
    return {
        "role": message.get("role"),
        "content": content_parts(look(message, "content")),
        "tool_calls": [*calls, *([function] if isinstance(function, dict) else [])],
        "tool_call_id": message.get("tool_call_id"),
        "name": message.get("name"),
        "reasoning": message.get("reasoning"),
        "finish_reason": message.get("finish_reason"),
    }


_EVENT_ROLES: dict[str, Role] = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}


def _events_of(attributes: Attributes, events: list[Event]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The older conventions' events, on the span or, as Pydantic AI wrote them, in an attribute named `events`."""
    for body in objects(decoded(look(attributes, "events"))):
        if isinstance(body.get("event.name"), str):
            yield body["event.name"], body
    for name, attributes_and_body in events:
        if not name.startswith("gen_ai."):
            continue
        content = look(attributes_and_body, "gen_ai.event.content")
        inner = decoded(content)
        if isinstance(inner, dict):
            yield name, inner
        else:
            yield name, {"content": content, **attributes_and_body} if content is not None else attributes_and_body


def _given_by_events(attributes: Attributes, events: list[Event]) -> list[Any]:
    given: list[Any] = []
    answered = False
    for name, body in _events_of(attributes, events):
        answered = answered or name in ("gen_ai.choice", "gen_ai.content.completion")
        if name in _EVENT_ROLES:
            given.append(_event_message(body, _EVENT_ROLES[name]))
        elif name == "gen_ai.content.prompt":
            given += _text_or_messages(look(body, "gen_ai.prompt"))
    if not answered and given and given[-1].get("role") == "assistant":
        del given[-1]
    return given


def _answered_by_events(attributes: Attributes, events: list[Event]) -> list[Any]:
    choices: list[Any] = []
    last: tuple[str, dict[str, Any]] | None = None
    for name, body in _events_of(attributes, events):
        if name == "gen_ai.choice":
            given = body.get("message", body)
            inner = decoded(given)
            message = inner if isinstance(inner, dict) else {"content": given}
            choices.append({**_event_message(message, "assistant"), "index": body.get("index")})
        elif name == "gen_ai.content.completion":
            choices += _text_or_messages(look(body, "gen_ai.completion"))
        last = name, body
    if not choices and last is not None and last[0] == "gen_ai.assistant.message":
        return [_event_message(last[1], "assistant")]
    return choices


def _event_message(body: dict[str, Any], role: Role) -> dict[str, Any]:
    named = body.get("role")
    calls = decoded(body.get("tool_calls"))
    return {
        **body,
        "role": named if isinstance(named, str) else role,
        "content": content_parts(body.get("content")),
        "tool_calls": calls if isinstance(calls, list) else None,
        "tool_call_id": body.get("tool_call_id") or body.get("id"),
    }


def _text_or_messages(value: Any) -> list[Any]:
    """An attribute that holds messages as JSON, or one text."""
    messages = _messages_in(decoded(value))
    if messages is not None:
        return messages
    return [{"content": value}] if isinstance(value, str) and value not in ("", REDACTED) else []


def _messages_in(value: Any) -> list[Any] | None:
    """The messages in a request or a response of a model's interface, or None."""
    if isinstance(value, dict):
        choices = value.get("choices")
        if isinstance(choices, list):
            return [one["message"] for one in objects(choices) if isinstance(one.get("message"), dict)]
        if isinstance(value.get("messages"), list):
            return _messages_in(value["messages"])
        return [value] if isinstance(value.get("role"), str) and ("content" in value or "parts" in value) else None
    if isinstance(value, list) and value and all(isinstance(one, dict) and "role" in one for one in value):
        return value
    return None


def _values(attributes: Attributes, side: str) -> list[Any]:
    """OpenInference's plain `input.value`: a request as JSON, or a text. JSON of another shape says nothing certain."""
    value = look(attributes, f"{side}.value")
    inner = decoded(value)
    messages = _messages_in(inner)
    if messages is not None:
        return messages
    is_json = isinstance(inner, dict | list) or "json" in (text_at(attributes, f"{side}.mime_type") or "")
    return [] if is_json else _text_or_messages(value)


def _recorded(side: str, kind: str, listed: str, attributes: Attributes, events: list[Event]) -> list[Any]:
    """The messages of one side of a call, in the first dialect that has any."""
    by_events = _given_by_events if side == "input" else _answered_by_events
    dialects: tuple[Callable[[], list[Any]], ...] = (
        lambda: _json_messages(look(attributes, f"gen_ai.{side}.messages")),
        lambda: [_openinference(one) for one in items_at(attributes, f"llm.{side}_messages")],
        lambda: [_openllmetry(one) for one in items_at(attributes, f"gen_ai.{kind}")],
        lambda: by_events(attributes, events),
        lambda: _text_or_messages(look(attributes, f"gen_ai.{kind}")),
        lambda: [{"content": look(one, f"{kind}.text")} for one in objects(items_at(attributes, listed))],
        lambda: _values(attributes, side),
    )
    return next((messages for dialect in dialects if (messages := dialect())), [])


def _first_choice(attributes: Attributes, answer: list[Any]) -> tuple[list[Any], int]:
    """The first of several choices, and how many others there were. The items of one answer stay together."""
    parameters = decoded(look(attributes, "llm.invocation_parameters"))
    wanted = parameters.get("n") if isinstance(parameters, dict) else None
    ends = [one for one in objects(answer) if one.get("finish_reason")]
    indices = {one.get("index") for one in objects(answer) if isinstance(one.get("index"), int)}
    if len(indices) > 1:
        first = min(index for index in indices if isinstance(index, int))
        kept = [one for one in objects(answer) if one.get("index") in (first, None)]
        return kept, len(indices) - 1
    several = number_at(attributes, "gen_ai.request.choice.count") > 1 or (isinstance(wanted, int) and wanted > 1)
    if len(answer) > 1 and (several or len(ends) > 1):
        return answer[:1], len(answer) - 1
    return answer, 0
