"""What a model wrote, read back: its thinking, its words, and its tool calls in the format of its family.

- Hermes, Qwen: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`
- Qwen3-Coder: `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`
- Llama 3.1: `{"name": ..., "parameters": {...}}`, several parted by `;`, behind `<|python_tag|>` or alone
- Mistral: `[TOOL_CALLS] [{"name": ..., "arguments": {...}}]` or `[TOOL_CALLS]name[ARGS]{...}`
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from composer_replication.traces import ToolCall, Turn, parse_arguments

# Tokens that tokenizers treat as special, and that say where a call or a thought begins.
MARKERS = frozenset(
    {
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<|python_tag|>",
        "[TOOL_CALLS]",
        "[CALL_ID]",
        "[ARGS]",
    }
)

# Where a call may begin. `</think>` is here because what follows it may be one.
_BORDERS = ("<tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "</think>")
_CALL = re.compile("|".join(map(re.escape, _BORDERS[:3])))
_OPENED = re.compile(r"\s*<think>")
_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>(.*?)</function>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>(.*?)</parameter>", re.DOTALL)
_CALL_END = re.compile(r"\s*(?:</tool_call>|\Z)")
_MISTRAL_NAME = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\s*\w+\s*)?(?:\[ARGS\])?\s*(?=\{)")
# Models break lines inside JSON texts; that is not worth losing a call for.
_JSON = json.JSONDecoder(strict=False)

_Tools = Sequence[Mapping[str, Any]] | None


class _Reading(NamedTuple):
    content: str
    calls: list[ToolCall]


def read_reply(text: str, *, tools: _Tools = None, is_thinking: bool = False) -> Turn:
    """The turn that a model wrote. What is not a call in one of the formats stays in the content as it is.

    Args:
        text: what the model generated, with its `MARKERS`.
        tools: what it was given to call. Without any, bare JSON is text and no call.
        is_thinking: the prompt itself has opened the model's thinking.
    """
    thinking, rest = _take_thinking(text, is_thinking)
    readers: tuple[Callable[[str, _Tools], _Reading | None], ...] = (_read_tagged, _read_mistral, _read_llama)
    for reader in readers:
        reading = reader(rest, tools)
        if reading is not None:
            return Turn("assistant", reading.content.rstrip(), thinking=thinking, tool_calls=reading.calls)
    return Turn("assistant", rest, thinking=thinking)


def settled_reply(text: str, *, tools: _Tools = None, is_thinking: bool = False) -> Turn:
    """The part of the turn that is certain while the model still writes: whatever comes, `read_reply` begins with it.

    What may be the beginning of a thought or of a call is not in it, and spaces at its end are not: a call behind them
    would drop them.
    """
    if "<think>".startswith(text.lstrip()):
        return Turn("assistant")
    thinking, rest = _take_thinking(without_beginning(text, _BORDERS), is_thinking)
    kept, calls, position = [], [], 0
    if tools and rest.lstrip().startswith("{"):
        rest = ""
    while (mark := _CALL.search(rest, position)) is not None:
        found = _tagged(rest, mark.end(), tools) if mark[0] == "<tool_call>" else None
        if found is None or not rest.endswith("</tool_call>", 0, found[1]):
            rest = rest[: mark.start()]
            break
        kept.append(rest[position : mark.start()])
        calls.append(found[0])
        position = found[1]
    return Turn("assistant", _joined([*kept, rest[position:]]).rstrip(), thinking=thinking, tool_calls=calls)


def without_beginning(text: str, marks: Sequence[str]) -> str:
    """The text without what stands at its end and is the beginning of a mark."""
    for length in range(min(len(text), max(map(len, marks), default=0) - 1), 0, -1):
        if any(len(mark) > length and text.endswith(mark[:length]) for mark in marks):
            return text[:-length]
    return text


def _take_thinking(text: str, is_thinking: bool) -> tuple[str, str]:
    opened = _OPENED.match(text)
    if opened is None and not is_thinking:
        return "", text
    start = opened.end() if opened is not None else 0
    thinking, closed, rest = text[start:].partition("</think>")
    return thinking.strip(), rest.lstrip("\n") if closed else ""


def _read_tagged(text: str, tools: _Tools) -> _Reading | None:
    kept, calls, position = [], [], 0
    while (start := text.find("<tool_call>", position)) >= 0:
        inside = start + len("<tool_call>")
        found = _tagged(text, inside, tools)
        if found is None:
            kept.append(text[position:inside])
            position = inside
        else:
            call, end = found
            kept.append(text[position:start])
            calls.append(call)
            position = end
    return _Reading(_joined([*kept, text[position:]]), calls) if calls else None


def _joined(parts: Sequence[str]) -> str:
    """What stands between calls; spaces behind a call that the reply begins with are no part of it."""
    text = "".join(parts)
    return text if parts[0].strip() or len(parts) == 1 else text.lstrip()


def _tagged(text: str, start: int, tools: _Tools) -> tuple[ToolCall, int] | None:
    return _tagged_json(text, start) or _tagged_function(text, start, tools)


def _tagged_json(text: str, start: int) -> tuple[ToolCall, int] | None:
    decoded = _decode(text, start)
    call = _call(decoded[0]) if decoded is not None else None
    # The model may have ended its turn, or run out of tokens, right behind the call.
    end = _CALL_END.match(text, decoded[1]) if decoded is not None else None
    return (call, end.end()) if call is not None and end is not None else None


def _tagged_function(text: str, start: int, tools: _Tools) -> tuple[ToolCall, int] | None:
    function = _FUNCTION.match(text, start)
    end = _CALL_END.match(text, function.end()) if function is not None else None
    if function is None or end is None:
        return None
    name = function[1].strip()
    types = _parameter_types(tools, name)
    arguments = {
        key.strip(): _typed(value.removeprefix("\n").removesuffix("\n"), types.get(key.strip()))
        for key, value in _PARAMETER.findall(function[2])
    }
    return ToolCall("", name, arguments), end.end()


def _parameter_types(tools: _Tools, name: str) -> dict[str, Any]:
    for tool in tools or ():
        function = tool.get("function") or {}
        if function.get("name") == name:
            properties = (function.get("parameters") or {}).get("properties") or {}
            return {key: schema.get("type") for key, schema in properties.items() if isinstance(schema, Mapping)}
    return {}


def _typed(value: str, kind: Any) -> Any:
    """A value that is written as plain text, as the tool's schema wants it."""
    if kind in (None, "string"):
        return value
    try:
        return json.loads(value.strip().lower() if kind == "boolean" else value)
    except (ValueError, RecursionError):
        return value


