"""The context of the model before each turn of a trace, as views of shared message lists.

All states of a trace share one list of messages; a history is a view of its beginning. Only where the context begins
anew, goes back, or loses results is a new list begun.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import overload

from composer_replication.traces import Message, Turn, thinking_block

NO_RESULT = "[no result was recorded for this call]"
CLEARED_RESULT = "[Old tool result content cleared]"


class History(Sequence[Message]):
    """A read-only view of the first part of a growing message list, with the messages that always lead it."""

    __slots__ = ("_lead", "_messages", "_start", "_stop")

    def __init__(self, lead: list[Message], messages: list[Message], start: int, stop: int) -> None:
        self._lead, self._messages, self._start, self._stop = lead, messages, start, stop

    def __len__(self) -> int:
        return len(self._lead) + self._stop - self._start

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"message {index} of a history of {len(self)}")
        if position < len(self._lead):
            return self._lead[position]
        return self._messages[self._start + position - len(self._lead)]

    def __iter__(self) -> Iterator[Message]:
        return chain(self._lead, self._messages[self._start : self._stop])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and not isinstance(other, str | bytes) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"History({list(self)!r})"

    def without_oldest(self, count: int) -> History:
        """The same history without its `count` oldest messages; the leading ones stay."""
        return History(self._lead, self._messages, self._start + count, self._stop)

    @property
    def body(self) -> tuple[list[Message], int, int]:
        """The shared list, and where this view begins and ends in it."""
        return self._messages, self._start, self._stop


def is_truncated(messages: Sequence[Message]) -> bool:
    """Return whether `max_history_tokens` removed messages from a step's history."""
    return isinstance(messages, History) and messages.body[1] > 0


class Context:
    """The model's context as a trace unfolds: feed it every turn with `before` and `add`, in order."""

    def __init__(self, *, system_prompt: str | None = None, strip_thinking: bool = True) -> None:
        self._lead: list[Message] = [{"role": "system", "content": system_prompt}] if system_prompt else []
        self._logged: list[Message] = []
        self._strip_thinking = strip_thinking
        # By turn: its messages, and the turn before it in its context. `_messages` are those of the current context.
        self._rendered: list[list[Message]] = []
        self._previous: list[int] = []
        self._last = -1
        self._messages: list[Message] = []
        # By turn of the current context: where its messages begin in `_messages`.
        self._begins: dict[int, int] = {}
        # By call: the turn, and the place among its messages, of every result still to be cleared.
        self._results: dict[str, list[tuple[int, int]]] = {}
        self._open_calls: list[str] = []

    def before(self, turn: Turn) -> None:
        """Bring the context to where the model was when this turn began."""
        if turn.follows is not None:
            self._close_calls()
            self._continue_from(turn.follows)
        if turn.clears:
            self._clear(turn.clears)
        if turn.role != "tool" or turn.tool_call_id not in self._open_calls:
            self._close_calls()

    def add(self, turn: Turn) -> None:
        """Append the turn."""
        rendered = self._render(turn)
        self._previous.append(self._last)
        self._last = len(self._rendered)
        self._begins[self._last] = len(self._messages)
        self._rendered.append([])
        self._extend(rendered)
        # The turns that a compaction keeps come after its summary, and belong to it from then on.
        self._extend([message for kept in turn.keeps for message in self._rendered[kept]])

    def history(self) -> History:
        """Return a view of the context that does not change while the trace goes on."""
        return History(self._lead, self._messages, 0, len(self._messages))

    def _continue_from(self, follows: int) -> None:
        """Continue after an earlier turn. Histories returned before keep their message list."""
        self._last = min(follows, len(self._rendered) - 1)
        self._rebuild()
        self._open_calls = _unanswered(self._messages)

    def _extend(self, messages: list[Message]) -> None:
        """Append messages to those of the last turn, which end the current context."""
        rendered = self._rendered[self._last]
        for place, message in enumerate(messages, len(rendered)):
            if message["role"] == "tool":
                self._results.setdefault(message["tool_call_id"], []).append((self._last, place))
        rendered.extend(messages)
        self._messages.extend(messages)

    def _clear(self, calls: Sequence[str]) -> None:
        """Empty the results of these calls in every branch. Histories returned before keep them."""
        cleared: list[tuple[int, Message]] = []
        for call in calls:
            for turn, place in self._results.pop(call, ()):
                message = {**self._rendered[turn][place], "content": CLEARED_RESULT}
                self._rendered[turn][place] = message
                if turn in self._begins:
                    cleared.append((self._begins[turn] + place, message))
        if cleared:
            self._messages = self._messages.copy()
            for position, message in cleared:
                self._messages[position] = message

    def _rebuild(self) -> None:
        chain = []
        index = self._last
        while index >= 0:
            chain.append(index)
            index = self._previous[index]
        self._messages, self._begins = [], {}
        for index in reversed(chain):
            self._begins[index] = len(self._messages)
            self._messages.extend(self._rendered[index])

    def _close_calls(self) -> None:
        """Add a placeholder result for every open call: a chat needs an answer to each."""
        if not self._open_calls:
            return
        self._extend([{"role": "tool", "tool_call_id": call, "content": NO_RESULT} for call in self._open_calls])
        self._open_calls = []

    def _render(self, turn: Turn) -> list[Message]:
        if turn.role == "assistant":
            self._open_calls = [call.id for call in turn.tool_calls]
            return [assistant_message(turn, strip_thinking=self._strip_thinking)]
        if turn.role == "tool":
            if turn.tool_call_id in self._open_calls:
                self._open_calls.remove(turn.tool_call_id)
                return [{"role": "tool", "tool_call_id": turn.tool_call_id, "content": turn.content}]
            # No call in view asked for it (it was compacted away, or never logged): a tool message would be refused.
            return [{"role": "user", "content": turn.content}]
        if turn.role == "system" and not self._messages:
            # The log's own system prompt leads every later context, whatever is compacted or dropped after it.
            self._lead = [*self._logged, {"role": "system", "content": turn.content}]
            self._logged = self._lead
            return []
        return [{"role": turn.role, "content": turn.content}]


