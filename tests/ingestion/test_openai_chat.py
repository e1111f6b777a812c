"""OpenAI chat logs, in every shape in which they come, and damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from damaged_logs import damaged
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from composer_replication.ingestion.formats import ReadOptions, openai_chat, read_head
from composer_replication.ingestion.log_file import LogFile
from composer_replication.ingestion.statistics import IngestionStats
from composer_replication.traces import ToolCall, Trace, Turn, Usage

FIXTURE = Path(__file__).parent / "fixtures" / "openai_chat" / "rows.jsonl"
ROWS = [json.loads(line) for line in FIXTURE.read_text().splitlines()]


def read(path: Path) -> tuple[list[Trace], IngestionStats]:
    stats = IngestionStats()
    return list(openai_chat.read(LogFile(path), ReadOptions(), stats)), stats


def read_rows(tmp_path: Path, *rows: Any) -> tuple[list[Trace], IngestionStats]:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read(path)


def turns_of(tmp_path: Path, *messages: Any) -> list[Turn]:
    return read_rows(tmp_path, {"messages": list(messages)})[0][0].turns


def sniffs(tmp_path: Path, text: str, name: str = "log.jsonl") -> bool:
    path = tmp_path / name
    path.write_text(text)
    return openai_chat.sniff(read_head(LogFile(path)))


def roles(turns: list[Turn]) -> list[str]:
    return [turn.role for turn in turns]


def test_the_fixture_is_read_whole() -> None:
    traces, stats = read(FIXTURE)
    assert [trace.trace_id for trace in traces] == [f"rows#{number}" for number in range(1, 8)]
    assert stats.n_records_total == 7
    assert stats.n_records_skipped == 0
    assert not stats.skipped
    for trace in traces:
        assert all(turn.line == trace.source.line for turn in trace.turns)
        assert trace.source.format == "openai_chat"
        assert all(answer is not None for _, _, answer in trace.calls())


def test_messages_with_parallel_calls() -> None:
    trace = read(FIXTURE)[0][0]
    assert roles(trace.turns) == ["system", "user", "assistant", "tool", "tool", "assistant"]
    system, user, acting, first, second, last = trace.turns
    assert system.content == "You fix bugs."
    assert (user.content, user.origin) == ("Fix a.py\n[image]", "prompt")
    assert (acting.thinking, acting.content) == ("Look first.", "")
    expected = [("c1", "read", {"path": "a.py"}), ("c2", "run", {"command": "pytest"})]
    assert [(call.id, call.name, call.arguments) for call in acting.tool_calls] == expected
    assert (first.tool_call_id, first.content, first.is_error) == ("c1", "x = 1", False)
    assert (second.tool_call_id, second.is_error) == ("c2", True)
    assert last.content == "Done."
    assert [tool["function"]["name"] for tool in trace.tools] == ["read"]
    assert (trace.final_reward, trace.session_id, trace.model) == (0.5, "row-1", "gpt-x")
    assert trace.meta == {"split": "train"}
    assert acting.model == "gpt-x"


def test_legacy_functions() -> None:
    trace = read(FIXTURE)[0][1]
    assert roles(trace.turns) == ["user", "assistant", "tool", "assistant"]
    assert trace.turns[1].tool_calls[0].name == "clock"
    assert trace.turns[2].tool_call_id == trace.turns[1].tool_calls[0].id
    assert trace.tools == [{"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}]


def test_sharegpt() -> None:
    trace = read(FIXTURE)[0][2]
    assert roles(trace.turns) == ["system", "user", "assistant", "tool", "assistant"]
    assert trace.turns[2].tool_calls[0].arguments == {"path": "."}
    assert trace.turns[2].content == ""
    assert trace.turns[3].content == "a.py"
    assert trace.turns[3].tool_call_id == trace.turns[2].tool_calls[0].id


def test_prompt_and_completion(tmp_path: Path) -> None:
    trace = read(FIXTURE)[0][3]
    assert [(turn.role, turn.content) for turn in trace.turns] == [("user", "Hello"), ("assistant", "Hi")]
    assert trace.final_reward == 1.0
    texts = read_rows(tmp_path, {"prompt": "Hello", "completion": "Hi"})[0][0]
    assert [(turn.role, turn.content) for turn in texts.turns] == [("user", "Hello"), ("assistant", "Hi")]


def test_logged_requests_mark_the_answers_that_an_earlier_row_has() -> None:
    traces, _ = read(FIXTURE)
    first, second = traces[4], traces[5]
    assert [turn.content for turn in first.turns] == ["One", "Two"]
    assert first.turns[1].usage == Usage(input_tokens=10, output_tokens=2, cached_tokens=4)
    assert first.model == "gpt-y"
    assert [turn.content for turn in second.turns] == ["One", "Two", "Three", "Four"]
    assert [turn.repeats for turn in second.turns] == [False, True, False, False]
    assert [turn.usage is not None for turn in second.turns] == [False, False, False, True]
    assert [state["student_action"] for state in second.states()] == ["Four"]


def test_the_same_answer_behind_another_conversation_is_no_repeat(tmp_path: Path) -> None:
    def row(question: str) -> dict[str, Any]:
        return {
            "request": {"messages": [{"role": "user", "content": question}]},
            "response": {"choices": [{"message": {"role": "assistant", "content": "Yes"}}]},
        }

    traces, _ = read_rows(tmp_path, row("One?"), row("Two?"))
    assert not any(turn.repeats for trace in traces for turn in trace.turns)


def test_plain_rows_are_never_repeats(tmp_path: Path) -> None:
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    assert not any(turn.repeats for trace in read_rows(tmp_path, row, row)[0] for turn in trace.turns)


def test_responses_items() -> None:
    trace = read(FIXTURE)[0][6]
    assert roles(trace.turns) == ["system", "user", "assistant", "tool", "tool", "assistant"]
    assert trace.turns[0].content == "Be kind."
    acting = trace.turns[2]
    assert acting.thinking == "Use the tool."
    assert [call.arguments for call in acting.tool_calls] == [{"a": 1}, {"a": 2}]
    assert [turn.content for turn in trace.turns[3:5]] == ["1", "2"]
    assert trace.turns[5].content == "Three."
    assert trace.turns[5].usage == Usage(input_tokens=30, output_tokens=4, cached_tokens=8)
    assert trace.tools == [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


def test_batch_files_and_other_answers(tmp_path: Path) -> None:
    asked = [{"role": "user", "content": "q"}]
    traces, stats = read_rows(
        tmp_path,
        {"custom_id": "b1", "method": "POST", "body": {"model": "m", "messages": asked}},
        {
            "request": {"body": {"messages": asked}},
            "response": {"body": {"choices": [{"message": {"role": "assistant", "content": "a"}}, {}, {}]}},
        },
        {"messages": asked, "response": "text"},
        {"messages": asked, "message": {"role": "assistant", "content": "ollama"}},
        {"model": "m", "input": "q", "output": [{"type": "message", "role": "assistant", "content": "out"}]},
        {"messages": json.dumps(asked), "tools": json.dumps([{"type": "function", "function": {"name": "f"}}])},
    )
    assert (traces[0].session_id, traces[0].model) == ("b1", "m")
    assert [trace.turns[-1].content for trace in traces] == ["q", "a", "text", "ollama", "out", "q"]
    assert stats.skipped["further choice"] == 2
    assert traces[5].tools[0]["function"]["name"] == "f"


def test_a_document_is_one_trace_or_a_list_of_them(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    path = tmp_path / "one.json"
    for document in (messages, {"messages": messages}):
        for indent in (None, 2):
            path.write_text(json.dumps(document, indent=indent))
            traces, stats = read(path)
            assert [trace.trace_id for trace in traces] == ["one"]
            assert [turn.content for turn in traces[0].turns] == ["a", "b"]
            assert stats.n_records_total == 1
    path.write_text(json.dumps([{"messages": messages}, {"messages": messages}], indent=2))
    assert [trace.trace_id for trace in read(path)[0]] == ["one#1", "one#2"]
    assert openai_chat.sniff(read_head(LogFile(path)))


def test_a_row_may_be_a_bare_list(tmp_path: Path) -> None:
    traces, stats = read_rows(tmp_path, [{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}])
    assert [(trace.trace_id, trace.turns[0].content) for trace in traces] == [("log#1", "a"), ("log#2", "b")]
    assert stats.n_records_total == 2


def test_damaged_lines_lose_no_row(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    row = json.dumps({"messages": [{"role": "user", "content": "a"}]})
    path.write_text(f'{row}{row}\n{{"messages": [{{"role"\n\n{row}\n')
    traces, stats = read(path)
    assert [trace.trace_id for trace in traces] == ["log#1", "log#1.2", "log#4"]
    assert stats.skipped_truncated_lines == 1
    assert stats.n_records_total == 3


def test_results_without_ids_go_by_place_and_name(tmp_path: Path) -> None:
    turns = turns_of(
        tmp_path,
        {"role": "assistant", "tool_calls": [{"function": {"name": "a"}}, {"function": {"name": "b"}}]},
        {"role": "tool", "name": "b", "content": "for b"},
        {"role": "tool", "tool_call_id": "unknown", "content": "for a"},
        {"role": "tool", "tool_call_id": "late", "content": "for none"},
    )
    calls = [call.id for call in turns[0].tool_calls]
    expected = [(calls[0], "for a"), (calls[1], "for b"), ("late", "for none")]
    assert [(turn.tool_call_id, turn.content) for turn in turns[1:]] == expected


def test_ids_that_begin_anew_with_every_turn_are_told_apart(tmp_path: Path) -> None:
    call = {"id": "call_0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = turns_of(
        tmp_path,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_0", "content": "first"},
        {"role": "assistant", "tool_calls": [call, call]},
        {"role": "tool", "tool_call_id": "call_0", "content": "second"},
        {"role": "tool", "tool_call_id": "call_0", "content": "third"},
    )
    assert [call.id for turn in turns for call in turn.tool_calls] == ["call_0", "call_0#2", "call_0#3"]
    assert [(turn.tool_call_id, turn.content) for turn in turns if turn.role == "tool"] == [
        ("call_0", "first"),
        ("call_0#2", "second"),
        ("call_0#3", "third"),
    ]


def test_an_id_used_again_means_the_newest_call(tmp_path: Path) -> None:
    call = {"id": "call_0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = turns_of(
        tmp_path,
        {"role": "assistant", "content": "first", "tool_calls": [call]},
        {"role": "assistant", "content": "second", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_0", "content": "result"},
        {"role": "tool", "tool_call_id": "call_9", "content": "not asked for"},
    )
    assert [(turn.content, turn.tool_call_id) for turn in turns] == [
        ("first", None),
        ("second", None),
        ("result", "call_0#2"),
        ("not asked for", "call_9"),
    ]


def test_a_result_with_another_id_answers_no_call(tmp_path: Path) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = turns_of(
        tmp_path, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "d", "content": "x"}
    )
    assert turns[1].tool_call_id == "d"


def test_the_usage_of_a_failed_request_is_nobodys(tmp_path: Path) -> None:
    asked = [{"role": "assistant", "content": "before"}, {"role": "user", "content": "q"}]
    response = {"choices": [{"message": None}], "usage": {"prompt_tokens": 5}}
    traces, stats = read_rows(tmp_path, {"request": {"messages": asked}, "response": response})
    assert all(turn.usage is None for turn in traces[0].turns)
    assert stats.skipped["not a message"] == 1


def test_results_are_paired_late_or_kept_or_counted(tmp_path: Path) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "not json"}}
    traces, stats = read_rows(
        tmp_path,
        {
            "messages": [
                {"role": "tool", "tool_call_id": "lost", "content": "no call"},
                {"role": "assistant", "tool_calls": [call]},
                {"role": "user", "content": "wait"},
                {"role": "tool", "tool_call_id": "c", "content": "late"},
                {"role": "tool", "tool_call_id": "c", "content": "twice"},
            ]
        },
    )
    turns = traces[0].turns
    expected = [("tool", "no call"), ("assistant", ""), ("tool", "late"), ("user", "wait")]
    assert [(turn.role, turn.content) for turn in turns] == expected
    assert turns[1].tool_calls[0].raw_arguments == "not json"
    assert stats.duplicate_results == 1
    assert stats.skipped["second result of a call"] == 1


@pytest.mark.parametrize(
    ("content", "is_error"),
    [
        ('{"is_error": true}', True),
        ('{"isError": true}', True),
        (' {"exitCode": 2}', True),
        ('{"returncode": -1}', True),
        ('{"exit_code": 0}', False),
        ('{"exit_code": true}', False),
        ('{"is_error": "no"}', False),
        ('{"exit_code": 1', False),
        ("Error: exit_code 1", False),
        ("Exit code: 1\n", False),
        ([{"type": "text", "text": "fine"}], False),
        (None, False),
    ],
)
def test_errors_are_told_by_structure(tmp_path: Path, content: Any, is_error: bool) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = turns_of(
        tmp_path, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c", "content": content}
    )
    assert turns[1].is_error is is_error


def test_a_message_may_carry_the_error_flag(tmp_path: Path) -> None:
    assert turns_of(tmp_path, {"role": "tool", "tool_call_id": "c", "content": "x", "is_error": True})[0].is_error


@pytest.mark.parametrize(
    ("message", "thinking", "content"),
    [
        ({"content": "a", "reasoning": "r"}, "r", "a"),
        ({"content": "a", "reasoning_details": [{"type": "reasoning.text", "text": "r"}]}, "r", "a"),
        ({"content": [{"type": "thinking", "thinking": "r"}, {"type": "text", "text": "a"}]}, "r", "a"),
        ({"content": None, "refusal": "no"}, "", "no"),
        ({"content": [{"type": "refusal", "refusal": "no"}]}, "", "no"),
        ({"content": ["a", {"type": "input_audio"}, {"type": "odd"}, None, 3]}, "", "a\n[audio]\n[odd]\n3"),
        ({"content": ""}, "", ""),
    ],
)
def test_what_an_assistant_says(tmp_path: Path, message: dict[str, Any], thinking: str, content: str) -> None:
    turn = turns_of(tmp_path, {"role": "assistant", **message})[0]
    assert (turn.thinking, turn.content) == (thinking, content)


def test_parts_in_anthropics_form(tmp_path: Path) -> None:
    turns = turns_of(
        tmp_path,
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t", "content": "bad", "is_error": True},
                {"type": "text", "text": "go on"},
            ],
        },
        {"role": "assistant", "content": [{"type": "tool_use", "id": "u", "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "u", "content": "good"}]},
    )
    assert roles(turns) == ["assistant", "tool", "user", "assistant", "tool"]
    assert (turns[0].tool_calls[0].arguments, turns[0].content) == ({"a": 1}, "")
    assert (turns[1].content, turns[1].is_error) == ("bad", True)
    assert turns[2].content == "go on"


def test_custom_and_hosted_tools(tmp_path: Path) -> None:
    turns = turns_of(
        tmp_path,
        {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "sh", "input": "ls"}}]},
        {"type": "mcp_call", "id": "m", "name": "find", "arguments": "{}", "output": "found"},
        {"type": "mcp_call", "id": "n", "name": "find", "arguments": "{}", "error": "down"},
        {"type": "code_interpreter_call", "id": "i", "code": "1", "outputs": None},
    )
    assert turns[0].tool_calls == [ToolCall("c", "sh", {"input": "ls"})]
    assert [call.name for call in turns[1].tool_calls] == ["find", "find", "code_interpreter"]
    assert [(turn.content, turn.is_error) for turn in turns[2:]] == [("found", False), ("down", True)]


def test_odd_messages_are_counted_and_the_rest_is_read(tmp_path: Path) -> None:
    traces, stats = read_rows(
        tmp_path,
        {
            "messages": [
                None,
                "text",
                {"role": "critic", "content": "x"},
                {"role": ["user"], "content": "x"},
                {"role": "user", "content": None},
                {"role": "assistant", "content": None},
                {"content": "no role"},
                {"from": "function_call", "value": "no json"},
                {"role": "assistant", "content": "a", "tool_calls": ["x", None, {"function": None}]},
                {"role": "user", "content": "last"},
            ]
        },
        {"messages": []},
        {"messages": 7},
        7,
        None,
    )
    assert len(traces) == 1
    assert [(turn.role, turn.content) for turn in traces[0].turns] == [("assistant", "a"), ("user", "last")]
    assert [call.name for call in traces[0].turns[0].tool_calls] == [""]
    assert stats.skipped["not a message"] == 2
    assert stats.skipped["unknown role"] == 2
    assert stats.skipped["message without content"] == 2
    assert stats.skipped["item: no type"] == 1
    assert stats.skipped["not a tool call"] == 3
    assert (stats.skipped["no messages"], stats.n_records_skipped, stats.n_records_total) == (4, 4, 5)


@pytest.mark.parametrize(
    ("given", "reward"),
    [
        ({"score": 3}, 3.0),
        ({"label": False}, 0.0),
        ({"reward": "high"}, None),
        ({"reward": None, "score": 0.25}, 0.25),
        ({"reward": float("nan")}, None),
        ({"reward": 10**400}, None),
    ],
)
def test_rewards(tmp_path: Path, given: dict[str, Any], reward: float | None) -> None:
    traces, _ = read_rows(tmp_path, {"messages": [{"role": "user", "content": "a"}], **given})
    assert traces[0].final_reward == reward


def test_the_sniffer_knows_every_shape(tmp_path: Path) -> None:
    for row in ROWS:
        assert sniffs(tmp_path, json.dumps(row) + "\n")
        assert sniffs(tmp_path, json.dumps(row, indent=2), "log.json")
    assert sniffs(tmp_path, json.dumps(ROWS[0]["messages"]))
    assert sniffs(tmp_path, "{broken\n" + json.dumps(ROWS[0]) + "\n")
    assert sniffs(tmp_path, json.dumps([{"role": "user", "parts": [{"type": "text", "text": "a"}]}]))


MESSAGES = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


@pytest.mark.parametrize(
    "other",
    [
        {"type": "user", "message": {"role": "user", "content": "a"}, "uuid": "u", "sessionId": "s"},
        {"type": "response_item", "payload": {"type": "message", "role": "user", "content": []}},
        {"schema_version": "ATIF-v1.5", "steps": [{"source": "user", "message": "a"}], "messages": MESSAGES},
        {"trajectory": [], "history": MESSAGES, "info": {}},
        {"instance_id": "i", "history": [{"action": "run", "args": {}}]},
        {"messages": MESSAGES, "info": {}, "trajectory_format": "mini-swe-agent-1"},
        {"messages": [{"role": "assistant", "content": "```mswea_bash_command\nls\n```"}]},
        {"messages": [{"role": "user", "content": "a", "extra": {}}]},
        [{"role": "system", "content": "```mswea_bash_command\nls\n```"}, *MESSAGES],
        [{"id": 1, "action": "message", "role": "user", "content": "a"}],
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"role": "user", "content": "a"},
        {"messages": []},
        {"messages": ["a"]},
        {"messages": [{"role": "user", "parts": [{"text": "a"}]}]},
        {"instruction": "a", "input": "b", "output": "c"},
        [1, 2],
        [],
    ],
)
def test_the_sniffer_leaves_other_formats_alone(tmp_path: Path, other: Any) -> None:
    assert not sniffs(tmp_path, json.dumps(other) + "\n")
    assert not sniffs(tmp_path, json.dumps(other, indent=2), "log.json")


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damage_to_a_row_stops_the_reader(tmp_path: Path, data: st.DataObject) -> None:
    row = damaged(data, data.draw(st.sampled_from(ROWS)), 3)
    traces, stats = read_rows(tmp_path, ROWS[0], row, ROWS[1])
    assert [trace.trace_id for trace in traces][:: max(len(traces) - 1, 1)] == ["log#1", "log#3"]
    assert len(traces) + stats.n_records_skipped == stats.n_records_total == 3
    for trace in traces:
        list(trace.states())
        json.dumps(trace.example())
        # Every state has answered calls and no id is used twice.
        ids = [call.id for turn in trace.turns for call in turn.tool_calls]
        assert len(ids) == len(set(ids))


def test_nesting_that_is_too_deep_is_no_crash(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    deep = "[" * 900 + "]" * 900
    row = json.dumps({"messages": [{"role": "user", "content": {"a": "DEEP"}}]}).replace('"DEEP"', deep)
    path.write_text(row + "\n" + json.dumps(ROWS[0]) + "\n")
    assert read(path)[0][-1].trace_id == "log#2"
