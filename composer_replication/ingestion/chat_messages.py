"""The parts of a chat message: text, thinking, calls and results, in OpenAI's, Anthropic's and training sets' forms.

Training sets have a part's payload under `value`, as an object or as its JSON text (Axolotl, LLaMA-Factory). The AI SDK
has other names for the fields, and its UI messages have a call and its result in one part. ShareGPT has calls and
results in texts, between tags.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from composer_replication.ingestion.log_file import UNREADABLE
from composer_replication.ingestion.loose_json import (
    decoded,
    fields,
    first_of,
    items,
    name_of,
    objects,
    python_literal,
    text_at,
)
from composer_replication.ingestion.statistics import IngestionStats
from composer_replication.traces import ToolCall, Turn, dump_json, parse_arguments

THOUGHTS = ("thinking", "reasoning", "reasoning_text", "redacted_thinking", "summary_text")
# Parts of a content that a turn holds elsewhere, or that cannot be read.
_NO_TEXT = (*THOUGHTS, "encrypted_content", "tool_use")
MEDIA = ("image", "audio", "file", "video")
FREEFORM = ("custom", "custom_tool_call")
"""Types of calls that are a text: the chat API's and the Responses API's."""


def text_of(content: Any, *, levels: int = 4) -> str:
    """The text of a message's content: a string, parts, or null. Other parts leave their kind, as `[image]`.

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
    """Return a tool's output as JSON; `[content]` if it is nested too deeply."""
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


NOT_A_CALL = "not a tool call"

_TEXTS = ("text", "input_text", "output_text")
_CALLS = ("tool_call", "tool_calls", "tool_use", "function_call", "function")
_RESULTS = ("tool_result", "tool_response", "tool_output", "observation", "function_response", "function_call_output")
# What most logs have; it is left as it is.
_PLAIN = frozenset((*_TEXTS, "tool_use", "tool_result", "image_url", "input_image", "image", "thinking"))

_IDS = ("tool_use_id", "tool_call_id", "toolCallId", "call_id", "id")
_NAMES = ("name", "toolName", "tool_name", "function_name")
_ARGUMENTS = ("arguments", "input", "args", "parameters", "rawInput")
_OUTPUTS = ("content", "output", "result", "response")
_FLAGS = ("is_error", "isError", "status", "state")
_PAYLOADS = ("value", *_OUTPUTS, "text")
_ENVELOPE = frozenset((*_IDS, *_NAMES, *_OUTPUTS, *_FLAGS, "type", "role"))
_STEP = "step-start"  # in UI messages; it holds nothing
_WRAPPERS = ("text", "json", "content", "error-text", "error-json")

_CALL_TAG, _CALL_END = "<tool_call>", "</tool_call>"
_RESULT_TAG, _RESULT_END = "<tool_response>", "</tool_response>"


def content_of(message: dict[str, Any]) -> Any:
    """The content of a message: text or parts; None if it has none.

    UI messages of the AI SDK have `parts`, and may have their text in `content` once more; before there were parts,
    they had `toolInvocations` beside the content.
    """
    content = message.get("content", message.get("value"))
    if content is not None and not isinstance(content, str):
        return content
    parts = items(message.get("parts"))
    if not any(text_at(part, "type") for part in objects(parts)):
        parts = [{"type": "tool-invocation", "toolInvocation": one} for one in items(message.get("toolInvocations"))]
    if parts and content and not any(part.get("type") == "text" for part in objects(parts)):
        return [{"type": "text", "text": content}, *parts]
    return parts or content


def is_part(content: Any, *, of_tool: bool) -> bool:
    """Whether a content is one part without its list. Of a tool, most objects are what it returned."""
    kind = text_at(fields(content), "type")
    return kind is not None and (not of_tool or kind in _PLAIN or is_result(content))


def plain_parts(parts: list[Any], skipped: Counter[str]) -> list[Any]:
    """The parts of a content, calls as `tool_use` and results as `tool_result`, as Anthropic has them.

    Parts of an unknown type stay, and are counted in `skipped`, as are calls without a name.
    """
    plain: list[Any] = []
    results: list[Any] = []  # of the calls of one step, which come after all of them
    step = None
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        used = _used_tool(part, kind) if isinstance(kind, str) and kind not in _PLAIN else None
        if used is None or used.get("step") != step:
            plain += results
            results = []
        if used is not None:
            step = used.get("step")
            plain += calls_in_value(used, skipped)
            results += _result_of_use(used)
        elif not isinstance(kind, str) or (kind in _PLAIN and "value" not in part):
            plain.append(part)
        elif is_call(part):
            plain += calls_in_value(part.get("value", part), skipped, of=part)
        elif is_result(part) and any(key in part for key in _PAYLOADS):
            plain.append(_result(part))
        elif kind != _STEP:
            plain += _text(part, kind, skipped)
    return plain + results


def is_call(part: dict[str, Any]) -> bool:
    """Whether a part is a call by its type."""
    return _kind(part) in _CALLS


def is_result(part: dict[str, Any]) -> bool:
    """Whether a part is a result by its type."""
    return _kind(part) in _RESULTS


def _kind(part: dict[str, Any]) -> str:
    return (text_at(part, "type") or "").replace("-", "_")


