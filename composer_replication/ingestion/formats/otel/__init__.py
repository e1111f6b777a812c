"""OpenTelemetry traces of any application that calls models: GenAI conventions, OpenLLMetry, OpenInference.

Attribute names: https://github.com/open-telemetry/semantic-conventions-genai and
https://arize-ai.github.io/openinference/spec/semantic_conventions.html. A record is one span. Spans come in any order
and from many traces at once, so the model calls of a file are held until its end, each message once.

A model call carries its whole prompt. The calls of one agent that build on each other become one trace: a prompt that
continues the trace adds only what is new; another one is traced back to the longest part they have in common
(`Turn.follows`). So every state's history is the prompt of its span, and each message is held once.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NamedTuple

from composer_replication.ingestion.formats import Head, LogFormat, ReadOptions
from composer_replication.ingestion.formats.otel.calls import (
    NO_CONTENT,
    Kind,
    ModelCall,
    ToolRun,
    kind_of,
    read_call,
    read_tool_run,
)
from composer_replication.ingestion.formats.otel.messages import Call, Message, repeats_answer
from composer_replication.ingestion.formats.otel.spans import (
    Event,
    Span,
    is_export_of_spans,
    is_span,
    is_tree,
    read_spans,
    text_at,
)
from composer_replication.ingestion.log_file import LogFile
from composer_replication.ingestion.loose_json import iso_time
from composer_replication.ingestion.statistics import IngestionStats
from composer_replication.traces import ToolCall, Trace, Turn, parse_arguments

NAME = "otel"


def sniff(head: Head) -> bool:
    """Whether a file holds spans: an OTLP export, objects with a trace id, a span id, a start and attributes, or trees
    of them."""
    listed = head.document if isinstance(head.document, list) else []
    records = head.records or [one for one in listed[:64] if isinstance(one, dict)]
    return any(is_export_of_spans(record) or is_span(record) or is_tree(record) for record in records)


def read(log: LogFile, options: ReadOptions, stats: IngestionStats) -> Iterator[Trace]:
    """The traces of a file's model calls, in the order in which they began."""
    spans = _Spans(log, stats)
    calls = spans.calls(options)
    runs = spans.tool_runs()
    threads = build_threads(calls, runs, stats)
    if runs.unused:
        stats.skip("tool span without its call", runs.unused)
    names = _Names(log.stem)
    trace_ids = {id(thread): names.new(thread.first.group) for thread in threads}
    of_agent: dict[tuple[str, str], str] = {}
    for thread in threads:
        for agent in thread.agent_spans.items():
            of_agent.setdefault(agent, trace_ids[id(thread)])
    for thread in threads:
        yield thread.trace(log, trace_ids[id(thread)], _parent(thread, spans, of_agent))


def _parent(thread: Thread, spans: _Spans, of_agent: dict[tuple[str, str], str]) -> str | None:
    if not thread.first.agent_span:
        return None
    for place in spans.above(thread.first.trace_id, thread.first.agent_span):
        if place.kind == "agent" and (place.trace_id, place.span_id) in of_agent:
            return of_agent[place.trace_id, place.span_id]
    return None


class _Place(NamedTuple):
    """The position of a span in its trace, and the agent and conversation it belongs to."""

    trace_id: str
    span_id: str
    parent_id: str
    kind: Kind
    agent_name: str
    conversation: str
    session: str


