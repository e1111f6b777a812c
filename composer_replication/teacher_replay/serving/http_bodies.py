"""The bodies of OpenAI's chat completions: a request read into a `Question`, a `Completion` written as a response."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from composer_replication.histories import estimate_tokens
from composer_replication.teacher_replay.serving.local_teacher import Completion, Question, QuestionError
from composer_replication.traces import Message, dump_json

_ROLES = ("system", "developer", "user", "assistant", "tool")

_READ = {field.name for field in fields(Question)} | {"max_completion_tokens", "stream", "stream_options"}
# Bookkeeping, caching and routing: the answer is the same without them.
_WITHOUT_EFFECT = (
    {"metadata", "safety_identifier", "store", "usage", "user"}
    | {"prediction", "prompt_cache_key", "prompt_cache_retention"}
    | {"models", "provider", "route", "service_tier"}
)
# Unsupported parameters, with the values that have no effect. Of any other parameter, only null has none.
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
    """A question, and how the client wants the response. `question.model` is empty if the request names none."""

    question: Question
    stream: bool = False
    stream_usage: bool = False


def read_request(body: bytes) -> ChatRequest:
    """Read a request. An unsupported or unknown parameter is refused if it could change the answer.

    Raises:
        QuestionError: the body is not such a request, or asks for something that no local teacher supports.
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
        model=_of_type(request, "model", str, "a text") or "",
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
    messages = []
    for index, one in enumerate(given):
        place = f"messages[{index}]"
        if not isinstance(one, dict) or one.get("role") not in _ROLES:
            raise QuestionError(f"{place} must be an object whose role is one of {', '.join(_ROLES)}")
        message = {**one, "content": _content(one.get("content"), place)}
        if calls := message.pop("tool_calls", None):
            if not isinstance(calls, list) or not all(_names_a_function(call) for call in calls):
                raise QuestionError(f'{place}.tool_calls must be a list of {{"function": {{"name": ...}}}}')
            message["tool_calls"] = calls
        messages.append(message)
    return messages


def _content(given: Any, place: str) -> str:
    """Return the text of a message: parts of text are joined, which also drops their cache marks."""
    if given is None:
        return ""
    if isinstance(given, str):
        return given
    parts = given if isinstance(given, list) else [given]
    texts = [part["text"] for part in parts if isinstance(part, dict) and part.get("type") == "text" and "text" in part]
    if len(texts) != len(parts) or not all(isinstance(text, str) for text in texts):
        raise QuestionError(f"{place}.content must be a text, or a list of parts of type 'text'", "unsupported_value")
    return "".join(texts)


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


def _of_type(given: Mapping[str, Any], name: str, kind: type, wanted: str) -> Any:
    value = given.get(name)
    if value is not None and not isinstance(value, kind):
        raise QuestionError(f"{name} must be {wanted}, got {_shown(value)}")
    return value


def _flag(given: Mapping[str, Any], name: str) -> bool:
    return bool(_of_type(given, name, bool, "true or false"))


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


def completion_body(question: Question, completion: Completion) -> bytes:
    """Encode a response in one piece.

    Raises:
        TypeError: the arguments of a call are not JSON.
    """
    message = _completion_message(completion)
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(completion)}
    head = _head("chat.completion", question.model)
    return encode({**head, "choices": [choice], "usage": _usage(question, completion, message)})


class EventStream:
    """The server-sent events of one streamed response."""

    def __init__(self, question: Question) -> None:
        self._question = question
        self._head = _head("chat.completion.chunk", question.model)
        self._sent: Completion | None = None

    def piece(self, piece: Completion) -> bytes:
        """Encode a piece of the completion; the first one carries the role.

        Raises:
            TypeError: the arguments of a call are not JSON.
        """
        delta = _completion_message(piece)
        if self._sent is not None:
            delta = {name: value for name, value in delta.items() if name != "role" and value}
        if "tool_calls" in delta:
            sent = len(self._sent.tool_calls) if self._sent is not None else 0
            delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(delta["tool_calls"], sent)]
        self._sent = piece if self._sent is None else self._sent + piece
        return self._event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}) if delta else b""

    def end(self, *, with_usage: bool) -> bytes:
        """Encode the end of the completion and, if wanted, its usage."""
        whole = self._sent or Completion()
        end = self._event({"choices": [{"index": 0, "delta": {}, "finish_reason": _finish_reason(whole)}]})
        usage = _usage(self._question, whole, _completion_message(whole))
        counted = self._event({"choices": [], "usage": usage}) if with_usage else b""
        return end + counted + event(b"[DONE]")

    def _event(self, chunk: dict[str, Any]) -> bytes:
        return event(encode({**self._head, **chunk}))


def event(data: bytes) -> bytes:
    """Frame data as a server-sent event."""
    return b"data: " + data + b"\n\n"


def error_body(message: str, status: int, code: str | None = None) -> bytes:
    """Encode an error in OpenAI's form."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return encode({"error": {"message": message, "type": kind, "param": None, "code": code}})


def encode(value: Any) -> bytes:
    """Encode JSON in ASCII: half a surrogate pair, which agent logs can contain, has no form in UTF-8."""
    return json.dumps(value).encode("ascii")


def _head(kind: str, model: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": model}


def _completion_message(completion: Completion) -> dict[str, Any]:
    calls = [call.message() for call in completion.tool_calls]
    message: dict[str, Any] = {"role": "assistant", "content": completion.content or (None if calls else "")}
    if completion.reasoning:
        message["reasoning_content"] = completion.reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def _finish_reason(completion: Completion) -> str:
    return completion.finish_reason or ("tool_calls" if completion.tool_calls else "stop")


def _usage(question: Question, completion: Completion, message: Message) -> dict[str, int]:
    prompt, written = completion.prompt_tokens, completion.completion_tokens
    if prompt is None:
        prompt = sum(map(_estimate, question.messages))
        prompt += sum(estimate_tokens(dump_json(tool)) for tool in question.tools or ())
    if written is None:
        written = estimate_tokens(completion.reasoning) + _estimate(message)
    return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}


def _estimate(message: Message) -> int:
    """Estimate the tokens of a message's text and calls, without roles and ids."""
    functions = [call["function"] for call in message.get("tool_calls", ())]
    called = "".join(f"{function['name']}{function.get('arguments') or ''}" for function in functions)
    return estimate_tokens((message["content"] or "") + called)
