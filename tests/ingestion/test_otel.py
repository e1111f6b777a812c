"""What the OpenTelemetry reader makes of agents, tools, failures, gaps and damage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_otel_spans import (
    TASK,
    Call,
    Chat,
    calls_of,
    columns,
    console,
    genai,
    genai_events,
    head_of,
    openinference,
    openllmetry,
    otlp_document,
    otlp_lines,
    read_all,
    sdk_lines,
    states,
    write,
)

from composer_replication.histories import NO_RESULT
from composer_replication.ingestion import LogFile
from composer_replication.ingestion.formats import Head
from composer_replication.ingestion.formats.otel import sniff
from composer_replication.ingestion.formats.otel.messages import read_message
from composer_replication.ingestion.formats.otel.spans import grow, items_at, look
from composer_replication.traces import Trace, Usage

FIXTURES = Path(__file__).parent / "fixtures" / "otel"


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def says(text: str, *calls: tuple[str, str, str]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {"id": one, "type": "function", "function": {"name": name, "arguments": arguments}}
            for one, name, arguments in calls
        ]
    return message


def result(call: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call, "content": text}


def agent(number: int, name: str = "a", **more: Any) -> Call:
    attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": name, **more.pop("attributes", {})}
    return Call((attributes, []), number=number, name=f"invoke_agent {name}", **more)


def tool(number: int, error: str | None = None, events: Any = (), trace: int = 1, **attributes: Any) -> Call:
    named = {key.replace("__", "."): value for key, value in attributes.items()}
    written = ({"gen_ai.operation.name": "execute_tool", **named}, list(events))
    return Call(written, number=number, name="execute_tool run", error=error, trace=trace)


def roles(trace: Trace) -> list[str]:
    return [turn.role + ("'" if turn.repeats else "") for turn in trace.turns]


# ---- the fixtures


def test_collector_file() -> None:
    (trace,), stats = read_all(LogFile(FIXTURES / "collector.jsonl"))
    assert sniff(head_of(LogFile(FIXTURES / "collector.jsonl")))
    assert trace.trace_id == "collector#conv-42"
    assert trace.session_id == "conv-42"
    assert trace.source.version == "opentelemetry.instrumentation.openai_v2 2.3b0"
    assert trace.meta == {"agent": "travel"}
    assert roles(trace) == ["system", "user", "assistant", "tool", "assistant"]
    first, failed, last = trace.turns[2:]
    assert (first.thinking, first.content, first.id) == ("It needs a train number.", "Booking.", "resp_1")
    assert first.tool_calls[0].arguments == {"train": "TGV"}
    assert first.usage == Usage(input_tokens=80, output_tokens=21)
    assert (failed.content, failed.is_error, failed.tool_call_id) == ("TrainError: no train TGV", True, "call_7")
    assert last.usage == Usage(input_tokens=120, output_tokens=9, cached_tokens=64)
    assert (trace.model, last.timestamp) == ("gpt-5-2026", "2026-01-01T00:00:01.400000Z")
    function = {
        "name": "book",
        "description": "Book a train.",
        "parameters": {"type": "object", "properties": {"train": {"type": "string"}}},
    }
    assert trace.tools == [{"type": "function", "function": function}]
    assert stats.skipped == {"not a model call": 1}
    assert (stats.n_records_total, stats.n_records_skipped) == (5, 1)


def test_phoenix_rows() -> None:
    (trace,), stats = read_all(LogFile(FIXTURES / "phoenix.jsonl"))
    assert sniff(head_of(LogFile(FIXTURES / "phoenix.jsonl")))
    assert trace.session_id == "sess-1"
    expected = [user("How much is 2+2?"), says("", ("t1", "add", '{"a": 2, "b": 2}')), result("t1", "4")]
    assert states(trace)[1] == expected
    assert trace.turns[1].usage == Usage(input_tokens=11, output_tokens=5, cached_tokens=4)
    assert trace.tools[0]["function"]["parameters"] == {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert stats.skipped == {"not a model call": 1}


def test_console_output() -> None:
    (trace,), stats = read_all(LogFile(FIXTURES / "console.txt"))
    assert states(trace)[1] == [user("Time?"), says("", ("k1", "now", "{}")), result("k1", "noon")]
    assert trace.turns[1].usage == Usage(input_tokens=10, output_tokens=3)
    assert trace.tools[0]["function"]["name"] == "now"
    assert trace.turns[3].line == 42
    assert stats.skipped == {"broken line": 1}  # what the program itself printed


def test_events_of_the_logs_signal() -> None:
    (trace,), stats = read_all(LogFile(FIXTURES / "logs.jsonl"))
    assert states(trace) == [[{"role": "system", "content": "Be kind."}, user("Look it up.")]]
    assert trace.turns[-1].tool_calls[0].arguments == {"q": "a.b"}
    assert trace.turns[-1].usage == Usage(input_tokens=7)
    assert trace.model == "gpt-5"
    assert stats.skipped == {"not a model call": 1}


def test_events_of_the_logs_signal_alone(tmp_path: Path) -> None:
    first_line = (FIXTURES / "logs.jsonl").read_text().splitlines()[0]
    log = write(tmp_path, first_line)
    (trace,), _ = read_all(log)
    assert roles(trace) == ["system", "user", "assistant"]
    assert sniff(head_of(log))


# ---- agents and conversations


def test_agents_side_by_side_are_separate(tmp_path: Path) -> None:
    one, two = [user("task"), says("one")], [user("task"), says("two")]
    calls = [
        agent(1),
        agent(2),
        Call(genai(one[:1], one[1]), number=3, parent=1),
        Call(genai(two[:1], two[1]), number=4, parent=2),
        Call(genai([*one, user("on")], says("one on")), number=5, parent=1),
        Call(genai([*two, user("on")], says("two on")), number=6, parent=2),
    ]
    traces, _ = read_all(write(tmp_path, otlp_lines(calls)))
    expected = [["task", "one", "on", "one on"], ["task", "two", "on", "two on"]]
    assert [[turn.content for turn in trace.turns] for trace in traces] == expected
    assert len({trace.trace_id for trace in traces}) == 2


def test_an_agent_span_for_every_step_is_still_one_agent(tmp_path: Path) -> None:
    calls = calls_of(TASK, genai)
    for number, call in enumerate(calls):
        call.parent = 90 + number
    (trace,), _ = read_all(write(tmp_path, otlp_lines([*calls, agent(90), agent(91), agent(92)])))
    assert len(trace.turns) == len(TASK)


def test_agents_with_other_instructions_are_separate(tmp_path: Path) -> None:
    calls = [
        Call(genai([{"role": "system", "content": system}, user("task")], says(system)), number=number)
        for number, system in enumerate(["plan", "act"], 1)
    ]
    traces, _ = read_all(write(tmp_path, otlp_lines(calls)))
    assert [states(trace) for trace in traces] == [
        [[{"role": "system", "content": "plan"}, user("task")]],
        [[{"role": "system", "content": "act"}, user("task")]],
    ]


def test_a_conversation_over_several_traces(tmp_path: Path) -> None:
    calls = calls_of(TASK, genai)
    for number, call in enumerate(calls):
        call.trace_id = f"{number + 7:032x}"
        call.attributes["gen_ai.conversation.id"] = "c-1"
    (trace,), _ = read_all(write(tmp_path, otlp_lines(calls)))
    assert len(trace.turns) == len(TASK)
    assert (trace.trace_id, trace.session_id) == ("app#c-1", "c-1")


def test_a_conversation_that_keeps_its_history_elsewhere(tmp_path: Path) -> None:
    calls = [Call(genai([user(f"part {number}")], says("ok")), number=number, trace=number) for number in (1, 2)]
    for call in calls:
        call.attributes["gen_ai.conversation.id"] = "c"
    (trace,), _ = read_all(write(tmp_path, otlp_lines(calls)))
    assert states(trace) == [[user("part 1")], [user("part 2")]]


@pytest.mark.parametrize("chosen", ["one", "two"])
def test_a_conversation_goes_on_from_the_thread_it_is_most_like(tmp_path: Path, chosen: str) -> None:
    calls = [
        agent(1),
        agent(2),
        Call(genai([user("hi")], says("one")), number=3, parent=1),
        Call(genai([user("hi")], says("two")), number=4, parent=2),
        Call(genai([user("hi"), says(chosen), user("on")], says("yes")), number=5, trace=2),
    ]
    for call in calls:
        call.attributes |= {"gen_ai.conversation.id": "c", "gen_ai.agent.name": "a"}
    traces, _ = read_all(write(tmp_path, otlp_lines(calls)))
    assert [len(trace.turns) for trace in traces] == ([4, 2] if chosen == "one" else [2, 4])


def test_ids_that_begin_alike_stay_apart(tmp_path: Path) -> None:
    calls = [Call(genai([user("t")], says("x")), number=number, trace=number) for number in (1, 2, 3)]
    traces, _ = read_all(write(tmp_path, otlp_lines(calls)))
    assert len({trace.trace_id for trace in traces}) == 3
    assert traces[1].trace_id == f"app#{2:032x}"


def test_traces_of_their_own_do_not_mix(tmp_path: Path) -> None:
    calls = calls_of(TASK, genai)
    for number, call in enumerate(calls):
        call.trace_id = f"{number + 7:032x}"
    traces, _ = read_all(write(tmp_path, otlp_lines(calls)))
    assert [states(trace) for trace in traces] == [[TASK[:2]], [TASK[:5]], [TASK[:7]]]
    assert roles(traces[2]) == ["system", "user", "assistant'", "tool", "tool", "assistant'", "user", "assistant"]
    assert len({trace.trace_id for trace in traces}) == 3


def test_a_session_holds_several_conversations(tmp_path: Path) -> None:
    calls = [
        Call(genai([user("hi")], says("hello")), number=1, trace=1),
        Call(genai([user("hi")], says("good day")), number=2, trace=2),
        Call(genai([user("hi"), says("hello"), user("on")], says("yes")), number=3, trace=3),
    ]
    for call in calls:
        call.attributes["session.id"] = "s"
    traces, _ = read_all(write(tmp_path, otlp_lines(calls)))
    expected = [["hi", "hello", "on", "yes"], ["hi", "good day"]]
    assert [[turn.content for turn in trace.turns] for trace in traces] == expected
    assert [trace.trace_id for trace in traces] == ["app#s", "app#s.2"]


def test_a_compacted_context_begins_anew_in_the_same_trace(tmp_path: Path) -> None:
    calls = [
        agent(9),
        Call(genai([user("task")], says("working")), number=1, parent=9),
        Call(genai([user("summary: working")], says("done")), number=2, parent=9),
    ]
    (trace,), _ = read_all(write(tmp_path, otlp_lines(calls)))
    assert states(trace) == [[user("task")], [user("summary: working")]]
    assert trace.turns[2].follows == -1


def test_a_new_task_without_an_agent_is_a_new_trace(tmp_path: Path) -> None:
    calls = [Call(genai([user(f"task {number}")], says("done")), number=number) for number in (1, 2)]
    traces, _ = read_all(write(tmp_path, otlp_lines(calls)))
    assert [len(trace.turns) for trace in traces] == [2, 2]


def test_contexts_at_the_same_time_are_separate(tmp_path: Path) -> None:
    spans = [
        agent(9),
        Call(genai([user("left")], says("done")), number=1, parent=9),
        Call(genai([user("right")], says("done")), number=2, parent=9),
    ]
    spans[2].start = spans[1].start + 1
    traces, _ = read_all(write(tmp_path, otlp_lines(spans)))
    assert len(traces) == 2


def test_subagents(tmp_path: Path) -> None:
    calls = [
        agent(1, "outer"),
        Call(genai([user("task")], says("", ("c", "ask", "{}"))), number=2, parent=1),
        tool(3, gen_ai__tool__call__id="c", gen_ai__tool__name="ask"),
        agent(4, "inner", parent=3),
        Call(genai([user("sub-task")], says("found")), number=5, parent=4),
    ]
    calls[2].parent = 1
    log = write(tmp_path, otlp_lines(calls))
    (outer,), stats = read_all(log)
    assert outer.meta == {"agent": "outer"}
    assert (stats.skipped_subagent, stats.skipped) == (1, {"sub-agent": 1})
    traces, stats = read_all(log, subagents=True)
    assert [(trace.meta["agent"], trace.parent) for trace in traces] == [("outer", None), ("inner", outer.trace_id)]
    assert stats.skipped == {}


def test_an_agent_above_that_says_nothing_makes_no_subagents(tmp_path: Path) -> None:
    calls = [agent(1, "crew"), agent(2, "worker", parent=1), Call(genai([user("t")], says("x")), number=3, parent=2)]
    (trace,), stats = read_all(write(tmp_path, otlp_lines(calls)))
    assert (trace.meta, stats.skipped) == ({"agent": "worker"}, {})


def test_a_call_recorded_by_two_instrumentations_is_one(tmp_path: Path) -> None:
    outer = Call(openinference([user("hi")], says("hello")), number=1)
    inner = Call(genai([user("hi")], says("hello")), number=2, parent=1)
    (trace,), stats = read_all(write(tmp_path, otlp_lines([outer, inner])))
    assert roles(trace) == ["user", "assistant"]
    assert stats.skipped == {"model call inside a model call": 1}
    hollow = Call(({"openinference.span.kind": "LLM"}, []), number=1)
    (trace,), stats = read_all(write(tmp_path, otlp_lines([hollow, inner])))
    assert roles(trace) == ["user", "assistant"]
    assert stats.skipped == {"no message content recorded": 1}


def test_a_span_exported_twice_is_one(tmp_path: Path) -> None:
    calls = calls_of(TASK, genai)
    (trace,), stats = read_all(write(tmp_path, otlp_lines([*calls, calls[0]])))
    assert (len(trace.turns), stats.skipped) == (len(TASK), {"duplicate span": 1})


# ---- tools


ASKED = says("", ("c1", "run", '{"a": 1, "b": 2}'))


@pytest.mark.parametrize(
    "attributes",
    [
        {"gen_ai__tool__call__id": "c1"},
        {"gen_ai__tool__name": "run", "gen_ai__tool__call__arguments": '{"b": 2, "a": 1}'},
        {"tool__name": "run", "input__value": "{'b': 2, 'a': 1}"},
        {"gen_ai__tool__name": "run"},
    ],
)
@pytest.mark.parametrize(
    ("error", "events", "more"),
    [
        ("boom", (), {}),
        (None, [("exception", {"exception.type": "OSError", "exception.message": "boom"})], {}),
        (None, (), {"error__type": "OSError"}),
    ],
)
def test_a_failed_run_marks_its_result(tmp_path: Path, attributes: Any, error: Any, events: Any, more: Any) -> None:
    calls = [
        Call(genai([user("t")], ASKED), number=1),
        tool(2, error, events, **attributes, **more),
        Call(genai([user("t"), ASKED, result("c1", "it failed")], says("sorry")), number=3),
    ]
    (trace,), stats = read_all(write(tmp_path, otlp_lines(calls)))
    assert [(turn.content, turn.is_error) for turn in trace.turns if turn.role == "tool"] == [("it failed", True)]
    assert stats.skipped == {}


@pytest.mark.parametrize("wrong", [{"gen_ai__tool__call__id": "c9"}, {"gen_ai__tool__name": "walk"}])
def test_a_run_of_another_call_marks_nothing(tmp_path: Path, wrong: Any) -> None:
    calls = [
        Call(genai([user("t")], ASKED), number=1),
        tool(2, "boom", **wrong),
        Call(genai([user("t"), ASKED, result("c1", "fine")], says("good")), number=3),
    ]
    (trace,), stats = read_all(write(tmp_path, otlp_lines(calls)))
    assert not any(turn.is_error for turn in trace.turns)
    assert stats.skipped == {"tool span without its call": 1}


def test_a_run_in_another_trace_marks_nothing(tmp_path: Path) -> None:
    calls = [
        Call(genai([user("t"), ASKED, result("c1", "fine")], says("good")), number=1),
        tool(2, "boom", trace=2, gen_ai__tool__call__id="c1"),
    ]
    (trace,), _ = read_all(write(tmp_path, otlp_lines(calls)))
    assert not any(turn.is_error for turn in trace.turns)


def test_the_last_results_come_from_the_tools_themselves(tmp_path: Path) -> None:
    asked = says("", ("c1", "run", "{}"), ("c2", "run", "{}"), ("c3", "run", "{}"))
    exception = ("exception", {"exception.type": "OSError", "exception.message": "disk full"})
    calls = [
        Call(genai([user("t")], asked), number=1),
        tool(2, gen_ai__tool__call__id="c1", gen_ai__tool__call__result="fine"),
        tool(3, "failed", [exception], gen_ai__tool__call__id="c2"),
        tool(4, gen_ai__tool__call__id="c3"),
    ]
    (trace,), stats = read_all(write(tmp_path, otlp_lines(calls)))
    expected = [("c1", "fine", False), ("c2", "OSError: disk full", True)]
    assert [(turn.tool_call_id, turn.content, turn.is_error) for turn in trace.turns[2:]] == expected
    assert trace.turns[2].timestamp == "2023-11-14T22:13:22.500000Z"
    assert stats.skipped == {}


def test_a_failure_that_no_prompt_shows_is_told_and_changes_no_prompt(tmp_path: Path) -> None:
    calls = [
        agent(9),
        Call(genai([user("t")], ASKED), number=1, parent=9),
        tool(2, "broken", gen_ai__tool__call__id="c1"),
        Call(genai([user("t")], says("without tools, then")), number=3, parent=9),
    ]
    (trace,), _ = read_all(write(tmp_path, otlp_lines(calls)))
    assert [(turn.role, turn.content, turn.follows) for turn in trace.turns] == [
        ("user", "t", None),
        ("assistant", "", None),
        ("tool", "broken", None),
        ("assistant", "without tools, then", 0),
    ]
    assert states(trace) == [[user("t")], [user("t")]]


def test_a_missing_result_is_told_beside_a_prompt_that_goes_on_without_it(tmp_path: Path) -> None:
    calls = [
        Call(genai([user("t")], ASKED), number=1),
        tool(2, "broken", gen_ai__tool__call__id="c1"),
        Call(genai([user("t"), ASKED, user("never mind")], says("ok")), number=3),
    ]
    (trace,), _ = read_all(write(tmp_path, otlp_lines(calls)))
    assert roles(trace) == ["user", "assistant", "tool", "assistant'", "user", "assistant"]
    assert states(trace)[1] == [user("t"), ASKED, result("c1", NO_RESULT), user("never mind")]


def test_results_say_themselves_that_they_failed() -> None:
    part = {"type": "tool_call_response", "id": "c", "response": "no", "is_error": True}
    bedrock = {"toolResult": {"toolUseId": "c", "content": [{"text": "no"}], "status": "error"}}
    for one in (part, bedrock):
        (message,) = read_message({"role": "user", "parts": [one]})
        assert (message.role, message.content, message.answers, message.is_error) == ("tool", "no", "c", True)


def test_runs_that_only_their_name_tells_apart_are_taken_in_time(tmp_path: Path) -> None:
    asked = says("", ("c1", "run", '{"n": 1}'), ("c2", "run", '{"n": 2}'))
    calls = [
        Call(genai([user("t")], asked), number=1),
        tool(3, gen_ai__tool__name="run", gen_ai__tool__call__result="second"),
        tool(2, gen_ai__tool__name="run", gen_ai__tool__call__result="first"),
    ]
    (trace,), _ = read_all(write(tmp_path, otlp_lines(calls)))
    assert [turn.content for turn in trace.turns[2:]] == ["first", "second"]


def test_calls_without_ids_are_paired_by_their_order(tmp_path: Path) -> None:
    chat: Chat = [
        user("t"),
        says("", ("", "run", '{"n": 1}'), ("", "run", '{"n": 2}')),
        result("", "one"),
        result("", "two"),
        says("", ("", "run", '{"n": 1}')),
        result("", "again"),
        says("done"),
    ]
    (trace,), _ = read_all(write(tmp_path, otlp_lines(calls_of(chat, openllmetry))))
    assert len(trace.turns) == len(chat)
    expected = [({"n": 1}, "one"), ({"n": 2}, "two"), ({"n": 1}, "again")]
    assert [(call.arguments, answer and answer.content) for _, call, answer in trace.calls()] == expected


# ---- what is not there


@pytest.mark.parametrize(
    ("attributes", "events", "reason"),
    [
        ({"gen_ai.operation.name": "chat"}, [], "no message content recorded"),
        ({"llm.request.type": "chat", "gen_ai.prompt.0.role": "user"}, [], "no message content recorded"),
        (
            {"openinference.span.kind": "LLM", "input.value": "__REDACTED__", "output.value": "__REDACTED__"},
            [],
            "no message content recorded",
        ),
        (
            {
                "openinference.span.kind": "LLM",
                "llm.input_messages.0.message.role": "user",
                "llm.input_messages.0.message.content": "__REDACTED__",
                "llm.output_messages.0.message.role": "assistant",
                "llm.output_messages.0.message.content": "__REDACTED__",
            },
            [],
            "no message content recorded",
        ),
        (
            {"gen_ai.operation.name": "chat"},
            [("gen_ai.user.message", {}), ("gen_ai.choice", {"index": 0, "finish_reason": "stop"})],
            "no message content recorded",
        ),
        (
            {
                "gen_ai.operation.name": "chat",
                "gen_ai.input.messages": '[{"role": "user", "parts": [{"type": "text"}]}]',
                "gen_ai.output.messages": '[{"role": "assistant", "parts": [{"type": "text"}]}]',
            },
            [],
            "no message content recorded",
        ),
        (
            {"gen_ai.operation.name": "chat", "gen_ai.input.messages": '[{"role": "us'},
            [],
            "messages are not valid JSON",
        ),
        (
            {"gen_ai.operation.name": "chat", "gen_ai.input.messages": '[{"role": "user", "content": "hi"}]'},
            [],
            "model call without an answer",
        ),
        (
            {"gen_ai.operation.name": "chat", "gen_ai.output.messages": '[{"role": "assistant", "content": "hi"}]'},
            [],
            "no message content recorded",
        ),
        ({"gen_ai.operation.name": "embeddings", "gen_ai.request.model": "e"}, [], "not a model call"),
        ({"openinference.span.kind": "CHAIN", "input.value": "x", "output.value": "y"}, [], "not a model call"),
        ({"db.system": "postgresql"}, [], "not a model call"),
    ],
)
def test_a_span_without_messages_is_counted(tmp_path: Path, attributes: Any, events: Any, reason: str) -> None:
    traces, stats = read_all(write(tmp_path, sdk_lines([Call((attributes, events), number=1)])))
    assert traces == []
    assert (stats.skipped, stats.n_records_skipped, stats.n_records_total) == ({reason: 1}, 1, 1)


def test_parts_without_text_are_named(tmp_path: Path) -> None:
    attributes, _ = genai([user("what is this?")], says("a cat"))
    prompt = json.loads(attributes["gen_ai.input.messages"])
    prompt[0]["parts"].append({"type": "blob", "modality": "image", "content": "aGk="})
    attributes["gen_ai.input.messages"] = json.dumps(prompt)
    (trace,), stats = read_all(write(tmp_path, otlp_lines([Call((attributes, []), number=1)])))
    assert trace.turns[0].content == "what is this?\n[blob]"
    assert (stats.skipped, stats.n_records_skipped) == ({"blob part": 1}, 0)


def test_of_several_choices_the_first_is_taken(tmp_path: Path) -> None:
    attributes, _ = genai([user("hi")], says("one"))
    choices = [{"role": "assistant", "content": text, "finish_reason": "stop"} for text in ("one", "two", "three")]
    attributes["gen_ai.output.messages"] = json.dumps(choices)
    events = genai_events([user("hi")], says("one"))
    second = {"index": 1, "message": {"content": "two"}}
    events[1].append(("gen_ai.choice", {"gen_ai.event.content": json.dumps(second)}))
    for written, further in (((attributes, []), 2), (events, 1)):
        (trace,), stats = read_all(write(tmp_path, otlp_lines([Call(written, number=1)])))
        assert [turn.content for turn in trace.turns] == ["hi", "one"]
        assert stats.skipped == {"further choice": further}


def test_the_items_of_one_answer_are_one_turn(tmp_path: Path) -> None:
    attributes, _ = openinference([user("hi")], says("Let me look."))
    more, _ = openinference([user("hi")], says("", ("c1", "look", "{}")))
    attributes |= {key.replace("messages.0", "messages.1"): more[key] for key in more if "output_messages" in key}
    (trace,), stats = read_all(write(tmp_path, otlp_lines([Call((attributes, []), number=1)])))
    assert [(turn.content, len(turn.tool_calls)) for turn in trace.turns] == [("hi", 0), ("Let me look.", 1)]
    assert stats.skipped == {}


def test_an_assistant_event_is_the_answer_only_if_there_is_no_other(tmp_path: Path) -> None:
    attributes, events = genai_events([user("hi"), says("Sure:")], says("yes"))
    (trace,), _ = read_all(write(tmp_path, otlp_lines([Call((attributes, events), number=1)])))
    assert states(trace) == [[user("hi"), says("Sure:")]]
    assert trace.turns[-1].content == "yes"
    (trace,), _ = read_all(write(tmp_path, otlp_lines([Call((attributes, events[:-1]), number=1)])))
    assert states(trace) == [[user("hi")]]
    assert trace.turns[-1].content == "Sure:"


def test_a_tool_that_the_provider_ran(tmp_path: Path) -> None:
    attributes, _ = genai([user("hi")], says("x"))
    parts = [
        {"type": "tool_call", "id": "s1", "name": "search", "arguments": {"q": "x"}},
        {"type": "tool_call_response", "id": "s1", "response": "found"},
        {"type": "text", "content": "It is there."},
    ]
    attributes["gen_ai.output.messages"] = json.dumps([{"role": "assistant", "parts": parts, "finish_reason": "stop"}])
    attributes["gen_ai.usage.output_tokens"] = 9
    (trace,), _ = read_all(write(tmp_path, otlp_lines([Call((attributes, []), number=1)])))
    assert roles(trace) == ["user", "assistant", "tool", "assistant"]
    assert [turn.usage for turn in trace.turns] == [None, None, None, Usage(output_tokens=9)]


def test_cached_tokens_are_part_of_the_input(tmp_path: Path) -> None:
    attributes, _ = genai([user("hi")], says("x"))
    attributes |= {
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.cache_read_input_tokens": 90,
        "gen_ai.usage.cache_creation.input_tokens": 7,
    }
    (trace,), _ = read_all(write(tmp_path, otlp_lines([Call((attributes, []), number=1)])))
    assert trace.turns[1].usage == Usage(input_tokens=102, cached_tokens=90, cache_write_tokens=7)


# ---- shapes


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"role": "human", "content": "hi"}, ("user", "hi")),
        ({"type": "ai", "content": "hi"}, ("assistant", "hi")),
        ({"role": "model", "parts": [{"text": "hi"}]}, ("assistant", "hi")),
        ({"role": "developer", "content": [{"type": "input_text", "text": "hi"}]}, ("system", "hi")),
        ({"role": "user", "content": [{"text": "hi"}, {"text": "you"}]}, ("user", "hi\nyou")),
        ({"role": "function", "name": "f", "content": {"a": 1}}, ("tool", '{"a": 1}')),
        ("hi", ("user", "hi")),
        (17, ("user", "[unknown message]")),
    ],
)
def test_shapes_of_messages(message: Any, expected: Any) -> None:
    (read,) = read_message(message)
    assert (read.role, read.content) == expected


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}]},
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": "c", "name": "f", "input": {"a": 1}}}]},
        {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": '{"a":1}'}}]},
        {"role": "assistant", "tool_calls": [{"id": "c", "name": "f", "args": {"a": 1}}]},
        {"role": "model", "parts": [{"functionCall": {"id": "c", "name": "f", "args": {"a": 1}}}]},
    ],
)
def test_shapes_of_calls(message: Any) -> None:
    (read,) = read_message(message)
    assert read.calls == (("c", "f", '{"a": 1}'),)


def test_results_come_before_the_text_beside_them() -> None:
    blocks = [{"type": "text", "text": "go on"}, {"type": "tool_result", "tool_use_id": "c", "content": "done"}]
    assert [one.role for one in read_message({"role": "user", "content": blocks})] == ["tool", "user"]


def test_attributes_in_any_nesting() -> None:
    for given in (
        {"a.b.0.c.d": 1, "a.b.1.c.d": 2},
        {"a": {"b": [{"c.d": 1}, {"c": {"d": 2}}]}},
        {"a.b": [{"c": {"d": 1}}, {"c.d": 2}]},
        {"a": {"b": {"0": {"c.d": 1}}}, "a.b.1.c": {"d": 2}},
    ):
        before = json.dumps(given)
        assert [look(one, "c.d") for one in items_at(grow(given), "a.b")] == [1, 2]
        assert json.dumps(given) == before
    assert look(grow({"a": "own", "a.b": 1}), "a") == look(grow({"a.b": 1, "a": "own"}), "a") == "own"
    assert items_at(grow({"a.10": "x", "a.9": "y"}), "a") == ["y", "x"]


# ---- damage


def test_a_damaged_line_costs_only_itself(tmp_path: Path) -> None:
    lines = otlp_lines(calls_of(TASK, genai)).splitlines()
    text = "\n".join([lines[0], lines[1][: len(lines[1]) // 2], lines[2] + lines[1], "[1, 2]", '"text"', "{}"])
    (trace,), stats = read_all(write(tmp_path, text))
    assert states(trace) == [TASK[:2], TASK[:5], TASK[:7]]
    assert stats.skipped["broken line"] == 1
    assert stats.skipped["not a span"] >= 3


def test_a_damaged_object_of_a_console_costs_only_itself(tmp_path: Path) -> None:
    first, second, third = (console([call]) for call in calls_of(TASK, genai))
    (trace,), stats = read_all(write(tmp_path, first + second[: len(second) // 2] + "\n" + third))
    assert states(trace) == [TASK[:2], TASK[:7]]
    assert stats.skipped["broken line"] == 1


def test_objects_over_several_lines_and_on_one_line_mixed(tmp_path: Path) -> None:
    first, second, third = calls_of(TASK, genai)
    (trace,), stats = read_all(write(tmp_path, console([first]) + sdk_lines([second]) + console([third])))
    assert states(trace) == [TASK[:2], TASK[:5], TASK[:7]]
    assert (stats.skipped, stats.recovered) == ({}, {})


def test_a_cut_document_gives_what_is_whole(tmp_path: Path) -> None:
    text = json.dumps(json.loads(otlp_document(calls_of(TASK, genai))))
    (trace,), stats = read_all(write(tmp_path, text[:-80]))
    assert states(trace)[:2] == [TASK[:2], TASK[:5]]
    assert stats.skipped["broken line"] == 1


ODD = [None, True, 0, 1.5, "", "x", "[", [], [None], {}, {"a": None}, [[{}]], {"0": {}}, "[{}]", '[{"role": 1}]']
PATHS = [
    "gen_ai.input.messages",
    "gen_ai.output.messages",
    "gen_ai.system_instructions",
    "gen_ai.tool.definitions",
    "gen_ai.prompt",
    "gen_ai.prompt.0",
    "gen_ai.prompt.0.tool_calls",
    "gen_ai.completion.0.content",
    "gen_ai.usage",
    "gen_ai",
    "llm",
    "llm.input_messages",
    "llm.input_messages.0.message",
    "llm.input_messages.0.message.contents.0",
    "llm.output_messages.0.message.tool_calls.0",
    "llm.tools.0.tool.json_schema",
    "llm.request.functions.0",
    "llm.invocation_parameters",
    "input.value",
    "output.value",
    "events",
    "gen_ai.tool.call.arguments",
    "session.id",
    "error.type",
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("base", [genai, openllmetry, openinference])
def test_odd_attributes_never_crash(tmp_path: Path, path: str, base: Any) -> None:
    for odd in ODD:
        attributes, _ = base(TASK[:5], TASK[5])
        model = Call(({**attributes, path: odd}, [("gen_ai.choice", {"message": odd, "tool_calls": odd})]), number=1)
        run = Call(({"gen_ai.operation.name": "execute_tool", path: odd}, [("exception", {path: odd})]), number=2)
        traces, stats = read_all(write(tmp_path, sdk_lines([model, run])))
        assert stats.n_records_total == 2
        assert len(traces) + stats.n_records_skipped >= 1
        for trace in traces:
            states(trace)


@pytest.mark.parametrize("key", ["context", "name", "parent_id", "start_time", "status", "attributes", "events"])
def test_odd_spans_never_crash(tmp_path: Path, key: str) -> None:
    for odd in ODD:
        spans = [json.loads(line) for line in sdk_lines(calls_of(TASK, genai)).splitlines()]
        spans[1][key] = odd
        exported = {"resourceSpans": [odd, {"scopeSpans": odd}, {"scopeSpans": [odd, {"spans": odd, "scope": odd}]}]}
        traces, _ = read_all(write(tmp_path, "\n".join(json.dumps(one) for one in [*spans, odd, exported])))
        assert TASK[:2] in [state for trace in traces for state in states(trace)]


def test_a_span_that_is_its_own_parent(tmp_path: Path) -> None:
    calls = [Call(genai([user("t")], says("x")), number=1, parent=2), agent(2, parent=1)]
    (trace,), _ = read_all(write(tmp_path, otlp_lines(calls)))
    assert roles(trace) == ["user", "assistant"]


def test_an_empty_file(tmp_path: Path) -> None:
    assert read_all(write(tmp_path, ""))[0] == []


# ---- whose file it is


@pytest.mark.parametrize(
    "record",
    [
        {"type": "user", "message": {"role": "user", "content": "hi"}, "sessionId": "s", "uuid": "u"},
        {"messages": [{"role": "user", "content": "hi"}]},
        {"timestamp": "2026-01-01", "type": "response_item", "payload": {}},
        {"schema_version": "ATIF-v1.5", "steps": []},
        {"trajectory": [], "history": [], "info": {}},
        {"resourceSpans": []},
        {"resourceSpans": "x"},
        {"resourceMetrics": [{"scopeMetrics": []}]},
        {"trace_id": "1", "span_id": "2", "name": "log line", "message": "with a span's ids"},
        {"name": "x", "attributes": {}, "start_time": 1},
        {"trace_id": "1", "name": "x", "attributes": {}, "start_time": 1},
        {"trace_id": "1", "span_id": "2", "attributes": {}, "start_time": 1},
        {"trace_id": "1", "span_id": "2", "name": "x", "start_time": 1},
        {"trace_id": "1", "span_id": "2", "name": "x", "attributes": {}},
    ],
)
def test_other_files_are_not_taken(record: dict[str, Any]) -> None:
    assert not sniff(Head(records=[record], document=record))
    assert not sniff(Head(document=[record]))


def test_a_list_of_spans_is_taken(tmp_path: Path) -> None:
    assert sniff(Head(document=[json.loads(columns(calls_of(TASK, openinference)).splitlines()[0])]))
    assert not sniff(Head(document=[1, "x"]))
    assert not sniff(Head(document="x"))
