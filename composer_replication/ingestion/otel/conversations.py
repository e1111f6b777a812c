"""From spans to traces.

A model call carries its whole prompt. The calls of one agent that build on each other become one trace: a prompt that
goes on from where the trace stands adds only what is new; one that does not is traced back to the longest part they
have in common (`Turn.follows`). So every state's history is the prompt of its span, and each message is held once.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from composer_replication.ingestion.log_file import LogFile
from composer_replication.ingestion.otel.calls import ModelCall, ToolRun
from composer_replication.ingestion.otel.messages import Call, Message
from composer_replication.ingestion.otel.smolagents import repeats_answer
from composer_replication.ingestion.otel.spans import iso_time
from composer_replication.ingestion.statistics import IngestionStats
from composer_replication.traces import ToolCall, Trace, Turn, parse_arguments


@dataclass
class CallSpan:
    """A model call and where it stands: its agent, its conversation, its time."""

    call: ModelCall
    trace_id: str
    span_id: str
    start: int | None
    end: int | None
    line: int
    scope: str | None
    conversation: str = ""
    session: str = ""
    agent_span: str = ""
    agent_name: str = ""

    @property
    def group(self) -> str:
        """The conversation, if it has a name, else the OpenTelemetry trace."""
        return self.conversation or self.session or self.trace_id

    @property
    def lead(self) -> tuple[Any, ...]:
        """The system messages that the prompt begins with. Another one of them is another agent."""
        leading = takewhile(lambda message: message.role == "system", self.call.given)
        return tuple(message.key for message in leading)


class ToolRuns:
    """The runs of tools in a file, found for the call that asked for them; each is used once."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, ...], deque[ToolRun]] = defaultdict(deque)
        self.unused = 0

    def add(self, trace_id: str, run: ToolRun) -> None:
        """Add a run; runs that only their name tells apart are found in the order in which they were added."""
        self.unused += 1
        if run.call_id:
            self._runs[trace_id, "id", run.call_id].append(run)
        elif run.arguments is not None:
            self._runs[trace_id, "arguments", run.name, _sorted(run.arguments)].append(run)
        else:
            self._runs[trace_id, "name", run.name].append(run)

    def take(self, trace_id: str, call: Call) -> ToolRun | None:
        """The run of a call: by its id, else by its name and arguments, else by the name alone."""
        for key in (("id", call.id), ("arguments", call.name, _sorted(call.arguments)), ("name", call.name)):
            waiting = self._runs.get((trace_id, *key))
            if waiting:
                self.unused -= 1
                return waiting.popleft()
        return None


def _sorted(arguments: str) -> str:
    """Arguments without regard to the order of their keys."""
    given, raw = parse_arguments(arguments)
    return raw if raw is not None else json.dumps(given, sort_keys=True)


