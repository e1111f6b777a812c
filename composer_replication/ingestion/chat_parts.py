"""Calls and results among the parts of a message, or in its text, in the one form that the readers of chats take.

Training sets have a part's payload under `value`, as an object or as its JSON text (Axolotl, LLaMA-Factory); the AI SDK
names its fields in another way, and its UI messages have a call and its result in one part; ShareGPT has calls and
results in texts, between tags.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from composer_replication.ingestion.chat_messages import MEDIA, THOUGHTS, json_of, text_of
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

    Parts of an unknown type stay, and are counted in `skipped`, as are calls that are none.
    """
    plain: list[Any] = []
    results: list[Any] = []  # of the calls of one step, which stand behind them all
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
    """A call, or a list of them, as objects or as text; what is none is counted. `of` may have the call's id."""
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
