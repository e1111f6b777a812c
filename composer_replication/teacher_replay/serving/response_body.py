"""An `Answer` as the body of a chat completion response, whole or as a stream of server-sent events."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass
from typing import Any

from composer_replication.histories import estimate_tokens
from composer_replication.teacher_replay.serving.answering import Answer, Question
from composer_replication.traces import Message, dump_json


@dataclass(frozen=True)
class Completion:
    """One answer to one question, under the name of the teacher that gave it."""

    model: str
    message: dict[str, Any]
    finish_reason: str
    usage: dict[str, int]

    @classmethod
    def of(cls, question: Question, answer: Answer) -> Completion:
        """Put an answer in OpenAI's form.

        Raises:
            TypeError: the arguments of a call are not JSON.
        """
        message = _message(answer)
        prompt = answer.prompt_tokens
        if prompt is None:
            prompt = sum(map(_estimate, question.messages))
            prompt += sum(estimate_tokens(dump_json(tool)) for tool in question.tools or ())
        written = answer.completion_tokens
        if written is None:
            written = estimate_tokens(answer.reasoning) + _estimate(message)
        usage = {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}
        finish_reason = answer.finish_reason or ("tool_calls" if answer.tool_calls else "stop")
        return cls(question.model, message, finish_reason, usage)

    def body(self) -> bytes:
        """The response in one piece."""
        choice = {"index": 0, "message": self.message, "logprobs": None, "finish_reason": self.finish_reason}
        return encode({**_head("chat.completion", self.model), "choices": [choice], "usage": self.usage})


class EventStream:
    """The events of one streamed answer, under the name of the teacher that gives it."""

    def __init__(self, model: str) -> None:
        self._head = _head("chat.completion.chunk", model)
        self._has_begun = False
        self._calls = 0

    def piece(self, piece: Answer) -> bytes:
        """A piece of the answer; the first one says whose message it is.

        Raises:
            TypeError: the arguments of a call are not JSON.
        """
        delta = _message(piece)
        if self._has_begun:
            delta = {name: value for name, value in delta.items() if name != "role" and value}
        if "tool_calls" in delta:
            delta["tool_calls"] = [
                {"index": index, **call} for index, call in enumerate(delta["tool_calls"], start=self._calls)
            ]
        self._has_begun, self._calls = True, self._calls + len(piece.tool_calls)
        return self._event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}) if delta else b""

    def end(self, completion: Completion, *, with_usage: bool) -> bytes:
        """The end of the answer and, if wanted, its usage."""
        end = self._event({"choices": [{"index": 0, "delta": {}, "finish_reason": completion.finish_reason}]})
        usage = self._event({"choices": [], "usage": completion.usage}) if with_usage else b""
        return end + usage + _event(b"[DONE]")

    @staticmethod
    def error(body: bytes) -> bytes:
        """The end of an answer that cannot be finished; `body` is from `error_body`."""
        return _event(body)

    def _event(self, chunk: dict[str, Any]) -> bytes:
        return _event(encode({**self._head, **chunk}))


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def _head(kind: str, model: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": model}


def _message(answer: Answer) -> dict[str, Any]:
    calls = [call.message() for call in answer.tool_calls]
    message: dict[str, Any] = {"role": "assistant", "content": answer.content or (None if calls else "")}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def error_body(message: str, kind: str, code: str | None = None) -> bytes:
    """An error in OpenAI's form."""
    return encode({"error": {"message": message, "type": kind, "param": None, "code": code}})


def encode(value: Any) -> bytes:
    """JSON in ASCII: half a surrogate pair, which agent logs do hold, has no form in UTF-8."""
    return json.dumps(value).encode("ascii")


def _estimate(message: Message) -> int:
    """The tokens of a message's text and calls; roles and ids, which the caller does not choose, count nothing."""
    functions = [call["function"] for call in message.get("tool_calls", ())]
    called = "".join(f"{function['name']}{function.get('arguments') or ''}" for function in functions)
    return estimate_tokens((message["content"] or "") + called)