def _read_mistral(text: str, _: _Tools) -> _Reading | None:
    content, *parts = text.split("[TOOL_CALLS]")
    calls: list[ToolCall] = []
    for part in parts:
        named = _MISTRAL_NAME.match(part)
        decoded = _decode(part, named.end() if named is not None else 0)
        if decoded is None or part[decoded[1] :].strip():
            return None
        value = decoded[0]
        if named is not None:
            found = [_call({"name": named[1], "arguments": value})]
        else:
            found = [_call(one) for one in (value if isinstance(value, list) else [value])]
        if not found or None in found:
            return None
        calls.extend(call for call in found if call is not None)
    return _Reading(content, calls) if calls else None


def _read_llama(text: str, tools: _Tools) -> _Reading | None:
    content, tagged, rest = text.partition("<|python_tag|>")
    if not tagged:
        if not tools:
            return None
        content, rest = "", text
    calls = [_call(value) for value in _decode_all(rest)]
    if not calls or None in calls:
        return None
    return _Reading(content, [call for call in calls if call is not None])


def _decode_all(text: str) -> Iterator[Any]:
    """JSON values parted by semicolons; None for what is no JSON."""
    position = 0
    while position < len(text.rstrip()):
        decoded = _decode(text, position)
        if decoded is None:
            yield None
            return
        yield decoded[0]
        position = decoded[1]
        while position < len(text) and (text[position].isspace() or text[position] == ";"):
            position += 1


def _decode(text: str, start: int) -> tuple[Any, int] | None:
    """The JSON value at a place, spaces before it or not, and where it ends."""
    while start < len(text) and text[start].isspace():
        start += 1
    try:
        return _JSON.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None


def _call(value: Any) -> ToolCall | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return None
    given = [value[key] for key in ("arguments", "parameters") if key in value]
    if len(given) != 1:
        return None
    arguments, raw = parse_arguments(given[0])
    return ToolCall("", value["name"], arguments, raw)
