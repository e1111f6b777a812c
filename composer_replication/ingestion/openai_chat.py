"""Logs in OpenAI's forms: chat messages, and items of the Responses API.

A row (a line, or the whole file if it is one JSON document) is one conversation, in any of these shapes:

- `{"messages": [...], "tools": [...]}`, as for fine-tuning, or the bare list of messages;
- `{"prompt": [...], "completion": [...]}`; `{"conversations": [{"from": ..., "value": ...}]}` (ShareGPT);
- `{"request": {"messages": [...]}, "response": {"choices": [...]}}`, as proxies log their calls. Such a row repeats the
  conversation so far: answers that an earlier row of the file has are marked as repeats;
- `{"input": [...], "output": [...]}`: items of the Responses API.

Chat logs have no error flag. A result is an error here only if it is a JSON object that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from composer_replication.ingestion.formats import Head, ReadOptions
from composer_replication.ingestion.log_file import UNREADABLE, LogFile, decode_value, values_in_line
from composer_replication.ingestion.statistics import IngestionStats
from composer_replication.traces import Role, ToolCall, Trace, Turn, Usage, dump_json, parse_arguments

FORMAT = "openai_chat"

_ROLES: dict[str, Role] = {
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
    "function_response": "tool",
    "tool_response": "tool",
}
_EXIT_CODES = ("exit_code", "exitCode", "returncode")
_REWARDS = ("reward", "final_reward", "score", "label")
_LISTS = ("messages", "conversations", "conversation", "input")
_THOUGHTS = ("thinking", "reasoning", "reasoning_text", "redacted_thinking", "summary_text")
# Keys of other logs that hold messages too.
_FOREIGN = ("schema_version", "trajectory_format", "trajectory", "history", "sessionId", "uuid", "payload", "steps")
_MINI_SWE_AGENT = "```mswea_bash_command"


def sniff(head: Head) -> bool:
    """Whether a file holds rows of OpenAI messages that are no other agent's log."""
    if isinstance(head.document, list):
        rows = head.document if _rows_in(head.document) else [head.document]
        return _is_row(rows[0])
    return any(_is_row(record) for record in head.records)


def read(log: LogFile, options: ReadOptions, stats: IngestionStats) -> Iterator[Trace]:
    """One trace per row that has a message."""
    seen: set[int] = set()
    for trace_id, line, row in _rows(log, stats):
        trace = _trace(row, log, line, trace_id, stats, seen)
        if trace is None:
            stats.skip("no messages")
        else:
            yield trace


