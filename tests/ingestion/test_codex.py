"""Codex rollouts of every age, rewound, compacted, forked and damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from damaged_logs import damaged
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from composer_replication.ingestion.formats import ReadOptions, codex, read_head
from composer_replication.ingestion.log_file import LogFile
from composer_replication.ingestion.pipeline import read_traces
from composer_replication.ingestion.statistics import IngestionStats
from composer_replication.traces import ToolCall, Trace, Turn, Usage

FIXTURES = Path(__file__).parent / "fixtures" / "codex"
ROLLOUT, FLAT, EVENTS = (
    [json.loads(line) for line in (FIXTURES / f"{name}.jsonl").read_text().splitlines()]
    for name in ("rollout", "flat", "events")
)
OWN_ID = "019b0000-0000-7000-8000-000000000001"


def read(path: Path, *, subagents: bool = False) -> tuple[list[Trace], IngestionStats]:
    stats = IngestionStats()
    return list(codex.read(LogFile(path), ReadOptions(subagents=subagents), stats)), stats


def read_records(tmp_path: Path, *records: Any, subagents: bool = False) -> tuple[list[Trace], IngestionStats]:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return read(path, subagents=subagents)


def turns_of(tmp_path: Path, *records: Any) -> list[Turn]:
    return read_records(tmp_path, *records)[0][0].turns


def sniffs(tmp_path: Path, *records: Any) -> bool:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return codex.sniff(read_head(LogFile(path)))


def record(kind: str, **payload: Any) -> dict[str, Any]:
    return {"timestamp": "2026-01-02T10:00:00Z", "type": kind, "payload": payload}


def item(kind: str, **fields: Any) -> dict[str, Any]:
    return record("response_item", type=kind, **fields)


def event(kind: str, **fields: Any) -> dict[str, Any]:
    return record("event_msg", type=kind, **fields)


def user(text: str) -> dict[str, Any]:
    return item("message", role="user", content=[{"type": "input_text", "text": text}])


def said(text: str) -> dict[str, Any]:
    return item("message", role="assistant", content=[{"type": "output_text", "text": text}])


def call(call_id: str) -> dict[str, Any]:
    return item("function_call", name="shell", arguments="{}", call_id=call_id)


def output(call_id: str, given: Any) -> dict[str, Any]:
    return item("function_call_output", call_id=call_id, output=given)


def tokens(spent: int, total: int | None) -> dict[str, Any]:
    info = {"last_token_usage": {"input_tokens": spent}}
    return event("token_count", info=info if total is None else {**info, "total_token_usage": {"input_tokens": total}})


def texts(turns: list[Turn]) -> list[str]:
    return [turn.content for turn in turns]


def history(trace: Trace, number: int) -> list[str]:
    """What the model saw before its turn of that number."""
    return [message["content"] for message in list(trace.states())[number]["messages"]]


def test_the_rollout() -> None:
    traces, stats = read(FIXTURES / "rollout.jsonl")
    assert len(traces) == 1
    trace = traces[0]
    assert (trace.trace_id, trace.session_id, trace.cwd) == ("rollout", OWN_ID, "/repo")
    assert (trace.git_branch, trace.model, trace.source.version) == ("main", "gpt-5-codex", "0.99.0")
    assert trace.meta == {"originator": "codex_cli_rs", "model_provider": "openai"}
    assert [(turn.role, turn.origin) for turn in trace.turns] == [
        ("system", None),
        ("system", None),
        ("user", "meta"),
        ("user", "prompt"),
        ("assistant", None),
        ("tool", None),
        ("tool", None),
        ("assistant", None),
        ("tool", None),
        ("assistant", None),
    ]
    assert texts(trace.turns[:2]) == ["You are Codex.", "Sandboxed."]
    acting = trace.turns[4]
    assert (acting.thinking, acting.content, acting.model) == ("Run them", "Running.", "gpt-5-codex")
    assert (acting.line, acting.timestamp) == (9, "2026-01-02T10:00:03Z")
    assert [(one.id, one.name) for one in acting.tool_calls] == [("c1", "shell"), ("c2", "local_shell")]
    assert acting.tool_calls[0].arguments == {"command": ["pytest"]}
    assert acting.tool_calls[1].arguments == {"type": "exec", "command": ["ls"]}
    results = [(turn.tool_call_id, turn.is_error) for turn in trace.turns if turn.role == "tool"]
    assert results == [("c1", True), ("c2", False), ("c3", True)]
    assert trace.turns[7].tool_calls == [ToolCall("c3", "apply_patch", {"input": "*** Begin Patch\n*** End Patch"})]
    assert trace.turns[9].content == "Fixed."
    assert trace.turns[9].tool_calls[0].arguments["query"] == "pytest"
    assert [turn.usage for turn in trace.turns if turn.role == "assistant"] == [
        Usage(input_tokens=100, output_tokens=10, cached_tokens=50),
        Usage(input_tokens=150, output_tokens=20, cached_tokens=75),
        Usage(input_tokens=200, output_tokens=5, cached_tokens=100),
    ]
    assert dict(stats.skipped) == {
        "event: user_message": 1,
        "item: ghost_snapshot": 1,
        "event: agent_reasoning": 1,
        "repeated token_count": 1,
        "event: agent_message": 1,
        "record: world_state": 1,
    }
    assert (stats.n_records_total, stats.n_records_skipped) == (24, 6)


@pytest.mark.parametrize("text", ["*** Begin Patch\n*** End Patch", "await tools.exec({})", '{"a": 1}', "[1]", "3", ""])
def test_the_text_of_a_freeform_call_is_its_input_whatever_it_looks_like(tmp_path: Path, text: str) -> None:
    (turn,) = turns_of(tmp_path, item("custom_tool_call", call_id="c", name="exec", input=text))
    assert turn.tool_calls == [ToolCall("c", "exec", {"input": text})]


def test_the_flat_form() -> None:
    traces, stats = read(FIXTURES / "flat.jsonl")
    trace = traces[0]
    assert (trace.session_id, trace.cwd, trace.git_branch) == ("old-1", "/old", "old")
    assert [turn.role for turn in trace.turns] == ["system", "user", "user", "assistant", "tool", "assistant"]
    assert trace.turns[0].content == "Use tabs."
    assert trace.turns[4].is_error
    assert dict(stats.skipped) == {"record: state": 2, "reasoning without text": 1}


def test_instructions_that_are_a_message_already_are_not_said_twice(tmp_path: Path) -> None:
    told = user("<user_instructions>\n\nUse tabs.\n\n</user_instructions>")["payload"]
    turns = turns_of(tmp_path, FLAT[0], told, *FLAT[3:])
    assert [turn.role for turn in turns[:2]] == ["user", "user"]
    assert turns[0].origin == "meta"


def test_events_alone() -> None:
    traces, stats = read(FIXTURES / "events.jsonl")
    trace = traces[0]
    assert (trace.session_id, trace.cwd, trace.model) == ("ev-1", "/ev", "gpt-5")
    assert [turn.role for turn in trace.turns] == [
        "user", "assistant", "tool", "assistant", "tool", "assistant", "tool", "assistant", "tool", "assistant",
    ]  # fmt: skip
    shell = trace.turns[1]
    assert (shell.thinking, shell.tool_calls[0].arguments) == ("Shell", {"command": ["ls"], "workdir": "/ev"})
    expected = ["shell", "docs.find", "docs.find", "apply_patch", "web_search"]
    assert [one.name for turn in trace.turns for one in turn.tool_calls] == expected
    expected = [("no such file", True), ("found", False), ("timed out", True), ("bad patch", True)]
    assert [(turn.content, turn.is_error) for turn in trace.turns if turn.role == "tool"] == expected
    assert trace.turns[-1].content == "It is not there."
    assert dict(stats.skipped) == {"event: task_complete": 1}


def test_a_token_count_ends_a_response(tmp_path: Path) -> None:
    turns = turns_of(tmp_path, user("a"), said("b"), said("c"), tokens(5, 5), said("d"), tokens(6, 11), tokens(7, 18))
    assert texts(turns) == ["a", "b\n\nc", "d"]
    assert [turn.usage.input_tokens for turn in turns[1:] if turn.usage] == [5, 6]


def test_token_counts_without_totals_or_usage(tmp_path: Path) -> None:
    traces, stats = read_records(
        tmp_path, tokens(1, 1), said("b"), event("token_count", info=None), tokens(5, None), said("c"), tokens(5, None)
    )
    assert [turn.usage for turn in traces[0].turns] == [Usage(input_tokens=5), Usage(input_tokens=5)]
    assert stats.skipped["token_count without usage"] == 1
    assert stats.skipped["token_count without a turn"] == 1


def test_an_aborted_turn_ends_the_response(tmp_path: Path) -> None:
    traces, _ = read_records(tmp_path, user("a"), call("c"), event("turn_aborted", reason="interrupted"), said("b"))
    assert [turn.role for turn in traces[0].turns] == ["user", "assistant", "assistant"]
    assert traces[0].meta == {"aborted_turns": 1}


CONVERSATION = [
    user("<environment_context></environment_context>"),
    user("one"),
    call("c1"),
    output("c1", "r1"),
    user("<environment_context>new</environment_context>"),
    user("two"),
    said("b"),
]


def test_a_roll_back_takes_the_context_back(tmp_path: Path) -> None:
    traces, _ = read_records(
        tmp_path, *CONVERSATION, event("thread_rolled_back", num_turns=1), user("three"), said("c")
    )
    turns = traces[0].turns
    assert [turn.follows for turn in turns] == [None] * 7 + [3, None]
    assert history(traces[0], 2) == ["<environment_context></environment_context>", "one", "", "r1", "three"]


@pytest.mark.parametrize("count", [2, 9])
def test_a_roll_back_keeps_what_was_before_the_first_prompt(tmp_path: Path, count: int) -> None:
    traces, _ = read_records(
        tmp_path, *CONVERSATION, event("thread_rolled_back", num_turns=count), user("three"), said("c")
    )
    assert traces[0].turns[7].follows == 0
    assert history(traces[0], 2) == ["<environment_context></environment_context>", "three"]


def test_a_second_roll_back_counts_what_is_left(tmp_path: Path) -> None:
    back = event("thread_rolled_back", num_turns=1)
    traces, _ = read_records(tmp_path, *CONVERSATION, back, back, user("three"), said("c"))
    assert history(traces[0], 2) == ["<environment_context></environment_context>", "three"]


def test_a_roll_back_without_sense_is_counted(tmp_path: Path) -> None:
    back = [event("thread_rolled_back", num_turns=count) for count in (None, True, -1, 0, "1")]
    traces, stats = read_records(
        tmp_path, said("a"), event("thread_rolled_back", num_turns=1), *CONVERSATION, *back, said("c")
    )
    assert all(turn.follows is None for turn in traces[0].turns)
    assert stats.skipped["thread_rolled_back without a count"] == 5
    assert stats.skipped["thread_rolled_back without a prompt"] == 1


def test_a_compaction_with_its_history(tmp_path: Path) -> None:
    summary = "Another language model started to solve this problem: it read a.py"
    replacement = [user("one")["payload"], said("old")["payload"], item("ghost_snapshot")["payload"], None]
    traces, stats = read_records(
        tmp_path,
        record("session_meta", id=OWN_ID, base_instructions="System."),
        item("message", role="developer", content="Rules."),
        *CONVERSATION,
        record(
            "compacted",
            message="it read a.py",
            replacement_history=[
                {"type": "message", "role": "developer", "content": "Rules."},
                *replacement,
                user(summary)["payload"],
            ],
        ),
        event("context_compacted"),
        user("three"),
        said("c"),
    )
    turns = traces[0].turns
    assert [(turn.content, turn.origin, turn.repeats, turn.follows) for turn in turns[9:]] == [
        ("one", "prompt", True, -1),
        ("old", None, True, None),
        (summary, "compact_summary", False, None),
        ("three", "prompt", False, None),
        ("c", None, False, None),
    ]
    assert history(traces[0], 2) == ["System.", "Rules.", "one", "old", summary, "three"]
    assert stats.skipped["in a compaction: item: ghost_snapshot"] == 1
    assert stats.skipped["in a compaction: not a message"] == 1


def test_a_compaction_without_its_history_is_rebuilt(tmp_path: Path) -> None:
    traces, _ = read_records(tmp_path, *CONVERSATION, record("compacted", message="so far"), said("c"))
    assert history(traces[0], 2) == [
        "<environment_context></environment_context>",
        "one",
        "<environment_context>new</environment_context>",
        "two",
        "so far",
    ]
    assert [turn.repeats for turn in traces[0].turns[7:]] == [True] * 4 + [False, False]
    # A second one keeps the prompts and drops the first summary.
    traces, _ = read_records(
        tmp_path, *CONVERSATION, record("compacted", message="one"), record("compacted", message="two!"), said("c")
    )
    assert history(traces[0], 2)[-2:] == ["two", "two!"]


@pytest.mark.parametrize("kind", ["compaction", "compaction_summary", "context_compaction"])
def test_an_encrypted_summary_is_said_to_be_missing(tmp_path: Path, kind: str) -> None:
    replacement = [user("one")["payload"], {"type": kind, "encrypted_content": "gAAA"}]
    traces, _ = read_records(
        tmp_path, *CONVERSATION, record("compacted", message="", replacement_history=replacement), said("c")
    )
    assert history(traces[0], 2) == ["one", codex.NO_SUMMARY]


def test_an_empty_history_is_said_to_be_missing(tmp_path: Path) -> None:
    traces, _ = read_records(tmp_path, *CONVERSATION, record("compacted", replacement_history=[]), said("c"))
    assert history(traces[0], 2) == [codex.NO_SUMMARY]


def test_a_compaction_that_is_only_announced(tmp_path: Path) -> None:
    traces, _ = read_records(tmp_path, *CONVERSATION, event("context_compacted"), said("c"))
    assert history(traces[0], 2)[-2:] == ["two", codex.NO_SUMMARY]
    # Announced before its record, it is the same compaction.
    traces, _ = read_records(
        tmp_path, *CONVERSATION, event("context_compacted"), record("compacted", message="so far"), said("c")
    )
    assert sum(turn.origin == "compact_summary" for turn in traces[0].turns) == 1


def test_a_result_in_a_compaction_for_a_call_before_it(tmp_path: Path) -> None:
    replacement = [output("c1", "late")["payload"]]
    traces, _ = read_records(tmp_path, call("c1"), record("compacted", replacement_history=replacement), said("c"))
    assert texts(traces[0].turns) == ["", "late", codex.NO_SUMMARY, "c"]


def test_a_fork_marks_what_it_copied(tmp_path: Path) -> None:
    parent, old, new = (f"019{letter}0000-0000-7000-8000-000000000000" for letter in "abc")
    own = "019b0000-0000-7000-8000-000000000009"
    records = [
        record("session_meta", id=own, forked_from_id=parent, cwd="/own"),
        record("session_meta", id=parent, cwd="/parent"),
        user("one"),
        record("turn_context", turn_id=old, model="m"),
        said("a"),
        event("task_started", turn_id=new),
        user("two"),
        said("b"),
    ]
    traces, stats = read_records(tmp_path, *records)
    assert (traces[0].session_id, traces[0].cwd) == (own, "/own")
    assert traces[0].meta == {"forked_from_id": parent}
    assert [turn.repeats for turn in traces[0].turns] == [False, True, False, False]
    assert [state["student_action"] for state in traces[0].states()] == ["b"]
    assert stats.skipped["later session_meta"] == 1
    # A thread that was only resumed has copied nothing.
    records[0]["payload"].pop("forked_from_id")
    records[1]["payload"]["id"] = own
    assert not any(turn.repeats for turn in turns_of(tmp_path, *records))


@pytest.mark.parametrize(
    ("meta", "parent"),
    [
        ({"source": {"subagent": {"thread_spawn": {"parent_thread_id": "p", "depth": 1}}}}, "p"),
        ({"source": {"subagent": "review"}, "parent_thread_id": "q"}, "q"),
        ({"source": "subagent_review"}, None),
        ({"thread_source": "subagent", "forked_from_id": "f"}, "f"),
    ],
)
def test_sub_agents(tmp_path: Path, meta: dict[str, Any], parent: str | None) -> None:
    records = [record("session_meta", id="s", **meta), user("a"), said("b")]
    traces, stats = read_records(tmp_path, *records)
    assert traces == []
    assert (stats.skipped_subagent, stats.skipped["sub-agent"], stats.n_records_total) == (3, 3, 3)
    traces, stats = read_records(tmp_path, *records, subagents=True)
    assert texts(traces[0].turns) == ["a", "b"]
    assert (traces[0].parent, stats.skipped_subagent) == (parent, 0)


@pytest.mark.parametrize(
    ("content", "origin"),
    [
        ("Fix it", "prompt"),
        ("<environment_context>", "meta"),
        (" <user_instructions>", "meta"),
        ("# AGENTS.md instructions for /repo\n\n<INSTRUCTIONS>", "meta"),
        ("<user_shell_command>", "bash"),
        ("<turn_aborted>", "interrupt"),
        ("<subagent_notification>", "notification"),
        ([{"type": "input_text", "text": "<environment_context>"}, {"type": "input_text", "text": "Fix it"}], "prompt"),
        ([{"type": "input_image", "image_url": "data:,"}], "prompt"),
        ([], "prompt"),
    ],
)
def test_origins(tmp_path: Path, content: Any, origin: str) -> None:
    assert turns_of(tmp_path, item("message", role="user", content=content))[0].origin == origin


def test_another_agents_message(tmp_path: Path) -> None:
    parts = [{"type": "input_text", "text": "done"}, {"type": "encrypted_content", "encrypted_content": "g"}]
    traces, stats = read_records(tmp_path, item("agent_message", author="a", content=parts), item("agent_message"))
    assert [(turn.role, turn.origin, turn.content) for turn in traces[0].turns] == [("user", "agent", "done")]
    assert stats.skipped["message without content"] == 1


@pytest.mark.parametrize(
    ("given", "text", "is_error"),
    [
        ("Exit code: 0\nOutput:\nExit code: 1\n", None, False),
        ("Exit code: 2\nWall time: 1 seconds\nOutput:\n", None, True),
        ("Exit code: -1", None, True),
        ("Chunk ID: a\nWall time: 0 seconds\nProcess exited with code 3\nOutput:\n", None, True),
        ("Chunk ID: a\nProcess exited with code 0\nOutput:\nx", None, False),
        ("The build said Exit code: 1", None, False),
        ("Chunk ID: a\nOutput:\nExit code: 1\n", None, False),
        ('{"output":"x","metadata":{"exit_code":1}}', None, True),
        ('{"output":"x","metadata":{"exit_code":0}}', None, False),
        ('{"metadata":null}', None, False),
        ('{"success":false}', None, False),
        ("{broken", None, False),
        ({"content": "no", "success": False}, "no", True),
        ({"content": "yes", "success": True}, "yes", False),
        ({"content": "Exit code: 1\nOutput:\n", "success": True}, "Exit code: 1\nOutput:\n", True),
        ({"output": "x", "metadata": {"exit_code": 1}}, "x", True),
        ({"type": "input_text", "text": "t"}, "t", False),
        ([{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "data:,"}], "a\n[image]", False),
        ([{"type": "input_text", "text": "Exit code: 1\n"}], "Exit code: 1\n", True),
        (None, "", False),
        (7, "7", False),
    ],
)
def test_outputs(tmp_path: Path, given: Any, text: str | None, is_error: bool) -> None:
    result = turns_of(tmp_path, call("c"), output("c", given))[1]
    assert result.content == (given if text is None else text)
    assert result.is_error is is_error


def test_calls_of_every_kind(tmp_path: Path) -> None:
    turns = turns_of(
        tmp_path,
        item("tool_search_call", call_id="s", arguments={"query": "x"}),
        item("tool_search_output", call_id="s", tools=[{"type": "function", "name": "found"}]),
        item("function_call", call_id="n", name="echo", namespace="mcp__docs__", arguments="{}"),
        item("function_call", call_id="o", name="echo", namespace="docs", arguments=None),
        item("image_generation_call", id="g", status="completed", revised_prompt="a cat", result="aGk="),
        item("future_call", id="f"),
    )
    expected = ["tool_search", "mcp__docs__echo", "docs.echo", "image_generation", "future"]
    assert [one.name for turn in turns for one in turn.tool_calls] == expected
    expected = [("s", '[{"type": "function", "name": "found"}]'), ("g", "[image]")]
    assert [(turn.tool_call_id, turn.content) for turn in turns if turn.role == "tool"] == expected


def test_results_are_paired_late_or_kept_or_counted(tmp_path: Path) -> None:
    traces, stats = read_records(
        tmp_path,
        output("lost", "no call"),
        call("c"),
        user("wait"),
        output("c", "late"),
        output("c", "twice"),
        said("b"),
    )
    expected = [("tool", "no call"), ("assistant", ""), ("tool", "late"), ("user", "wait"), ("assistant", "b")]
    assert [(turn.role, turn.content) for turn in traces[0].turns] == expected
    assert (stats.duplicate_results, stats.skipped["second result of a call"], stats.n_records_skipped) == (1, 1, 1)


def test_raw_reasoning_is_preferred_to_its_summary(tmp_path: Path) -> None:
    content = [{"type": "reasoning_text", "text": "raw"}]
    turns = turns_of(
        tmp_path,
        item("reasoning", summary=[{"type": "summary_text", "text": "short"}], content=content),
        item("reasoning", summary=[{"type": "summary_text", "text": "more"}], content=None),
        said("a"),
    )
    assert [(turn.thinking, turn.content) for turn in turns] == [("raw\n\nmore", "a")]


def test_a_file_without_a_conversation_is_counted(tmp_path: Path) -> None:
    traces, stats = read_records(tmp_path, ROLLOUT[0], ROLLOUT[5], event("task_started"))
    assert traces == []
    assert (stats.n_records_total, stats.n_records_skipped) == (3, 3)
    assert stats.skipped["no conversation"] == 2


def test_odd_records_are_counted_and_the_rest_is_read(tmp_path: Path) -> None:
    odd = [
        {"type": "response_item", "payload": None},
        {"type": "event_msg"},
        {"type": ["session_meta"], "payload": {}},
        {"timestamp": 5},
        {"type": "brand_new"},
        7,
        record("brand_new", a=1),
        item("brand_new"),
        event("brand_new"),
        record("event_msg"),
        record("response_item"),
        item("message", role="user", content=None),
        item("message", role="critic", content="x"),
    ]
    traces, stats = read_records(tmp_path, ROLLOUT[0], *odd, user("a"), said("b"))
    assert texts(traces[0].turns) == ["You are Codex.", "a", "b"]
    assert stats.n_records_skipped == len(odd)
    assert stats.skipped["record: damaged"] == 3
    assert [stats.skipped[f"{what}: brand_new"] for what in ("record", "item", "event")] == [2, 1, 1]


def test_the_sniffer(tmp_path: Path) -> None:
    for records in (ROLLOUT, FLAT, EVENTS, ROLLOUT[8:], FLAT[:1], FLAT[2:], FLAT[5:]):
        assert sniffs(tmp_path, *records)
    for other in (
        {"type": "user", "message": {"role": "user", "content": "a"}, "uuid": "u", "sessionId": "s"},
        {"type": "message", "role": "user", "content": [{"type": "input_text"}], "uuid": "u"},
        {"messages": [{"role": "user", "content": "a"}]},
        {"id": "x", "timestamp": "t", "instructions": "i", "messages": []},
        {"type": "message", "role": "user", "content": "a"},
        {"type": "event_msg", "payload": "x"},
        {"type": "other", "payload": {}},
        {"id": "x", "timestamp": "t"},
        {"schema_version": "ATIF-v1.5", "steps": []},
        {"history": [], "trajectory": []},
    ):
        assert not sniffs(tmp_path, other)


COMPACTED = record(
    "compacted", message="m", replacement_history=[user("Fix the tests")["payload"], call("c9")["payload"]]
)
LONG = [*ROLLOUT, event("thread_rolled_back", num_turns=1), user("again"), COMPACTED, said("so"), event("turn_aborted")]


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damage_to_records_stops_the_reader(tmp_path: Path, data: st.DataObject) -> None:
    whole = data.draw(st.sampled_from([LONG, FLAT, EVENTS]))
    has_items = whole is not EVENTS
    records = damaged(data, whole, 4)
    last = (user("last") if has_items else event("user_message", message="last"), event("agent_message", message="end"))
    traces, stats = read_records(tmp_path, *records, *last, subagents=True)
    assert len(traces) == 1
    assert "last" in texts(traces[0].turns)
    assert stats.n_records_total == len(records) + 2
    assert stats.n_records_skipped <= stats.n_records_total
    list(traces[0].states())
    json.dumps(traces[0].example())
    ids = [one.id for turn in traces[0].turns for one in turn.tool_calls]
    assert len(ids) == len(set(ids))
    for index, turn in enumerate(traces[0].turns):
        assert turn.follows is None or -1 <= turn.follows < index


def marked(tmp_path: Path, given: Any, *, tool: str = "apply_patch", arguments: str = "{}") -> list[Turn]:
    """The turns of a session with one call and its result, errors found by their texts too."""
    made = item("function_call", name=tool, arguments=arguments, call_id="c1")
    path = tmp_path / "log.jsonl"
    records = [record("session_meta", id=OWN_ID), user("go"), made, output("c1", given), said("done")]
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    (trace,) = read_traces(path)
    return [turn for turn in trace.turns if turn.tool_calls or turn.role == "tool"]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("edit_no_match", "error: Failed to find expected lines in src/a.py:\n    return 1\n"),
        ("edit_no_match", "apply_patch verification failed: Failed to find expected lines in src/a.py:\n    return 1"),
        ("edit_no_match", "apply_patch verification failed: Error: Failed to find context 'def f():' in src/a.py"),
        ("malformed_call", "apply_patch verification failed: invalid hunk at line 3, expected a header"),
        ("json_decode", "failed to parse function arguments: expected value at line 1 column 2"),
        ("type_error", "failed to parse function arguments: missing field `cmd` at line 1 column 2"),
        ("tool_not_found", "unsupported call: search_web"),
        ("interrupted", "aborted by user after 3.1s"),
    ],
)
@pytest.mark.parametrize(
    "wrap",
    [
        str,
        lambda text: json.dumps({"output": text, "metadata": {}}),
        lambda text: json.dumps({"output": text, "metadata": {"duration_seconds": 0.1}}),
        lambda text: f"Wall time: 0.1 seconds\nOutput:\n{text}",
        lambda text: {"content": text},
        lambda text: [{"type": "input_text", "text": text}],
    ],
    ids=["bare", "object", "object with a time", "header", "content", "parts"],
)
def test_errors_that_only_their_text_shows(tmp_path: Path, kind: str, text: str, wrap: Any) -> None:
    asked, answered = marked(tmp_path, wrap(text))
    assert (answered.is_error, answered.error_kind) == (True, kind)
    assert asked.tool_error == kind
    assert asked.error_meta is not None
    if kind == "edit_no_match":
        assert asked.error_meta["path"] == "src/a.py"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("edit_no_match", "apply_patch verification failed: Failed to find expected lines in src/a.py:\n    return 1"),
        ("edit_no_match", "error: Failed to find expected lines in src/a.py:\n    return 1"),
        ("edit_no_match", "Exit code: 1\nWall time: 0 seconds\nOutput:\nFailed to find expected lines in src/a.py:\nx"),
        ("malformed_call", "apply_patch verification failed: invalid hunk at line 2, '@' is not a valid hunk header"),
        (
            "malformed_call",
            "Exit code: 1\nWall time: 0 seconds\nOutput:\nInvalid patch hunk on line 2: '@' is no header",
        ),
        ("malformed_call", json.dumps({"output": "Invalid patch: the first line\n", "metadata": {"exit_code": 1}})),
    ],
)
def test_patches_that_the_shell_was_given(tmp_path: Path, kind: str, text: str) -> None:
    asked, answered = marked(tmp_path, text, tool="shell", arguments='{"command": ["apply_patch", "*** Begin Patch"]}')
    assert (answered.is_error, asked.tool_error) == (True, kind)
    assert asked.error_meta is not None
    assert asked.error_meta.get("path") == ("src/a.py" if kind == "edit_no_match" else None)


def test_a_process_that_is_not_there(tmp_path: Path) -> None:
    asked, answered = marked(tmp_path, "write_stdin failed: Unknown process id 4711", tool="write_stdin")
    assert (answered.is_error, asked.tool_error) == (True, "unknown_name")
    assert asked.error_meta is not None
    assert asked.error_meta["name"] == "4711"


def test_a_server_that_answers_with_an_error(tmp_path: Path) -> None:
    text = "tool call error: tool call failed for `tickets/get`\n\nCaused by:\n    Mcp error: -32603: no ticket T-9"
    asked, answered = marked(tmp_path, text, tool="mcp__tickets__get")
    assert (answered.is_error, asked.tool_error) == (True, "mcp_error")
    assert asked.error_meta is not None
    assert asked.error_meta["error_message"] == "Mcp error: -32603: no ticket T-9"
    asked, _ = marked(tmp_path, "tool call error: unknown ticket T-9", tool="mcp__tickets__get")
    assert asked.error_meta is not None
    assert asked.error_meta["error_message"] == "tool call error: unknown ticket T-9"


@pytest.mark.parametrize(
    "given",
    [
        "Exit code: 0\nWall time: 0 seconds\nOutput:\nerror: Failed to find expected lines in a.py:\n",
        "Chunk ID: 1\nWall time: 0 seconds\nProcess exited with code 0\nOutput:\nError: as the log says\n",
        "Chunk ID: 1\nWall time: 0 seconds\nProcess running with session ID 7\nOutput:\nError: retrying\n",
        json.dumps({"output": "tool call error: quoted\n", "metadata": {"exit_code": 0}}),
        json.dumps({"output": "Success. Updated the following files:\nM error.py\n", "metadata": {}}),
        "Success. Updated the following files:\nM a.py\n",
        "Plan updated",
        "tests.py: error: Failed to find expected lines",
    ],
)
def test_results_that_only_tell_of_errors(tmp_path: Path, given: Any) -> None:
    asked, answered = marked(tmp_path, given, tool="shell", arguments='{"command": ["cat", "a.log"]}')
    assert (answered.is_error, asked.tool_error) == (False, None)
