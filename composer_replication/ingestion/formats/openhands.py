"""OpenHands: rows of `output.jsonl` with a `history`, exported event lists, and folders with one file per event.

Two event vocabularies are read. Version 0 has `action` and `observation` events, with their values under `args` and
`extras` (old files: flat, and sometimes as pairs); version 1 has a `kind`: `ActionEvent`, `ObservationEvent`,
`MessageEvent`, … Calls that came in one reply of the model share its id and become one turn. A condensation leaves of
the context what was not forgotten, with its summary in the place of the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from composer_replication.ingestion.chat_conversation import OpenCalls
from composer_replication.ingestion.chat_messages import call_of, joined, text_of, thinking_of
from composer_replication.ingestion.formats import Head, LogFormat, ReadOptions
from composer_replication.ingestion.log_file import LogFile
from composer_replication.ingestion.loose_json import (
    fields,
    is_nonzero,
    items,
    known,
    name_of,
    objects,
    reward_of,
    text_at,
    time_of,
    tool_definition,
    usage_of,
)
from composer_replication.ingestion.statistics import IngestionStats
from composer_replication.traces import ToolCall, Trace, Turn, Usage, dump_json

NAME = "openhands"
_FORGOTTEN = "[earlier events were dropped from the context]"
_EVENT_FILE = re.compile(r"(?:event-)?(\d+)(?:-.*)?\.json")
_KINDS = {
    "SystemPromptEvent", "MessageEvent", "ActionEvent", "ObservationEvent", "AgentErrorEvent", "UserRejectObservation",
    "Condensation", "CondensationRequest", "CondensationSummaryEvent", "ConversationStateUpdateEvent", "PauseEvent",
    "ConversationErrorEvent", "TokenEvent",
}  # fmt: skip
_ACTIONS = {
    "message", "run", "run_ipython", "read", "write", "edit", "browse", "browse_interactive", "delegate", "finish",
    "reject", "think", "call_tool_mcp", "task_tracking",
}  # fmt: skip
_OBSERVATIONS = {*_ACTIONS, "error", "user_rejected", "success", "chat", "mcp", "download"}
_BESIDE_THE_CALL = {
    "thought", "is_confirmed", "confirmation_state", "action_risk", "security_risk", "keep_prompt", "kernel_init_code",
    "images_urls", "image_urls", "file_urls", "wait_for_response", "blocking", "hidden", "is_static", "action",
    "source", "id", "timestamp", "message",
}  # fmt: skip
_FUNCTIONS = {"run": "execute_bash", "run_ipython": "execute_ipython_cell"}


def sniff(head: Head) -> bool:
    """Events of either version: as a list, as rows of their own, or under `history`."""
    if isinstance(head.document, list):
        return any(_is_event(event) for event in _flat(head.document))
    return any(
        _is_event(record) or any(_is_event(event, bare=True) for event in _flat(record.get("history")))
        for record in head.records
    )


def _is_event(value: Any, *, bare: bool = False) -> bool:
    """Whether this is an event; `bare`: also one without its source, as old files have them under `history`."""
    event = fields(value)
    if "role" in event or not (bare or event.get("source") in ("agent", "user", "environment")):
        return False
    kind, action, observation = event.get("kind"), event.get("action"), event.get("observation")
    if isinstance(kind, str):
        return kind in _KINDS
    if isinstance(action, str):
        return observation is None and action in {*_ACTIONS, "system"} and (bare or "args" in event)
    return isinstance(observation, str) and observation in _OBSERVATIONS and "content" in event


def _flat(history: Any) -> list[Any]:
    """Old files hold pairs of an action and its observation; all others a flat list."""
    flat: list[Any] = []
    for entry in items(history):
        flat += entry if isinstance(entry, list) else [entry]
    return flat


def read(log: LogFile, options: ReadOptions, stats: IngestionStats) -> Iterator[Trace]:
    """One trace per row with a history; one for a file, or a folder of files, of events."""
    folder = _event_folder(log.path)
    if folder:
        if log.path != folder[0]:
            stats.skip("event read with the first file of its folder")
            return
        events = [LogFile(path).document(stats) for path in folder]
        yield from _trace(log, log.stem, {}, [event for event in events if event is not None], stats)
        return
    if _is_list(log):
        document = log.document(stats)
        if document is not None:
            yield from _trace(log, log.stem, {}, document, stats)
        return
    loose: list[Any] = []
    for line, row in log.records(stats):
        if isinstance(row.get("history"), list):
            yield from _trace(log, f"{log.stem}#{line}", row, row["history"], stats, line=line)
        elif _is_event(row) or "kind" in row:
            loose.append(row)
        else:
            stats.skip("row without a history")
    if loose:
        yield from _trace(log, log.stem, {}, loose, stats)


def _is_list(log: LogFile) -> bool:
    """Whether the file is one JSON array, or one object over many lines."""
    for _, line in log.lines():
        start = line.lstrip()
        return start[:1] == b"[" or start.strip() == b"{"
    return False


def _event_folder(path: Path) -> list[Path]:
    """The files of a conversation that is kept as one file per event, in order; none for other files."""
    if not _EVENT_FILE.fullmatch(path.name) or path.parent.name != "events":
        return []
    numbered = [
        (int(found.group(1)), one) for one in path.parent.iterdir() if (found := _EVENT_FILE.fullmatch(one.name))
    ]
    return [one for _, one in sorted(numbered)]


def _trace(
    log: LogFile, trace_id: str, row: dict[str, Any], history: Any, stats: IngestionStats, *, line: int = 1
) -> Iterator[Trace]:
    if isinstance(history, dict):
        row, history = (history, history["history"]) if "history" in history else ({}, [history])
    metadata = fields(row.get("metadata"))
    metrics = fields(row.get("metrics"))
    reader = _Reader(stats, usages=_usages(metrics))
    for event in _flat(history):
        if isinstance(event, dict):
            reader.add(event)
        else:
            stats.skip("event that is not an object")
    turns = reader.finish()
    if not any(turn.role == "user" for turn in turns) and turns and text_at(row, "instruction"):
        lead = sum(turn.role == "system" for turn in turns)
        reader.insert(lead, Turn(role="user", content=row["instruction"], origin="prompt"))
        turns = reader.finish()
    if not turns:
        stats.skip("history without turns")
        return
    issue, test = fields(row.get("issue")), fields(row.get("test_result"))
    instance = text_at(row, "instance_id") or text_at(fields(row.get("instance")), "instance_id")
    if instance is None and text_at(issue, "repo"):
        instance = f"{issue.get('owner')}/{issue['repo']}#{issue.get('number')}"
    meta = {
        "instance_id": instance,
        "agent": text_at(metadata, "agent_class"),
        "error": text_at(row, "error"),
        "attempt": row.get("attempt"),
        "accumulated_cost": metrics.get("accumulated_cost"),
    }
    yield Trace(
        trace_id=trace_id,
        turns=turns,
        source=log.source(NAME, version=reader.version, line=line),
        model=text_at(fields(metadata.get("llm_config")), "model") or text_at(fields(metadata.get("llm")), "model"),
        tools=reader.tools,
        final_reward=reward_of(row, fields(row.get("report")), test, fields(test.get("report"))),
        meta=known(meta),
    )


def _usages(metrics: dict[str, Any]) -> dict[str, Usage]:
    """Tokens of each reply of the model, by its id."""
    found: dict[str, Usage] = {}
    for record in items(metrics.get("token_usages")):
        reply, usage = text_at(fields(record), "response_id"), usage_of(record)
        if reply is not None and usage is not None:
            found[reply] = usage
    return found


class _Reader:
    """Events to turns, one at a time."""

    def __init__(self, stats: IngestionStats, *, usages: dict[str, Usage]) -> None:
        self.tools: list[dict[str, Any]] = []
        self.version: str | None = None
        self._stats = stats
        self._usages = usages
        self._turns: list[Turn] = []
        self._calls = OpenCalls()
        self._makers: dict[str, Turn] = {}
        self._replies: dict[str, Turn] = {}
        self._call_of_event: dict[Any, str] = {}
        self._events_of: dict[int, set[Any]] = {}
        self._gone: set[int] = set()
        self._condensed: list[tuple[Turn, Turn | None, list[Turn]]] = []
        self._total = Usage()

    def add(self, event: dict[str, Any]) -> None:
        if isinstance(event.get("kind"), str):
            self.version = self.version or "1"
            self._add_kind(event, event["kind"])
        elif isinstance(event.get("action"), str):
            self.version = self.version or "0"
            self._add_action(event, event["action"])
        elif isinstance(event.get("observation"), str):
            self._add_observation(event, event["observation"])
        else:
            self._stats.skip("event without a type")

    def insert(self, position: int, turn: Turn) -> None:
        self._turns.insert(position, turn)

    def finish(self) -> list[Turn]:
        """The turns, each condensation pointing at what it left."""
        at = {id(turn): index for index, turn in enumerate(self._turns)}
        for summary, before, kept in self._condensed:
            summary.follows = -1 if before is None else at[id(before)]
            summary.keeps = sorted(at[id(turn)] for turn in kept)
        return self._turns

    # Version 0

    def _add_action(self, event: dict[str, Any], action: str) -> None:
        args = fields(event.get("args")) or event
        source = event.get("source")
        if action == "system":
            self.tools = objects(args.get("tools")) or self.tools
            self._put(Turn(role="system", content=text_of(args.get("content"))), event)
        elif action == "condensation":
            forgotten = set(_hashable(args.get("forgotten_event_ids")))
            first, last = args.get("forgotten_events_start_id"), args.get("forgotten_events_end_id")
            if isinstance(first, int) and isinstance(last, int):
                known_ids = {one for ids in self._events_of.values() for one in ids if isinstance(one, int)}
                forgotten |= {one for one in known_ids if first <= one <= last}
            self._condense(event, text_of(args.get("summary")), forgotten)
        elif action == "message" and source != "agent" and not (source is None and args.get("wait_for_response")):
            self._put(Turn(role="user", content=text_of(args.get("content")), origin="prompt"), event)
        elif action not in _ACTIONS and not fields(event.get("tool_call_metadata")):
            # About the harness itself (recall, change_agent_state, null, …), or unknown.
            self._stats.skip(f"{name_of(action)} action")
        elif source == "user":
            self._put(Turn(role="user", content=dump_json(_arguments(args)), origin="command"), event)
        else:
            self._agent_action(event, action, args)

    def _agent_action(self, event: dict[str, Any], action: str, args: dict[str, Any]) -> None:
        metadata = fields(event.get("tool_call_metadata"))
        response = fields(metadata.get("model_response"))
        message = fields(fields(next(iter(items(response.get("choices"))), None)).get("message"))
        text = text_of(message.get("content")) or text_of(args.get("thought"))
        if action == "message":
            text = text_of(args.get("content")) or text
        turn = self._reply(event, text_at(response, "id"), text, thinking_of(message))
        turn.model = turn.model or text_at(response, "model")
        spent = self._spent(event)
        turn.usage = turn.usage or usage_of(response.get("usage")) or spent
        if action == "message" and not metadata:
            return
        call_id = text_at(metadata, "tool_call_id")
        given = [one for one in items(message.get("tool_calls")) if call_id and fields(one).get("id") == call_id]
        call = call_of(given[0], "") if given else None
        if call is None or not call.name:
            name = text_at(metadata, "function_name") or _FUNCTIONS.get(action, action)
            own_id = f"call_{len(self._turns) - 1}_{len(turn.tool_calls)}"
            call = ToolCall(id=call_id or own_id, name=name, arguments=_arguments(args))
        self._make(turn, call, event)

    def _spent(self, event: dict[str, Any]) -> Usage | None:
        """Tokens since the last event that has the run's total."""
        total = usage_of(fields(event.get("llm_metrics")).get("accumulated_token_usage"))
        if total is None:
            return None
        before, self._total = self._total, total
        now, then = msgspec.structs.astuple(total), msgspec.structs.astuple(before)
        spent = Usage(*(max(0, one - other) for one, other in zip(now, then, strict=True)))
        return spent if spent != Usage() else None

    def _add_observation(self, event: dict[str, Any], observation: str) -> None:
        extras = fields(event.get("extras"))
        details = fields(extras.get("metadata"))
        if observation == "condense":
            self._condense(event, text_of(event.get("content")), set())
        elif observation not in _OBSERVATIONS and not fields(event.get("tool_call_metadata")):
            self._stats.skip(f"{name_of(observation)} observation")
        else:
            texts = (details.get("prefix"), event.get("content"), details.get("suffix"))
            failed = observation in ("error", "user_rejected") or event.get("success") is False
            codes = (event.get("exit_code"), extras.get("exit_code"), details.get("exit_code"))
            self._result(
                event,
                "".join(text_of(text) for text in texts),
                text_at(fields(event.get("tool_call_metadata")), "tool_call_id"),
                cause=event.get("cause"),
                failed=failed or any(is_nonzero(code) for code in codes),
            )

    # Version 1

    def _add_kind(self, event: dict[str, Any], kind: str) -> None:
        call_id = text_at(event, "tool_call_id")
        cause = event.get("action_id")
        if kind == "SystemPromptEvent":
            self.tools = [tool for one in items(event.get("tools")) if (tool := tool_definition(one))] or self.tools
            texts = [text_of(event.get("system_prompt")), text_of(event.get("dynamic_context"))]
            self._put(Turn(role="system", content=joined(texts)), event)
        elif kind == "MessageEvent":
            self._message(event)
        elif kind == "ActionEvent":
            self._action_event(event, call_id)
        elif kind == "ObservationEvent":
            observation = fields(event.get("observation"))
            said = [observation[key] for key in ("content", "output") if key in observation]
            rest = {key: value for key, value in observation.items() if key != "kind"}
            text = text_of(said[0]) if said else dump_json(rest) if rest else text_of(event.get("observation"))
            codes = (observation.get("exit_code"), fields(observation.get("metadata")).get("exit_code"))
            failed = observation.get("is_error") is True or any(is_nonzero(code) for code in codes)
            text = joined([text, text_of(event.get("extended_content"))])
            self._result(event, text, call_id, cause=cause, failed=failed)
        elif kind == "AgentErrorEvent":
            self._result(event, text_of(event.get("error")), call_id, cause=cause, failed=True)
        elif kind == "UserRejectObservation":
            text = f"Action rejected: {text_of(event.get('rejection_reason'))}"
            self._result(event, text, call_id, cause=cause, failed=True)
        elif kind == "Condensation":
            self._condense(event, text_of(event.get("summary")), set(_hashable(event.get("forgotten_event_ids"))))
        elif kind == "CondensationSummaryEvent":
            self._condense(event, text_of(event.get("summary")), set())
        else:
            self._stats.skip(name_of(kind))

    def _message(self, event: dict[str, Any]) -> None:
        message = fields(event.get("llm_message"))
        text = joined([text_of(message.get("content")), text_of(event.get("extended_content"))])
        if event.get("source") != "agent" and message.get("role") != "assistant":
            self._put(Turn(role="user", content=text, origin="prompt"), event)
            return
        self._reply(event, text_at(event, "llm_response_id"), text, thinking_of(message))

    def _action_event(self, event: dict[str, Any], call_id: str | None) -> None:
        reply = text_at(event, "llm_response_id")
        turn = self._reply(event, reply, text_of(event.get("thought")), thinking_of(event))
        own_id = call_id or f"call_{len(self._turns) - 1}_{len(turn.tool_calls)}"
        call = call_of(event.get("tool_call"), own_id)
        if not call.name:
            given = {key: value for key, value in fields(event.get("action")).items() if key != "kind"}
            name = text_at(event, "tool_name") or text_at(fields(event.get("action")), "kind")
            call = ToolCall(id=own_id, name=name or "unknown", arguments=given)
        self._make(turn, call, event)

    # Both

    def _put(self, turn: Turn, event: dict[str, Any]) -> None:
        turn.timestamp = time_of(event.get("timestamp"))
        self._turns.append(turn)
        self._belongs(turn, event)

    def _belongs(self, turn: Turn, event: dict[str, Any]) -> None:
        self._events_of.setdefault(id(turn), set()).update(_hashable([event.get("id")]))

    def _reply(self, event: dict[str, Any], reply: str | None, text: str, thinking: str) -> Turn:
        """The assistant turn of this reply of the model: a new one, unless a call of the same reply began it."""
        turn = self._replies.get(reply) if reply is not None else None
        if turn is not None:
            if text not in turn.content:
                turn.content = joined([turn.content, text])
            turn.thinking = turn.thinking or thinking
            self._belongs(turn, event)
            return turn
        turn = Turn(role="assistant", content=text, thinking=thinking, id=reply)
        if reply is not None:
            self._replies[reply] = turn
            turn.usage = self._usages.get(reply)
        self._put(turn, event)
        self._calls.made(turn)
        return turn

    def _make(self, turn: Turn, call: ToolCall, event: dict[str, Any]) -> None:
        self._calls.add(call)
        turn.tool_calls = [*turn.tool_calls, call]
        self._makers[call.id] = turn
        for event_id in _hashable([event.get("id")]):
            self._call_of_event[event_id] = call.id

    def _result(self, event: dict[str, Any], text: str, call_id: str | None, *, cause: Any, failed: bool) -> None:
        """Put a result after the turn that made its call, found by the call's id, the action's id, or by order."""
        if call_id is None:
            call_id = next((self._call_of_event[one] for one in _hashable([cause]) if one in self._call_of_event), None)
        if call_id is None and self._calls.waiting and cause is None:
            call_id = self._calls.waiting[0]
        call_id = self._calls.answered(call_id)
        turn = Turn(role="tool", content=text, tool_call_id=call_id, is_error=failed)
        self._put(turn, event)
        maker = self._makers.get(call_id) if call_id is not None else None
        if maker is None:
            return
        self._turns.pop()
        position = len(self._turns)
        while self._turns[position - 1] is not maker:
            position -= 1
        while position < len(self._turns) and self._makers.get(self._turns[position].tool_call_id or "") is maker:
            position += 1
        self._turns.insert(position, turn)

    def _condense(self, event: dict[str, Any], summary: str, forgotten: set[Any]) -> None:
        """Begin a context of what is left: turns before the first forgotten one, the summary, the later turns."""
        earlier = {id(one) for one, _, _ in self._condensed}
        lost = {key for key, ids in self._events_of.items() if ids & forgotten}
        everything = not lost
        self._gone |= lost
        for turn in self._turns:
            maker = self._makers.get(turn.tool_call_id or "")
            if maker is not None and id(maker) in self._gone:
                self._gone.add(id(turn))
        before: Turn | None = None
        later: list[Turn] = []
        reached = False
        for turn in self._turns:
            if id(turn) in self._gone or id(turn) in earlier or everything:
                reached = True
                self._gone.add(id(turn))
            elif reached:
                later.append(turn)
            else:
                before = turn
        turn = Turn(role="user", content=summary or _FORGOTTEN, origin="summary")
        self._put(turn, event)
        self._condensed.append((turn, before, later))


def _hashable(ids: Any) -> Iterator[Any]:
    return (one for one in items(ids) if isinstance(one, str | int))


def _arguments(args: dict[str, Any]) -> dict[str, Any]:
    """An action's values without what the harness notes beside them."""
    return {key: value for key, value in args.items() if key not in _BESIDE_THE_CALL and value is not None}


FORMAT = LogFormat(NAME, sniff, read)
