"""An `Answer` as the body of a chat completion response, whole or as a stream of server-sent events."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
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
        calls = [call.message() for call in answer.tool_calls]
        message: dict[str, Any] = {"role": "assistant", "content": answer.content or (None if calls else "")}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if calls:
            message["tool_calls"] = calls
        prompt = answer.prompt_tokens
        if prompt is None:
            prompt = sum(map(_estimate, question.messages))
            prompt += sum(estimate_tokens(dump_json(tool)) for tool in question.tools or ())
        written = answer.completion_tokens
        if written is None:
            written = estimate_tokens(answer.reasoning) + _estimate(message)
        usage = {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}
        return cls(question.model, message, answer.finish_reason or ("tool_calls" if calls else "stop"), usage)

    def body(self) -> bytes:
        """The response in one piece."""
        choice = {"index": 0, "message": self.message, "logprobs": None, "finish_reason": self.finish_reason}
        return encode({**self._head("chat.completion"), "choices": [choice], "usage": self.usage})

    def events(self, *, with_usage: bool) -> bytes:
        """The response as the events of a stream: the whole message, its end and, if wanted, the usage."""
        chunks = [*self._chunks(), *([{"choices": [], "usage": self.usage}] if with_usage else [])]
        head = self._head("chat.completion.chunk")
        lines = [b"data: " + encode({**head, **chunk}) + b"\n\n" for chunk in chunks]
        return b"".join([*lines, b"data: [DONE]\n\n"])

    def _chunks(self) -> Iterator[dict[str, Any]]:
        delta = dict(self.message)
        if "tool_calls" in delta:
            delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(delta["tool_calls"])]
        yield {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        yield {"choices": [{"index": 0, "delta": {}, "finish_reason": self.finish_reason}]}

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": kind,
            "created": int(time.time()),
            "model": self.model,
        }


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
