"""Codex rollouts: one file is one thread.

A line is `{timestamp, type, payload}`; the oldest files have bare items after `{id, timestamp, instructions}`. The
conversation is in the `response_item` records. `event_msg` records repeat it for the interface: only token counts,
aborted turns, roll-backs and compactions are taken from them, and the whole conversation if a file has nothing else.

The first `session_meta` is the thread's own. Later ones do not begin a trace: resuming writes the thread's again, and a
fork begins with a copy of its parent, the parent's `session_meta` in front. Turns of that copy are marked as repeats,
found by their turn ids, which are older than the thread's own id (both begin with the time).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from typing import Any

from composer_replication.ingestion.chat_conversation import Conversation, says_error
from composer_replication.ingestion.chat_messages import joined, text_of
from composer_replication.ingestion.formats import Head, LogFormat, ReadOptions
from composer_replication.ingestion.log_file import LogFile
from composer_replication.ingestion.loose_json import decoded, fields, objects, text_at, usage_of
from composer_replication.ingestion.statistics import IngestionStats
from composer_replication.traces import Trace, Turn

NAME = "codex"
NO_SUMMARY = "[the context was compacted here; the log has no readable summary]"

_KINDS = ("session_meta", "turn_context", "response_item", "event_msg", "compacted")
_COMPACTIONS = ("compaction", "compaction_summary", "context_compaction")
_SUMMARY_PREFIX = "Another language model started to solve this problem"
# What user messages hold besides a human's prompt, by how their text begins.
_ORIGINS = (
    ("<environment_context>", "meta"),
    ("<user_instructions>", "meta"),
    ("<instructions>", "meta"),
    ("# agents.md", "meta"),
    ("<permissions instructions>", "meta"),
    ("<collaboration_mode>", "meta"),
    ("<skill>", "meta"),
    ("<user_shell_command>", "bash"),
    ("<turn_aborted>", "interrupt"),
    ("<subagent_notification>", "notification"),
)
_EXIT = re.compile(r"(?:Exit code: |Process exited with code )(-?\d+)\s*$")
_HEADER_LINES = 8
_TIME_ORDERED_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-")


def sniff(head: Head) -> bool:
    """Whether a file is a rollout: enveloped records, or bare items of the Responses API, one a line."""
    return any(_is_record(record) for record in head.records)


def read(log: LogFile, options: ReadOptions, stats: IngestionStats) -> Iterator[Trace]:
    """The thread's trace. A sub-agent's file is skipped and counted, unless sub-agents are wanted."""
    records = log.records(stats)
    beginning: list[tuple[int, dict[str, Any]]] = []
    has_items = False
    for line, record in records:
        beginning.append((line, record))
        if _envelope(record)[0] == "response_item":
            has_items = True
            break
    metas = (payload for kind, payload in (_envelope(record) for _, record in beginning) if kind == "session_meta")
    if not options.subagents and _is_subagent(next(metas, {})):
        for _ in chain(beginning, records):
            stats.skipped_subagent += 1
            stats.skip("sub-agent")
        return
    thread = _Thread(stats, from_events=not has_items)
    for line, record in chain(beginning, records):
        reason = thread.take(line, record)
        if reason is not None:
            stats.skip(reason)
    trace = thread.trace(log)
    if trace is not None:
        yield trace


class _Thread:
    """One file's records, taken in order, to its trace. `take` returns why a record was skipped, or None."""

    def __init__(self, stats: IngestionStats, *, from_events: bool) -> None:
        self._stats, self._from_events = stats, from_events
        self._conversation = Conversation(stats, origin=_origin, failed=_failed)
        self._meta: dict[str, Any] = {}
        self._described = 0
        self._instructions: str | None = None
        self._cwd: str | None = None
        self._model: str | None = None
        self._is_fork = False
        self._aborted = 0
        self._total: Any = None
        self._called: set[str] = set()
        self._length_when_compacted = -1
        self._compaction_announced = False

    def take(self, line: int, record: dict[str, Any]) -> str | None:
        kind, payload = _envelope(record)
        timestamp = text_at(record, "timestamp")
        if kind == "session_meta":
            return self._take_meta(payload)
        if kind == "turn_context":
            return self._take_turn_context(payload)
        if kind == "response_item":
            return self._take_item(payload, line, timestamp)
        if kind == "compacted":
            self._compact(payload, line, timestamp)
            return None
        if kind == "event_msg":
            return self._take_event(payload, line, timestamp)
        return f"record: {kind[:40]}"

    def trace(self, log: LogFile) -> Trace | None:
        meta, conversation = self._meta, self._conversation
        if not len(conversation):
            self._stats.skip("no conversation", self._described)
            return None
        self._add_instructions()
        turns = conversation.turns()
        kept = {key: meta[key] for key in ("originator", "model_provider", "forked_from_id") if text_at(meta, key)}
        if self._aborted:
            kept["aborted_turns"] = self._aborted
        return Trace(
            trace_id=log.stem,
            turns=turns,
            source=log.source(NAME, version=text_at(meta, "cli_version")),
            session_id=text_at(meta, "id") or text_at(meta, "session_id"),
            parent=_parent(meta) if _is_subagent(meta) else None,
            model=self._model,
            cwd=text_at(meta, "cwd") or self._cwd,
            git_branch=text_at(fields(meta.get("git")), "branch"),
            meta=kept,
        )

    def _add_instructions(self) -> None:
        """The system prompt, if logged. `instructions` is the user's file, mostly a message of the log already."""
        text = self._instructions
        if text is None:
            users = text_at(self._meta, "instructions")
            if users and not any(users.strip() in turn.content for turn in self._conversation.context[:8]):
                text = users
        if text is not None:
            self._conversation.lead(Turn(role="system", content=text, line=1))

    def _take_meta(self, payload: dict[str, Any]) -> str | None:
        if self._meta:
            self._is_fork = self._is_fork or payload.get("id") != self._meta.get("id")
            return "later session_meta"
        self._meta = payload
        self._described += 1
        self._is_fork = text_at(payload, "forked_from_id") is not None
        self._instructions = _instructions(payload)
        return None

    def _take_turn_context(self, payload: dict[str, Any]) -> str | None:
        self._described += 1
        model = text_at(payload, "model")
        if model:
            self._conversation.model = model
            self._model = self._model or model
        self._cwd = self._cwd or text_at(payload, "cwd")
        self._instructions = self._instructions or _instructions(payload)
        self._begin_turn(payload)
        return None

    def _begin_turn(self, payload: dict[str, Any]) -> None:
        turn_id, own_id = text_at(payload, "turn_id"), text_at(self._meta, "id")
        if turn_id and own_id and _TIME_ORDERED_ID.match(turn_id) and _TIME_ORDERED_ID.match(own_id):
            self._conversation.copying = self._is_fork and turn_id < own_id

    def _take_item(self, item: dict[str, Any], line: int, timestamp: str | None) -> str | None:
        if self._compaction_announced:
            self._compact({}, line, timestamp)
        reason = self._add(item, line, timestamp)
        if self._cwd is None and self._conversation.context and self._conversation.context[-1].origin == "meta":
            found = re.search(r"<cwd>(.*?)</cwd>", self._conversation.context[-1].content)
            self._cwd = found[1] if found else None
        return reason

    def _add(self, item: Any, line: int, timestamp: str | None) -> str | None:
        if not isinstance(item, dict) or item.get("type") != "agent_message":
            return self._conversation.take(item, line, timestamp)
        # Another agent's message, which its recipient sees as a user's.
        content = text_of(item.get("content"))
        if not content:
            return "message without content"
        self._conversation.add(Turn("user", content, origin="agent", timestamp=timestamp, line=line))
        return None

    def _take_event(self, event: dict[str, Any], line: int, timestamp: str | None) -> str | None:
        kind = text_at(event, "type") or "no type"
        if kind == "token_count":
            return self._take_tokens(event)
        if kind == "thread_rolled_back":
            return self._roll_back(event.get("num_turns"))
        if kind == "turn_aborted":
            self._aborted += 1
            self._conversation.close()
            return None
        if kind == "context_compacted":
            # Written beside the `compacted` record. Alone, it still says that the model no longer saw what was before.
            self._compaction_announced = len(self._conversation) != self._length_when_compacted
            return None
        if kind in ("task_started", "turn_started"):
            self._begin_turn(event)
        items = _items_of(event, kind, self._called) if self._from_events else []
        for item in items:
            reason = self._take_item(item, line, timestamp)
            if reason is not None:
                return reason
        return None if items else f"event: {kind[:40]}"

    def _take_tokens(self, event: dict[str, Any]) -> str | None:
        info = fields(event.get("info"))
        usage, total = usage_of(info.get("last_token_usage")), info.get("total_token_usage")
        if usage is None:
            return "token_count without usage"
        if total is not None and total == self._total:
            return "repeated token_count"
        self._total = total
        # It is written when a response has ended.
        self._conversation.close()
        turn = self._conversation.last
        if turn is None or turn.usage is not None:
            return "token_count without a turn"
        turn.usage = usage
        return None

    def _roll_back(self, count: Any) -> str | None:
        """Take back the last turns: each from its prompt on, with the context updates right before it."""
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            return "thread_rolled_back without a count"
        context = self._conversation.context
        prompts = [
            place
            for place, turn in enumerate(context)
            if turn.role == "user" and turn.origin in ("prompt", "agent", "compact_summary")
        ]
        if not prompts:
            return "thread_rolled_back without a prompt"
        cut = prompts[-count] if count <= len(prompts) else prompts[0]
        while cut > prompts[0] and (context[cut - 1].role == "system" or context[cut - 1].origin == "meta"):
            cut -= 1
        self._conversation.rewind(cut)
        return None

    def _compact(self, payload: dict[str, Any], line: int, timestamp: str | None) -> None:
        """Begin a new context: with the history that the record has, else as Codex rebuilds it.

        It rebuilds it from the messages of the user and the summary. All but the summary are copies.
        """
        conversation, before = self._conversation, self._conversation.context
        summary = text_at(payload, "message")
        history = payload.get("replacement_history")
        leading = {turn.content for turn in before if turn.role == "system"}
        conversation.rewind(0)
        copying, conversation.copying = conversation.copying, True
        summaries: list[Turn] = []
        for item in history if isinstance(history, list) else []:
            kind = item.get("type") if isinstance(item, dict) else None
            if kind in _COMPACTIONS:
                summaries.append(self._add_summary(summary, line, timestamp))
            elif kind == "message" and not conversation.context and text_of(item.get("content")) in leading:
                continue  # a leading system message leads every context anyway
            else:
                reason = self._add(item, line, timestamp)
                if reason is not None:
                    self._stats.skipped[f"in a compaction: {reason}"] += 1
                elif conversation.context and _is_summary(conversation.context[-1], summary):
                    summaries.append(conversation.context[-1])
        if not isinstance(history, list):
            for turn in before:
                if turn.role == "user" and turn.origin != "compact_summary":
                    conversation.add(Turn("user", turn.content, origin=turn.origin, line=turn.line))
        conversation.copying = copying
        conversation.close()
        if not summaries and (summary or not conversation.context or not isinstance(history, list)):
            summaries.append(self._add_summary(summary, line, timestamp))
        for turn in summaries[-1:]:
            turn.origin, turn.repeats = "compact_summary", copying
        self._compaction_announced = False
        self._length_when_compacted = len(conversation)

    def _add_summary(self, summary: str | None, line: int, timestamp: str | None) -> Turn:
        turn = Turn("user", summary or NO_SUMMARY, origin="compact_summary", timestamp=timestamp, line=line)
        self._conversation.add(turn)
        return turn


