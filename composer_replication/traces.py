"""The shared vocabulary: a trace, its turns, and the views that later stages take of it.

A `Trace` holds each turn once, so memory and disk grow linearly with the log. `Trace.steps()` is the view for teachers
(one `Step` per assistant turn; the histories are views of messages that all steps share), `Trace.states()` the same
with actions as texts, `Trace.example()` the view for the collator. Encoded as JSON, a trace is a valid `TraceExample`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict

import msgspec

Message: TypeAlias = dict[str, Any]
"""One chat message in OpenAI's form."""

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]

_DEEPEST = 100
_THINKING = re.compile(r"\[THINKING\]\n(?P<thinking>.*?)\n\[/THINKING\](?:\n|\Z)", re.DOTALL)
_CALL = re.compile(r"^\[TOOL_USE\] name=(.*?) input=", re.MULTILINE)


class TraceState(TypedDict):
    """One step of a trace as a teacher gets it.

    `messages` is the chat history that the student saw before this turn, in OpenAI's form; `student_action` is what it
    then did (see `render_action`).
    """

    state_id: str
    messages: Sequence[Message]
    student_action: str


class Step(NamedTuple):
    """One step of a trace between rooms: what the student saw, and the turn that it then took.

    `TraceState` is the same with the action as a text, for the documented API.
    """

    state_id: str
    messages: Sequence[Message]
    turn: Turn

    @classmethod
    def of(cls, state: TraceState) -> Step:
        """Return the step that a state describes: the one place where a student's action is parsed."""
        return cls(state["state_id"], state["messages"], parse_action(state["student_action"]))

    def state(self) -> TraceState:
        """Return the step with its action as a text."""
        return TraceState(state_id=self.state_id, messages=self.messages, student_action=render_action(self.turn))


class TraceTurn(TypedDict, total=False):
    """One turn as the collator takes it. Everything but `role` and `content` may be absent.

    `tool_error` and `error_meta` stand on the assistant turn that erred; the result turn carries `is_error` and its
    text. `tool_call` is the first entry of `tool_calls`.
    """

    role: str
    content: str
    thinking: str
    tool_calls: list[dict[str, Any]]
    tool_call: dict[str, Any] | None
    tool_call_id: str
    is_error: bool
    masked: bool
    outcome: bool
    charged_to: list[int]
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
        """Return the call in OpenAI's form, with its arguments as a JSON string."""
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
    the log has no such flag), `error_kind` what went wrong. `masked`: the command hid its failure from the log, as
    `pytest | tail` does, and its text shows it. `outcome`: a right action that reports on earlier work, such as a
    test that fails; `charged_to` are the turns that wrote what it fails on, where that is certain.
    role "assistant": `tool_error` and `error_meta` describe what was wrong with its action, a mistake of the student's
    before one that is not; `id` is the log's id of the message; `repeats` marks a copy of a turn that another file
    holds, which is context and no state of its own.
    role "user": `origin` says where the text comes from ("prompt" is the human).

    How a turn continues the context, if not simply after the turn before it: `follows` is the index of the turn that
    comes before it in the model's context (-1: the context begins here, as after a compaction; an earlier turn: a
    rewind). `keeps` are earlier turns that stay in view after it, `clears` are calls whose results the model no
    longer saw from here on.
    """

    role: Role
    content: str = msgspec.field(default_factory=str)  # a factory: the key is written even if the text is empty
    thinking: str = ""
    tool_calls: list[ToolCall] = []
    tool_call_id: str | None = None
    is_error: bool = False
    masked: bool = False
    outcome: bool = False
    charged_to: list[int] = []
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
    """The origin of a trace: file, first line, log format, and the version of the program that wrote the log."""

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
        """`steps`, with the actions as texts. `list(state["messages"])` is a plain list, for JSON."""
        steps = self.steps(
            system_prompt=system_prompt,
            strip_thinking=strip_thinking,
            max_history_tokens=max_history_tokens,
            count_tokens=count_tokens,
        )
        return (step.state() for step in steps)

    def steps(
        self,
        *,
        system_prompt: str | None = None,
        strip_thinking: bool = True,
        max_history_tokens: int | None = None,
        count_tokens: Callable[[str], int] | None = None,
    ) -> Iterator[Step]:
        """One step per assistant turn of the student, in order.

        The histories are views (`History`) of messages that all steps share: a thousand steps of a long session cost
        no more than the session.

        Args:
            system_prompt: put first, unless the log has a system message of its own.
            strip_thinking: leave the student's thinking out of the histories (never out of the step's own turn).
            max_history_tokens: drop the oldest messages until the rest fits. A call goes together with its results;
                the system message and the newest message (with its call) always stay.
            count_tokens: counts the tokens of a text; without it, a token is taken for four bytes.
        """
        from composer_replication.histories import Context, Measure, estimate_tokens

        context = Context(system_prompt=system_prompt, strip_thinking=strip_thinking)
        measure = Measure(count_tokens or estimate_tokens) if max_history_tokens is not None else None
        number = 0
        for turn in self.turns:
            context.before(turn)
            if turn.role == "assistant" and not turn.repeats:
                history = context.history()
                if measure is not None and max_history_tokens is not None:
                    history = measure.truncate(history, max_history_tokens)
                yield Step(f"{self.trace_id}::{number:04d}", history, turn)
                number += 1
            context.add(turn)

    def example(self) -> TraceExample:
        """Return the trace as the collator takes it; `final_reward` is set only if the log has one."""
        example = TraceExample(trace_id=self.trace_id, turns=[_turn_view(turn) for turn in self.turns])
        if self.tools:
            example["tools"] = self.tools
        if self.final_reward is not None:
            example["final_reward"] = self.final_reward
        return example

    def calls(self) -> Iterator[tuple[Turn, ToolCall, Turn | None]]:
        """Yield every tool call, with the turn that made it and the turn that answers it (None: not logged)."""
        answers = {turn.tool_call_id: turn for turn in self.turns if turn.role == "tool"}
        for turn in self.turns:
            for call in turn.tool_calls:
                yield turn, call, answers.get(call.id)


def content_of(turn: Turn) -> str:
    """A turn's text. A reader may leave a result as its log has it, if nobody is to change it."""
    content: Any = turn.content
    return msgspec.json.decode(content, type=str) if isinstance(content, msgspec.Raw) else content


