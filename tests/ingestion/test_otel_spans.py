"""Every way of writing a conversation into spans reads back to what the model saw."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry import trace as otel_trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from composer_replication.ingestion import IngestionStats, LogFile, ReadOptions
from composer_replication.ingestion.formats import Head
from composer_replication.ingestion.formats.otel import read, sniff
from composer_replication.traces import Trace

Chat = list[dict[str, Any]]
Written = tuple[dict[str, Any], list[tuple[str, dict[str, Any]]]]
"""A span's attributes and its events."""


# ---- the dialects, as instrumentations write them


def _parts(message: dict[str, Any]) -> list[dict[str, Any]]:
    if message["role"] == "tool":
        return [{"type": "tool_call_response", "id": message["tool_call_id"], "response": message["content"]}]
    parts = (
        [{"type": "text", "content": message["content"]}] if message["content"] or "tool_calls" not in message else []
    )
    for call in message.get("tool_calls", []):
        arguments = json.loads(call["function"]["arguments"])
        parts.append({"type": "tool_call", "id": call["id"], "name": call["function"]["name"], "arguments": arguments})
    return parts


def _parts_messages(chat: Chat) -> list[dict[str, Any]]:
    return [{"role": message["role"], "parts": _parts(message)} for message in chat]


def genai(prompt: Chat, answer: dict[str, Any]) -> Written:
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.input.messages": json.dumps(_parts_messages(prompt)),
        "gen_ai.output.messages": json.dumps(_parts_messages([answer])),
    }
    return attributes, []


def genai_with_instructions(prompt: Chat, answer: dict[str, Any]) -> Written:
    attributes, events = genai(prompt[1:], answer) if _leads(prompt) else genai(prompt, answer)
    if _leads(prompt):
        attributes["gen_ai.system_instructions"] = json.dumps([{"type": "text", "content": prompt[0]["content"]}])
    return attributes, events


def _leads(prompt: Chat) -> bool:
    return len(prompt) > 1 and prompt[0]["role"] == "system"


def genai_details_event(prompt: Chat, answer: dict[str, Any]) -> Written:
    attributes, _ = genai(prompt, answer)
    details = {key: attributes.pop(key) for key in ("gen_ai.input.messages", "gen_ai.output.messages")}
    return attributes, [("gen_ai.client.inference.operation.details", details)]


def _body(message: dict[str, Any]) -> dict[str, Any]:
    body = {"content": message["content"], "role": message["role"]}
    if "tool_calls" in message:
        body["tool_calls"] = message["tool_calls"]
    if message["role"] == "tool":
        body["id"] = message["tool_call_id"]
    return body


def genai_events(prompt: Chat, answer: dict[str, Any]) -> Written:
    events = [(f"gen_ai.{one['role']}.message", {"gen_ai.event.content": json.dumps(_body(one))}) for one in prompt]
    choice = {"index": 0, "finish_reason": "stop", "message": _body(answer)}
    events.append(("gen_ai.choice", {"gen_ai.event.content": json.dumps(choice)}))
    return {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}, events


def genai_content_events(prompt: Chat, answer: dict[str, Any]) -> Written:
    events = [
        ("gen_ai.content.prompt", {"gen_ai.prompt": json.dumps(prompt)}),
        ("gen_ai.content.completion", {"gen_ai.completion": json.dumps([answer])}),
    ]
    return {"gen_ai.system": "openai", "gen_ai.request.model": "m"}, events


def openllmetry(prompt: Chat, answer: dict[str, Any]) -> Written:
    attributes: dict[str, Any] = {"llm.request.type": "chat", "gen_ai.request.model": "m"}
    for side, chat in (("prompt", prompt), ("completion", [answer])):
        for number, message in enumerate(chat):
            base = f"gen_ai.{side}.{number}"
            attributes[f"{base}.role"] = message["role"]
            if message["content"] or "tool_calls" not in message:
                attributes[f"{base}.content"] = message["content"]
            if message["role"] == "tool":
                attributes[f"{base}.tool_call_id"] = message["tool_call_id"]
            for index, call in enumerate(message.get("tool_calls", [])):
                attributes[f"{base}.tool_calls.{index}.id"] = call["id"]
                attributes[f"{base}.tool_calls.{index}.name"] = call["function"]["name"]
                attributes[f"{base}.tool_calls.{index}.arguments"] = call["function"]["arguments"]
    return attributes, []


