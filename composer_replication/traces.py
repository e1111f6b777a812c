"""The shared vocabulary: a trace, its turns, and the two views that the later stages take of it.

A `Trace` holds each turn once, so memory and disk grow linearly with the log. `Trace.states()` shows it to teachers
(one `TraceState` per assistant turn, its history a view of messages that all states share); `Trace.example()` shows it
to the collator. Encoded as JSON, a trace is itself a valid `TraceExample`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict, overload

import msgspec

Message: TypeAlias = dict[str, Any]
"""One chat message in OpenAI's form."""

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]

NO_RESULT = "[no result was recorded for this call]"
CLEARED_RESULT = "[Old tool result content cleared]"
_DEEPEST = 100


class TraceState(TypedDict):
    """One step of a trace as a teacher gets it.

    `messages` is the chat history that the student saw before this turn, in OpenAI's form; `student_action` is what it
    then did (see `render_action`).
    """

    state_id: str
    messages: Sequence[Message]
    student_action: str


class TraceTurn(TypedDict, total=False):
    """One turn as the collator takes it. Everything but `role` and `content` may be absent.

    `tool_error` and `error_meta` stand on the assistant turn that made the failing call; the result turn carries
    `is_error` and its text. `tool_call` is the first entry of `tool_calls`.
    """

    role: str
    content: str
    thinking: str
    tool_calls: list[dict[str, Any]]
    tool_call: dict[str, Any] | None
    tool_call_id: str
    is_error: bool
    error_kind: str
    tool_error: str | None
    error_meta: dict[str, Any]


class TraceExample(TypedDict, total=False):
    """One training example: the turns, a reward if one is known, and preference pairs (`DPOPair`) if there are any."""

    trace_id: str
    turns: list[TraceTurn]
    tools: list[dict[str, Any]]
    final_reward: float
    dpo_pairs: list[dict[str, Any]] | None


def _no_arguments() -> dict[str, Any]:
    return {}


class ToolCall(msgspec.Struct, omit_defaults=True):
    """A call as the assistant made it. `raw_arguments` is set only if the arguments are not a JSON object, or are
    nested beyond reason."""

    id: str
    name: str
    # A factory of our own: msgspec would leave the key out if `dict` itself made the default.
    arguments: dict[str, Any] = msgspec.field(default_factory=_no_arguments)
    raw_arguments: str | None = None

    def message(self) -> dict[str, Any]:
        """The call in OpenAI's form, with its arguments as a JSON string."""
        arguments = self.raw_arguments if self.raw_arguments is not None else dump_json(self.arguments)
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": arguments}}