def render_action(turn: Turn) -> str:
    """Return an assistant turn as one text: `[THINKING]` block, answer, one `[TOOL_USE]` line per call.

    Example: `[TOOL_USE] name=Read input={"file_path": "a.py"}`
    """
    parts = [part for part in (thinking_block(turn), turn.content) if part]
    for call in turn.tool_calls:
        given = call.raw_arguments if call.raw_arguments is not None else dump_json(call.arguments)
        parts.append(f"[TOOL_USE] name={call.name} input={given}")
    return "\n".join(parts)


def parse_action(action: str) -> Turn:
    """Return the assistant turn that `render_action` made this text from; calls are numbered, as texts have no ids.

    Arguments that are not a JSON object come back as `raw_arguments`.
    """
    thinking, content, calls = "", action, []
    if (found := _THINKING.match(action)) is not None:
        thinking, content = found["thinking"], action[found.end() :]
    content, *given = _CALL.split(content)
    for index, (name, text) in enumerate(zip(given[::2], given[1::2], strict=True)):
        is_last = index * 2 + 2 == len(given)
        arguments, raw = parse_arguments(text if is_last else text.removesuffix("\n"))
        calls.append(ToolCall(f"call_{index}", name, arguments, raw))
    return Turn("assistant", content.removesuffix("\n") if calls else content, thinking=thinking, tool_calls=calls)


def without_thinking(action: str) -> str:
    """An action's text without its `[THINKING]` block; the rest stays character for character."""
    found = _THINKING.match(action)
    return action if found is None else action[found.end() :]


def action_text(turn: Turn) -> str:
    """Return `render_action` without the thinking: the text that is shown, and compared as text."""
    return render_action(turn if not turn.thinking else msgspec.structs.replace(turn, thinking=""))


def thinking_block(turn: Turn) -> str:
    """Return the `[THINKING]` block of a turn; empty if it has no thinking."""
    return f"[THINKING]\n{turn.thinking}\n[/THINKING]" if turn.thinking else ""


def dump_json(value: Any) -> str:
    """Return JSON on one line, without escaping non-ASCII characters."""
    return json.dumps(value, ensure_ascii=False)


def parse_arguments(given: Any) -> tuple[dict[str, Any], str | None]:
    """Return `ToolCall.arguments` and `raw_arguments` for arguments in any form (object, JSON text, anything)."""
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
    """Return whether values are nested so deeply that a later stage could hit the recursion limit."""
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


def _turn_view(turn: Turn) -> TraceTurn:
    view: TraceTurn = msgspec.to_builtins(turn)
    view.setdefault("content", "")
    if "tool_calls" in view:
        view["tool_call"] = view["tool_calls"][0]
    return view
