"""Chat messages as spans record them, in one form.

Every dialect ends as JSON messages of one of a few shapes: `parts` (GenAI conventions), `content` with `tool_calls`
(OpenAI), typed content blocks (Anthropic, OpenAI Responses), untyped ones (Bedrock, Gemini). `read_message` takes them
all; `normalise` makes a list of them a chat in which every result names its call.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from composer_replication.ingestion.loose_json import decoded, fields, first_of, python_literal, text_at
from composer_replication.traces import Role, dump_json, parse_arguments

REDACTED = "__REDACTED__"
"""OpenInference writes this in place of hidden content."""


class HiddenContentError(Exception):
    """A message whose content the instrumentation did not record."""


class Call(NamedTuple):
    """A tool call. `arguments` is JSON text, in one spelling if it is an object."""

    id: str
    name: str
    arguments: str


class Message(NamedTuple):
    """One message of a model call. `lost` names the parts that have no text."""

    role: Role
    content: str = ""
    calls: tuple[Call, ...] = ()
    answers: str = ""
    name: str = ""
    is_error: bool = False
    thinking: str = ""
    lost: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[Any, ...]:
        """The part that the model sees: instrumentations repeat a message without its thinking, or without its flag."""
        return self[:4]


_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "ai": "assistant",
    "model": "assistant",
    "agent": "assistant",
    "chatbot": "assistant",
    "tool": "tool",
    "function": "tool",
    "ipython": "tool",
}
_TEXT = ("text", "input_text", "output_text", "refusal", "summary_text")
_THINKING = ("reasoning", "thinking", "reasoning_text")
_CALLS = ("tool_call", "tool_use", "function_call", "function", "server_tool_call", "server_tool_use")
_RESULTS = ("tool_call_response", "tool_result", "function_call_output", "server_tool_call_response")
_UNTYPED = {
    "toolUse": "tool_use",
    "toolResult": "tool_result",
    "functionCall": "tool_use",
    "function_call": "tool_use",
    "functionResponse": "tool_result",
    "function_response": "tool_result",
    "reasoningContent": "reasoning",
    "text": "text",
    "json": "text",
}


def read_message(given: Any, default: Role = "user") -> list[Message]:
    """One JSON message as messages: its tool results become messages of their own, before its text.

    Raises:
        HiddenContentError: if the message is there without its content.
    """
    if isinstance(given, str):
        given = {"content": given}
    if not isinstance(given, Mapping):
        return [Message("user", "[unknown message]", lost=("unknown message",))]
    named = given.get("role") or given.get("type")
    role = _ROLES.get(named.lower(), default) if isinstance(named, str) else default
    parts = _Parts()
    thinking = given.get("reasoning_content") or given.get("reasoning") or given.get("thinking")
    if thinking:
        parts.thinking.append(text_of(thinking))
    content = given.get("parts") if isinstance(given.get("parts"), list) else given.get("content")
    calls = [one for one in (given.get("tool_calls"), given.get("function_call")) if one]
    if role == "tool" and not (isinstance(content, list) and any(_kind(one) in _RESULTS for one in content)):
        if content is None or content == REDACTED:
            raise HiddenContentError
        answers = given.get("tool_call_id") or given.get("id") or given.get("call_id")
        name = given.get("name")
        text, lost = _text_and_lost(content)
        return [Message("tool", text, answers=_string(answers), name=_string(name), is_error=_failed(given), lost=lost)]
    if content is None and not calls and role != "assistant":
        raise HiddenContentError
    parts.read(content if isinstance(content, list) else [content] if content is not None else [])
    for one in calls:
        for call in one if isinstance(one, list) else [one]:
            parts.call(call)
    return parts.messages(role)


def normalise(messages: Iterable[Message]) -> list[Message]:
    """A chat: assistant messages that follow each other are one, and so are the pieces of a result; every call has an
    id, every result names its call.

    An id that is missing is made from what comes before it, so a later span that repeats the history makes the same.
    """
    chat: list[Message] = []
    open_calls: list[Call] = []
    passed, read = 0, 0
    for message in messages:
        if message.role == "assistant" and chat and chat[-1].role == "assistant":
            message = _joined(chat.pop(), message)
        if message.role == "assistant":
            if any(not call.id for call in message.calls):
                for one in chat[read:]:
                    passed = zlib.crc32(repr(one.key).encode("utf-8", "surrogatepass"), passed)
                read = len(chat)
                calls = tuple(
                    call if call.id else call._replace(id=f"call_{passed:08x}_{number}")
                    for number, call in enumerate(message.calls)
                )
                message = message._replace(calls=calls)
            open_calls = list(message.calls)
        elif message.role == "tool":
            answered = _answered(message, open_calls)
            if answered is not None:
                open_calls.remove(answered)
                message = message._replace(answers=answered.id)
            elif (
                message.answers and chat and chat[-1].answers == message.answers and chat[-1].content != message.content
            ):
                message = _joined(chat.pop(), message)
        chat.append(message)
    return chat


def _answered(result: Message, open_calls: list[Call]) -> Call | None:
    if result.answers:
        return next((call for call in open_calls if call.id == result.answers), None)
    same_name = (call for call in open_calls if call.name == result.name)
    return next(same_name, open_calls[0] if open_calls and not result.name else None)


def _joined(first: Message, second: Message) -> Message:
    return first._replace(
        content="\n".join(text for text in (first.content, second.content) if text),
        thinking="\n".join(text for text in (first.thinking, second.thinking) if text),
        calls=first.calls + second.calls,
        is_error=first.is_error or second.is_error,
        lost=first.lost + second.lost,
    )


class _Parts:
    """The parts of one message, sorted."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.thinking: list[str] = []
        self.calls: list[Call] = []
        self.lost: list[str] = []
        self.done: list[Message] = []

    def read(self, parts: list[Any]) -> None:
        for part in parts:
            kind = _kind(part)
            inner = _inner(part)
            if kind in _TEXT:
                self._text(inner)
            elif kind in _THINKING:
                thought = first_of(inner, "content", "text", "thinking", "reasoningText", "summary")
                text = text_of(thought.get("text") if isinstance(thought, Mapping) else thought)
                self.thinking += [text] if text else []
            elif kind in _CALLS:
                self.call(inner)
            elif kind in _RESULTS:
                self._result(inner)
            elif kind != "redacted_thinking":
                self.texts.append(f"[{kind}]")
                self.lost.append(f"{kind} part")

    def call(self, given: Any) -> None:
        if not isinstance(given, Mapping):
            self.lost.append("unknown tool call")
            return
        function = given.get("function")
        inside = function if isinstance(function, Mapping) else given
        name = inside.get("name") or (function if isinstance(function, str) else "")
        arguments = first_of(inside, "arguments", "args", "input", "server_tool_call")
        self.calls.append(
            Call(
                _string(first_of(given, "id", "call_id", "tool_call_id", "toolUseId")),
                _string(name),
                spelled(arguments),
            )
        )

    def messages(self, role: Role) -> list[Message]:
        """Return the messages: those that ended already, then one of what is left."""
        if self.done and not (self.texts or self.calls or self.thinking):
            return self.done
        return [*self.done, self._message(role)]

    def _message(self, role: Role) -> Message:
        if self.calls and role != "assistant":
            self.lost.append("tool call that is not the assistant's")
        return Message(
            "user" if role == "tool" else role,
            "\n".join(self.texts),
            calls=tuple(self.calls) if role == "assistant" else (),
            thinking="\n".join(self.thinking),
            lost=tuple(self.lost),
        )

    def _text(self, part: Any) -> None:
        text = part if isinstance(part, str) else first_of(part, "content", "text", "refusal", "json")
        if text is None or text == REDACTED:
            raise HiddenContentError
        self.texts.append(text_of(text))

    def _result(self, part: Mapping[str, Any]) -> None:
        if self.calls:  # a tool the provider ran: its result ends what the model said before it
            self.done.append(self._message("assistant"))
            self.texts, self.thinking, self.calls, self.lost = [], [], [], []
        text, lost = _text_and_lost(
            first_of(part, "response", "result", "content", "output", "server_tool_call_response")
        )
        answers = first_of(part, "id", "tool_use_id", "tool_call_id", "call_id", "toolUseId")
        name = _string(part.get("name"))
        self.done.append(Message("tool", text, (), _string(answers), name, _failed(part), lost=lost))


