"""What a local teacher is: it is asked a question and gives an answer. Nothing here knows of HTTP."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from composer_replication.traces import Message, ToolCall, Turn, parse_arguments

FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True)
class Question:
    """One request to a teacher, in OpenAI's terms.

    `messages` have a text as `content`, never a list of parts. None means that the client left a parameter open.
    `model` is the name that the teacher is served under.
    """

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    model: str = ""


@dataclass(frozen=True)
class Answer:
    """What a teacher says and does.

    Token counts that are None are estimated from the text. `finish_reason` None stands for "tool_calls" if there are
    any, else "stop".
    """

    content: str = ""
    tool_calls: Sequence[ToolCall] = ()
    reasoning: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: FinishReason | None = None

    def __add__(self, later: Answer) -> Answer:
        """Two pieces of one answer put together; counts and the finish reason are the later ones, if it has them."""
        return Answer(
            self.content + later.content,
            [*self.tool_calls, *later.tool_calls],
            self.reasoning + later.reasoning,
            self.prompt_tokens if later.prompt_tokens is None else later.prompt_tokens,
            self.completion_tokens if later.completion_tokens is None else later.completion_tokens,
            later.finish_reason or self.finish_reason,
        )

    @classmethod
    def from_turn(cls, turn: Turn) -> Answer:
        """An assistant turn as an answer; its calls get ids that no other answer has."""
        calls = [ToolCall(_new_id(), call.name, call.arguments, call.raw_arguments) for call in turn.tool_calls]
        return cls(turn.content, calls, turn.thinking)

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Answer:
        """An assistant message in OpenAI's form as an answer.

        Raises:
            ValueError: it is no assistant message, with what is wrong with it.
        """
        if message.get("role", "assistant") != "assistant":
            raise ValueError(f"the message's role is {message['role']!r}, not 'assistant'")
        if "content" not in message and not message.get("tool_calls"):
            raise ValueError(f"the message has neither content nor tool_calls, only {sorted(map(str, message))}")
        content, calls = message.get("content") or "", message.get("tool_calls") or []
        reasoning = message.get("reasoning_content") or ""
        if not isinstance(content, str) or not isinstance(reasoning, str):
            raise ValueError("the message's content must be a text")
        if not isinstance(calls, Sequence) or isinstance(calls, str):
            raise ValueError(f"the message's tool_calls must be a list, not {type(calls).__name__}")
        return cls(content, [_call(call) for call in calls], reasoning)


@runtime_checkable
class Answerer(Protocol):
    """A teacher. `answer` is cancelled when the client goes away: nobody reads the answer then."""

    async def answer(self, question: Question, /) -> Answer: ...


@runtime_checkable
class StreamingAnswerer(Answerer, Protocol):
    """A teacher that can be listened to: the pieces of `stream` add up to the answer. At least one is given."""

    def stream(self, question: Question, /) -> AsyncIterator[Answer]: ...


class QuestionError(ValueError):
    """A question that this teacher cannot answer as it is; the client is told so, with `code` for machines."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


def _call(call: Any) -> ToolCall:
    function = call.get("function") if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
        raise ValueError('a tool call must look like {"function": {"name": ..., "arguments": ...}}')
    identity = call.get("id")
    arguments, raw = parse_arguments(function.get("arguments"))
    return ToolCall(identity if isinstance(identity, str) and identity else _new_id(), name, arguments, raw)


def _new_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"
