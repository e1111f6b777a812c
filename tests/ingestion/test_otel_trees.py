"""Spans that hold the spans below them, and the messages of smolagents, whose traces are published so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_otel import agent, result, says, tool, user
from test_otel_spans import TASK, Call, Chat, calls_of, openinference, states, tree, tree_span

from composer_replication.ingestion import IngestionStats, ReadOptions, UnknownFormatError, read_traces
from composer_replication.ingestion.formats.otel.messages import Call as ToolCall
from composer_replication.ingestion.formats.otel.messages import Message, normalise
from composer_replication.traces import Trace, Usage

Tree = dict[str, Any]


def read(directory: Path, *documents: Any, **options: bool) -> tuple[list[Trace], IngestionStats]:
    path = directory / "run.json"
    path.write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in documents))
    stats = IngestionStats()
    return list(read_traces(path, ReadOptions(**options), stats)), stats


def document(*spans: Any) -> Tree:
    return {"trace_id": f"{1:032x}", "spans": list(spans)}


def chain(number: int, *children: Tree) -> Tree:
    return tree_span(Call(({"openinference.span.kind": "CHAIN"}, []), number=number, name=f"Step {number}"), *children)


def test_a_tree_is_read_as_its_spans(tmp_path: Path) -> None:
    first, second, third = (tree_span(call) for call in calls_of(TASK, openinference))
    ran = tree_span(tool(9, error="RuntimeError: no net", gen_ai__tool__call__id="c2"))
    root = tree_span(agent(7, "root"), chain(8, first, ran), chain(10, second), third)
    first["span_attributes"] |= {"llm.token_count.prompt": "12", "llm.token_count.completion": "3"}
    (trace,), stats = read(tmp_path, document(root))
    assert states(trace) == [TASK[:2], TASK[:5], TASK[:7]]
    assert not any(turn.repeats for turn in trace.turns)
    assert (trace.meta, trace.session_id) == ({"agent": "root"}, f"{1:032x}")
    assert trace.source.version == "my.instrumentation 1.2"
    assert (trace.turns[2].usage, trace.turns[2].timestamp) == (Usage(12, 3), "2026-01-01T00:00:01.500000Z")
    assert [turn.is_error for turn in trace.turns if turn.role == "tool"] == [False, True]
    assert trace.turns[2].tool_error is not None
    assert stats.n_records_total == 7
    assert stats.skipped == {"not a model call": 2}


def test_a_tree_of_lines_and_a_list_of_trees(tmp_path: Path) -> None:
    one, two = (json.loads(tree(calls_of(TASK, openinference, trace=number))) for number in (1, 2))
    for written in ([one, two], [[one, two]], [[*one["spans"][:1], *two["spans"][:1]]]):
        for span in [*one["spans"], *two["spans"]]:
            span["trace_id"] = "1" if span in one["spans"] else "2"
        traces, stats = read(tmp_path, *written)
        assert len(traces) == 2
        assert stats.skipped == {}


def test_a_table_has_trees_as_text(tmp_path: Path) -> None:
    texts = [tree(calls_of(TASK, openinference, trace=number)) for number in (1, 2)]
    traces, stats = read(tmp_path, *({"trace": text, "labels": "{}"} for text in texts), {"trace": texts[0][:-9]})
    assert [len(states(trace)) for trace in traces] == [3, 3]
    assert (stats.n_records_total, stats.skipped) == (7, {"not a span": 1})
    for other in ("", "{", "x", '{"spans": []}', "[]", 7, None, {}):
        with pytest.raises(UnknownFormatError):
            read(tmp_path, {"trace": other})


@pytest.mark.parametrize("name", ["child_spans", "childSpans", "children", "spans"])
def test_names_of_children(tmp_path: Path, name: str) -> None:
    root = tree_span(agent(7))
    del root["child_spans"]
    root[name] = [tree_span(call) for call in calls_of(TASK, openinference)]
    (trace,), _ = read(tmp_path, document(root))
    assert (len(states(trace)), trace.meta) == (3, {"agent": "a"})


def test_what_a_span_in_a_tree_leaves_out(tmp_path: Path) -> None:
    """Its place gives its trace and its parent, and what it has no time for happened in the order of the file."""
    spans = [tree_span(call) for call in calls_of(TASK, openinference)]
    root = tree_span(agent(7), *spans)
    for span in spans:
        del span["span_id"]
    for span in spans[1:]:
        del span["timestamp"]
    inner = tree_span(agent(8, "inner"), tree_span(Call(openinference([user("t")], says("x")), number=9)))
    del inner["span_id"]
    spans[0]["child_spans"] = [inner]
    traces, _ = read(tmp_path, document(root), subagents=True)
    assert [trace.meta for trace in traces] == [{"agent": "a"}, {"agent": "inner"}]
    assert states(traces[0]) == [TASK[:2], TASK[:5], TASK[:7]]
    assert traces[1].parent == traces[0].trace_id
    assert read(tmp_path, document(root))[1].skipped["sub-agent"] == 1


def test_a_parent_id_comes_before_the_place(tmp_path: Path) -> None:
    spans = [tree_span(call) for call in calls_of(TASK, openinference)]
    spans[0]["parent_span_id"] = f"{99:016x}"
    traces, _ = read(tmp_path, document(tree_span(agent(7), *spans)))
    assert [trace.meta for trace in traces] == [{}, {"agent": "a"}]


@pytest.mark.parametrize(
    ("duration", "end"),
    [
        ("PT2.25S", "00:00:03.250000Z"),
        ("PT1M", "00:01:01Z"),
        ("PT1H1M1S", "01:01:02Z"),
        ("PT0.0000015S", "00:00:01.000001Z"),
        (2250, "00:00:01Z"),
        ("2.25", "00:00:01Z"),
    ],
)
def test_durations(tmp_path: Path, duration: Any, end: str) -> None:
    span = tree_span(Call(openinference([user("t")], says("x")), number=1))
    (trace,), _ = read(tmp_path, document({**span, "duration": duration}))
    assert trace.turns[1].timestamp == f"2026-01-01T{end}"


def test_the_logs_of_a_span_are_counted(tmp_path: Path) -> None:
    spans = [tree_span(call) for call in calls_of(TASK, openinference)]
    spans[0]["logs"] = [{"timestamp": "2026-01-01T00:00:00", "body": {"function.name": "main"}}, {"body": None}]
    _, stats = read(tmp_path, document(*spans))
    assert stats.skipped == {"not a model call": 2}
    assert stats.n_records_total == 5


ODD: list[Any] = [None, 7, "x", True, {}, {"span_id": "x"}, [], [None], [7], ["x"], [[]], [{}], {"a": {}}, [7, {}]]


@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_span_in_a_tree_is_counted(tmp_path: Path, odd: Any) -> None:
    for key in ("child_spans", "children", "spans"):
        spans = [tree_span(call) for call in calls_of(TASK, openinference)]
        spans[1][key] = odd
        (trace,), stats = read(tmp_path, document(*spans))
        assert states(trace) == [TASK[:2], TASK[:5], TASK[:7]]
        passed = 0 if odd in (None, [], [[]]) else 2 if odd == [7, {}] else 1
        assert stats.skipped["not a span"] == passed
        assert stats.n_records_total == 3 + passed


@pytest.mark.parametrize("odd", ODD)
def test_odd_values_in_a_tree_never_crash(tmp_path: Path, odd: Any) -> None:
    for key in ("span_name", "span_attributes", "timestamp", "duration", "span_id", "trace_id", "logs", "events"):
        spans = [tree_span(call) for call in calls_of(TASK, openinference)]
        spans[1][key] = odd
        traces, stats = read(tmp_path, document(*spans))
        assert TASK[:2] in [state for trace in traces for state in states(trace)]
        assert stats.n_records_total >= 3


def test_a_group_that_is_no_span_passes_its_spans_on(tmp_path: Path) -> None:
    spans = [tree_span(call) for call in calls_of(TASK, openinference)]
    (trace,), stats = read(tmp_path, document(tree_span(agent(7), {"title": "a group", "child_spans": spans})))
    assert (len(states(trace)), trace.meta) == (3, {"agent": "a"})
    assert stats.skipped == {"not a span": 1}


@pytest.mark.parametrize("given", [{}, {"span_attributes": None}, {"attributes": None}])
def test_a_root_without_attributes(tmp_path: Path, given: Tree) -> None:
    """Alone in the file, in a document, and further down; where there is nothing below it, it is not taken."""
    spans = [tree_span(call) for call in calls_of(TASK, openinference)]
    root = {"trace_id": f"{1:032x}", **tree_span(agent(7), *spans)}
    del root["span_attributes"]
    root |= given
    for written in (root, document(root), document(tree_span(agent(8), root))):
        (trace,), stats = read(tmp_path, written)
        assert (states(trace), trace.session_id) == ([TASK[:2], TASK[:5], TASK[:7]], f"{1:032x}")
        assert stats.skipped["not a span"] == 0
    for none in ([], None, 7, [7], {}):
        with pytest.raises(UnknownFormatError):
            read(tmp_path, {**root, "child_spans": none})


@pytest.mark.parametrize("depth", [100, 400])
def test_spans_nested_deeply(tmp_path: Path, depth: int) -> None:
    inner = [tree_span(call) for call in calls_of(TASK, openinference)]
    for number in range(depth):
        inner = [chain(100 + number, *inner)]
    (trace,), stats = read(tmp_path, document(*inner))
    assert states(trace) == [TASK[:2], TASK[:5], TASK[:7]]
    assert stats.skipped == {"not a model call": depth}


def test_spans_nested_beyond_reason(tmp_path: Path) -> None:
    opening = (
        '{"trace_id": "1", "span_id": "2", "span_name": "s", "timestamp": 1, "span_attributes": {}, "child_spans": ['
    )
    deep = opening * 10_000 + "]}" * 10_000
    with pytest.raises(UnknownFormatError):
        read(tmp_path, deep)
    (trace,), stats = read(tmp_path, json.dumps(json.loads(tree(calls_of(TASK, openinference)))), deep)
    assert states(trace) == [TASK[:2], TASK[:5], TASK[:7]]
    assert stats.skipped == {"broken line": 1}


def test_a_tree_that_was_cut_gives_the_spans_that_are_whole(tmp_path: Path) -> None:
    spans = [{"trace_id": "1", **tree_span(call)} for call in calls_of(TASK, openinference)]
    whole = json.dumps(document(tree_span(agent(7), *spans)))
    (trace,), stats = read(tmp_path, json.dumps(document(chain(50))), whole[:-40])
    assert states(trace)[:2] == [TASK[:2], TASK[:5]]
    assert stats.skipped["broken line"] == 1


def test_a_tree_behind_a_broken_line(tmp_path: Path) -> None:
    spans = [tree_span(call) for call in calls_of(TASK, openinference)]
    (trace,), stats = read(tmp_path, json.dumps(document(chain(50))), '{"cut": "' + json.dumps(document(*spans)))
    assert states(trace) == [TASK[:2], TASK[:5], TASK[:7]]
    assert stats.skipped["broken line"] == 1


@pytest.mark.parametrize(
    "record",
    [
        {"trace_id": "1", "spans": []},
        {"trace_id": "1", "spans": "x"},
        {"trace_id": "1", "spans": [{"span_name": "x", "timestamp": 1}]},
        {"trace_id": "1", "spans": [{"name": "x", "span_attributes": {}, "timestamp": 1, "child_spans": []}]},
        {"spans": [{"span_id": "2", "span_name": "x", "span_attributes": {}, "timestamp": 1}]},
        {"trace_id": "1", "span_id": "2", "name": "a log line", "attributes": {}, "timestamp": 1},
        {"span_id": "2", "span_name": "x", "span_attributes": {}, "timestamp": 1, "child_spans": []},
    ],
)
def test_other_files_are_not_taken(tmp_path: Path, record: Tree) -> None:
    with pytest.raises(UnknownFormatError):
        read(tmp_path, record)
    with pytest.raises(UnknownFormatError):
        read(tmp_path, json.dumps(record, indent=2))


# ---- smolagents


def called(*calls: dict[str, Any]) -> dict[str, Any]:
    """The message by which smolagents tells a model of its calls: as Python prints them."""
    named = [{"id": one["id"], "type": "function", "function": one["function"]} for one in calls]
    return {"role": "tool-call", "content": f"Calling tools:\n{named}"}


def answered(text: str) -> dict[str, Any]:
    return {"role": "tool-response", "content": text}


def smolagents(chat: Chat, answer: dict[str, Any], number: int) -> Tree:
    return chain(number + 50, tree_span(Call(openinference(chat, answer), number=number)))


CODE = {"id": "call_1", "function": {"name": "python_interpreter", "arguments": "print('a')\nopen('b')"}}
THOUGHT = "Thought: look.\nCode:\n```py\nprint('a')\nopen('b')\n```"
TOLD: Chat = [{"role": "system", "content": "Write code."}, user("New task:\nlook")]


def test_an_agent_that_writes_code(tmp_path: Path) -> None:
    """The agent puts the end of the code back, and reads the call in the answer's text."""
    kept = says(f"{THOUGHT}<end_code>")
    seen = [
        answered("Call id: call_1\nObservation:\nExecution logs:\na\n"),
        answered("Call id: call_1\nError:\nCode execution failed due to: FileNotFoundError: b\nNow let's retry: …"),
    ]
    prompt = [*TOLD, kept, called(CODE), *seen]
    steps = [
        smolagents(TOLD, says(THOUGHT), 1),
        smolagents(prompt, says("Thought: again."), 2),
        smolagents([*prompt, says("Thought: again."), user("Well?")], says("Done."), 3),
    ]
    (trace,), stats = read(tmp_path, document(tree_span(agent(9), *steps)))
    roles = ["system", "user", "assistant", "tool", "assistant", "user", "assistant"]
    assert [turn.role for turn in trace.turns] == roles
    assert not any(turn.repeats or turn.follows is not None for turn in trace.turns)
    acted, ran = trace.turns[2:4]
    assert acted.content == f"{THOUGHT}<end_code>"
    assert [(call.id, call.name) for call in acted.tool_calls] == [("call_1", "python_interpreter")]
    assert acted.tool_calls[0].arguments == {"code": "print('a')\nopen('b')"}
    assert (ran.tool_call_id, ran.is_error) == ("call_1", True)
    assert ran.content.startswith("Observation:\nExecution logs:\na\n\nError:\nCode execution failed")
    assert acted.tool_error is not None
    assert (stats.n_tool_use_blocks, stats.n_tool_results, stats.results_without_call) == (1, 1, 0)
    assert sum(stats.errors.values()) == 1