def _kind(part: Any) -> str:
    if isinstance(part, str):
        return "text"
    if not isinstance(part, Mapping):
        return "unknown"
    kind = part.get("type")
    if isinstance(kind, str):
        return kind
    return next((kind for key, kind in _UNTYPED.items() if key in part), "unknown")


def _inner(part: Any) -> Any:
    """Untyped blocks hold their fields one level down: `{"toolUse": {"toolUseId": …}}`."""
    if isinstance(part, Mapping) and not isinstance(part.get("type"), str):
        for key in _UNTYPED:
            if isinstance(part.get(key), Mapping) and key not in ("text", "json"):
                return part[key]
    return part


def content_parts(content: Any) -> Any:
    """Content that an attribute holds as the JSON text of a list of parts; any other content as it is."""
    if not isinstance(content, str) or not content.startswith("[{"):
        return content
    parts = decoded(content)
    known = (*_TEXT, *_THINKING, *_CALLS, *_RESULTS, "image", "image_url")
    if isinstance(parts, list) and all(isinstance(part, dict) and _kind(part) in known for part in parts):
        return parts
    return content


def spelled(arguments: Any) -> str:
    """Arguments in one spelling, to be compared and kept."""
    given, raw = parse_arguments(arguments)
    return dump_json(given) if raw is None else raw


