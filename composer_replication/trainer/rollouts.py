"""Rollouts as a trainer's tool loop leaves them: the positions of their turns in token ids, and the trace they make.

The loop samples a turn, appends the tool's answer and the next turn's header as ids, and samples again; nothing is
tokenised twice. So the turns are the runs of sampled tokens, and the ids right before a run are its header.

The loop has no error flags and no call ids. Results follow the turn that called, and an exception is the text of the
dict `{'error': '…'}`. `rollout_trace` makes a `Trace` of this, marked as a log's is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from composer_replication.chat_templates import Ending, end_of_turn_ids, ending
from composer_replication.hint_generator.marking import mark_errors
from composer_replication.ingestion.chat_conversation import ROLES
from composer_replication.ingestion.chat_messages import call_of, calls_in, text_of, thinking_of
from composer_replication.python_syntax import parse_literal
from composer_replication.rendering import TurnSpan, generation_header_ids
from composer_replication.traces import Message, Source, ToolCall, Trace, Turn, dump_json
from composer_replication.trainer.sites import Remark, error_remarks

_LARGEST_DICT = 100_000
# How families of models begin a call. Some write nothing but the object.
_CALL_BEGINS = re.compile(
    r"<tool_call>|<function[_=]|<\|python_tag\|>|\[TOOL_CALLS\]|<\|tool_call|<｜tool▁call|<atem:"
    r"|(?:\A|<\|start\|>assistant|<\|channel\|>commentary) ?to=functions\."
    r"|\A\s*(?:<\|[a-z_]+\|>\s*)*\{\s*\"(?:name|type|function)\""
)
_CALLED = re.compile(
    r"\"name\"\s*:\s*\"([^\"\n]{1,80})\"|<function=([\w.-]{1,80})>|to=functions\.([\w-]{1,80})|call:([\w.-]{1,80})\{"
)
_UNPARSABLE = "The tool call could not be read: it is not valid JSON."


@dataclass(frozen=True)
class Rollout:
    """One completion: `messages` are its own (empty if only its ids are known), `generated` is 1 on the tokens of
    `completion_ids` that the model sampled and 0 on what tools or an environment said."""

    prompt: list[Message]
    messages: list[Message]
    prompt_ids: list[int]
    completion_ids: list[int]
    generated: list[int]
    tools: list[dict[str, Any]] | None = None

    def __post_init__(self) -> None:
        if len(self.generated) != len(self.completion_ids):
            raise ValueError(
                f"generated has {len(self.generated)} flags for {len(self.completion_ids)} completion_ids: one each"
            )

    @property
    def ids(self) -> list[int]:
        """Prompt and completion; every position of a turn or a hint is an index into these."""
        return [*self.prompt_ids, *self.completion_ids]

    @property
    def spoken(self) -> list[int]:
        """The indices of the assistant's messages among `messages`."""
        return [place for place, message in enumerate(self.messages) if message["role"] == "assistant"]


def sampled_turns(
    rollout: Rollout, tokenizer: Any, headers: dict[Ending, list[int] | None] | None = None
) -> list[TurnSpan] | None:
    """Locate the turns of a rollout, in order; None if its messages and its ids differ in the number of turns.

    `tokenizer` renders as the rollout's prompt was rendered; see `TemplatedTokenizer`. `headers` caches the template's
    headers for further rollouts.
    """
    runs, position = [], len(rollout.prompt_ids)
    for flag, group in groupby(rollout.generated, bool):
        start, position = position, position + sum(1 for _ in group)
        if flag:
            runs.append((start, position))
    places: Sequence[int | None] = rollout.spoken if rollout.messages else [None] * len(runs)
    if len(places) != len(runs):
        return None
    ids, known = rollout.ids, {} if headers is None else headers
    turns = []
    for place, (start, stop) in zip(places, runs, strict=True):
        header_ids = _header_ids(tokenizer, context_before(rollout, place, start), known)
        header = None if header_ids is None else max(0, start - len(header_ids))
        turns.append(TurnSpan(place, None if ids[header:start] != header_ids else header, start, stop))
    return turns


def context_before(rollout: Rollout, place: int | None, start: int) -> list[Message]:
    """Return the messages before the turn at a place among the rollout's, which begins at token `start`.

    Where something was said that is not among the messages, it counts as a user's message.
    """
    if start == len(rollout.prompt_ids):
        return rollout.prompt
    if place:
        return [*rollout.prompt, *rollout.messages[:place]]
    return [*rollout.prompt, {"role": "assistant", "content": ""}, {"role": "user", "content": ""}]