def _used_tool(part: dict[str, Any], kind: str) -> dict[str, Any] | None:
    """The call in a part of a UI message: `tool-invocation`, later `tool-NAME` and `dynamic-tool`; else None."""
    if not (kind.startswith("tool-") or kind == "dynamic-tool") or is_call(part) or is_result(part):
        return None
    if "toolCallId" not in part:
        used = fields(part.get("toolInvocation"))
    else:
        used = part if kind == "dynamic-tool" else {**part, "toolName": kind.removeprefix("tool-")}
    return used if text_at(used, "toolCallId") else None


def _result_of_use(used: dict[str, Any]) -> list[dict[str, Any]]:
    state = used.get("state")
    output = first_of(used, "errorText", "output", "result")
    if output is None and state not in ("result", "output-available", "output-error"):
        return []
    failed = state in ("output-error", "error")
    return [_result({"toolCallId": used["toolCallId"], "output": output, "is_error": failed})]


def _text(part: dict[str, Any], kind: str, skipped: Counter[str]) -> list[Any]:
    if "value" in part and (kind in _TEXTS or kind in THOUGHTS):
        if part["value"] is None:
            skipped["part without content"] += 1
            return []
        return [{"type": kind, "text": text_of(part["value"])}]
    if kind not in MEDIA and text_of(part) == f"[{name_of(kind)}]":
        skipped[f"part: {name_of(kind)}"] += 1
    return [part]


def calls_in_value(value: Any, skipped: Counter[str], *, of: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """A call, or a list of them, as objects or as text; anything else is counted. `of` may have the call's id."""
    given = _loosely_decoded(value)
    found = [_call(one, of or {}) for one in (given if isinstance(given, list) else [given])]
    calls = [call for call in found if call is not None]
    if len(calls) < len(found) or not found:
        skipped[NOT_A_CALL] += max(1, len(found) - len(calls))
    return calls


def _call(given: Any, part: dict[str, Any]) -> dict[str, Any] | None:
    record = fields(given)
    inside = fields(record.get("function")) or record
    name = first_of(inside, *_NAMES)
    if not isinstance(name, str) or not name:
        return None
    call_id = first_of(record, *_IDS) or first_of(part, *_IDS)
    return {"type": "tool_use", "id": call_id, "name": name, "input": first_of(inside, *_ARGUMENTS)}


def _result(part: dict[str, Any]) -> dict[str, Any]:
    record = part if "value" not in part else part["value"] if _names_its_call(part["value"]) else {}
    output = first_of(record, *_PAYLOADS) if record else part["value"]
    failed = any(one.get(flag) in (True, "error") for one in (part, record) for flag in _FLAGS)
    if isinstance(output, dict) and output.get("type") in _WRAPPERS and "value" in output:
        failed = failed or output["type"].startswith("error")
        output = output["value"]
    elif isinstance(output, dict) and "type" in output:
        output = json_of(output)  # no part of a message, but what a tool returned
    if isinstance(output, list):
        output = [{"type": "text", "text": one["value"]} if _is_text_under_value(one) else one for one in output]
    return {
        "type": "tool_result",
        "tool_use_id": first_of(record, *_IDS) or first_of(part, *_IDS),
        "name": first_of(record, *_NAMES),
        "content": output,
        "is_error": failed,
    }


def _names_its_call(value: Any) -> bool:
    """Whether a value is a result with the id or the name of its call, and nothing else: not what a tool returned."""
    return (
        isinstance(value, dict)
        and _ENVELOPE.issuperset(value)
        and any(key in value for key in _OUTPUTS)
        and any(key in value for key in (*_IDS, *_NAMES))
    )


def _is_text_under_value(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in _TEXTS and isinstance(part.get("value"), str)


def split_calls(text: str) -> tuple[str, list[dict[str, Any]]]:
    """A text and the calls between tags that it ends with."""
    before, *blocks = text.split(_CALL_TAG)
    calls: list[dict[str, Any]] = []
    while blocks and blocks[-1].rstrip().endswith(_CALL_END):
        found = calls_in_value(blocks[-1].rstrip().removesuffix(_CALL_END).strip(), unread := Counter[str]())
        if unread:
            break
        calls = found + calls
        blocks.pop()
    return (_CALL_TAG.join([before, *blocks]).rstrip() if calls else text), calls


def ends_with_call(text: str) -> bool:
    """Whether a text ends as a call between tags does."""
    return text.rstrip().endswith(_CALL_END)


def split_results(text: str) -> list[dict[str, Any]]:
    """The results between tags that a text consists of; none if there is anything else in it."""
    if not text.startswith(_RESULT_TAG):
        return []
    bodies = [block.strip() for block in text.split(_RESULT_TAG)[1:]]
    if not all(body.endswith(_RESULT_END) for body in bodies):
        return []
    texts = [body.removesuffix(_RESULT_END).strip() for body in bodies]
    return [_result({"value": record if _names_its_call(record := _loosely_decoded(one)) else one}) for one in texts]


def _loosely_decoded(value: Any) -> Any:
    inner = decoded(value)
    return python_literal(value) if inner is UNREADABLE else inner