def openinference(prompt: Chat, answer: dict[str, Any]) -> Written:
    attributes: dict[str, Any] = {"openinference.span.kind": "LLM", "llm.model_name": "m"}
    for side, chat in (("input", prompt), ("output", [answer])):
        for number, message in enumerate(chat):
            base = f"llm.{side}_messages.{number}.message"
            attributes[f"{base}.role"] = message["role"]
            if message["role"] == "user":
                attributes[f"{base}.contents.0.message_content.type"] = "text"
                attributes[f"{base}.contents.0.message_content.text"] = message["content"]
            elif message["content"] or "tool_calls" not in message:
                attributes[f"{base}.content"] = message["content"]
            if message["role"] == "tool":
                attributes[f"{base}.tool_call_id"] = message["tool_call_id"]
            for index, call in enumerate(message.get("tool_calls", [])):
                below = f"{base}.tool_calls.{index}.tool_call"
                attributes[f"{below}.id"] = call["id"]
                attributes[f"{below}.function.name"] = call["function"]["name"]
                attributes[f"{below}.function.arguments"] = call["function"]["arguments"]
    return attributes, []


def openinference_values(prompt: Chat, answer: dict[str, Any]) -> Written:
    return {
        "openinference.span.kind": "LLM",
        "input.value": json.dumps({"model": "m", "messages": prompt}),
        "input.mime_type": "application/json",
        "output.value": json.dumps({"choices": [{"index": 0, "message": answer}]}),
        "output.mime_type": "application/json",
    }, []


DIALECTS = (
    genai,
    genai_with_instructions,
    genai_details_event,
    genai_events,
    genai_content_events,
    openllmetry,
    openinference,
    openinference_values,
)


# ---- the containers


class Call:
    """One span to be written."""

    def __init__(
        self,
        written: Written,
        *,
        number: int,
        trace: int = 1,
        parent: int | None = None,
        name: str = "chat m",
        error: str | None = None,
    ) -> None:
        self.attributes, self.events = written
        self.number, self.name, self.parent = number, name, parent
        self.trace_id, self.span_id = f"{trace:032x}", f"{number:016x}"
        self.start = 1_700_000_000_000_000_000 + number * 1_000_000_000
        self.error = error


def _any_value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [_any_value(one) for one in value]}}
    if isinstance(value, dict):
        return {"kvlistValue": {"values": _key_values(value)}}
    return {"stringValue": value}


def _key_values(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _any_value(value)} for key, value in attributes.items()]


def _otlp_span(call: Call) -> dict[str, Any]:
    span: dict[str, Any] = {
        "traceId": call.trace_id,
        "spanId": call.span_id,
        "name": call.name,
        "kind": 3,
        "startTimeUnixNano": str(call.start),
        "endTimeUnixNano": str(call.start + 500_000_000),
        "attributes": _key_values(call.attributes),
        "events": [
            {"timeUnixNano": str(call.start), "name": name, "attributes": _key_values(attributes)}
            for name, attributes in call.events
        ],
        "status": {"code": 2, "message": call.error} if call.error else {},
    }
    if call.parent is not None:
        span["parentSpanId"] = f"{call.parent:016x}"
    return span


def _export(spans: list[dict[str, Any]]) -> dict[str, Any]:
    scoped = {"scope": {"name": "my.instrumentation", "version": "1.2"}, "spans": spans}
    return {"resourceSpans": [{"resource": {"attributes": _key_values({"service.name": "s"})}, "scopeSpans": [scoped]}]}


def otlp_document(calls: list[Call]) -> str:
    return json.dumps(_export([_otlp_span(call) for call in calls]), indent=2)


def otlp_lines(calls: list[Call]) -> str:
    return "".join(json.dumps(_export([_otlp_span(call)])) + "\n" for call in calls)


def otlp_base64(calls: list[Call]) -> str:
    spans = [_otlp_span(call) for call in calls]
    for span in spans:
        for key in ("traceId", "spanId", "parentSpanId"):
            if key in span:
                span[key] = base64.b64encode(bytes.fromhex(span[key])).decode()
    return json.dumps(_export(spans))


def _sdk_span(call: Call) -> dict[str, Any]:
    return {
        "name": call.name,
        "context": {"trace_id": f"0x{call.trace_id}", "span_id": f"0x{call.span_id}", "trace_state": "[]"},
        "kind": "SpanKind.CLIENT",
        "parent_id": f"0x{call.parent:016x}" if call.parent is not None else None,
        "start_time": f"2026-01-01T00:00:{call.number % 60:02d}.000000Z",
        "end_time": f"2026-01-01T00:00:{call.number % 60:02d}.500000Z",
        "status": {"status_code": "ERROR", "description": call.error} if call.error else {"status_code": "UNSET"},
        "attributes": call.attributes,
        "events": [{"name": name, "timestamp": "", "attributes": attributes} for name, attributes in call.events],
        "links": [],
        "resource": {"attributes": {"service.name": "s"}, "schema_url": ""},
    }