class Measure:
    """Cuts histories to a limit. Each message is counted once, and passed once for each list that it is in."""

    def __init__(self, count_tokens: Callable[[str], int]) -> None:
        self._count = count_tokens
        # By identity. The message is kept too: a new one must not get the place, and so the count, of one that is gone.
        self._known: dict[int, tuple[Message, int]] = {}
        # What stayed of the last history: its list, from where to where, the tokens in there, and the room they had.
        self._messages: list[Message] | None = None
        self._first = self._stop = self._total = self._room = 0

    def truncate(self, history: History, limit: int) -> History:
        messages, start, stop = history.body
        room = limit - self._sum(history[: len(history) - (stop - start)])
        if messages is self._messages and start <= self._first and self._stop <= stop and room <= self._room:
            # The list has grown: what was dropped would not fit now either.
            self._total += self._sum(messages[self._stop : stop])
            self._drop_oldest(messages, stop, room)
        else:
            self._take_newest(messages, start, stop, room)
        self._messages, self._stop, self._room = messages, stop, room
        return history.without_oldest(self._first - start)

    def _drop_oldest(self, messages: list[Message], stop: int, room: int) -> None:
        while self._total > room:
            after = self._first + 1
            while after < stop and messages[after]["role"] == "tool":
                after += 1
            if after >= stop:
                break
            self._total -= self._sum(messages[self._first : after])
            self._first = after

    def _take_newest(self, messages: list[Message], start: int, stop: int, room: int) -> None:
        self._first, self._total = stop, 0
        while self._first > start:
            unit = self._first - 1
            while unit > start and messages[unit]["role"] == "tool":
                unit -= 1
            total = self._total + self._sum(messages[unit : self._first])
            if total > room and self._first < stop:
                break
            self._first, self._total = unit, total

    def _sum(self, messages: Sequence[Message]) -> int:
        return sum(self._tokens(message) for message in messages)

    def _tokens(self, message: Message) -> int:
        known = self._known.get(id(message))
        if known is None:
            calls = "".join(
                call["function"]["name"] + call["function"]["arguments"] for call in message.get("tool_calls", ())
            )
            known = self._known[id(message)] = (message, self._count((message["content"] or "") + calls))
        return known[1]


def estimate_tokens(text: str) -> int:
    """A rough count without a tokenizer: four bytes a token, rounded up."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // 4)


def _unanswered(messages: Sequence[Message]) -> list[str]:
    """The calls at the end of a context that have no result yet."""
    last = len(messages) - 1
    while last >= 0 and messages[last]["role"] == "tool":
        last -= 1
    answered = {message["tool_call_id"] for message in messages[last + 1 :]}
    calls = messages[last].get("tool_calls", ()) if last >= 0 else ()
    return [call["id"] for call in calls if call["id"] not in answered]


def assistant_message(turn: Turn, *, strip_thinking: bool = True) -> Message:
    """An assistant turn as a chat message, with its calls in OpenAI's form."""
    shown = (turn.content,) if strip_thinking else (thinking_block(turn), turn.content)
    message: Message = {"role": "assistant", "content": "\n".join(part for part in shown if part)}
    if turn.tool_calls:
        message["tool_calls"] = [call.message() for call in turn.tool_calls]
    return message