def test_the_run_of_a_call_that_was_read_in_an_answer(tmp_path: Path) -> None:
    prompt = [*TOLD, says(f"{THOUGHT}<end_code>"), called(CODE), answered("Call id: call_1\nObservation:\nnothing")]
    run = tree_span(tool(3, error="MemoryError: full", gen_ai__tool__call__id="call_1"))
    (trace,), stats = read(
        tmp_path, document(smolagents(TOLD, says(THOUGHT), 1), run, smolagents(prompt, says("ok"), 4))
    )
    assert [turn.is_error for turn in trace.turns if turn.role == "tool"] == [True]
    assert "tool span without its call" not in stats.skipped


def test_an_agent_that_calls_tools(tmp_path: Path) -> None:
    call = says("", ("c1", "web_search", '{"query": "a"}'))
    again = {"id": "c1", "function": {"name": "web_search", "arguments": {"query": "a"}}}
    run = tree_span(
        Call(
            (
                {
                    "openinference.span.kind": "TOOL",
                    "tool.name": "web_search",
                    "tool.parameters": '{"query": {"type": "string"}}',
                    "input.value": '{"args": [], "sanitize_inputs_outputs": true, "kwargs": {"query": "a"}}',
                },
                [],
            ),
            number=5,
            error="ConnectionError: down",
        )
    )
    steps = [
        smolagents(TOLD, call, 1),
        run,
        smolagents([*TOLD, called(again), answered("Call id: c1\nObservation:\nnothing")], says("Done."), 6),
    ]
    (trace,), stats = read(tmp_path, document(*steps))
    assert [turn.role for turn in trace.turns] == ["system", "user", "assistant", "tool", "assistant"]
    assert trace.turns[2].tool_calls[0].arguments == {"query": "a"}
    assert (trace.turns[3].tool_call_id, trace.turns[3].content) == ("c1", "Observation:\nnothing")
    assert trace.turns[3].is_error
    assert "tool span without its call" not in stats.skipped