def text_of(value: Any) -> str:
    """A value as the text that a model would see of it."""
    return _text_and_lost(value)[0]


def _text_and_lost(value: Any) -> tuple[str, tuple[str, ...]]:
    if isinstance(value, str):
        return value, ()
    if value is None:
        return "", ()
    if isinstance(value, list) and value and all(isinstance(one, Mapping) and _is_block(one) for one in value):
        parts = _Parts()
        try:
            parts.read(value)
        except HiddenContentError:
            return dump_json(value), ()
        return "\n".join(parts.texts), tuple(parts.lost)
    return dump_json(value), ()


def _is_block(value: Mapping[str, Any]) -> bool:
    return _kind(value) in (*_TEXT, "image", "image_url", "document") and len(value) <= 4


def _failed(part: Mapping[str, Any]) -> bool:
    return part.get("is_error") is True or part.get("isError") is True or part.get("status") == "error"


def _string(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


_CALLING = "Calling tools:\n"
_RESULT = re.compile(r"(?:Call id: (\S+)\n)?(?=(Error:\n)|Observation:\n)")
_LONGEST_STOP = 16


def as_openai(message: Any) -> Any:
    """A message of smolagents in OpenAI's form; any other as it is."""
    role = message.get("role") if isinstance(message, Mapping) else None
    if role not in ("tool-call", "tool-response"):
        return message
    text = text_of(message.get("content"))
    if role == "tool-call":
        calls = python_literal(text[len(_CALLING) :]) if text.startswith(_CALLING + "[") else None
        if calls and all(text_at(fields(fields(call).get("function")), "name") for call in calls):
            return {"role": "assistant", "tool_calls": [_with_code(call) for call in calls]}
        return {"role": "assistant", "content": text}
    found = _RESULT.match(text)
    if found is None:
        return {"role": "tool", "content": text}
    failed = found[2] is not None
    if failed and not found[1]:
        return {"role": "user", "content": text}  # the agent found no call in the answer
    return {"role": "tool", "content": text[found.end() :], "tool_call_id": found[1], "is_error": failed}


def _with_code(call: dict[str, Any]) -> dict[str, Any]:
    """Wrap code as an argument: it is logged alone, in place of the arguments."""
    code = call["function"].get("arguments")
    if call["function"]["name"] != "python_interpreter" or not isinstance(code, str):
        return call
    return {**call, "function": {**call["function"], "arguments": {"code": code}}}


def repeats_answer(answer: Message, later: Message) -> bool:
    """Whether a prompt has an answer with the stop sequence that ended it, and with the calls that were read in it."""
    text = answer.content.strip()
    return (
        bool(text and later.calls and not answer.calls)
        and later.role == answer.role == "assistant"
        and later.content.startswith(text)
        and len(later.content) - len(text) <= _LONGEST_STOP
    )