class _Spans:
    """The spans of a file, each reduced to what is needed of it."""

    def __init__(self, log: LogFile, stats: IngestionStats) -> None:
        self._stats = stats
        self._places: dict[tuple[str, str], _Place] = {}
        self._calls: list[CallSpan] = []
        self._without_call: dict[tuple[str, str], tuple[Span, str]] = {}
        self._runs: list[tuple[int, str, ToolRun]] = []
        self._logged: dict[tuple[str, str], list[Span]] = defaultdict(list)
        self._messages: dict[Message, Message] = {}
        for span in read_spans(log, stats):
            self._add(span)
        self._add_logged()
        for _, reason in self._without_call.values():
            stats.skip(reason)

    def calls(self, options: ReadOptions) -> list[CallSpan]:
        """The model calls, in the order of their time, each with the agent and the conversation it belongs to."""
        recorded = {(span.trace_id, span.span_id) for span in self._calls}
        kept: list[CallSpan] = []
        for span in sorted(self._calls, key=lambda span: span.start or 0):
            if self._settle(span, recorded):
                kept.append(span)
        if options.subagents:
            return kept
        acting = {(span.trace_id, span.agent_span) for span in kept if span.agent_span}
        main = [span for span in kept if not self._is_subagent(span, acting)]
        if len(main) < len(kept):
            self._stats.skipped_subagent += len(kept) - len(main)
            self._stats.skip("sub-agent", len(kept) - len(main))
        return main

    def tool_runs(self) -> ToolRuns:
        """The runs of tools, in the order of their time."""
        runs = ToolRuns()
        for _, trace_id, run in sorted(self._runs, key=lambda one: one[0]):
            runs.add(trace_id, run)
        return runs

    def above(self, trace_id: str, span_id: str) -> Iterator[_Place]:
        """The spans above a span, the nearest first, as far as the file has them."""
        place = self._places.get((trace_id, span_id))
        seen = {span_id}
        while place is not None and place.parent_id not in seen:
            seen.add(place.parent_id)
            place = self._places.get((trace_id, place.parent_id))
            if place is not None:
                yield place

    def _add(self, span: Span) -> None:
        key = (span.trace_id, span.span_id)
        if span.is_log:
            if span.events[0][0].startswith("gen_ai."):
                self._logged[key].append(span)
            else:
                self._stats.skip("not a model call")
            return
        if span.span_id and key in self._places:
            self._stats.skip("duplicate span")
            return
        kind = kind_of(span)
        attributes = span.attributes
        self._places[key] = _Place(
            *key,
            parent_id=span.parent_id,
            kind=kind,
            agent_name=text_at(attributes, "gen_ai.agent.name", "agent.name")
            or (text_at(attributes, "traceloop.entity.name") or span.name if kind == "agent" else ""),
            conversation=text_at(attributes, "gen_ai.conversation.id") or "",
            session=text_at(attributes, "session.id", "traceloop.association.properties.session_id") or "",
        )
        if kind == "model":
            self._add_call(span, span.events)
        elif kind == "tool":
            self._runs.append((span.start or 0, span.trace_id, read_tool_run(span)))
        elif kind == "other":
            self._stats.skip("not a model call")

    def _add_call(self, span: Span, events: list[Event]) -> None:
        call = read_call(span.attributes, events)
        if isinstance(call, str):
            # A log record may still bring its content; without one, this is the reason why there is no call.
            bare = Span(span.trace_id, span.span_id, start=span.start, end=span.end, scope=span.scope, line=span.line)
            bare.attributes = span.attributes if call == NO_CONTENT else {}
            self._without_call[span.trace_id, span.span_id or f"line {span.line}"] = bare, call
            return
        self._count_losses(call)
        call.given = [self._messages.setdefault(message, message) for message in call.given]
        call.answer = [self._messages.setdefault(message, message) for message in call.answer]
        self._calls.append(CallSpan(call, span.trace_id, span.span_id, span.start, span.end, span.line, span.scope))

    def _count_losses(self, call: ModelCall) -> None:
        if call.further_choices:
            self._stats.skipped["further choice"] += call.further_choices
        if call.unnamed_tools:
            self._stats.skipped["tool definition without a name"] += call.unnamed_tools

    def _add_logged(self) -> None:
        """Give the events of the logs to their spans; a span that only its events tell of is one, too."""
        for key, logged in self._logged.items():
            logged.sort(key=lambda one: one.start or 0)
            events = [event for one in logged for event in one.events]
            span, _ = self._without_call.pop(key, (None, ""))
            if span is None and key in self._places:
                continue  # its span said it all
            if span is None:
                span = Span(*key, start=logged[0].start, end=logged[-1].end, line=logged[0].line)
                span.events = events
                self._places[key] = _Place(*key, "", "model", "", "", "")
            self._add_call(span, events)

    def _settle(self, span: CallSpan, recorded: set[tuple[str, str]]) -> bool:
        """Find a call's agent and conversation; False if the call is recorded twice, by two instrumentations."""
        place = self._places[span.trace_id, span.span_id]
        span.conversation, span.session, span.agent_name = place.conversation, place.session, place.agent_name
        for above in self.above(span.trace_id, span.span_id):
            if above.kind == "model" and not span.agent_span and (above.trace_id, above.span_id) in recorded:
                self._stats.skip("model call inside a model call")
                return False
            if above.kind == "agent" and not span.agent_span:
                span.agent_span = above.span_id
                span.agent_name = above.agent_name or span.agent_name
            span.conversation = span.conversation or above.conversation
            span.session = span.session or above.session
        return True

    def _is_subagent(self, span: CallSpan, acting: set[tuple[str, str]]) -> bool:
        if not span.agent_span:
            return False
        return any((place.trace_id, place.span_id) in acting for place in self.above(span.trace_id, span.agent_span))


class _Names:
    """Short names for conversations, each used once in a file."""

    def __init__(self, stem: str) -> None:
        self._stem = stem
        self._full: dict[str, str] = {}
        self._used: dict[str, int] = defaultdict(int)

    def new(self, group: str) -> str:
        short = group if len(group) <= _SHORT else group[:_SHORT]
        if self._full.setdefault(short, group) != group:
            short = group
        self._used[short] += 1
        number = self._used[short]
        return f"{self._stem}#{short}" + (f".{number}" if number > 1 else "")


_SHORT = 16


@dataclass
class CallSpan:
    """A model call with its agent, its conversation and its time."""

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
    """One trace in the making. `chain` is the current context: its messages and their turns."""

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
        """Return how many messages a prompt has in common with the context."""
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
        """Append the new part of a call's prompt, and its answer."""
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
            source=log.source(NAME, version=self.first.scope, line=self.first.line),
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
    """Return where a context may continue: not between a call and its results."""
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


FORMAT = LogFormat(NAME, sniff, read)
