"""Finds the turns of a rollout that erred, as in a log: as a trace whose errors are marked.

A tool loop has no flags and no call ids. Results stand behind the turn that called, and an exception is the text of
the dict `{'error': '…'}`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from composer_replication.hint_generator.marking import mark_errors
from composer_replication.ingestion.chat_conversation import ROLES
from composer_replication.ingestion.chat_messages import call_of, calls_in, text_of, thinking_of
from composer_replication.traces import Message, Source, ToolCall, Trace, Turn, dump_json
from composer_replication.trainer.rollouts.rollout import Rollout, SampledTurn

_LARGEST_DICT = 100_000
# How families of models begin a call. Some write nothing but the object.
_CALL_BEGINS = re.compile(
    r"<tool_call>|<function[_=]|<\|python_tag\|>|\[TOOL_CALLS\]|<\|tool_call|<｜tool▁call"
    r"|\A\s*(?:<\|[a-z_]+\|>\s*)*\{\s*\"(?:name|type|function)\""
)
_CALLED = re.compile(r"\"name\"\s*:\s*\"([^\"\n]{1,80})\"|<function=([\w.-]{1,80})>")
_UNPARSABLE = "The tool call could not be read: it is not valid JSON."


@dataclass(frozen=True)
class ToolFailure:
    """A turn that erred: its number among the rollout's turns, the error's kind and its `error_meta`.

    An outcome that nobody is charged with is one too, at the turn that asked: its meta has `outcome` and says that it
    is not the student's mistake.
    """

    turn: int
    kind: str
    meta: dict[str, Any]


def tool_failures(rollout: Rollout, turns: Sequence[SampledTurn], tokenizer: Any) -> list[ToolFailure]:
    """The turns that erred, in order; of several failing calls of a turn, the one to learn from.

    A call that could not be read at all counts as one: its turn has the text of a call and no calls. One that the
    length limit cut off does not, see `is_cut_off`.
    """
    if not rollout.messages:
        return []
    unreadable = {
        turn.message: _unreadable_call(rollout, tokenizer.decode(rollout.ids[turn.start : turn.stop]))
        for turn in turns
        if turn.message is not None and not is_cut_off(rollout, turn, tokenizer)
    }
    trace = Trace("rollout", [], Source("", "rollout"), tools=list(rollout.tools or []))
    trace.turns = list(_turns(rollout.prompt, "prompt", {}))
    offset = len(trace.turns)
    trace.turns += _turns(rollout.messages, "completion", unreadable)
    mark_errors(trace, flags_errors=False)
    found = []
    number = -1
    for turn in trace.turns[offset:]:
        if turn.role == "assistant":
            number += 1
            if turn.tool_error is not None:
                found.append(ToolFailure(number, turn.tool_error, turn.error_meta or {}))
        elif turn.outcome and number >= 0 and not any(index >= offset for index in turn.charged_to):
            found.append(ToolFailure(number, str(turn.error_kind), {"students_mistake": False, "outcome": True}))
    return found


def is_cut_off(rollout: Rollout, turn: SampledTurn, tokenizer: Any) -> bool:
    """Whether the length limit ended a turn: nothing follows it, and no end-of-turn token closes it."""
    ids = rollout.ids
    return turn.stop == len(ids) and ids[-1] not in tokenizer.all_special_ids


def looks_like_call(rollout: Rollout, text: str) -> bool:
    """Whether there are tools, and a turn's text has the beginning of a call."""
    return bool(rollout.tools) and _CALL_BEGINS.search(text) is not None


def _turns(messages: Sequence[Message], where: str, unreadable: Mapping[int, ToolCall | None]) -> Iterator[Turn]:
    waiting: list[ToolCall] = []
    for place, message in enumerate(messages):
        role = ROLES.get(str(message["role"]), "user")
        content = text_of(message.get("content"))
        if role == "assistant":
            calls = [call_of(call, f"{where} {place} {number}") for number, call in enumerate(calls_in(message))]
            waiting = list(calls)
            broken = unreadable.get(place) if not calls else None
            if broken is not None:
                broken.id = f"{where} {place} unreadable"
                calls = [broken]
            yield Turn("assistant", content, thinking=thinking_of(message), tool_calls=calls)
            if broken is not None:
                yield Turn("tool", _refused(_UNPARSABLE), tool_call_id=broken.id, is_error=True)
        elif role == "tool":
            call = _answered(waiting, message)
            text, is_error = _result(content, call)
            yield Turn("tool", text, tool_call_id=call.id if call is not None else None, is_error=is_error)
        else:
            yield Turn(role, content)


def _answered(waiting: list[ToolCall], message: Message) -> ToolCall | None:
    """The call that a result answers. Results come in the order of the calls, but those of asynchronous tools last."""
    given, name = message.get("tool_call_id"), message.get("name")
    for fits in (lambda call: call.id == given, lambda call: call.name == name, lambda call: True):
        for call in waiting:
            if fits(call):
                waiting.remove(call)
                return call
    return None


def _result(content: str, call: ToolCall | None) -> tuple[str, bool]:
    """A result's text as the classifier reads it, and whether it is the text of an exception."""
    given = _as_dict(content)
    if given is None:
        return content, False
    error = given.get("error")
    if set(given) == {"error"} and isinstance(error, str):
        return (_refused(error) if _says_refused(error, call) else error), True
    return dump_json(given), False


def _as_dict(content: str) -> dict[str, Any] | None:
    """The dict of which this text is the `str`, if it holds nothing but what JSON has."""
    text = content.strip()
    if not (text.startswith("{") and text.endswith("}")) or len(text) > _LARGEST_DICT:
        return None
    try:
        given = ast.literal_eval(text)
        dump_json(given)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    return given if isinstance(given, dict) and all(isinstance(key, str) for key in given) else None


def _says_refused(error: str, call: ToolCall | None) -> bool:
    """Whether the call never reached the tool: there is none of that name, or it does not take these arguments.

    The classifier must be told: what a tool that runs commands prints may hold the same words.
    """
    if call is None:
        return False
    return (
        error == f"Tool {call.name} not found."
        or re.match(rf"(?:\w+\.)*{re.escape(call.name)}\(\) ", error) is not None
    )


def _refused(error: str) -> str:
    return f"<tool_use_error>{error}</tool_use_error>"


def _unreadable_call(rollout: Rollout, text: str) -> ToolCall | None:
    """The call that a turn without calls tried to make."""
    if not looks_like_call(rollout, text):
        return None
    known = {tool.get("function", tool).get("name") for tool in rollout.tools or ()}
    found = _CALLED.search(text)
    name = (found[1] or found[2]) if found is not None else ""
    # A hint about a tool that was never there would send the student after it.
    return ToolCall("", name if name in known else "", {}, text)