class Conversation:
    """Messages and items, taken one by one, to turns: a call's results end up behind the turn that made it.

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

    def __len__(self) -> int:
        return len(self._entries)

    def take(self, item: Any, line: int, timestamp: str | None = None) -> str | None:
        """Add a message or an item. Returns why it was passed over, or None."""
        if not isinstance(item, dict):
            return "not a message"
        timestamp = timestamp or text_at(item, "timestamp")
        kind = text_at(item, "type") or ""
        if kind == "reasoning":
            return self._take_reasoning(item, line, timestamp)
        if kind.endswith("_call"):
            return self._take_call(item, kind, line, timestamp)
        if kind.endswith("_output"):
            return self._take_output(item, line, timestamp)
        role = _ROLES.get(text_at(item, "role") or text_at(item, "from") or "")
        if role is None:
            return "unknown role" if item.get("role") or item.get("from") else f"item: {kind[:40] or 'no type'}"
        if role == "assistant":
            return self._take_assistant(item, kind, line, timestamp)
        content = item.get("content", item.get("value"))
        if role == "tool":
            call_id = text_at(item, "tool_call_id") or text_at(item, "call_id")
            is_error = item.get("is_error") is True or item.get("isError") is True
            return self._answer(call_id, content, is_error, line, timestamp, name=text_at(item, "name"))
        passed_over = None
        if role == "user" and isinstance(content, list):
            content, passed_over = self._take_results_in(content, line, timestamp)
        if content is None:
            return passed_over if item.get("content") else "message without content"
        origin = (self._origin(content) if self._origin else "prompt") if role == "user" else None
        self.add(Turn(role=role, content=text_of(content), origin=origin, timestamp=timestamp, line=line))
        return passed_over

    def add(self, turn: Turn) -> None:
        """Put a turn behind what is in view."""
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
        """Take the context back to its first `length` turns; 0 begins it anew."""
        self._open = None
        if length < len(self.context):
            self.context = self.context[:length]
            self._jumped = True

    def turns(self) -> list[Turn]:
        """All turns, results behind their calls."""
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

    def _assistant(self, line: int, timestamp: str | None) -> Turn:
        if self._open is None:
            turn = Turn(role="assistant", model=self.model, timestamp=timestamp, line=line, tool_calls=[])
            self.add(turn)
            self._open = self.last = turn
        return self._open

    def _take_assistant(self, item: dict[str, Any], kind: str, line: int, timestamp: str | None) -> str | None:
        content = item.get("content", item.get("value"))
        calls: list[Any] = list(item["tool_calls"]) if isinstance(item.get("tool_calls"), list) else []
        if isinstance(item.get("function_call"), dict):
            calls.append(item["function_call"])
        if item.get("from") in ("function_call", "tool_call"):
            call = decode_value(content.encode("utf-8", "replace")) if isinstance(content, str) else content
            if not isinstance(call, dict):
                return "not a tool call"
            calls, content = [call], None
        if isinstance(content, list):
            calls += [part for part in content if isinstance(part, dict) and part.get("type") == "tool_use"]
            content = [part for part in content if part not in calls]
        if content is None and isinstance(item.get("refusal"), str):
            content = item["refusal"]
        thinking = _thinking(item)
        if content is None and not calls and not thinking:
            return "message without content"
        turn = self._assistant(line, timestamp)
        turn.content = _joined(turn.content, text_of(content))
        turn.thinking = _joined(turn.thinking, thinking)
        turn.id = turn.id or text_at(item, "id")
        for call in calls:
            if isinstance(call, dict):
                self._add_call(turn, call)
            else:
                self._stats.skipped["not a tool call"] += 1
        if kind != "message":
            # A chat message is a whole response; an item is a part of one.
            self._open = None
        return None

    def _take_reasoning(self, item: dict[str, Any], line: int, timestamp: str | None) -> str | None:
        text = _thought(item.get("content")) or _thought(item.get("summary"))
        if not text:
            return "reasoning without text"
        turn = self._assistant(line, timestamp)
        turn.thinking = _joined(turn.thinking, text)
        return None

    def _take_call(self, item: dict[str, Any], kind: str, line: int, timestamp: str | None) -> str | None:
        name = text_at(item, "name") or kind.removesuffix("_call")
        namespace = text_at(item, "namespace")
        if namespace:
            name = namespace + name if namespace.endswith(("_", ".")) else f"{namespace}.{name}"
        given = next((item[key] for key in ("arguments", "input", "action") if item.get(key) is not None), None)
        if given is None:
            given = {key: item[key] for key in ("code", "queries", "revised_prompt") if item.get(key) is not None}
        turn = self._assistant(line, timestamp)
        call_id = self._add_call(
            turn, {"id": text_at(item, "call_id") or text_at(item, "id"), "name": name, "arguments": given}
        )
        # Tools that run on the provider's side have their result in the call.
        result = next((item[key] for key in ("output", "outputs", "results", "result") if item.get(key)), None)
        error = item.get("error")
        if result is not None or error:
            text = "[image]" if kind == "image_generation_call" and result else text_of(error or result)
            failed = bool(error) or item.get("status") == "failed"
            self._results[call_id] = self._result(call_id, text, failed, line, timestamp)
        return None

    def _take_output(self, item: dict[str, Any], line: int, timestamp: str | None) -> str | None:
        output = item.get("output", item.get("tools"))
        return self._answer(text_at(item, "call_id"), output, False, line, timestamp)

    def _take_results_in(self, parts: list[Any], line: int, timestamp: str | None) -> tuple[Any, str | None]:
        """Results may stand in a user message, as Anthropic has them. Returns what else is in it."""
        passed_over = None
        rest = []
        for part in parts:
            if isinstance(part, dict) and part.get("type") == "tool_result":
                reason = self._answer(
                    text_at(part, "tool_use_id"), part.get("content"), part.get("is_error") is True, line, timestamp
                )
                passed_over = passed_over or reason
            else:
                rest.append(part)
        return (rest or None if len(rest) < len(parts) else parts), passed_over

    def _answer(
        self,
        given_id: str | None,
        output: Any,
        is_error: bool,
        line: int,
        timestamp: str | None,
        *,
        name: str | None = None,
    ) -> str | None:
        self._open = None
        call_id = self._asked(given_id, name)
        if call_id is None and given_id in self._call_ids:
            self._stats.duplicate_results += 1
            return "second result of a call"
        failed = is_error or self._failed(output)
        result = self._result(call_id or given_id or f"line {line}", _output_text(output), failed, line, timestamp)
        if call_id is None:
            self.add(result)
        else:
            self._results[call_id] = result
        return None

    def _result(self, call_id: str, text: str, failed: bool, line: int, timestamp: str | None) -> Turn:
        return Turn(
            role="tool",
            content=text,
            tool_call_id=call_id,
            is_error=failed,
            timestamp=timestamp,
            line=line,
            repeats=self.copying,
        )

    def _asked(self, given_id: str | None, name: str | None) -> str | None:
        """The call that a result answers: by its id, else, where the log has no ids, by its place."""
        if given_id in self._call_ids:
            waiting = [one for one in self._call_ids[given_id] if one not in self._results]
            # Ids that begin anew with every turn: the newest turn's calls are meant, in their order.
            return next((one for one in waiting if self._owners[one] is self._owners[waiting[-1]]), None)
        calls = [call for call in self.last.tool_calls if call.id not in self._results] if self.last else []
        if given_id is not None:
            calls = [call for call in calls if call.id in self._made_up]
        calls = [call for call in calls if call.name == name] or calls
        return calls[0].id if calls else None

    def _add_call(self, turn: Turn, call: dict[str, Any]) -> str:
        """Add a call under an id that no other call of the trace has."""
        inner = next((call[key] for key in ("function", "custom") if isinstance(call.get(key), dict)), call)
        given_id = text_at(call, "id")
        call_id = given_id or f"call {len(self._owners) + 1}"
        number = 1
        while call_id in self._owners:
            number += 1
            call_id = f"{given_id or 'call'}#{number}"
        if given_id is None:
            self._made_up.add(call_id)
        else:
            self._call_ids.setdefault(given_id, []).append(call_id)
        self._owners[call_id] = turn
        arguments, raw = parse_arguments(inner.get("arguments", inner.get("input")))
        name = text_at(inner, "name") or ""
        turn.tool_calls.append(ToolCall(id=call_id, name=name, arguments=arguments, raw_arguments=raw))
        return call_id


def text_at(item: dict[str, Any], key: str) -> str | None:
    """The text under a key; None if there is none, or something else."""
    value = item.get(key)
    return value if isinstance(value, str) and value else None


def text_of(content: Any) -> str:
    """The text of a message's content: a string, a list of parts, or null. What is no text is named in brackets."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(text for text in map(_part_text, content) if text)
    return _part_text(content)


