"""A trace's messages as the bytes of requests: each is redacted, encoded and hashed once, whatever states share it.

The prompts of a trace begin alike, byte for byte, so a provider's prompt cache finds what it has seen before. A
prompt's digest is a chain over its messages: where one prompt is the beginning of another, so is its chain.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from composer_replication.ingestion.chat_messages import text_of
from composer_replication.ingestion.shell_commands import with_command
from composer_replication.traces import Message, dump_json, parse_arguments

if TYPE_CHECKING:
    from composer_replication.ingestion.redaction import Redactor

_ENCODER = msgspec.json.Encoder()
_CACHE_MARK = {"type": "ephemeral"}
# Providers take four marks; a prompt shorter than this is cached by none of them.
SHORTEST_CACHED = 4096
# What a provider writes around messages and tools.
_AROUND = 1024
# What a chat template may add where a prompt goes on.
_BETWEEN = 256
# More bytes per token than this on average show that a count is wrong.
LONGEST_TOKEN = 16
_REMEMBERED = 64
# Text has fewer bytes to a token than this on average, but for long runs of one letter: a prompt that is too long even
# so is too long. One that is nearer to the limit is sent: a refusal is free.
_BYTES_PER_TOKEN = 6


def new_redactor() -> Redactor:
    """Return a redactor for one trace."""
    # Imported here: its rules take a moment to compile.
    from composer_replication.ingestion.redaction import Redactor

    return Redactor()


class AnsweredPrompt(NamedTuple):
    """A prompt without its messages, which may be all that is left of an abandoned context."""

    length: int
    digest: str
    size: int
    tokens: int


@dataclass(frozen=True)
class Prompt:
    """The first `length` messages of lists that the prompts of a trace share."""

    messages: list[Message]
    encoded: list[bytes]
    digests: list[str]
    sizes: list[int]
    length: int
    tools: bytes

    @property
    def digest(self) -> str:
        """Of the tools and all messages."""
        return self.digests[self.length]

    @property
    def size(self) -> int:
        """The bytes of the tools and all messages: no tokenizer makes more tokens of them."""
        return self.sizes[self.length]

    def begins_with(self, other: Prompt | AnsweredPrompt) -> bool:
        """Return whether another prompt is the beginning of this one."""
        return other.length <= self.length and self.digests[other.length] == other.digest

    def request(self, settings: dict[str, Any], marks: Sequence[int] = ()) -> bytes:
        """Return the body of a request; `marks` are the messages after which a provider is told to cache."""
        parts = self.encoded[: self.length]
        for index in marks:
            parts[index] = _encode(_marked(self.messages[index]))
        head = _encode(settings)[:-1]
        tools = b',"tools":' + self.tools if self.tools != b"[]" else b""
        return head + tools + b',"messages":[' + b",".join(parts) + b"]}"

    def marks(self, known: Iterable[Prompt | AnsweredPrompt]) -> list[int]:
        """Return where to put cache marks: after the system prompt, after the longest beginning that was already sent,
        and at the end, for later prompts."""
        if self.size < SHORTEST_CACHED:
            return []
        ends = {self.length}
        beginnings = [prompt.length for prompt in known if self.begins_with(prompt)]
        if beginnings:
            ends.add(max(beginnings))
        if self.length and self.messages[0]["role"] == "system":
            ends.add(1)
        return sorted({mark for end in ends if (mark := self._markable(end)) is not None})

    def _markable(self, end: int) -> int | None:
        """The last message before `end` that has a text to put a mark on."""
        for index in range(end - 1, -1, -1):
            message = self.messages[index]
            if message["role"] != "assistant" and _has_text(message.get("content")):
                return index
        return None


class PromptWriter:
    """Makes the prompts of one trace.

    Args:
        histories: the messages of all its steps.
        tools: the definitions that teachers are offered.
        redactor: called once for every message. None sends messages as they are, except for arguments of calls that are
            not a JSON object: most endpoints refuse a history with such a call.
        protocol: how an agent without tool calls writes its commands: teachers get its texts, and no tools.
    """

    def __init__(
        self,
        histories: Iterable[Sequence[Message]],
        tools: Sequence[dict[str, Any]],
        redactor: Redactor | None = None,
        protocol: str | None = None,
    ) -> None:
        self._redactor = redactor
        self._protocol = protocol
        tools = tools if protocol is None else ()
        self._known: dict[int, tuple[Message, Message, bytes]] = {}
        if redactor is not None:
            # What one message gives away as a secret may stand unmarked in an earlier one: hence two passes.
            first = [(message, _sent(self._shown(message), redactor.value)) for message in _each_once(histories)]
            safe_tools = redactor.value_again(redactor.value(list(tools)))
            for message, redacted in first:
                self._keep(message, _sent(redacted, redactor.value_again))
        else:
            safe_tools = list(tools)
        self._tools = _encode(safe_tools)
        # The prompt before, and the messages it was made of.
        self._last = Prompt([], [], [hashlib.sha256(self._tools).hexdigest()], [len(self._tools)], 0, self._tools)
        self._given: list[Message] = []

    def prompt(self, messages: Sequence[Message]) -> Prompt:
        """The prompt of a state."""
        listed = list(messages)
        last = self._last
        shared = _common_beginning(listed, self._given)
        if shared < len(self._given):
            # A context that begins anew, or a branch: prompts returned before keep their lists.
            last = Prompt(
                last.messages[:shared],
                last.encoded[:shared],
                last.digests[: shared + 1],
                last.sizes[: shared + 1],
                shared,
                self._tools,
            )
        for message in listed[shared:]:
            _, sent, encoded = self._known_of(message)
            last.messages.append(sent)
            last.encoded.append(encoded)
            last.digests.append(hashlib.sha256(last.digests[-1].encode() + encoded).hexdigest())
            last.sizes.append(last.sizes[-1] + len(encoded) + 1)
        self._given = listed
        self._last = Prompt(last.messages, last.encoded, last.digests, last.sizes, len(listed), self._tools)
        return self._last

    def _known_of(self, message: Message) -> tuple[Message, Message, bytes]:
        known = self._known.get(id(message))
        if known is not None:
            return known
        if self._redactor is None:
            return self._keep(message, _sent(self._shown(message)))
        # A sequence that makes its messages anew whenever it is asked for them.
        redacted = _sent(self._shown(message), self._redactor.value)
        return self._keep(message, _sent(redacted, self._redactor.value_again))

    def _shown(self, message: Message) -> Message:
        return message if self._protocol is None else _as_text(message, self._protocol)

    def _keep(self, message: Message, sent: Message) -> tuple[Message, Message, bytes]:
        # The message is kept with what was made of it: a new one must not get the place of one that is gone.
        self._known[id(message)] = known = (message, sent, _encode(sent))
        return known


def _common_beginning(first: list[Message], second: list[Message]) -> int:
    shortest = min(len(first), len(second))
    if first[:shortest] == second[:shortest]:  # the usual case, at the speed of a comparison of pointers
        return shortest
    return next(index for index in range(shortest) if first[index] != second[index])


def _encode(value: Any) -> bytes:
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:
        # Half of a surrogate pair, as a log that was cut has it: no endpoint takes that.
        return _ENCODER.encode(json.loads(dump_json(value).encode("utf-8", "replace")))


def _each_once(histories: Iterable[Sequence[Message]]) -> list[Message]:
    unique: dict[int, Message] = {}
    for messages in histories:
        for message in messages:
            unique.setdefault(id(message), message)
    return list(unique.values())


def _as_text(message: Message, protocol: str) -> Message:
    """A message as an agent without tool calls has it: a command is a block in its text, a result a user's message."""
    text = text_of(message.get("content"))
    for call in message.get("tool_calls") or ():
        arguments, _ = parse_arguments((call.get("function") or {}).get("arguments"))
        text = with_command(text, str(arguments.get("command", "")), protocol)
    return {"role": "user" if message["role"] == "tool" else message["role"], "content": text}


