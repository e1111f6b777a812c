"""Traces in the form that chat templates take: linear conversations, in which each answer is learned once.

A trace whose context begins anew, goes back or loses results is not a single conversation. It becomes several, each as
the model saw it. An answer that is in more than one of them carries loss in the first alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from composer_replication.chat_templates import with_result_names, without_text_beside_calls
from composer_replication.histories import Context, History, assistant_message
from composer_replication.traces import Message, ToolCall, TraceExample, Turn, parse_arguments

EARLIER = "[The conversation began earlier.]"
"""The user message before a first answer whose prompt the log has lost: templates need one."""

_ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True)
class Conversation:
    """A linear conversation of a trace.

    `messages` are in OpenAI's form, except that the arguments of calls are objects, or raw text if they are not JSON.
    `turns` has, for each message, the index of the turn it shows (None: a placeholder for what the log does not have).
    `learned` are the assistant messages that carry loss here, and in no other conversation of the trace.
    """

    messages: list[Message]
    turns: list[int | None]
    learned: list[int] = field(default_factory=list)

    def without_text_beside_calls(self) -> Conversation:
        """Return the same conversation for a chat template that has no place for such text."""
        return replace(self, messages=without_text_beside_calls(self.messages))


def trace_turns(example: TraceExample) -> list[Turn]:
    """Return the turns of an example: those of a `Trace`, or ones with no more than the collator's documented fields.

    Calls without an id get one, and results without one answer the oldest call that is still open. An error on a
    result is moved to the turn that made the call.

    Raises:
        ValueError: a turn that cannot be read; names the trace and the turn.
    """
    turns: list[Turn] = []
    maker: dict[str, int] = {}
    waiting: list[str] = []
    for index, given in enumerate(example.get("turns") or ()):
        place = f"trace {example.get('trace_id', '?')!r}, turn {index}"
        turn = _turn(given, place, index)
        if turn.role == "assistant":
            waiting = [call.id for call in turn.tool_calls]
            maker.update(dict.fromkeys(waiting, index))
        elif turn.role == "tool":
            if turn.tool_call_id is None and waiting:
                turn.tool_call_id = waiting[0]
            if turn.tool_call_id in waiting:
                waiting.remove(turn.tool_call_id)
            asked = maker.get(turn.tool_call_id or "")
            if turn.tool_error is not None and asked is not None and turns[asked].tool_error is None:
                turns[asked].tool_error, turns[asked].error_meta = turn.tool_error, turn.error_meta
        turns.append(turn)
    return turns


def conversations(
    turns: Sequence[Turn], *, system_prompt: str | None = None, strip_thinking: bool = True
) -> Iterator[Conversation]:
    """Yield the conversations of a trace in which there is something to learn, in order.

    Turns that repeat another file's are context only. `system_prompt` comes first, unless the log has one of its own.
    """
    context = Context(system_prompt=system_prompt, strip_thinking=strip_thinking)
    # The turn that each of the context's messages shows, by the message's identity. Messages are kept, so that no new
    # one gets the identity of one that is gone.
    turn_of: dict[int, tuple[Message, int]] = {}
    seen: History | None = None
    learned: list[int] = []
    for index, turn in enumerate(turns):
        context.before(turn)
        before = context.history()
        if seen is not None and not _continues(before, seen):
            yield from _conversation(seen, turns, turn_of, learned, strip_thinking)
            learned = []
        context.add(turn)
        seen = context.history()
        if len(seen) > len(before):
            message = seen[len(before)]
            turn_of[id(message)] = (message, index)
        if turn.role == "assistant" and not turn.repeats:
            learned.append(index)
    if seen is not None:
        yield from _conversation(seen, turns, turn_of, learned, strip_thinking)


def _continues(later: History, earlier: History) -> bool:
    """Whether a history only adds to another."""
    if len(later) < len(earlier):
        return False
    same = zip(later, earlier, strict=False)
    return later.body[0] is earlier.body[0] or all(one is other for one, other in same)


def _conversation(
    history: History,
    turns: Sequence[Turn],
    turn_of: Mapping[int, tuple[Message, int]],
    learned: list[int],
    strip_thinking: bool,
) -> Iterator[Conversation]:
    if not learned:
        return
    messages: list[Message] = []
    shown: list[int | None] = []
    for message in history:
        if message["role"] in ("assistant", "tool") and all(one["role"] == "system" for one in messages):
            messages.append({"role": "user", "content": EARLIER})
            shown.append(None)
        _, turn = turn_of.get(id(message), (message, None))
        if message["role"] == "assistant" and turn is not None:
            message = _for_templates(turns[turn], strip_thinking)
        messages.append(message)
        shown.append(turn)
    places = {turn: place for place, turn in enumerate(shown) if turn is not None}
    yield Conversation(with_result_names(messages), shown, [places[turn] for turn in learned])


def _for_templates(turn: Turn, strip_thinking: bool) -> Message:
    """Return an assistant turn's message with arguments as objects (templates would quote a JSON text once more), and
    thinking in a field of its own, which templates of thinking models read."""
    message = assistant_message(turn)
    if turn.thinking and not strip_thinking:
        message["reasoning_content"] = turn.thinking
    elif "</think>" in turn.content:
        message["reasoning_content"] = ""  # or templates would take what is before it for thinking
    for call, shown in zip(turn.tool_calls, message.get("tool_calls", ()), strict=True):
        if call.raw_arguments is None:
            shown["function"]["arguments"] = call.arguments
    return message


def _turn(given: Any, place: str, index: int) -> Turn:
    if not isinstance(given, Mapping) or given.get("role") not in _ROLES:
        role = given.get("role") if isinstance(given, Mapping) else given
        raise ValueError(f"{place} has the role {role!r}, expected one of {', '.join(_ROLES)}")
    calls = given.get("tool_calls") or ([given["tool_call"]] if given.get("tool_call") else [])
    fields = {name: value for name, value in given.items() if value is not None and name not in ("tool_call", "usage")}
    fields["tool_calls"] = [_call(call, place, f"call_{index}_{number}") for number, call in enumerate(calls)]
    try:
        return msgspec.convert(fields, Turn)
    except msgspec.ValidationError as error:
        raise ValueError(f"{place} cannot be read: {error}") from error


def _call(given: Any, place: str, spare_id: str) -> ToolCall:
    """Read a call in this project's form, in OpenAI's, or with its arguments under another of the usual names."""
    function = given.get("function", given) if isinstance(given, Mapping) else {}
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not name:
        raise ValueError(f"{place} has a tool call without a name: {given!r}")
    raw = given.get("raw_arguments")
    if isinstance(raw, str):
        return ToolCall(str(given.get("id") or spare_id), name, {}, raw)
    named = next((function[key] for key in ("arguments", "args", "input", "parameters") if key in function), None)
    return ToolCall(str(given.get("id") or spare_id), name, *parse_arguments(named))