def says_error(value: Any) -> bool:
    """Whether a result is a JSON object that says that it is an error, or has an exit code other than 0."""
    if isinstance(value, str) and value.lstrip()[:1] == "{":
        value = decode_value(value.encode("utf-8", "replace"))
    if not isinstance(value, dict):
        return False
    if value.get("is_error") is True or value.get("isError") is True:
        return True
    codes = (value.get(key) for key in _EXIT_CODES)
    return any(isinstance(code, int) and not isinstance(code, bool) and code != 0 for code in codes)


def usage_of(given: Any) -> Usage | None:
    """Token counts under any of the names that OpenAI's interfaces give them."""
    if not isinstance(given, dict):
        return None

    def number(*keys: str, within: dict[str, Any] = given) -> int:
        found = (within.get(key) for key in keys)
        return next((one for one in found if isinstance(one, int) and not isinstance(one, bool) and one >= 0), 0)

    cached = number("cached_input_tokens", "cached_tokens")
    for key in ("prompt_tokens_details", "input_tokens_details"):
        if not cached and isinstance(given.get(key), dict):
            cached = number("cached_tokens", within=given[key])
    usage = Usage(
        input_tokens=number("input_tokens", "prompt_tokens"),
        output_tokens=number("output_tokens", "completion_tokens"),
        cached_tokens=cached,
        cache_write_tokens=number("cache_write_input_tokens"),
    )
    return usage if usage != Usage() else None


