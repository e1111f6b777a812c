"""The reply of a model, read into a turn: its thinking, its text, and its tool calls in the format of its family.

- Hermes, Qwen: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`
- Qwen3-Coder: `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`
- Llama 3.1: `{"name": ..., "parameters": {...}}`, several separated by `;`, after `<|python_tag|>` or alone
- Mistral: `[TOOL_CALLS] [{"name": ..., "arguments": {...}}]` or `[TOOL_CALLS]name[ARGS]{...}`
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from composer_replication.traces import ToolCall, Turn, parse_arguments

# Where a call may begin.
_CALL_MARKS = ("<tool_call>", "[TOOL_CALLS]", "<|python_tag|>")
# Tokens that tokenizers treat as special, and that the reading needs.
MARKERS = frozenset({*_CALL_MARKS, "<think>", "</think>", "</tool_call>", "[CALL_ID]", "[ARGS]"})

_CALL = re.compile("|".join(map(re.escape, _CALL_MARKS)))
_OPENED = re.compile(r"\s*<think>")
_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>(.*?)</function>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>(.*?)</parameter>", re.DOTALL)
_CALL_END = re.compile(r"\s*(?:</tool_call>|\Z)")
_MISTRAL_NAME = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\s*\w+\s*)?(?:\[ARGS\])?\s*(?=\{)")
# Not strict: models break lines inside JSON strings.
_JSON = json.JSONDecoder(strict=False)

_Tools = Sequence[Mapping[str, Any]] | None
_Reading = tuple[str, list[ToolCall]]  # the content and the calls; no calls: it is not this format


def read_reply(text: str, *, tools: _Tools = None, is_thinking: bool = False) -> Turn:
    """Read the turn that a model wrote. Text that is not a call in one of the formats stays in the content.

    Args:
        text: the generated text, with its `MARKERS`.
        tools: the tools of the request. Without any, bare JSON is text and not a call.
        is_thinking: the prompt itself has opened the model's thinking.
    """
    thinking, rest = _take_thinking(text, is_thinking)
    for read in (_read_tagged, _read_mistral, _read_llama):
        content, calls = read(rest, tools)
        if calls:
            return Turn("assistant", content.rstrip(), thinking=thinking, tool_calls=calls)
    return Turn("assistant", rest, thinking=thinking)


def settled_reply(text: str, *, tools: _Tools = None, is_thinking: bool = False) -> Turn:
    """Read the part of the turn that no later text can change: whatever comes, `read_reply` begins with it.

    It lacks what may be the beginning of a thought or of a call, and spaces at its end: a call after them would drop
    them.
    """
    if "<think>".startswith(text.lstrip()):
        return Turn("assistant")
    thinking, rest = _take_thinking(without_beginning(text, (*_CALL_MARKS, "</think>")), is_thinking)
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
    """Return the text without an end that is the beginning of a mark."""
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


def _read_tagged(text: str, tools: _Tools) -> _Reading:
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
    return _joined([*kept, text[position:]]), calls


def _joined(parts: Sequence[str]) -> str:
    """Join the text between calls; spaces after a call that the reply begins with are dropped."""
    text = "".join(parts)
    return text if parts[0].strip() or len(parts) == 1 else text.lstrip()


def _tagged(text: str, start: int, tools: _Tools) -> tuple[ToolCall, int] | None:
    return _tagged_json(text, start) or _tagged_function(text, start, tools)


def _tagged_json(text: str, start: int) -> tuple[ToolCall, int] | None:
    decoded = _decode(text, start)
    call = _call(decoded[0]) if decoded is not None else None
    # The model may have ended its turn, or run out of tokens, right after the call.
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
    """Convert a value that is written as plain text to the type in the tool's schema."""
    if kind in (None, "string"):
        return value
    try:
        return json.loads(value.strip().lower() if kind == "boolean" else value)
    except (ValueError, RecursionError):
        return value


def _read_mistral(text: str, _: _Tools) -> _Reading:
    content, *parts = text.split("[TOOL_CALLS]")
    found: list[ToolCall | None] = []
    for part in parts:
        named = _MISTRAL_NAME.match(part)
        decoded = _decode(part, named.end() if named is not None else 0)
        if decoded is None or part[decoded[1] :].strip():
            return text, []
        value = decoded[0] if named is None else {"name": named[1], "arguments": decoded[0]}
        found += [_call(one) for one in value] if isinstance(value, list) and value else [_call(value)]
    return content, _all_or_none(found)


def _read_llama(text: str, tools: _Tools) -> _Reading:
    content, tagged, rest = text.partition("<|python_tag|>")
    if not tagged:
        content, rest = "", text if tools else ""
    return content, _all_or_none([_call(value) for value in _decode_all(rest)])


def _all_or_none(calls: Sequence[ToolCall | None]) -> list[ToolCall]:
    """Return the calls if all of them were read."""
    read = [call for call in calls if call is not None]
    return read if len(read) == len(calls) else []


def _decode_all(text: str) -> Iterator[Any]:
    """Yield JSON values separated by semicolons; None for text that is not JSON."""
    position = 0
    while position < len(text.rstrip()):
        decoded = _decode(text, position)
        if decoded is None:
            yield None
            return
        yield decoded[0]
        position = _after_spaces(text, decoded[1], ";")


def _decode(text: str, start: int) -> tuple[Any, int] | None:
    """Return the JSON value at a place, after any spaces, and where it ends."""
    try:
        return _JSON.raw_decode(text, _after_spaces(text, start))
    except (ValueError, RecursionError):
        return None


def _after_spaces(text: str, start: int, also: str = "") -> int:
    while start < len(text) and (text[start].isspace() or text[start] == also):
        start += 1
    return start


def _call(value: Any) -> ToolCall | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return None
    given = [value[key] for key in ("arguments", "parameters") if key in value]
    if len(given) != 1:
        return None
    arguments, raw = parse_arguments(given[0])
    return ToolCall("", value["name"], arguments, raw)