def test_the_pieces_of_a_result_are_one() -> None:
    call = Message("assistant", calls=(ToolCall("c", "f", "{}"),))
    first, second = (Message("tool", text, answers="c") for text in "ab")
    assert normalise([call, first, second]) == [call, first._replace(content="a\nb")]
    assert normalise([call, first, first]) == [call, first, first]


def test_a_result_without_its_call_and_a_complaint_about_no_call(tmp_path: Path) -> None:
    prompt = [
        *TOLD,
        says("I look."),
        answered("Error:\nError in code parsing: no code was found."),
        called(CODE),
        answered("Observation:\na"),
        answered("Call id: call_1\nError:\nKeyError: 1"),
        answered("something else"),
    ]
    (trace,), _ = read(tmp_path, document(smolagents(prompt, says("ok"), 1)))
    told = [(turn.role, turn.content, turn.tool_call_id) for turn in trace.turns[2:]]
    assert told == [
        ("assistant", "I look.", None),
        ("user", "Error:\nError in code parsing: no code was found.", None),
        ("assistant", "", None),
        ("tool", "Observation:\na\nError:\nKeyError: 1", "call_1"),
        ("tool", "something else", ""),
        ("assistant", "ok", None),
    ]


@pytest.mark.parametrize(
    "text",
    ["Calling tools:\n[{'id': ", "Calling tools:\n['x', {'function': 3}]", "Calling tools:\n7", "I call.", "", None],
)
def test_calls_that_smolagents_wrote_otherwise_stay_text(tmp_path: Path, text: Any) -> None:
    messages = [*TOLD, {"role": "tool-call", "content": text}, answered("Observation:\nx")]
    (trace,), _ = read(tmp_path, document(smolagents(messages, says("ok"), 1)))
    assert [turn.role for turn in trace.turns][-2:] == ["tool", "assistant"]
    assert text is None or text in "".join(turn.content for turn in trace.turns)


def test_an_answer_that_another_prompt_only_begins_like_is_not_taken_for_it(tmp_path: Path) -> None:
    for kept in (f"{THOUGHT} and then a good deal more of it, which the model never said", "Thought: other."):
        prompt = [*TOLD, says(kept), called(CODE), answered("Call id: call_1\nObservation:\nx")]
        steps = [smolagents(TOLD, says(THOUGHT), 1), smolagents(prompt, says("ok"), 2)]
        (trace,), _ = read(tmp_path, document(tree_span(agent(9), *steps)))
        assert trace.turns[2].tool_calls == []
        assert trace.turns[3].repeats
        assert result("call_1", "Observation:\nx") in states(trace)[1]
    read_in_it = [called(CODE)]
    for said, kept in ((says(THOUGHT), []), (says(THOUGHT, ("c", "f", "{}")), read_in_it), (says(" "), read_in_it)):
        prompt = [*TOLD, says(f"{said['content']}<end_code>"), *kept, user("go on")]
        (trace,), _ = read(tmp_path, document(smolagents(TOLD, said, 1), smolagents(prompt, says("ok"), 2)))
        assert [turn.repeats for turn in trace.turns[2:4]] == [False, True]