class Usage(msgspec.Struct, omit_defaults=True):
    """Tokens of one model call. `input_tokens` is the whole prompt, the cached part included."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0


class Turn(msgspec.Struct, omit_defaults=True):
    """One turn of a trace, in the order in which the model saw them: a call's results follow the turn that made it.

    role "tool": `tool_call_id` names the call it answers, `is_error` is what the log itself says (or its text, where
    the log has no such flag), `error_kind` what went wrong.
    role "assistant": `tool_error` and `error_meta` describe its failing call, a mistake of the student's before one
    that is not; `id` is the log's id of the message; `repeats` marks a copy of a turn that another file holds, which
    is context and no state of its own.
    role "user": `origin` says where the text comes from ("prompt" is the human).

    How a turn continues the context, if not simply after the turn before it: `follows` is the index of the turn that
    comes before it in the model's context (-1: the context begins here, as after a compaction; an earlier turn: a
    rewind). `keeps` are earlier turns that stay in view behind it, `clears` are calls whose results the model no
    longer saw from here on.
    """

    role: Role
    content: str = msgspec.field(default_factory=str)  # a factory: the key is written even if the text is empty
    thinking: str = ""
    tool_calls: list[ToolCall] = []
    tool_call_id: str | None = None
    is_error: bool = False
    error_kind: str | None = None
    tool_error: str | None = None
    error_meta: dict[str, Any] | None = None
    origin: str | None = None
    id: str | None = None
    model: str | None = None
    usage: Usage | None = None
    timestamp: str | None = None
    line: int | None = None
    repeats: bool = False
    follows: int | None = None
    keeps: list[int] = []
    clears: list[str] = []

    @property
    def tool_call(self) -> ToolCall | None:
        """The first call, if there is one."""
        return self.tool_calls[0] if self.tool_calls else None


class Source(msgspec.Struct, omit_defaults=True):
    """Where a trace comes from: the file, the line it begins on, the log format, the version of what wrote it."""

    file: str
    format: str
    version: str | None = None
    line: int = 1


class Trace(msgspec.Struct, omit_defaults=True):
    """One conversation of one agent. `parent` is the trace id of the agent that started it, for a sub-agent."""

    trace_id: str
    turns: list[Turn]
    source: Source
    session_id: str | None = None
    parent: str | None = None
    model: str | None = None
    cwd: str | None = None
    git_branch: str | None = None
    tools: list[dict[str, Any]] = []
    final_reward: float | None = None
    meta: dict[str, Any] = {}

    def states(
        self,
        *,
        system_prompt: str | None = None,
        strip_thinking: bool = True,
        max_history_tokens: int | None = None,
        count_tokens: Callable[[str], int] | None = None,
    ) -> Iterator[TraceState]:
        """One state per assistant turn of the student, in order.

        The histories are views (`History`) of messages that all states share: a thousand states of a long session cost
        no more than the session. `list(state["messages"])` is a plain list, for JSON.

        Args:
            system_prompt: put first, unless the log has a system message of its own.
            strip_thinking: leave the student's thinking out of the histories (never out of `student_action`).
            max_history_tokens: drop the oldest messages until the rest fits. A call goes together with its results;
                the system message and the newest message (with its call) always stay.
            count_tokens: counts the tokens of a text; without it, a token is taken for four bytes.
        """
        context = Context(system_prompt=system_prompt, strip_thinking=strip_thinking)
        measure = _Measure(count_tokens or estimate_tokens) if max_history_tokens is not None else None
        number = 0
        for turn in self.turns:
            context.before(turn)
            if turn.role == "assistant" and not turn.repeats:
                history = context.history()
                if measure is not None and max_history_tokens is not None:
                    history = measure.truncate(history, max_history_tokens)
                yield TraceState(
                    state_id=f"{self.trace_id}::{number:04d}", messages=history, student_action=render_action(turn)
                )
                number += 1
            context.add(turn)

    def example(self) -> TraceExample:
        """The trace as the collator takes it; `final_reward` is there only if the log knows one."""
        example = TraceExample(trace_id=self.trace_id, turns=[_turn_view(turn) for turn in self.turns])
        if self.tools:
            example["tools"] = self.tools
        if self.final_reward is not None:
            example["final_reward"] = self.final_reward
        return example

    def calls(self) -> Iterator[tuple[Turn, ToolCall, Turn | None]]:
        """Every tool call, with the turn that made it and the turn that answers it (None: no answer was logged)."""
        answers = {turn.tool_call_id: turn for turn in self.turns if turn.role == "tool"}
        for turn in self.turns:
            for call in turn.tool_calls:
                yield turn, call, answers.get(call.id)


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
    """Whether `max_history_tokens` took something from a state's history."""
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
        """Put the turn behind what is there."""
        rendered = self._render(turn)
        self._previous.append(self._last)
        self._last = len(self._rendered)
        self._begins[self._last] = len(self._messages)
        self._rendered.append([])
        self._extend(rendered)
        # What a compaction keeps stands behind its summary, and belongs to it from then on.
        self._extend([message for kept in turn.keeps for message in self._rendered[kept]])

    def history(self) -> History:
        """What the model saw, as a view that stays as it is while the trace goes on."""
        return History(self._lead, self._messages, 0, len(self._messages))

    def _continue_from(self, follows: int) -> None:
        """Go on behind an earlier turn. Histories handed out before keep the message list they have."""
        self._last = min(follows, len(self._rendered) - 1)
        self._rebuild()
        self._open_calls = _unanswered(self._messages)

    def _extend(self, messages: list[Message]) -> None:
        """Put messages behind those of the last turn, which are the last of the current context."""
        rendered = self._rendered[self._last]
        for place, message in enumerate(messages, len(rendered)):
            if message["role"] == "tool":
                self._results.setdefault(message["tool_call_id"], []).append((self._last, place))
        rendered.extend(messages)
        self._messages.extend(messages)

    def _clear(self, calls: Sequence[str]) -> None:
        """Empty the results of these calls, in every branch. Histories handed out before keep what they showed."""
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
        """A chat needs an answer to every call; what the log does not have is said to be missing."""
        if not self._open_calls:
            return
        self._extend([{"role": "tool", "tool_call_id": call, "content": NO_RESULT} for call in self._open_calls])
        self._open_calls = []

    def _render(self, turn: Turn) -> list[Message]:
        if turn.role == "assistant":
            self._open_calls = [call.id for call in turn.tool_calls]
            return [_assistant_message(turn, strip_thinking=self._strip_thinking)]
        if turn.role == "tool":
            if turn.tool_call_id in self._open_calls:
                self._open_calls.remove(turn.tool_call_id)
                return [{"role": "tool", "tool_call_id": turn.tool_call_id, "content": turn.content}]
            # No call in view asked for it (it was compacted away, or never logged): a tool message would be refused.
            return [{"role": "user", "content": turn.content}]
        if turn.role == "system" and not self._messages:
            # The log's own system prompt leads every later context, whatever is compacted or dropped behind it.
            self._lead = [*self._logged, {"role": "system", "content": turn.content}]
            self._logged = self._lead
            return []
        return [{"role": turn.role, "content": turn.content}]


