"""Messages of chats and agents to turns, each result after the call it answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Sequence
from itertools import groupby
from typing import Any

from composer_replication.ingestion.chat_messages import (
    MEDIA,
    NOT_A_CALL,
    call_id_of,
    call_of,
    calls_in,
    calls_in_value,
    content_of,
    ends_with_call,
    is_call,
    is_part,
    is_result,
    joined,
    json_of,
    plain_parts,
    reasoning_of,
    split_calls,
    split_results,
    text_of,
    thinking_of,
)
from composer_replication.ingestion.loose_json import decoded, fields, first_of, is_nonzero, text_at, time_of
from composer_replication.ingestion.shell_commands import protocol_of, shell_call
from composer_replication.ingestion.statistics import IngestionStats
from composer_replication.traces import Role, ToolCall, Turn


def distinct_id(wanted: str, taken: Container[str]) -> str:
    """The id, or where it is taken `id#2`, `id#3`, …"""
    call_id, number = wanted, 2
    while call_id in taken:
        call_id = f"{wanted}#{number}"
        number += 1
    return call_id


class OpenCalls:
    """Calls that wait for a result. An id that a log uses again is made different, so that results stay with theirs."""

    def __init__(self) -> None:
        self.waiting: list[str] = []
        self._logged: dict[str, str] = {}
        self._latest: dict[str, str] = {}

    def made(self, turn: Turn) -> None:
        """Add the calls of a new turn. Calls of earlier turns no longer wait for results without an id."""
        self.waiting = []
        for call in turn.tool_calls:
            self.add(call)

    def add(self, call: ToolCall) -> None:
        """Add one more call of the latest turn."""
        logged = call.id
        call.id = distinct_id(logged, self._logged)
        self._logged[call.id] = logged
        self._latest[logged] = call.id
        self.waiting.append(call.id)

    def answered(self, call_id: str | None) -> str | None:
        """The id in the trace of the call that a result with this id in the log answers."""
        open_ones = [one for one in self.waiting if call_id in (one, self._logged[one])]
        if not open_ones:
            return self._latest.get(call_id, call_id) if call_id is not None else None
        self.waiting.remove(open_ones[0])
        return open_ones[0]


class AgentTurns:
    """The turns of an agent's log: replies with their calls, then the results that answer them.

    An agent without tools has shell commands in the text of its replies. They become calls, and the next message is
    their result.
    """

    def __init__(self, stats: IngestionStats) -> None:
        self.turns: list[Turn] = []
        self.calls = OpenCalls()
        self.begins_anew = False
        """The next turn begins a new context."""
        self.has_tool_calls = False
        self._stats = stats
        self._from_text = False
        self._replies: list[tuple[str, str]] = []

    def put(self, turn: Turn) -> None:
        """Append a turn."""
        if self.begins_anew:
            turn.follows, self.begins_anew = -1, False
        self.turns.append(turn)

    def reply(self, turn: Turn, commands: Sequence[str] = ()) -> None:
        """Append a reply of the model; `commands` are its calls if it has no tool calls."""
        self._from_text = not turn.tool_calls
        self.has_tool_calls |= not self._from_text
        if self._from_text:
            names = (f"call_{len(self.turns)}_{number}" for number in range(len(commands)))
            turn.tool_calls = list(map(shell_call, commands, names))
            self._replies += [(turn.content, command) for command in commands]
        self.put(turn)
        self.calls.made(turn)

    def result(
        self, call_id: str | None, text: str, *, failed: bool = False, origin: str | None = None, time: Any = None
    ) -> None:
        """Append the result of a call, given its id in the log."""
        answered = self.calls.answered(call_id)
        turn = Turn("tool", text, tool_call_id=answered, is_error=failed, origin=origin, timestamp=time_of(time))
        self.put(turn)

    @property
    def next_is_result(self) -> bool:
        """Whether the next message is the result of a command, which names no call."""
        return self._from_text and bool(self.calls.waiting)

    def protocol(self, protocols: Sequence[str]) -> str | None:
        """Return which of these text protocols the replies follow; None if the model had tools."""
        return None if self.has_tool_calls else protocol_of(self._replies, protocols)


ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "function_call": "assistant",
    "tool_call": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
    "ipython": "tool",
    "function_response": "tool",
    "tool_response": "tool",
}
"""The role of a message, by the names that chat logs use."""
# Items of one response are paragraphs of their own.
_BETWEEN_ITEMS = "\n\n"


class Conversation:
    """Messages and items in OpenAI's forms, taken one by one, to turns. Results follow the turn that made the call.

    Items of one response (reasoning, text, calls) are one turn; it ends at a result or another's message, or with
    `close`. `context` are the turns in the model's view, without results; `rewind` takes it back to an earlier length.
    """

    def __init__(
        self, stats: IngestionStats, *, origin: Callable[[Any], str] | None = None, failed: Callable[[Any], bool]
    ) -> None:
        self.context: list[Turn] = []
        self.last: Turn | None = None
        self.model: str | None = None
        self.copying = False
        self._stats, self._origin, self._failed = stats, origin, failed
        self._entries: list[Turn] = []
        self._before: dict[int, Turn | None] = {}
        self._jumped = False
        self._open: Turn | None = None
        self._call_ids: dict[str, list[str]] = {}
        self._owners: dict[str, Turn] = {}
        self._made_up: set[str] = set()
        self._results: dict[str, Turn] = {}
        self._line = 0
        self._time: str | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def take(self, item: Any, line: int, timestamp: str | None = None) -> str | None:
        """Add a message or an item. Returns why it was skipped, or None."""
        if not isinstance(item, dict):
            return "not a message"
        self._line, self._time = line, timestamp or text_at(item, "timestamp")
        kind = text_at(item, "type") or ""
        if "value" in item and not item.get("role") and not item.get("from") and (is_call(item) or is_result(item)):
            item, kind = {"role": "assistant", "content": [item]}, "message"
        if kind == "reasoning":
            return self._take_reasoning(item)
        if kind.endswith("_call"):
            return self._take_call(item, kind)
        if kind.endswith("_output"):
            return self._answer(text_at(item, "call_id"), item.get("output", item.get("tools")), False)
        role = ROLES.get(text_at(item, "role") or text_at(item, "from") or "")
        if role is None:
            return "unknown role" if item.get("role") or item.get("from") else f"item: {kind[:40] or 'no type'}"
        content = content_of(item)
        if is_part(content, of_tool=role == "tool"):
            content = [content]
        if isinstance(content, list) and content:
            content = plain_parts(content, self._stats.skipped) or None
            item = {**item, "content": content}
        if role == "assistant":
            return self._take_assistant(item, kind)
        if isinstance(content, list) and (calls := sum(_is(part, "tool_use") for part in content)):
            self._stats.skipped["tool call that is not the assistant's"] += calls
        if role == "tool":
            return self._take_tool(item, content)
        skipped_as = None
        if role == "user" and isinstance(content, list):
            content, skipped_as = self._take_results_in(content)
        if content is None:
            return skipped_as if item.get("content") else "message without content"
        origin = (self._origin(content) if self._origin else "prompt") if role == "user" else None
        self.add(Turn(role=role, content=text_of(content), origin=origin, timestamp=self._time, line=self._line))
        return skipped_as

    def add(self, turn: Turn) -> None:
        """Append a turn to the context."""
        self._open = None
        turn.repeats = turn.repeats or self.copying
        if self._jumped:
            self._before[id(turn)] = self.context[-1] if self.context else None
            self._jumped = False
        self._entries.append(turn)
        self.context.append(turn)

    def lead(self, turn: Turn) -> None:
        """Put a turn before all others."""
        self._entries.insert(0, turn)

    def close(self) -> None:
        """The response has ended: the next item begins a new turn."""
        self._open = None

    def rewind(self, length: int) -> None:
        """Take the context back to its first `length` turns; 0 begins a new one."""
        self._open = None
        if length < len(self.context):
            self.context = self.context[:length]
            self._jumped = True

    def turns(self) -> list[Turn]:
        """Return all turns, results after their calls."""
        ordered: list[Turn] = []
        ends: dict[int, int] = {}
        for entry in self._entries:
            ordered.append(entry)
            ordered += [self._results[call.id] for call in entry.tool_calls if call.id in self._results]
            ends[id(entry)] = len(ordered) - 1
        for entry in self._entries:
            if id(entry) in self._before:
                before = self._before[id(entry)]
                entry.follows = -1 if before is None else ends[id(before)]
        return ordered

    def _assistant(self) -> Turn:
        if self._open is None:
            turn = Turn(role="assistant", model=self.model, timestamp=self._time, line=self._line, tool_calls=[])
            self.add(turn)
            self._open = self.last = turn
        return self._open

    def _take_assistant(self, item: dict[str, Any], kind: str) -> str | None:
        content = item.get("content", item.get("value"))
        if isinstance(content, list) and any(_is(part, "tool_result") for part in content):
            return self._take_exchange(item, content, kind)
        calls = calls_in(item)
        if item.get("from") in ("function_call", "tool_call"):
            calls, content = calls_in_value(content, unread := Counter[str]()), None
            if not calls:
                return NOT_A_CALL
            self._stats.skipped.update(unread)
        if content is None and isinstance(item.get("refusal"), str):
            content = item["refusal"]
        thinking = thinking_of(item)
        if content is None and not calls and not thinking:
            return "message without content"
        turn = self._assistant()
        turn.content = joined([turn.content, text_of(content)], _BETWEEN_ITEMS)
        turn.thinking = joined([turn.thinking, thinking], _BETWEEN_ITEMS)
        turn.id = turn.id or text_at(item, "id")
        for call in calls:
            if isinstance(call, dict):
                self._add_call(turn, call)
            else:
                self._stats.skipped[NOT_A_CALL] += 1
        if "from" in item and ends_with_call(turn.content) and not self._read_calls(turn):
            self._stats.skipped[NOT_A_CALL] += 1
        if kind != "message":
            # A chat message is a whole response; an item is a part of one.
            self._open = None
        return None

    def _take_exchange(self, item: dict[str, Any], parts: list[Any], kind: str) -> str | None:
        """A message that has the results of its calls, too: what the model says after them is another turn."""
        skipped_as = None
        for are_results, group in groupby(parts, lambda part: _is(part, "tool_result")):
            if are_results:
                reason = self._take_results_in(list(group))[1]
            else:
                reason = self._take_assistant({**item, "content": list(group)}, kind)
                item = {}  # what is beside the content belongs to the first turn
            skipped_as = skipped_as or reason
        return skipped_as

    def _read_calls(self, turn: Turn) -> bool:
        """Take the calls between tags that a turn's text ends with; False if there are none."""
        if turn.tool_calls:
            return False
        turn.content, calls = split_calls(turn.content)
        for call in calls:
            self._add_call(turn, call)
        return bool(calls)

    def _take_reasoning(self, item: dict[str, Any]) -> str | None:
        text = reasoning_of(item)
        if not text:
            return "reasoning without text"
        turn = self._assistant()
        turn.thinking = joined([turn.thinking, text], _BETWEEN_ITEMS)
        return None

    def _take_call(self, item: dict[str, Any], kind: str) -> str | None:
        name = text_at(item, "name") or kind.removesuffix("_call")
        namespace = text_at(item, "namespace")
        if namespace:
            name = namespace + name if namespace.endswith(("_", ".")) else f"{namespace}.{name}"
        given = first_of(item, "arguments", "input", "action")
        if given is None:
            given = {key: item[key] for key in ("code", "queries", "revised_prompt") if item.get(key) is not None}
        call = {"type": kind, "id": text_at(item, "call_id") or text_at(item, "id"), "name": name, "arguments": given}
        call_id = self._add_call(self._assistant(), call)
        # Tools that run on the provider's side have their result in the call.
        result = next((item[key] for key in ("output", "outputs", "results", "result") if item.get(key)), None)
        error = item.get("error")
        if result is not None or error:
            text = "[image]" if kind == "image_generation_call" and result else text_of(error or result)
            failed = bool(error) or item.get("status") == "failed"
            self._results[call_id] = self._result(call_id, text, failed)
        return None

    def _take_tool(self, item: dict[str, Any], content: Any) -> str | None:
        call_id = text_at(item, "tool_call_id") or text_at(item, "call_id")
        is_error = item.get("is_error") is True or item.get("isError") is True
        if isinstance(content, str):
            content = split_results(content) or content
        if isinstance(content, list):
            content, skipped_as = self._take_results_in(content, call_id, is_error)
            if content is None:
                return skipped_as
        return self._answer(call_id, content, is_error, text_at(item, "name"))

    def _take_results_in(
        self, parts: list[Any], call_id: str | None = None, failed: bool = False
    ) -> tuple[Any, str | None]:
        """Take the results among the parts of a message, as Anthropic has them. Returns what else is in it."""
        skipped_as = None
        rest = []
        for part in parts:
            if _is(part, "tool_result"):
                is_error = failed or part.get("is_error") is True
                given_id = text_at(part, "tool_use_id") or call_id
                reason = self._answer(given_id, part.get("content"), is_error, text_at(part, "name"))
                skipped_as = skipped_as or reason
            else:
                rest.append(part)
        return (rest or None if len(rest) < len(parts) else parts), skipped_as

    def _answer(self, given_id: str | None, output: Any, is_error: bool, name: str | None = None) -> str | None:
        self._open = None
        call_id = self._asked(given_id, name)
        last = self.context[-1] if self.context else None
        if call_id is None and last is not None and last is self.last and self._read_calls(last):
            # Outside ShareGPT, only its result shows that a text was taken for a call.
            call_id = self._asked(given_id, name)
        if call_id is None and given_id in self._call_ids:
            self._stats.duplicate_results += 1
            return "second result of a call"
        failed = is_error or self._failed(output)
        result = self._result(call_id or given_id or f"line {self._line}", _output_text(output), failed)
        if call_id is None:
            self.add(result)
        else:
            self._results[call_id] = result
        return None

    def _result(self, call_id: str, text: str, failed: bool) -> Turn:
        result = Turn("tool", text, tool_call_id=call_id, is_error=failed, repeats=self.copying)
        result.timestamp, result.line = self._time, self._line
        return result

    def _asked(self, given_id: str | None, name: str | None) -> str | None:
        """The call that a result answers: by its id, else, where the log has no ids, by its place."""
        if given_id in self._call_ids:
            waiting = [one for one in self._call_ids[given_id] if one not in self._results]
            # Ids that start again with every turn: the newest turn's calls are meant, in their order.
            return next((one for one in waiting if self._owners[one] is self._owners[waiting[-1]]), None)
        calls = [call for call in self.last.tool_calls if call.id not in self._results] if self.last else []
        if given_id is not None:
            calls = [call for call in calls if call.id in self._made_up]
        calls = [call for call in calls if call.name == name] or calls
        return calls[0].id if calls else None

    def _add_call(self, turn: Turn, call: dict[str, Any]) -> str:
        """Add a call under an id that no other call of the trace has."""
        given_id = call_id_of(call)
        made = call_of(call, f"call {len(self._owners) + 1}")
        made.id = distinct_id(made.id, self._owners)
        if given_id is None:
            self._made_up.add(made.id)
        else:
            self._call_ids.setdefault(given_id, []).append(made.id)
        self._owners[made.id] = turn
        turn.tool_calls.append(made)
        return made.id


def _is(part: Any, kind: str) -> bool:
    return isinstance(part, dict) and part.get("type") == kind


def says_error(value: Any) -> bool:
    """Whether a result is a JSON object that says that it is an error, or has an exit code other than 0."""
    if isinstance(value, str):
        value = decoded(value) if value.lstrip()[:1] == "{" else None
    record = fields(value)
    if record.get("is_error") is True or record.get("isError") is True:
        return True
    return any(is_nonzero(record.get(key)) for key in ("exit_code", "exitCode", "returncode"))


def _output_text(output: Any) -> str:
    if isinstance(output, dict):
        inner = next((output[key] for key in ("content", "output") if isinstance(output.get(key), str | list)), output)
        text = text_of(inner)
        kind = text_at(output, "type")
        return json_of(output) if text == f"[{kind}]" and kind not in MEDIA else text
    if isinstance(output, list) and output and all(isinstance(part, dict) and "name" in part for part in output):
        return json_of(output)  # tools that a search found
    return text_of(output)