class Thread:
    """One trace in the making. `chain` is the context as it stands: its messages and the turns that hold them."""

    def __init__(self, first: CallSpan) -> None:
        self.first = first
        self.turns: list[Turn] = []
        self.chain: list[tuple[Message, int]] = []
        self.agent_spans: dict[str, str] = {}
        self.end: int | None = None
        self._runs: dict[str, ToolRun] = {}
        self._tools: dict[str, dict[str, Any]] = {}
        self._model: str | None = None

    def common(self, given: list[Message]) -> int:
        """How many messages a prompt has in common with the context."""
        count = 0
        for (message, _), other in zip(self.chain, given, strict=False):
            if message is not other and message.key != other.key:
                return count + (count == len(self.chain) - 1 and repeats_answer(message, other))
            count += 1
        return count

    def accepts(self, span: CallSpan) -> bool:
        """Whether a call that begins like this thread belongs to it.

        Two agents may have been given the same task, and two conversations of one session may begin alike: then only
        a prompt that goes on from this thread's last answer does.
        """
        agent = self.agent_spans.get(span.trace_id)
        if agent == span.agent_span or (agent is None and span.conversation):
            return True
        return len(self.chain) <= self.common(span.call.given)

    def accepts_new_context(self, span: CallSpan) -> bool:
        """Whether a call that shares nothing with this thread may still be its next one, its context rewritten."""
        agent = self.agent_spans.get(span.trace_id)
        same = agent == span.agent_span != "" or (agent in (None, span.agent_span) and span.conversation != "")
        return same and (self.end is None or span.start is None or self.end <= span.start)

    def add(self, span: CallSpan, runs: ToolRuns, stats: IngestionStats) -> None:
        """Put a call's prompt, as far as it is new, and its answer behind what is there."""
        given = span.call.given
        count = self.common(given)
        follows: int | None = None
        if self.chain and count == len(self.chain):
            self._take_calls(given[count - 1], span, runs)
        if self._add_missing_results(given) or count < len(self.chain):
            count = _closed([message for message, _ in self.chain[:count]])
            follows = self.chain[count - 1][1] if count else -1
            del self.chain[count:]
        for message in given[count:]:
            turn = _turn(message, iso_time(span.start), span.line)
            turn.repeats = message.role == "assistant"
            turn.follows, follows = follows, None
            self._append(message, turn, span, runs, stats)
        for message in span.call.answer:
            turn = _turn(message, iso_time(span.end or span.start), span.line)
            turn.follows, follows = follows, None
            if message.role == "assistant":
                turn.id, turn.model = span.call.response_id or span.span_id or None, span.call.model
            self._append(message, turn, span, runs, stats)
        last_answer = next(turn for turn in reversed(self.turns) if turn.role == "assistant")
        last_answer.usage = span.call.usage
        self.agent_spans[span.trace_id] = span.agent_span
        self._tools.update({tool["function"]["name"]: tool for tool in span.call.tools})
        self._model = span.call.model or self._model
        self.end = span.end if span.end is not None else span.start

    def trace(self, log: LogFile, trace_id: str, parent: str | None) -> Trace:
        """The trace; the results of its last calls come from the spans of the tools."""
        self._add_missing_results([])
        return Trace(
            trace_id=trace_id,
            turns=self.turns,
            source=log.source("otel", version=self.first.scope, line=self.first.line),
            session_id=self.first.group or None,
            parent=parent,
            model=self._model,
            tools=list(self._tools.values()),
            meta={"agent": self.first.agent_name} if self.first.agent_name else {},
        )

    def _append(self, message: Message, turn: Turn, span: CallSpan, runs: ToolRuns, stats: IngestionStats) -> None:
        self.chain.append((message, len(self.turns)))
        self.turns.append(turn)
        stats.skipped.update(message.lost)
        self._find_runs(message, turn, span, runs)
        ran = self._runs.get(message.answers)
        if message.role == "tool" and ran is not None and ran.failed:
            turn.is_error = True

    def _find_runs(self, message: Message, turn: Turn, span: CallSpan, runs: ToolRuns) -> None:
        for call in message.calls:
            if not turn.repeats or call.id not in self._runs:
                run = runs.take(span.trace_id, call)
                if run is not None:
                    self._runs[call.id] = run

    def _take_calls(self, later: Message, span: CallSpan, runs: ToolRuns) -> None:
        """Give the last answer the calls that the agent read in it, and its text as the model sees it from now on."""
        message, index = self.chain[-1]
        if message.key == later.key:
            return
        turn = self.turns[index]
        turn.content, turn.tool_calls = later.content, _tool_calls(later)
        self.chain[-1] = later, index
        self._find_runs(later, turn, span, runs)

    def _add_missing_results(self, given: list[Message]) -> bool:
        """Results of the last answer that only the spans of its tools know; they are not part of any prompt."""
        if not self.chain:
            return False
        answered = {message.answers for message in given if message.role == "tool"}
        added = False
        for call in self.chain[-1][0].calls:
            run = self._runs.get(call.id)
            if call.id in answered or run is None or not (run.failed or run.result is not None):
                continue
            text = (run.failure or run.result or "") if run.failed else run.result
            self.turns.append(
                Turn("tool", text or "", tool_call_id=call.id, is_error=run.failed, timestamp=iso_time(run.end))
            )
            added = True
        return added


def _turn(message: Message, timestamp: str | None, line: int) -> Turn:
    return Turn(
        role=message.role,
        content=message.content,
        thinking=message.thinking,
        tool_calls=_tool_calls(message),
        tool_call_id=message.answers if message.role == "tool" else None,
        is_error=message.is_error,
        timestamp=timestamp,
        line=line,
    )


def _tool_calls(message: Message) -> list[ToolCall]:
    return [ToolCall(call.id, call.name, *parse_arguments(call.arguments)) for call in message.calls]


def _closed(messages: list[Message]) -> int:
    """Where a context may be taken up again: not between a call and its results, which belong together."""
    end = len(messages)
    while end and messages[end - 1].role == "tool":
        end -= 1
    if end and {call.id for call in messages[end - 1].calls} - {message.answers for message in messages[end:]}:
        return end - 1
    return len(messages)


def build_threads(spans: list[CallSpan], runs: ToolRuns, stats: IngestionStats) -> list[Thread]:
    """Sort model calls, in the order of their time, into the traces they belong to."""
    threads: list[Thread] = []
    beginning_alike: dict[tuple[Any, ...], list[Thread]] = defaultdict(list)
    latest: dict[tuple[Any, ...], Thread] = {}
    for span in spans:
        lead = span.lead
        agent = (span.group, span.agent_name, lead)
        first = span.call.given[len(lead)].key if len(span.call.given) > len(lead) else None
        alike = beginning_alike[agent, first]
        accepting = [thread for thread in alike[-_LOOKED_AT:] if thread.accepts(span)]
        thread = max(reversed(accepting), key=lambda one: one.common(span.call.given), default=None)
        if thread is None and agent in latest and latest[agent].accepts_new_context(span):
            thread = latest[agent]
        if thread is None:
            thread = Thread(span)
            threads.append(thread)
        if thread not in alike[-_LOOKED_AT:]:
            alike.append(thread)
        latest[agent] = thread
        thread.add(span, runs, stats)
    return threads


_LOOKED_AT = 64
"""Threads of one agent that begin alike and are compared with a prompt: more would make a long file slow."""