class _Measure:
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
            behind = self._first + 1
            while behind < stop and messages[behind]["role"] == "tool":
                behind += 1
            if behind >= stop:
                break
            self._total -= self._sum(messages[self._first : behind])
            self._first = behind

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


def render_action(turn: Turn) -> str:
    """What an assistant turn did, as one text: `[THINKING]` block, answer, one `[TOOL_USE]` line per call.

    Example: `[TOOL_USE] name=Read input={"file_path": "a.py"}`
    """
    parts = [part for part in (_thinking_block(turn), turn.content) if part]
    for call in turn.tool_calls:
        given = call.raw_arguments if call.raw_arguments is not None else dump_json(call.arguments)
        parts.append(f"[TOOL_USE] name={call.name} input={given}")
    return "\n".join(parts)


def _thinking_block(turn: Turn) -> str:
    return f"[THINKING]\n{turn.thinking}\n[/THINKING]" if turn.thinking else ""


def dump_json(value: Any) -> str:
    """JSON on one line, characters as they are."""
    return json.dumps(value, ensure_ascii=False)


def parse_arguments(given: Any) -> tuple[dict[str, Any], str | None]:
    """Arguments as a log has them (object, JSON text, anything) to `ToolCall`'s `arguments` and `raw_arguments`."""
    if isinstance(given, Mapping):
        arguments = dict(given)
        return ({}, _text_of(arguments)) if _is_deep(arguments) else (arguments, None)
    if given is None or given == "":
        return {}, None
    text = given if isinstance(given, str) else _text_of(given)
    try:
        parsed = msgspec.json.decode(text.encode("utf-8", "surrogatepass"))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return {}, text
    return (parsed, None) if isinstance(parsed, dict) and not _is_deep(parsed) else ({}, text)


def _is_deep(value: dict[str, Any]) -> bool:
    """Whether values are nested so deeply that walking through them could break off in some later stage."""
    layer: list[Any] = [value]
    for _ in range(_DEEPEST):
        layer = [
            inner
            for one in layer
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, dict | list)
        ]
        if not layer:
            return False
    return True


def _text_of(value: Any) -> str:
    try:
        return dump_json(value)
    except RecursionError:
        return f"[a {type(value).__name__} that is nested too deeply]"


def _unanswered(messages: Sequence[Message]) -> list[str]:
    """The calls at the end of a context that have no result yet."""
    last = len(messages) - 1
    while last >= 0 and messages[last]["role"] == "tool":
        last -= 1
    answered = {message["tool_call_id"] for message in messages[last + 1 :]}
    calls = messages[last].get("tool_calls", ()) if last >= 0 else ()
    return [call["id"] for call in calls if call["id"] not in answered]


def _assistant_message(turn: Turn, *, strip_thinking: bool) -> Message:
    shown = (turn.content,) if strip_thinking else (_thinking_block(turn), turn.content)
    message: Message = {"role": "assistant", "content": "\n".join(part for part in shown if part)}
    if turn.tool_calls:
        message["tool_calls"] = [call.message() for call in turn.tool_calls]
    return message


def _turn_view(turn: Turn) -> TraceTurn:
    view: TraceTurn = msgspec.to_builtins(turn)
    view.setdefault("content", "")
    if "tool_calls" in view:
        view["tool_call"] = view["tool_calls"][0]
    return view