def rollout_trace(rollout: Rollout, spans: Sequence[TurnSpan], tokenizer: Any) -> Trace:
    """Return the rollout as a trace with its errors marked: the turns of the prompt, then those of the completion.

    A call that could not be read at all is an error too: its turn has the text of a call and no calls. One that the
    length limit cut off is not, see `is_cut_off`.
    """
    unreadable = {
        span.message: _unreadable_call(rollout, tokenizer.decode(rollout.ids[span.start : span.stop]))
        for span in spans
        if span.message is not None and not is_cut_off(rollout, span, tokenizer)
    }
    turns = [*_turns(rollout.prompt, "prompt", {}), *_turns(rollout.messages, "completion", unreadable)]
    trace = Trace("rollout", turns, Source("", "rollout"), tools=list(rollout.tools or []))
    mark_errors(trace, flags_errors=False)
    return trace


def tool_remarks(rollout: Rollout, spans: Sequence[TurnSpan], tokenizer: Any) -> Iterator[Remark]:
    """Yield what the tools' answers show to be wrong with the turns.

    An outcome that no turn of the rollout is charged with is a remark too, on the turn that asked: its meta has
    `outcome` and says that it is not the student's mistake.
    """
    if not rollout.messages:
        return
    prompt = len(rollout.prompt)
    turns = rollout_trace(rollout, spans, tokenizer).turns[prompt:]
    yield from error_remarks(turn for turn in turns if turn.role == "assistant")
    number = -1
    for turn in turns:
        number += turn.role == "assistant"
        if turn.outcome and number >= 0 and not any(index >= prompt for index in turn.charged_to):
            meta = {"students_mistake": False, "outcome": True}
            yield Remark(number, "tool", kind=str(turn.error_kind), meta=meta)


def is_cut_off(rollout: Rollout, span: TurnSpan, tokenizer: Any) -> bool:
    """Whether the length limit ended a turn: nothing follows it, and no end-of-turn token closes it."""
    ids = rollout.ids
    return span.stop == len(ids) and ids[-1] not in end_of_turn_ids(tokenizer)


def is_cut_call(rollout: Rollout, span: TurnSpan, tokenizer: Any) -> bool:
    """Whether the length limit cut a call off: that says nothing about how to write one."""
    text = tokenizer.decode(rollout.ids[span.start : span.stop])
    return is_cut_off(rollout, span, tokenizer) and _looks_like_call(rollout, text)


def _header_ids(tokenizer: Any, context: Sequence[Message], known: dict[Ending, list[int] | None]) -> list[int] | None:
    """Return the ids that prompt the assistant after a context; None if the template cannot tell."""
    key = ending(context)
    if key not in known:
        try:
            known[key] = generation_header_ids(tokenizer, context)
        except ValueError:
            known[key] = None
    return known[key]


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
    """Take the call that a result answers. Results come in the order of the calls, but those of asynchronous tools
    last."""
    given, name = message.get("tool_call_id"), message.get("name")
    for fits in (lambda call: call.id == given, lambda call: call.name == name, lambda call: True):
        for call in waiting:
            if fits(call):
                waiting.remove(call)
                return call
    return None


def _result(content: str, call: ToolCall | None) -> tuple[str, bool]:
    """Return a result's text as the classifier reads it, and whether it is the text of an exception."""
    given = _as_dict(content)
    if given is None:
        return content, False
    error = given.get("error")
    if set(given) == {"error"} and isinstance(error, str):
        return (_refused(error) if _never_ran(error, call) else error), True
    return dump_json(given), False


def _as_dict(content: str) -> dict[str, Any] | None:
    """Return the dict of which this text is the `str`, if it holds nothing but what JSON has."""
    text = content.strip()
    if not (text.startswith("{") and text.endswith("}")) or len(text) > _LARGEST_DICT:
        return None
    try:
        given = parse_literal(text)
        dump_json(given)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    return given if isinstance(given, dict) and all(isinstance(key, str) for key in given) else None


def _never_ran(error: str, call: ToolCall | None) -> bool:
    """Whether the call never reached the tool: there is none of that name, or it does not take these arguments.

    The classifier must be told: the output of a tool that runs commands may hold the same words.
    """
    if call is None:
        return False
    takes_others = re.match(rf"(?:\w+\.)*{re.escape(call.name)}\(\) ", error)
    return error == f"Tool {call.name} not found." or takes_others is not None


def _refused(error: str) -> str:
    return f"<tool_use_error>{error}</tool_use_error>"


def _looks_like_call(rollout: Rollout, text: str) -> bool:
    """Whether there are tools, and a turn's text has the beginning of a call."""
    return bool(rollout.tools) and _CALL_BEGINS.search(text) is not None


def _unreadable_call(rollout: Rollout, text: str) -> ToolCall | None:
    """Return the call that a turn without calls tried to make."""
    if not _looks_like_call(rollout, text):
        return None
    known = {tool.get("function", tool).get("name") for tool in rollout.tools or ()}
    found = _CALLED.search(text)
    name = next(filter(None, found.groups())) if found is not None else ""
    # A hint about a tool that was never there would send the student after it.
    return ToolCall("", name if name in known else "", {}, text)