def _sent(message: Message, redact: Callable[[Any], Any] | None = None) -> Message:
    """A message as it is sent: all of it redacted but roles, ids and the names of functions."""
    if isinstance(message.get("content"), list):
        # Pictures and files leave their kinds: the tokens of what an address refers to cannot be counted.
        message = {**message, "content": text_of(message["content"])}
    sent = _redacted(message, redact, ("role", "tool_call_id", "tool_calls"))
    # Endpoints refuse an empty list of calls.
    calls = [_sent_call(call, redact) for call in sent.pop("tool_calls", None) or ()]
    return {**sent, "tool_calls": calls} if calls else sent


def _sent_call(call: dict[str, Any], redact: Callable[[Any], Any] | None) -> dict[str, Any]:
    function = call.get("function") or {}
    given = function.get("arguments")
    if isinstance(given, str):
        given = given.encode("utf-8", "replace").decode()  # half of a surrogate pair is not valid JSON
    arguments, malformed = parse_arguments(given)
    if malformed is not None:
        arguments = {"malformed_arguments": malformed}
    if redact is None and malformed is None and isinstance(given, str) and given:
        text = given
    else:
        # Written anew: of a name that comes twice in a JSON text, the redactor sees but the last value.
        text = dump_json(arguments if redact is None else redact(arguments))
    safe = _redacted(call, redact, ("id", "type", "index", "function"))
    return {**safe, "function": {"name": function.get("name", ""), "arguments": text}}


