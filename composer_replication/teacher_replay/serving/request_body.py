"""The body of a chat completion request, checked and read into a `Question`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from composer_replication.teacher_replay.serving.answering import Question, QuestionError
from composer_replication.traces import Message

_ROLES = ("system", "developer", "user", "assistant", "tool")

_READ = frozenset(
    {
        "messages",
        "model",
        "tools",
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "stop",
        "seed",
        "stream",
        "stream_options",
    }
)
# Bookkeeping and routing: the answer is the same without them.
_WITHOUT_EFFECT = frozenset(
    {
        "metadata",
        "models",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_retention",
        "provider",
        "route",
        "safety_identifier",
        "service_tier",
        "store",
        "usage",
        "user",
    }
)
# Parameters that are not supported, with the values that ask for nothing. Any other parameter has none but null.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "include_reasoning": (True,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "min_p": (0,),
    "modalities": (["text"],),
    "n": (1,),
    "parallel_tool_calls": (True,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "tool_choice": ("auto", "none"),
    "top_k": (0, -1),
    "top_logprobs": (0,),
}


@dataclass(frozen=True)
class ChatRequest:
    """A question, and how the client wants the answer. `question.model` is empty if the request names none."""

    question: Question
    stream: bool = False
    stream_usage: bool = False


def read_request(body: bytes) -> ChatRequest:
    """Read a request. A parameter that is not supported, or not known, is refused if it could change the answer.

    Raises:
        QuestionError: the body is no such request, or asks for what no teacher here can give.
    """
    try:
        request = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise QuestionError(f"the body is not JSON: {str(error) or type(error).__name__}", "invalid_json") from None
    if not isinstance(request, dict):
        raise QuestionError(f"the body must be a JSON object, not {type(request).__name__}")
    _check_parameters(request)
    tools = _tools(request.get("tools"))
    longest = "max_completion_tokens" if request.get("max_completion_tokens") is not None else "max_tokens"
    options = request.get("stream_options")
    question = Question(
        messages=_messages(request.get("messages")),
        tools=None if request.get("tool_choice") == "none" else tools,
        max_tokens=_number(request, longest, int, lambda value: value >= 1, "a whole number above 0"),
        temperature=_number(request, "temperature", float, lambda value: 0 <= value <= 2, "a number from 0 to 2"),
        top_p=_number(request, "top_p", float, lambda value: 0 < value <= 1, "a number above 0, at most 1"),
        stop=_stop(request.get("stop")),
        seed=_number(request, "seed", int, lambda value: -(2**63) <= value < 2**63, "a whole number of 64 bits"),
        model=_text(request, "model"),
    )
    return ChatRequest(
        question,
        stream=_flag(request, "stream"),
        stream_usage=isinstance(options, dict) and _flag(options, "include_usage"),
    )


def _check_parameters(request: Mapping[str, Any]) -> None:
    for name, value in request.items():
        if name in _READ or name in _WITHOUT_EFFECT or value is None:
            continue
        neutral = _NEUTRAL.get(name, ())
        # To Python, true is 1; to a client it is not.
        if not any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in neutral):
            way_out = " or ".join(["leave it out", *(f"give {_shown(one)}" for one in neutral)])
            shown = _shown(name)[1:-1]
            raise QuestionError(f"{shown} is not supported by local teachers: {way_out}", "unsupported_parameter")


def _messages(given: Any) -> list[Message]:
    if not isinstance(given, list) or not given:
        raise QuestionError("messages must be a list of at least one message", "missing_messages")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(given)]


def _message(given: Any, place: str) -> Message:
    if not isinstance(given, dict) or given.get("role") not in _ROLES:
        raise QuestionError(f"{place} must be an object whose role is one of {', '.join(_ROLES)}")
    message = {**given, "content": _content(given.get("content"), place)}
    calls = message.pop("tool_calls", None)
    if calls:
        if not isinstance(calls, list) or not all(_names_a_function(call) for call in calls):
            raise QuestionError(f'{place}.tool_calls must be a list of {{"function": {{"name": ...}}}}')
        message["tool_calls"] = calls
    return message


def _content(given: Any, place: str) -> str:
    """The text of a message: parts of text are put together, which also drops the cache marks that they may carry."""
    if given is None:
        return ""
    if isinstance(given, str):
        return given
    parts = given if isinstance(given, list) else [given]
    texts = [part["text"] for part in parts if _is_text_part(part)]
    if len(texts) != len(parts):
        raise QuestionError(f"{place}.content must be a text, or a list of parts of type 'text'", "unsupported_value")
    return "".join(texts)


def _is_text_part(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _tools(given: Any) -> list[dict[str, Any]] | None:
    if given is None or given == []:
        return None
    if not isinstance(given, list) or not all(_names_a_function(tool) for tool in given):
        raise QuestionError('tools must be a list of {"type": "function", "function": {"name": ...}}')
    return given


def _names_a_function(given: Any) -> bool:
    function = given.get("function") if isinstance(given, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str) and bool(function["name"])


def _stop(given: Any) -> tuple[str, ...]:
    stops = [given] if isinstance(given, str) else [] if given is None else given
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise QuestionError(f"stop must be a text or a list of texts, none of them empty, got {_shown(given)}")
    return tuple(stops)


def _number(request: Mapping[str, Any], name: str, kind: type, holds: Callable[[Any], bool], wanted: str) -> Any:
    value = request.get(name)
    if value is None:
        return None
    accepted = (int,) if kind is int else (int, float)
    if isinstance(value, bool) or not isinstance(value, accepted) or not holds(value):
        raise QuestionError(f"{name} must be {wanted}, got {_shown(value)}")
    return kind(value)


def _text(request: Mapping[str, Any], name: str) -> str:
    value = request.get(name)
    if value is not None and not isinstance(value, str):
        raise QuestionError(f"{name} must be a text, got {_shown(value)}")
    return value or ""


def _flag(request: Mapping[str, Any], name: str) -> bool:
    value = request.get(name)
    if value is not None and not isinstance(value, bool):
        raise QuestionError(f"{name} must be true or false, got {_shown(value)}")
    return bool(value)


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