def _envelope(record: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """A record's type and payload; the oldest files have the payload alone."""
    kind, payload = record.get("type"), record.get("payload")
    if isinstance(kind, str) and isinstance(payload, dict):
        return kind, payload
    if "payload" in record or kind in _KINDS:
        return "damaged", {}
    if isinstance(kind, str) and kind:
        is_item = kind in ("message", "reasoning") or kind.endswith(("_call", "_output"))
        return ("response_item", record) if is_item else (kind, {})
    if "record_type" in record:
        return "state", {}
    if isinstance(record.get("id"), str) and "timestamp" in record:
        return "session_meta", record
    return "no type", {}


def _is_record(record: dict[str, Any]) -> bool:
    if "uuid" in record or "sessionId" in record or "messages" in record:
        return False
    kind, payload = record.get("type"), record.get("payload")
    if kind in _KINDS:
        return isinstance(payload, dict)
    if payload is not None:
        return False
    if kind is None:
        return record.get("record_type") == "state" or {"id", "timestamp", "instructions"} <= record.keys()
    if kind == "message":
        kinds = [part.get("type") for part in objects(record.get("content"))]
        return "role" in record and any(one in ("input_text", "output_text") for one in kinds)
    return kind in ("function_call", "function_call_output") and "call_id" in record


def _is_subagent(meta: dict[str, Any]) -> bool:
    source = meta.get("source")
    if isinstance(source, dict):
        return "subagent" in source or "subAgent" in source
    return (isinstance(source, str) and source.startswith("subagent")) or meta.get("thread_source") == "subagent"


def _parent(meta: dict[str, Any]) -> str | None:
    """The session id of the thread that started this one."""
    spawn = fields(fields(fields(meta.get("source")).get("subagent")).get("thread_spawn"))
    return text_at(spawn, "parent_thread_id") or text_at(meta, "parent_thread_id") or text_at(meta, "forked_from_id")


def _instructions(payload: dict[str, Any]) -> str | None:
    base = payload.get("base_instructions")
    return text_at(base, "text") if isinstance(base, dict) else text_at(payload, "base_instructions")


def _origin(content: Any) -> str:
    """The origin of a user message: "prompt" if any part of it is a human's."""
    texts = [text_of([part]) for part in content] if isinstance(content, list) else [text_of(content)]
    origins = [_origin_of(text) for text in texts if text]
    return "prompt" if "prompt" in origins or not origins else origins[0]


def _origin_of(text: str) -> str:
    start = text.lstrip()[:32].lower()
    return next((origin for beginning, origin in _ORIGINS if start.startswith(beginning)), "prompt")


def _is_summary(turn: Turn, summary: str | None) -> bool:
    if turn.role != "user":
        return False
    return turn.content.startswith(_SUMMARY_PREFIX) or bool(summary and summary in turn.content)


def _failed(output: Any) -> bool:
    """Whether a result is an error: by its flag, by the exit code of its metadata, or by the header of its text."""
    if isinstance(output, dict):
        metadata = output.get("metadata")
        inner = output.get("content", output.get("output"))
        return (
            output.get("success") is False
            or says_error(output)
            or says_error(metadata)
            or (isinstance(inner, str) and _failed(inner))
        )
    text = text_of(output)
    if text.lstrip()[:1] == "{":
        value = fields(decoded(text))
        return says_error(value) or says_error(value.get("metadata"))
    for line in text[:2000].split("\n")[:_HEADER_LINES]:
        found = _EXIT.match(line)
        if found:
            return int(found[1]) != 0
        if line.startswith("Output:"):
            break
    return False


def _items_of(event: dict[str, Any], kind: str, called: set[str]) -> list[dict[str, Any]]:
    """The items that an event repeats, for files that have no items."""
    if kind in ("user_message", "agent_message"):
        role = "user" if kind == "user_message" else "assistant"
        return [{"type": "message", "role": role, "content": event.get("message")}]
    if kind in ("agent_reasoning", "agent_reasoning_raw_content"):
        return [{"type": "reasoning", "summary": event.get("text")}]
    tool, _, stage = kind.rpartition("_")
    if tool not in ("exec_command", "mcp_tool_call", "patch_apply", "web_search") or stage not in ("begin", "end"):
        return []
    call_id = text_at(event, "call_id")
    items: list[dict[str, Any]] = []
    if call_id is None or call_id not in called:
        name, arguments = _call_of(event, tool)
        items.append({"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments})
        called |= {call_id} if call_id else set()
    if stage == "end" and tool != "web_search":
        items.append({"type": "function_call_output", "call_id": call_id, "output": _output_of(event)})
    return items


def _call_of(event: dict[str, Any], tool: str) -> tuple[str, dict[str, Any]]:
    if tool == "exec_command":
        return "shell", {"command": event.get("command"), "workdir": event.get("cwd")}
    if tool == "patch_apply":
        return "apply_patch", {"changes": event.get("changes")}
    if tool == "web_search":
        return "web_search", {"query": event.get("query")}
    invocation = fields(event.get("invocation"))
    name = joined([text_at(invocation, "server") or "", text_at(invocation, "tool") or ""], ".")
    return name or tool, fields(invocation.get("arguments"))


def _output_of(event: dict[str, Any]) -> dict[str, Any]:
    result = event.get("result")
    if isinstance(result, dict):
        good = result.get("Ok")
        if isinstance(good, dict):
            return {"content": good.get("content"), "is_error": good.get("isError")}
        return {"content": text_of(result.get("Err")), "success": False}
    text = text_at(event, "aggregated_output") or text_at(event, "formatted_output")
    if text is None:
        text = joined([text_at(event, "stdout") or "", text_at(event, "stderr") or ""])
    return {"content": text, "exit_code": event.get("exit_code"), "success": event.get("success")}


FORMAT = LogFormat(NAME, sniff, read)
