"""OpenTelemetry traces of any application that calls models: GenAI conventions, OpenLLMetry, OpenInference.

Attribute names: https://github.com/open-telemetry/semantic-conventions-genai and
https://arize-ai.github.io/openinference/spec/semantic_conventions.html. A record is one span. Spans come in any order
and from many traces at once, so the model calls of a file are held until its end, each message once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from composer_replication.ingestion.formats import Head, ReadOptions
from composer_replication.ingestion.log_file import LogFile
from composer_replication.ingestion.otel.attributes import text_at
from composer_replication.ingestion.otel.calls import (
    NO_CONTENT,
    Kind,
    ModelCall,
    ToolRun,
    kind_of,
    read_call,
    read_tool_run,
)
from composer_replication.ingestion.otel.conversations import CallSpan, Thread, ToolRuns, build_threads
from composer_replication.ingestion.otel.messages import Message
from composer_replication.ingestion.otel.spans import Event, Span, is_export_of_spans, is_span, is_tree, read_spans
from composer_replication.ingestion.statistics import IngestionStats
from composer_replication.traces import Trace

__all__ = ["read", "sniff"]


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
    """What is kept of every span: where it stands and who it belongs to."""

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