def console(calls: list[Call]) -> str:
    return "".join(json.dumps(_sdk_span(call), indent=4) + "\n" for call in calls)


def sdk_lines(calls: list[Call]) -> str:
    return "".join(json.dumps(_sdk_span(call)) + "\n" for call in calls)


def sdk_list(calls: list[Call]) -> str:
    return json.dumps([_sdk_span(call) for call in calls], indent=1)


def _nested(attributes: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in attributes.items():
        *branches, leaf = key.split(".")
        node = tree
        for branch in branches:
            node = node.setdefault(branch, {})
        node[leaf] = value

    def listed(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        if node and all(key.isdigit() for key in node):
            return [listed(node[key]) for key in sorted(node, key=int)]
        return {key: listed(value) for key, value in node.items()}

    result = listed(tree)
    assert isinstance(result, dict)
    return result


def nested_rows(calls: list[Call]) -> str:
    return "".join(json.dumps({**_sdk_span(call), "attributes": _nested(call.attributes)}) + "\n" for call in calls)


def columns(calls: list[Call]) -> str:
    """One column an attribute, messages as lists, as a data frame of Phoenix is written."""
    rows = []
    for call in calls:
        row = _sdk_span(call)
        nested = _nested(row.pop("attributes"))
        context = row.pop("context")
        row |= {"context.trace_id": context["trace_id"], "context.span_id": context["span_id"]}
        row |= {"start_time": call.start // 1_000_000, "end_time": None, "status_code": "OK", "status": None}
        for space, below in nested.items():
            row |= {f"attributes.{space}.{key}": value for key, value in below.items()}
        rows.append(json.dumps(row))
    return "\n".join(rows)


def tree_span(call: Call, *children: dict[str, Any]) -> dict[str, Any]:
    """A span with those below it inside it, in the spelling of TRAIL's files."""
    return {
        "timestamp": f"2026-01-01T00:00:{call.number % 60:02d}.000000Z",
        "span_id": call.span_id,
        "span_name": call.name,
        "span_kind": "Internal",
        "scope_name": "my.instrumentation",
        "scope_version": "1.2",
        "span_attributes": call.attributes,
        "duration": "PT0.500000S",
        "status_code": "Error" if call.error else "Unset",
        "status_message": call.error or "",
        "events": [{"name": name, "timestamp": "", "attributes": attributes} for name, attributes in call.events],
        "child_spans": list(children),
    }


def tree(calls: list[Call]) -> str:
    return json.dumps({"trace_id": calls[0].trace_id, "spans": [tree_span(call) for call in calls]}, indent=4)


CONTAINERS = (otlp_document, otlp_lines, otlp_base64, console, sdk_lines, sdk_list, nested_rows, columns, tree)


def write(directory: Path, text: str, name: str = "app.jsonl") -> LogFile:
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return LogFile(path)


def read_all(log: LogFile, *, subagents: bool = False) -> tuple[list[Trace], IngestionStats]:
    stats = IngestionStats()
    return list(read(log, ReadOptions(subagents=subagents), stats)), stats


def head_of(log: LogFile) -> Head:
    """The first value of a file, whichever way it is written."""
    first, _ = json.JSONDecoder().raw_decode(log.path.read_text(encoding="utf-8"))
    return Head(records=[first] if isinstance(first, dict) else [], document=first)


def states(trace: Trace) -> list[Chat]:
    return [list(state["messages"]) for state in trace.states()]


# ---- one conversation, however it is written


TASK: Chat = [
    {"role": "system", "content": "You are terse."},
    {"role": "user", "content": "Weather in Paris and Rome?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}},
            {"id": "c2", "type": "function", "function": {"name": "weather", "arguments": '{"at": "Rome", "a.b": 1}'}},
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "rainy, 57°F"},
    {"role": "tool", "tool_call_id": "c2", "content": '{"sky": "blue"}'},
    {"role": "assistant", "content": "Rain; sun."},
    {"role": "user", "content": "Thanks"},
    {"role": "assistant", "content": "Welcome."},
]


def calls_of(chat: Chat, dialect: Callable[[Chat, dict[str, Any]], Written], **more: Any) -> list[Call]:
    spoken = [index for index, message in enumerate(chat) if message["role"] == "assistant"]
    return [Call(dialect(chat[:index], chat[index]), number=number + 1, **more) for number, index in enumerate(spoken)]


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_conversation_reads_back(
    tmp_path: Path, dialect: Callable[[Chat, dict[str, Any]], Written], container: Callable[[list[Call]], str]
) -> None:
    log = write(tmp_path, container(calls_of(TASK, dialect)))
    (trace,), stats = read_all(log)
    assert states(trace) == [TASK[:2], TASK[:5], TASK[:7]]
    assert len(trace.turns) == len(TASK)
    assert not any(turn.repeats or turn.follows is not None for turn in trace.turns)
    assert trace.turns[-1].content == "Welcome."
    assert stats.skipped == {}
    assert stats.n_records_total == 3
    assert trace.session_id == f"{1:032x}"
    assert sniff(head_of(log))


def test_provenance(tmp_path: Path) -> None:
    calls = calls_of(TASK, genai, trace=0xABCDEF)
    calls[0].attributes |= {"gen_ai.response.id": "r-1", "gen_ai.response.model": "m-2026"}
    (trace,), _ = read_all(write(tmp_path, otlp_lines(calls)))
    assert trace.trace_id == "app#" + f"{0xABCDEF:032x}"[:16]
    assert trace.session_id == f"{0xABCDEF:032x}"
    assert trace.source.format == "otel"
    assert trace.source.version == "my.instrumentation 1.2"
    assert trace.model == "m"
    first = trace.turns[2]
    assert (first.id, first.model, first.line) == ("r-1", "m-2026", 1)
    assert first.timestamp == "2023-11-14T22:13:21.500000Z"
    assert trace.turns[0].timestamp == "2023-11-14T22:13:21Z"
    assert trace.turns[5].id == f"{2:016x}"
    assert trace.turns[5].line == 2


def test_spans_in_any_order(tmp_path: Path) -> None:
    (trace,), _ = read_all(write(tmp_path, otlp_lines(calls_of(TASK, openinference)[::-1])))
    assert states(trace) == [TASK[:2], TASK[:5], TASK[:7]]


# ---- any conversation, however it is written


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
values = st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | texts, lambda one: st.lists(one, max_size=2))


@st.composite
def assistant_and_results(draw: st.DrawFn, numbers: Iterator[int]) -> Chat:
    calls = [
        {
            "id": f"call-{next(numbers)}",
            "type": "function",
            "function": {
                "name": draw(st.sampled_from(["read", "run"])),
                "arguments": json.dumps(draw(st.dictionaries(texts, values, max_size=2)), ensure_ascii=False),
            },
        }
        for _ in range(draw(st.integers(0, 2)))
    ]
    message: dict[str, Any] = {"role": "assistant", "content": draw(texts | st.just("") if calls else texts)}
    if calls:
        message["tool_calls"] = calls
    results = [{"role": "tool", "tool_call_id": call["id"], "content": draw(texts)} for call in calls]
    return [message, *draw(st.permutations(results))]


@st.composite
def chats(draw: st.DrawFn, system: bool = True) -> Chat:
    numbers = iter(range(1000))
    chat: Chat = [{"role": "system", "content": draw(texts)}] if system and draw(st.booleans()) else []
    chat.append({"role": "user", "content": draw(texts)})
    for _ in range(draw(st.integers(1, 4))):
        chat += draw(assistant_and_results(numbers))
        if chat[-1]["role"] == "assistant" or draw(st.booleans()):
            chat.append({"role": "user", "content": draw(texts)})
    while chat[-1]["role"] != "assistant":
        chat.pop()
    return chat


anything = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@anything
@given(chat=chats(), dialect=st.sampled_from(DIALECTS), container=st.sampled_from(CONTAINERS), data=st.data())
def test_any_conversation_reads_back(
    tmp_path: Path, chat: Chat, dialect: Any, container: Any, data: st.DataObject
) -> None:
    calls = data.draw(st.permutations(calls_of(chat, dialect)))
    (trace,), stats = read_all(write(tmp_path, container(calls)))
    spoken = [index for index, message in enumerate(chat) if message["role"] == "assistant"]
    assert states(trace) == [chat[:index] for index in spoken]
    assert len(trace.turns) == len(chat)
    assert stats.skipped == {}


@st.composite
def prompts(draw: st.DrawFn) -> list[tuple[Chat, dict[str, Any]]]:
    """Prompts of one agent that go on, go back, begin anew or are changed in the middle."""
    numbers = iter(range(1000))
    chat: Chat = [{"role": "system", "content": "s"}] if draw(st.booleans()) else []
    lead = list(chat)
    chat.append({"role": "user", "content": "task"})
    made: list[tuple[Chat, dict[str, Any]]] = []
    for _ in range(draw(st.integers(2, 6))):
        said = draw(assistant_and_results(numbers))
        made.append((list(chat), said[0]))
        chat = chat + said
        match draw(st.sampled_from(["on", "on", "back", "anew", "result", "answer", "same"])):
            case "back":
                ends = [i for i, one in enumerate(chat, 1) if one["role"] == "user"]
                chat = chat[: draw(st.sampled_from(ends))]
            case "anew":
                chat = [*lead, {"role": "user", "content": draw(texts)}]
            case "same":
                chat = list(made[-1][0])
            case "result" | "answer" as role:
                wanted = "tool" if role == "result" else "assistant"
                places = [i for i, one in enumerate(chat) if one["role"] == wanted]
                if places:
                    place = draw(st.sampled_from(places))
                    chat = [*chat[:place], {**chat[place], "content": draw(texts)}, *chat[place + 1 :]]
        if chat[-1]["role"] == "assistant":
            chat = [*chat, {"role": "user", "content": draw(texts)}]
    return made


@anything
@given(made=prompts(), dialect=st.sampled_from(DIALECTS), agent=st.booleans())
def test_every_state_is_the_prompt_of_its_span(tmp_path: Path, made: Any, dialect: Any, agent: bool) -> None:
    calls = [Call(dialect(*one), number=number + 1, parent=99 if agent else None) for number, one in enumerate(made)]
    if agent:
        calls.append(Call(({"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "a"}, []), number=99))
    traces, stats = read_all(write(tmp_path, otlp_lines(calls)))
    seen = {}
    for trace in traces:
        actions = [turn for turn in trace.turns if turn.role == "assistant" and not turn.repeats]
        for turn, state in zip(actions, trace.states(), strict=True):
            seen[int(turn.id or "", 16)] = (list(state["messages"]), turn.content)
    assert seen == {number + 1: (prompt, answer["content"]) for number, (prompt, answer) in enumerate(made)}
    if agent:
        assert len(traces) == 1
    assert stats.skipped == {}


# ---- the real SDK


def sdk_spans(chat: Chat, dialect: Callable[[Chat, dict[str, Any]], Written]) -> list[ReadableSpan]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("real.instrumentation", "0.9")
    with tracer.start_as_current_span("invoke_agent helper") as agent:
        agent.set_attribute("gen_ai.operation.name", "invoke_agent")
        agent.set_attribute("gen_ai.agent.name", "helper")
        for call in calls_of(chat, dialect):
            with tracer.start_as_current_span(call.name, kind=otel_trace.SpanKind.CLIENT) as span:
                span.set_attributes(call.attributes)
                for name, attributes in call.events:
                    span.add_event(name, attributes)
                with tracer.start_as_current_span("POST") as http:
                    http.set_attribute("http.request.method", "POST")
        with suppress(ValueError), tracer.start_as_current_span("execute_tool weather") as tool:
            tool.set_attributes({"gen_ai.operation.name": "execute_tool", "gen_ai.tool.call.id": "c2"})
            raise ValueError("no such city")
    return list(exporter.get_finished_spans())


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("container", ["console", "lines", "otlp"])
def test_spans_of_the_real_sdk(tmp_path: Path, dialect: Any, container: str) -> None:
    spans = sdk_spans(TASK, dialect)
    match container:
        case "console":
            text = "".join(span.to_json() + "\n" for span in spans)
        case "lines":
            text = "".join(span.to_json(indent=None) + "\n" for span in spans)
        case _:
            text = json.dumps(MessageToDict(encode_spans(spans)))
    (trace,), stats = read_all(write(tmp_path, text))
    assert states(trace) == [TASK[:2], TASK[:5], TASK[:7]]
    assert [turn.is_error for turn in trace.turns if turn.role == "tool"] == [False, True]
    assert stats.skipped == {"not a model call": 3}
    assert stats.n_records_total == 8
    assert trace.meta == {"agent": "helper"}
    assert trace.source.version == ("real.instrumentation 0.9" if container == "otlp" else None)
