"""Conversations that are too long for a row or a prompt, made shorter by whole messages.

What stays is everything before the first answer (system prompt and task; tools come from the chat template) and the
latest exchanges that fit. An exchange is what the user said, the answer, and the results of its calls; it stays or goes
as one, so that no call loses its results and no answer its question. In place of the rest, a text says how many
messages are left out. The chat template renders the shorter list like any other; ids are never cut.

That text is the last paragraph of the task's message. Templates such as Gemma's and Mistral's refuse two user messages
in a row, and many refuse a system message there. For the same reason a kept user message that would follow it directly
becomes a part of that message, too.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from composer_replication.chat_templates import Tools, encodable, template_text, tokenise
from composer_replication.rendering import RenderedConversation
from composer_replication.traces import Message

# A shorter list has nearly as many tokens as its messages have in the whole: fewer by what templates put around a user
# message that becomes a part of another. What nearly fits is rendered to see.
NEARLY = 32
# Tokens that a template puts around a message, roughly: only for sharing out a known number among several messages.
_AROUND = 6


@dataclass(frozen=True)
class Shortened:
    """The first `lead` messages of a conversation and those of [first, end), as `messages` for the template."""

    messages: list[Message]
    lead: int
    first: int
    end: int

    @property
    def left_out(self) -> int:
        """How many messages the text in their place stands for."""
        return self.first - self.lead

    def kept(self) -> set[int]:
        """The indices of its messages in the whole conversation."""
        return {*range(self.lead), *range(self.first, self.end)}

    def place(self, index: int) -> int:
        """Return the index in the whole conversation of one of `messages` that no text was added to."""
        return index if index < self.lead else self.end - len(self.messages) + index


class LongConversation:
    """A conversation that is too long, and the tokens that each part of it takes.

    Args:
        tokenizer: renders it.
        messages: the whole conversation.
        known: the token at which a message begins in the rendering of the whole, as far as that is known: at least for
            the first message after the lead, and the number of all tokens under `len(messages)`.
    """

    def __init__(self, tokenizer: Any, messages: Sequence[Message], known: Mapping[int, int]) -> None:
        self.messages = messages
        self.lead = _lead(messages)
        after_answer = ("assistant", "tool")
        # Where the kept end of a conversation can begin.
        self._starts = [
            place
            for place, asked in zip(range(self.lead, len(messages)), _asked_from(messages, self.lead), strict=True)
            if place == self.lead
            or (messages[place]["role"] != "tool" and messages[place - 1]["role"] in after_answer and asked >= place)
        ]
        self._begins = _begins(tokenizer, messages, {**known, 0: 0})
        self._marker = _count(tokenizer, f"\n\n{_marker(len(messages))}")

    @classmethod
    def of_rendering(
        cls, tokenizer: Any, messages: Sequence[Message], rendered: RenderedConversation
    ) -> LongConversation:
        """Measure a conversation by its rendering: exact, but for results and a user message after the same answer."""
        known: dict[int, int] = {}
        for turn in rendered.turns:
            if turn.message is not None and turn.header is not None:
                known |= {turn.message: turn.header, turn.message + 1: turn.stop}
        return cls(tokenizer, messages, {**known, len(messages): len(rendered.ids)})

    @classmethod
    def of_prompt(cls, tokenizer: Any, messages: Sequence[Message], tokens: int, tools: Tools) -> LongConversation:
        """Measure a prompt that has so many tokens, where the turns are not known."""
        lead = _lead(messages)
        lead_tokens = len(tokenise(tokenizer, template_text(tokenizer, messages[:lead], tools))[0]) if lead else 0
        return cls(tokenizer, messages, {lead: lead_tokens, len(messages): tokens})

    def tokens(self, messages: Iterable[int]) -> int:
        """How many tokens these messages have in the rendering of the whole."""
        return sum(self._begins[place + 1] - self._begins[place] for place in messages)

    def least(self, end: int) -> int:
        """About how many tokens the shortest list takes that ends before message `end`."""
        return self._size(self._starts[bisect_left(self._starts, end) - 1], end)

    def windows(self, end: int, room: int) -> Iterator[Shortened]:
        """Yield lists that end before message `end` and should fit into so many tokens, the longest first.

        The caller renders them, and takes the first that does fit.
        """
        for first in self._starts[: bisect_left(self._starts, end)]:
            if self._size(first, end) <= room + NEARLY:
                yield self._shortened(first, end)

    def _size(self, first: int, end: int) -> int:
        marked = self._begins[self.lead] + self._marker if first > self.lead else self._begins[first]
        return marked + self._begins[end] - self._begins[first]

    def _shortened(self, first: int, end: int) -> Shortened:
        messages, start = list(self.messages[: self.lead]), first
        if first > self.lead:
            messages = _with_paragraph(messages, _marker(first - self.lead))
            if self.messages[first]["role"] == "user":
                messages, start = _with_paragraph(messages, self.messages[first]["content"]), first + 1
        return Shortened([*messages, *self.messages[start:end]], self.lead, first, end)


def _lead(messages: Sequence[Message]) -> int:
    """Return the number of messages before the first answer to the user; of a conversation without a user, before the
    first answer."""
    roles = [message["role"] for message in messages]
    asked = roles.index("user") if "user" in roles else 0
    return next((place for place in range(asked, len(roles)) if roles[place] == "assistant"), len(roles))


def _asked_from(messages: Sequence[Message], lead: int) -> list[int]:
    """Return for each message after the lead the first message that made a call whose result is in it or later."""
    callers = {call.get("id"): place for place, one in enumerate(messages) for call in one.get("tool_calls") or ()}
    earliest, first = [], len(messages)
    for place in range(len(messages) - 1, lead - 1, -1):
        if messages[place]["role"] == "tool":
            first = min(first, callers.get(messages[place].get("tool_call_id"), place))
        earliest.append(first)
    return earliest[::-1]


def _marker(count: int) -> str:
    return "[1 message is left out here.]" if count == 1 else f"[{count} messages are left out here.]"


def _with_paragraph(messages: list[Message], text: str) -> list[Message]:
    """Append a paragraph to the user message at the end, or a user message where there is none."""
    if not messages or messages[-1]["role"] != "user":
        return [*messages, {"role": "user", "content": text}]
    *before, last = messages
    return [*before, {**last, "content": f"{last['content']}\n\n{text}"}]


def _begins(tokenizer: Any, messages: Sequence[Message], known: Mapping[int, int]) -> list[int]:
    """Return the token at which each message begins, and the number of all; between those that are known, tokens are
    shared out by the messages' texts."""
    begins = [0]
    for (place, begin), (after, end) in pairwise(sorted(known.items())):
        sizes = [1]
        if after - place > 1:
            sizes = [_AROUND + _count(tokenizer, _text(message)) for message in messages[place:after]]
        shared = 0
        for size in sizes:
            shared += size
            begins.append(begin + (end - begin) * shared // sum(sizes))
    return begins


def _text(message: Message) -> str:
    calls = message.get("tool_calls")
    return (message["content"] or "") + (json.dumps(calls, default=str) if calls else "")


def _count(tokenizer: Any, text: str) -> int:
    return len(tokenizer(encodable(text), add_special_tokens=False)["input_ids"])