def _redacted(record: dict[str, Any], redact: Callable[[Any], Any] | None, kept: Sequence[str]) -> dict[str, Any]:
    return {key: value if redact is None or key in kept else redact(value) for key, value in record.items()}


def _has_text(content: Any) -> bool:
    return isinstance(content, str) and bool(content.strip())


def _marked(message: Message) -> Message:
    return {**message, "content": [{"type": "text", "text": message["content"], "cache_control": _CACHE_MARK}]}


def token_bound(prompt: Prompt) -> int:
    """Return an upper bound of a prompt's tokens, for any tokenizer: one per byte, and what a provider adds."""
    return prompt.size + _AROUND


class KnownPrompts:
    """The prompts of one trace that one teacher has answered, newest last."""

    def __init__(self) -> None:
        self._answered: deque[AnsweredPrompt] = deque(maxlen=_REMEMBERED)
        self._refused: tuple[AnsweredPrompt, str] | None = None

    def add(self, prompt: Prompt, tokens: int) -> None:
        """Remember an answered prompt, with the number of tokens that the teacher counted (0: it did not say)."""
        self._answered.append(AnsweredPrompt(prompt.length, prompt.digest, prompt.size, tokens))

    def token_bound(self, prompt: Prompt) -> int:
        """Return an upper bound of a prompt's tokens: where its beginning was counted, only the rest is guessed."""
        bounds = [token_bound(prompt)]
        for known in self._answered:
            if known.tokens * LONGEST_TOKEN >= known.size and prompt.begins_with(known):
                bounds.append(known.tokens + prompt.size - known.size + _BETWEEN)
        return min(bounds)

    def refuse(self, prompt: Prompt, reason: str) -> None:
        """Remember a prompt that the teacher refused as too long; the shortest says most."""
        if self._refused is None or not prompt.begins_with(self._refused[0]):
            self._refused = AnsweredPrompt(prompt.length, prompt.digest, prompt.size, 0), reason

    def too_long(self, prompt: Prompt, window: int | None) -> str | None:
        """Return why a prompt cannot fit the teacher, None if it may: it continues one that did not fit, or one whose
        tokens were counted."""
        if self._refused is not None and prompt.begins_with(self._refused[0]):
            return f"not asked: a shorter prompt did not fit ({self._refused[1]})"
        if window is None:
            return None
        counted = [(known.tokens, known.size) for known in self._answered if prompt.begins_with(known)]
        least = max(tokens + (prompt.size - size) // _BYTES_PER_TOKEN for tokens, size in [(0, 0), *counted])
        return f"not asked: at least {least:,} tokens, and {window:,} fit" if least > window else None

    def marks(self, prompt: Prompt) -> list[int]:
        """Return where to put cache marks."""
        return prompt.marks(self._answered)