def _part_text(part: Any) -> str:
    if part is None or isinstance(part, str):
        return part or ""
    if not isinstance(part, dict):
        return dump_json(part)
    kind = text_at(part, "type") or ""
    if kind in _THOUGHTS or kind == "encrypted_content":
        return ""
    text = next((part[key] for key in ("text", "refusal", "transcript") if isinstance(part.get(key), str)), None)
    if text is not None:
        return str(text)
    named = next((name for name in ("image", "audio", "file", "video") if name in kind), kind)
    return f"[{named}]" if named else dump_json(part)


def _output_text(output: Any) -> str:
    if isinstance(output, dict):
        inner = next((output[key] for key in ("content", "output") if isinstance(output.get(key), str | list)), output)
        return text_of(inner)
    if isinstance(output, list) and output and all(isinstance(part, dict) and "name" in part for part in output):
        return dump_json(output)  # tools that a search found
    return text_of(output)


def _thinking(item: dict[str, Any]) -> str:
    for key in ("reasoning_content", "reasoning", "thinking"):
        if isinstance(item.get(key), str) and item[key]:
            return str(item[key])
    content = item.get("content")
    within = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    return _thought(item.get("reasoning_details")) or _thought(
        [part for part in within if part.get("type") in _THOUGHTS]
    )


def _thought(parts: Any) -> str:
    if isinstance(parts, str):
        return parts
    if not isinstance(parts, list):
        return ""
    texts = [
        part
        if isinstance(part, str)
        else next((part[key] for key in ("text", "thinking", "summary") if key in part), "")
        for part in parts
        if isinstance(part, str | dict)
    ]
    return "\n\n".join(text for text in texts if isinstance(text, str) and text)


def _joined(first: str, second: str) -> str:
    return f"{first}\n\n{second}" if first and second else first or second


def _rows(log: LogFile, stats: IngestionStats) -> Iterator[tuple[str, int, Any]]:
    """Trace ids, lines and rows. One document spread over lines, or in a .json file, is one row or a list of them."""
    document = _document(log, stats)
    if document is not UNREADABLE:
        rows = document if _rows_in(document) else [document]
        stats.n_records_total += len(rows)
        for number, row in enumerate(rows, 1):
            yield log.stem if len(rows) == 1 else f"{log.stem}#{number}", 1, row
        return
    for line, text in log.lines():
        for place, row in enumerate(values_in_line(text, stats)):
            stats.n_records_total += 1
            yield f"{log.stem}#{line}" + (f".{place + 1}" if place else ""), line, row


def _document(log: LogFile, stats: IngestionStats) -> Any:
    probe = IngestionStats()
    first = next((text for _, text in log.lines()), b"")
    if log.path.suffix != ".json" and decode_value(first.strip(b"\x00 \t\r\n")) is not UNREADABLE:
        return UNREADABLE
    document = log.document(probe)
    return UNREADABLE if document is None else document


def _rows_in(document: Any) -> bool:
    """Whether a list is a list of conversations, not of messages."""
    first = document[0] if isinstance(document, list) and document else None
    return isinstance(first, list) or (
        isinstance(first, dict) and not _is_message(first) and _listed(first) is not None
    )


def _trace(value: Any, log: LogFile, line: int, trace_id: str, stats: IngestionStats, seen: set[int]) -> Trace | None:
    row: dict[str, Any] = value if isinstance(value, dict) else {"messages": value}
    request = _body(row.get("request")) or _body(row)
    response = _body(row.get("response"))
    answers = _answers(response or request, stats)
    if isinstance(row.get("response"), str):
        answers = [{"role": "assistant", "content": row["response"]}]
    conversation = Conversation(stats, failed=says_error)
    conversation.model = text_at(request, "model") or text_at(response, "model") or text_at(row, "model")
    instructions = text_at(request, "system") or (text_at(request, "instructions") if "input" in request else None)
    messages = [{"role": "system", "content": instructions}] if instructions else []
    messages += _listed(request) or []
    for message in messages:
        _take(conversation, message, line, stats)
    asked = len(conversation)
    for message in answers:
        _take(conversation, message, line, stats)
    turns = conversation.turns()
    if not turns:
        return None
    if response or "choices" in request:
        _mark_repeats(turns, seen)
    if conversation.last is not None and (len(conversation) > asked or not answers):
        conversation.last.usage = usage_of(response.get("usage") or request.get("usage"))
    names = ("session_id", "conversation_id", "custom_id", "id")
    metadata = row.get("metadata")
    return Trace(
        trace_id=trace_id,
        turns=turns,
        source=log.source(FORMAT, line=line),
        session_id=next((row[name] for name in names if text_at(row, name)), None),
        model=conversation.model,
        tools=_tools(request) or _tools(row),
        final_reward=_reward(row),
        meta=metadata if isinstance(metadata, dict) else {},
    )


