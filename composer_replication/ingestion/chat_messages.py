"""The pieces of a message in OpenAI's forms, of the chat API and the Responses API: text, thinking, calls."""

from __future__ import annotations

from typing import Any

from composer_replication.ingestion.loose_json import fields, items, name_of, objects, text_at
from composer_replication.ingestion.statistics import IngestionStats
from composer_replication.traces import ToolCall, Turn, dump_json, parse_arguments

THOUGHTS = ("thinking", "reasoning", "reasoning_text", "redacted_thinking", "summary_text")
# Parts of a content that a turn holds elsewhere, or that nobody can read.
_NO_TEXT = (*THOUGHTS, "encrypted_content", "tool_use")
MEDIA = ("image", "audio", "file", "video")
FREEFORM = ("custom", "custom_tool_call")
"""Types of calls that are a text: the chat API's and the Responses API's."""


def text_of(content: Any, *, levels: int = 4) -> str:
    """The text of a message's content: a string, parts, or null. A part that is no text leaves its kind, as `[image]`.

    Thinking and calls among the parts are left out: `thinking_of` and `calls_in` have them. An object of no kind is
    given as JSON, and so is any other value; lists inside more than `levels` others are `[content]`, and so is what is
    nested too deeply for JSON.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return joined([text_of(part, levels=levels - 1) for part in content]) if levels else "[content]"
    return _part_text(content, levels) if isinstance(content, dict) else json_of(content)


def _part_text(part: dict[str, Any], levels: int) -> str:
    kind = text_at(part, "type") or ""
    if kind in _NO_TEXT:
        return ""
    text = next((part[key] for key in ("text", "refusal", "transcript") if isinstance(part.get(key), str)), None)
    if text is not None:
        return str(text)
    if isinstance(part.get("content"), str | list) and levels:
        return text_of(part["content"], levels=levels - 1)
    if not kind:
        return json_of(part)
    named = next((name for name in MEDIA if name in kind), name_of(kind))
    path = fields(part.get("source")).get("path")
    return f"[{named}: {path}]" if isinstance(path, str) else f"[{named}]"


def json_of(value: Any) -> str:
    """What a tool returned, as JSON; `[content]` if it is nested too deeply."""
    try:
        return dump_json(value)
    except RecursionError:
        return "[content]"


def joined(parts: list[str], separator: str = "\n") -> str:
    """Parts on lines of their own, empty ones left out."""
    return separator.join(part for part in parts if part)


def thinking_of(message: dict[str, Any]) -> str:
    """The reasoning in or beside an assistant message, whichever provider's form it has."""
    for key in ("reasoning_content", "reasoning", "thinking"):
        if text_at(message, key):
            return str(message[key])
    return (
        thought_of(message.get("reasoning_details"))
        or thought_of(message.get("thinking_blocks"))
        or thought_of([part for part in objects(message.get("content")) if part.get("type") in THOUGHTS])
    )


def reasoning_of(item: dict[str, Any]) -> str:
    """The text of a reasoning item: the whole of it, else its summary; empty if it is encrypted."""
    return thought_of(item.get("content")) or thought_of(item.get("summary"))


def thought_of(parts: Any) -> str:
    """The text of a string or of parts that hold reasoning; empty for anything else."""
    if isinstance(parts, str):
        return parts
    texts = [
        next((part[key] for key in ("text", "thinking", "summary", "reasoning") if key in part), "")
        if isinstance(part, dict)
        else part
        for part in items(parts)
    ]
    return joined([text for text in texts if isinstance(text, str)], "\n\n")


def calls_in(message: dict[str, Any]) -> list[Any]:
    """The calls of an assistant message as it has them: `tool_calls`, the older `function_call`, Anthropic's parts."""
    calls = items(message.get("tool_calls"))
    if isinstance(message.get("function_call"), dict):
        calls.append(message["function_call"])
    return calls + [part for part in objects(message.get("content")) if part.get("type") == "tool_use"]


def call_id_of(given: Any) -> str | None:
    """The id under which the result of a call will name it."""
    record = fields(given)
    return next((record[key] for key in ("call_id", "id", "tool_call_id") if text_at(record, key)), None)


def call_of(given: Any, fallback_id: str) -> ToolCall:
    """A call, nested under `function` or `custom`, or flat. Its name is empty if the log has none.

    A freeform tool takes a text, such as a patch: it becomes the argument `input`, as where the tool is a function.
    """
    record = fields(given)
    inside = next((record[key] for key in ("function", "custom") if isinstance(record.get(key), dict)), record)
    value = inside.get("arguments", inside.get("input"))
    is_freeform = record.get("type") in FREEFORM and isinstance(value, str)
    arguments, raw = ({"input": value}, None) if is_freeform else parse_arguments(value)
    return ToolCall(
        id=call_id_of(record) or fallback_id,
        name=text_at(inside, "name") or text_at(inside, "function_name") or "",
        arguments=arguments,
        raw_arguments=raw,
    )


def calls_of(given: list[Any], stats: IngestionStats, *, step: int) -> list[ToolCall]:
    """The calls that name a function; the others are counted. `step` names calls without ids."""
    calls = [call_of(one, f"call_{step}_{number}") for number, one in enumerate(given)]
    named = [call for call in calls if call.name]
    if len(named) < len(calls):
        stats.skip("tool call without a name", len(calls) - len(named))
    return named


def assistant_turn(message: dict[str, Any], stats: IngestionStats, *, step: int) -> Turn:
    """An assistant message, of chat completions or of the Responses API, as a turn. `step` names calls without ids."""
    calls = calls_in(message)
    texts = [text_of(message.get("content"))]
    thoughts = [thinking_of(message)]
    for item in items(message.get("output")):
        kind = fields(item).get("type")
        if kind == "message":
            texts.append(text_of(item.get("content")))
        elif kind == "function_call":
            calls.append(item)
        elif kind == "reasoning":
            thoughts.append(reasoning_of(item))
        else:
            stats.skip(f"response item {name_of(kind)}")
    turn = Turn(role="assistant", content=joined(texts), thinking=joined(thoughts))
    turn.tool_calls = calls_of(calls, stats, step=step)
    return turn
