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

from collections.abc import Iterator
from typing import Any

from composer_replication.ingestion.chat_conversation import ROLES, Conversation, says_error
from composer_replication.ingestion.chat_messages import content_of, text_of
from composer_replication.ingestion.formats import Head, LogFormat, ReadOptions
from composer_replication.ingestion.log_file import PADDING, UNREADABLE, LogFile, decode_value, values_in_line
from composer_replication.ingestion.loose_json import (
    SCORES,
    decoded,
    fields,
    objects,
    reward_of,
    text_at,
    tool_definition,
    usage_of,
)
from composer_replication.ingestion.statistics import IngestionStats
from composer_replication.traces import Trace, Turn, dump_json

NAME = "openai_chat"

_LISTS = ("messages", "conversations", "conversation", "input")
# Keys of other logs that hold messages too.
_FOREIGN = ("schema_version", "trajectory_format", "trajectory", "history", "sessionId", "uuid", "payload", "steps")
_MINI_SWE_AGENT = "```mswea_bash_command"


def sniff(head: Head) -> bool:
    """Whether a file holds rows of OpenAI messages that are not another agent's log."""
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
    if log.path.suffix != ".json" and decode_value(first.strip(PADDING)) is not UNREADABLE:
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
    return Trace(
        trace_id=trace_id,
        turns=turns,
        source=log.source(NAME, line=line),
        session_id=next((row[name] for name in names if text_at(row, name)), None),
        model=conversation.model,
        tools=_tools(request) or _tools(row),
        final_reward=reward_of(row, keys=SCORES),
        meta=fields(row.get("metadata")),
    )


def _take(conversation: Conversation, message: Any, line: int, stats: IngestionStats) -> None:
    reason = conversation.take(message, line)
    if reason is not None:
        stats.skipped[reason] += 1


def _body(value: Any) -> dict[str, Any]:
    """The body of a request or response, which batch files wrap once more."""
    outer = fields(value)
    return fields(outer.get("body")) if isinstance(outer.get("body"), dict) else outer


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
        return [fields(choices[0]).get("message")]
    completion = response.get("completion", response.get("message"))
    if isinstance(completion, str):
        return [{"role": "assistant", "content": completion}]
    if isinstance(completion, dict):
        return [completion]
    return _list(completion) or _list(response.get("output")) or []


def _list(value: Any) -> list[Any] | None:
    """A list, or the JSON text of one, as tables have it."""
    if isinstance(value, str) and value.lstrip()[:1] == "[":
        value = decoded(value)
    return value if isinstance(value, list) else None


def _tools(request: dict[str, Any]) -> list[dict[str, Any]]:
    tools = objects(_list(request.get("tools")))
    if not tools:
        return [{"type": "function", "function": function} for function in objects(_list(request.get("functions")))]
    # Tools that run on the provider's side are not functions, and stay as they are.
    flat = [tool.get("type") == "function" and "function" not in tool for tool in tools]
    return [(tool_definition(tool) or tool) if one else tool for tool, one in zip(tools, flat, strict=True)]


def _mark_repeats(turns: list[Turn], seen: set[int]) -> None:
    """Mark the answers that an earlier row has after the same conversation."""
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
    return role in ROLES and (has_text or content_of(value) is not None) and "action" not in value


def _is_mini_swe_agent(message: Any) -> bool:
    return isinstance(message, dict) and ("extra" in message or _MINI_SWE_AGENT in text_of(message.get("content")))


FORMAT = LogFormat(NAME, sniff, read)