def _take(conversation: Conversation, message: Any, line: int, stats: IngestionStats) -> None:
    reason = conversation.take(message, line)
    if reason is not None:
        stats.skipped[reason] += 1


def _body(value: Any) -> dict[str, Any]:
    """What was sent; batch files wrap it once more."""
    if not isinstance(value, dict):
        return {}
    inner = value.get("body")
    return inner if isinstance(inner, dict) else value


def _listed(request: dict[str, Any]) -> list[Any] | None:
    """The messages before the answer, whatever they are called here."""
    for key in _LISTS:
        messages = _list(request.get(key))
        if messages:
            return messages
    if isinstance(request.get("input"), str) and "model" in request:
        return [{"role": "user", "content": request["input"]}]
    prompt = request.get("prompt")
    if isinstance(prompt, str) and "completion" in request:
        return [{"role": "user", "content": prompt}]
    return _list(prompt)


def _answers(response: dict[str, Any], stats: IngestionStats) -> list[Any]:
    choices = response.get("choices")
    if isinstance(choices, list) and choices:
        if len(choices) > 1:
            stats.skipped["further choice"] += len(choices) - 1
        return [choices[0].get("message") if isinstance(choices[0], dict) else None]
    completion = response.get("completion", response.get("message"))
    if isinstance(completion, str):
        return [{"role": "assistant", "content": completion}]
    if isinstance(completion, dict):
        return [completion]
    return _list(completion) or _list(response.get("output")) or []


def _list(value: Any) -> list[Any] | None:
    """A list, or the JSON text of one, as tables have it."""
    if isinstance(value, str) and value.lstrip()[:1] == "[":
        value = decode_value(value.encode("utf-8", "replace"))
    return value if isinstance(value, list) else None


def _tools(request: dict[str, Any]) -> list[dict[str, Any]]:
    found = [tool for tool in _list(request.get("tools")) or [] if isinstance(tool, dict)]
    if not found:
        functions = [one for one in _list(request.get("functions")) or [] if isinstance(one, dict)]
        return [{"type": "function", "function": function} for function in functions]
    return [_chat_tool(tool) for tool in found]


def _chat_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """The Responses API has a function's fields beside its type, the chat API inside `function`."""
    if tool.get("type") == "function" and "function" not in tool:
        return {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}
    return tool


def _reward(row: dict[str, Any]) -> float | None:
    """A number, or a yes or no, under one of the usual names."""
    for key in _REWARDS:
        value = row.get(key)
        if isinstance(value, int | float) and abs(value) < 1e300:  # which NaN is not either
            return float(value)
    return None


def _mark_repeats(turns: list[Turn], seen: set[int]) -> None:
    """Mark the answers that stood in an earlier row, behind the same conversation."""
    so_far = 0
    for turn in turns:
        calls = tuple((call.name, call.raw_arguments or dump_json(call.arguments)) for call in turn.tool_calls)
        so_far = hash((so_far, turn.role, turn.content, calls))
        if turn.role == "assistant":
            turn.repeats = so_far in seen
            seen.add(so_far)


def _is_row(value: Any) -> bool:
    if isinstance(value, dict) and any(key in value for key in _FOREIGN):
        return False
    row = {"messages": value} if isinstance(value, list) else value
    if not isinstance(row, dict):
        return False
    request = _body(row.get("request")) or _body(row)
    messages = _listed(request) or []
    return any(_is_message(one) for one in messages[:8]) and not any(_is_mini_swe_agent(one) for one in messages[:8])


def _is_message(value: Any) -> bool:
    if not isinstance(value, dict) or "uuid" in value:
        return False
    kind = text_at(value, "type") or ""
    if "role" not in value and (kind == "reasoning" or kind.endswith(("_call", "_output"))):
        return True
    role = text_at(value, "role") or text_at(value, "from")
    has_text = any(key in value for key in ("content", "value", "tool_calls", "function_call"))
    return role in _ROLES and has_text and "action" not in value


def _is_mini_swe_agent(message: Any) -> bool:
    return isinstance(message, dict) and ("extra" in message or _MINI_SWE_AGENT in text_of(message.get("content")))
