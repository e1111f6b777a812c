"""What a provider makes of a request: its tokens, the part of them that a cache holds, the bill in nano-dollars.

Nothing here is a model of one company. `automatic` caches act as those that need no markers (a prefix that an earlier
request had, in units of tokens); `explicit` ones as those that keep what `cache_control` markers ask them to keep.
"""

from __future__ import annotations

import math
import string
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal, NamedTuple

import msgspec
from xxhash import xxh3_128_digest, xxh3_128_hexdigest

NANO = 10**9  # nano-dollars in a dollar

_MARKER = "cache_control"
MOST_MARKERS = 4  # a provider with an explicit cache refuses a request that has more
_LETTERS = (string.ascii_letters + " ").encode()
_LOOK_BACK = 20  # positions before a marker at which an entry is looked for, the marker's own among them


class Teacher(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One model of the provider. Prices are dollars per million tokens; a price that is None is that of input.

    `cache_minimum` is the shortest prefix that is cached, `cache_unit` the steps in which an automatic cache counts
    beyond it, `cache_seconds` how long an entry lasts after its last use (None: for ever). A token is
    `bytes_per_token` bytes of letters and spaces, or `bytes_per_symbol` other bytes (None: as many), and every message
    costs `message_tokens` more. `thinking_tokens` are generated and billed before every answer, and not shown.

    An answer takes `latency` seconds (the median of a log-normal law with `latency_spread` as its sigma, drawn from
    the question's digest) and `latency_per_token` for every token generated.

    `dialect` is how the usage is reported (`usage_dialects`). A prompt of more than `window` tokens is refused, in the
    words of `misbehaviour.TOO_LONG`; `context_length` is what the list of models says of it.
    """

    input_per_mtok: float = 0.0
    output_per_mtok: float = 0.0
    cached_per_mtok: float | None = None
    cache_write_per_mtok: float | None = None
    cache: Literal["automatic", "explicit", "none"] = "none"
    cache_minimum: int = 1024
    cache_unit: int = 128
    cache_seconds: float | None = None
    bytes_per_token: float = 4.0
    bytes_per_symbol: float | None = None
    message_tokens: int = 4
    thinking_tokens: int = 0
    latency: float = 0.0
    latency_spread: float = 0.0
    latency_per_token: float = 0.0
    dialect: str = "openrouter"
    window: int | None = None
    refusal: str = "openai"
    context_length: int | None = None

    def tokens(self, size: int, symbols: int = 0) -> int:
        """Of so many bytes, among them so many that are neither letters nor spaces."""
        if self.bytes_per_symbol is None:
            return math.ceil(size / self.bytes_per_token)
        return math.ceil((size - symbols) / self.bytes_per_token + symbols / self.bytes_per_symbol)


class Usage(NamedTuple):
    """Tokens of one request, each counted once: the prompt is the sum of the first three."""

    fresh: int
    cached: int
    written: int
    output: int

    @property
    def prompt(self) -> int:
        return self.fresh + self.cached + self.written


def cost(teacher: Teacher, usage: Usage) -> int:
    """Nano-dollars, the exact sum rounded up once."""
    prices = (
        teacher.input_per_mtok,
        _or_input(teacher, teacher.cached_per_mtok),
        _or_input(teacher, teacher.cache_write_per_mtok),
        teacher.output_per_mtok,
    )
    # By their decimal digits: the price of 0.1 is a tenth, not the binary fraction nearest to it.
    return math.ceil(sum(Fraction(str(price)) * 1000 * tokens for price, tokens in zip(prices, usage, strict=True)))


def _or_input(teacher: Teacher, price: float | None) -> float:
    return teacher.input_per_mtok if price is None else price


def limited(message: dict[str, Any], teacher: Teacher, limit: int) -> tuple[dict[str, Any], int, bool]:
    """The message as far as `limit` tokens go, the tokens generated, and whether that was all of it."""
    left = max(limit - teacher.thinking_tokens, 0)
    if teacher.tokens(_size(message)) <= left:
        return message, teacher.thinking_tokens + teacher.tokens(_size(message)), True
    room = int(left * teacher.bytes_per_token)
    content = _cut(message.get("content") or "", room)
    room -= len(content.encode())
    calls = []
    for call in message.get("tool_calls") or []:
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        if room > len(name.encode()):
            room -= len(name.encode())
            arguments = _cut(arguments, room)
            room -= len(arguments.encode())
            calls.append({**call, "function": {"name": name, "arguments": arguments}})
    return {**message, "content": content, **({"tool_calls": calls} if calls else {})}, limit, False


def _size(message: dict[str, Any]) -> int:
    functions = [call["function"] for call in message.get("tool_calls") or []]
    texts = [message.get("content") or "", *(function[name] for function in functions for name in function)]
    return sum(len(text.encode()) for text in texts)


def _cut(text: str, size: int) -> str:
    return text.encode()[:size].decode(errors="ignore")


class Block(NamedTuple):
    """What a cache can end at: a part of a message's content, a tool call, or the tools."""

    digest: bytes
    size: int  # bytes
    symbols: int  # of them, neither letters nor spaces
    marked: bool
    opens_message: bool


class Prompt:
    """A request's blocks in order, with the digest of the prefix that ends at each."""

    def __init__(self, model: str, tools: bytes, messages: Sequence[tuple[bytes, Sequence[Block]]]) -> None:
        self.messages_digest = xxh3_128_hexdigest(b"".join(digest for digest, _ in messages))
        """Of what is said, whatever the tools."""
        self.digest = xxh3_128_hexdigest(tools + b"\0" + self.messages_digest.encode())
        self._blocks = [block for _, blocks in messages for block in blocks]
        if tools:
            self._blocks.insert(
                0, Block(xxh3_128_digest(tools), len(tools), _symbols(tools), marked=False, opens_message=False)
            )
        self.markers = [index for index, block in enumerate(self._blocks) if block.marked]
        prefix = xxh3_128_digest(model.encode())
        self.prefixes = [prefix := xxh3_128_digest(prefix + block.digest) for block in self._blocks]

    def tokens(self, teacher: Teacher) -> list[int]:
        """Of the prefix that ends at each block."""
        total = 0
        totals = []
        for block in self._blocks:
            total += teacher.tokens(block.size, block.symbols) + (teacher.message_tokens if block.opens_message else 0)
            totals.append(total)
        return totals


class PromptReader:
    """Reads messages, each distinct one once: histories grow along a trace, so most of a request has been seen."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[bytes, list[Block]]] = {}

    def read(self, model: str, messages: Sequence[msgspec.Raw], tools: bytes = b"") -> Prompt:
        """A message is the same with and without markers, and with its text as a string or as parts."""
        return Prompt(model, tools, [self._message(message) for message in messages])

    def _message(self, raw: msgspec.Raw) -> tuple[bytes, list[Block]]:
        key = xxh3_128_digest(raw)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = _read_message(msgspec.json.decode(raw, type=dict[str, Any]))
        return known


def messages_digest(messages: Sequence[Mapping[str, Any]]) -> str:
    """The key under which a table of answers finds these messages."""
    return PromptReader().read("", [msgspec.Raw(msgspec.json.encode(message)) for message in messages]).messages_digest


def _read_message(message: dict[str, Any]) -> tuple[bytes, list[Block]]:
    content = message.pop("content", None)
    calls = message.pop("tool_calls", None) or []
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    bare = [{name: value for name, value in part.items() if name != _MARKER} for part in parts]
    # Role, name, the call that a result answers: they belong to the first block, whichever that is.
    opening = _encode(message)
    blocks = []
    for part, plain in zip(parts, bare, strict=True):
        text = plain["text"].encode() if plain.get("type") == "text" else _encode(plain)
        blocks.append((xxh3_128_digest(_encode(plain)), text, _MARKER in part))
    for call in calls:
        function = call.get("function", {})
        text = f"{function.get('name', '')}{function.get('arguments', '')}".encode()
        blocks.append((xxh3_128_digest(_encode(call)), text, False))
    if not blocks:
        blocks.append((b"", b"", False))
    whole = "".join(part["text"] for part in bare) if all(part.get("type") == "text" for part in bare) else bare
    digest = xxh3_128_digest(_encode([message, whole, calls]))
    return digest, [
        Block(
            digest=own if index else xxh3_128_digest(opening + b"\0" + own),
            size=len(text),
            symbols=_symbols(text),
            marked=marked,
            opens_message=not index,
        )
        for index, (own, text, marked) in enumerate(blocks)
    ]


def _symbols(text: bytes) -> int:
    return len(text.translate(None, _LETTERS))


def _encode(value: Any) -> bytes:
    return msgspec.json.encode(value, order="sorted")


class PromptCache:
    """What one model remembers of the prompts that it has answered: prefixes, and when each was used last."""

    def __init__(self, teacher: Teacher) -> None:
        self._teacher = teacher
        self._entries: dict[bytes, float] = {}

    def look_up(self, prompt: Prompt, now: float) -> tuple[int, int]:
        """Tokens read from the cache, and tokens that this request will write to it at the price of writing."""
        if self._teacher.cache == "none":
            return 0, 0
        tokens = prompt.tokens(self._teacher)
        if self._teacher.cache == "automatic":
            held = self._longest(prompt, range(len(tokens) - 1, -1, -1), tokens, now)
            beyond = held - self._teacher.cache_minimum
            unit = self._teacher.cache_unit
            return (self._teacher.cache_minimum + beyond // unit * unit if beyond >= 0 else 0), 0
        cached = max((self._longest(prompt, _back_from(marker), tokens, now) for marker in prompt.markers), default=0)
        kept = [tokens[marker] for marker in prompt.markers if tokens[marker] >= self._teacher.cache_minimum]
        return cached, max(max(kept, default=0) - cached, 0)

    def store(self, prompt: Prompt, now: float) -> None:
        """Remember a prompt that has been answered."""
        if self._teacher.cache == "none":
            return
        tokens = prompt.tokens(self._teacher)
        positions = range(len(tokens)) if self._teacher.cache == "automatic" else prompt.markers
        for position in positions:
            if tokens[position] >= self._teacher.cache_minimum:
                self._entries[prompt.prefixes[position]] = now

    def _longest(self, prompt: Prompt, positions: range, tokens: Sequence[int], now: float) -> int:
        lasts = self._teacher.cache_seconds
        for position in positions:
            used = self._entries.get(prompt.prefixes[position])
            if used is not None and (lasts is None or now - used <= lasts):
                self._entries[prompt.prefixes[position]] = now
                return tokens[position]
        return 0


def _back_from(marker: int) -> range:
    return range(marker, max(marker - _LOOK_BACK, -1), -1)
