"""OpenHands rows and events, of both versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from damaged_logs import FIXTURES, read_path, read_value, survives_damage

from composer_replication.ingestion.formats import Head, openhands
from composer_replication.ingestion.statistics import IngestionStats
from composer_replication.traces import Trace, Usage

ROWS = FIXTURES / "openhands" / "output.jsonl"
EVENTS = FIXTURES / "openhands" / "events.json"


def read_events(folder: Path, *events: Any, **row: Any) -> tuple[Trace, IngestionStats]:
    (trace,), stats = read_value(openhands, folder, {"history": list(events), **row})
    return trace, stats


def action(name: str, number: int | None = None, source: str | None = "agent", **args: Any) -> dict[str, Any]:
    return {"id": number, "source": source, "action": name, "args": args}


def seen(name: str, content: Any, number: int | None = None, **more: Any) -> dict[str, Any]:
    return {"id": number, "source": "environment", "observation": name, "content": content, **more}


def contents(trace: Trace) -> list[tuple[str, str]]:
    return [(turn.role, turn.content) for turn in trace.turns]


def last_messages(trace: Trace) -> list[str]:
    return [message["content"] for message in list(trace.states())[-1]["messages"]]


def test_a_row() -> None:
    (trace,), stats = read_path(openhands, ROWS)
    assert (trace.trace_id, trace.source.line, trace.source.version) == ("output#1", 1, "0")
    assert contents(trace) == [
        ("system", "You are an agent."),
        ("user", "Fix c.py"),
        ("assistant", "Two at once."),
        ("tool", "c.py\n[exit code 0]"),
        ("tool", "no such file"),
        ("user", "Listed files."),
        ("assistant", "All done."),
    ]
    reply = trace.turns[2]
    assert [(call.id, call.name, call.arguments) for call in reply.tool_calls] == [
        ("k1", "execute_bash", {"command": "ls"}),
        ("k2", "str_replace_editor", {"command": "view", "path": "c.py"}),
    ]
    assert (reply.thinking, reply.id, reply.model, reply.timestamp) == ("Hm.", "r1", "model-a", "2026-01-01T00:00:00")
    assert reply.usage == Usage(input_tokens=20, output_tokens=6)
    assert [(turn.tool_call_id, turn.is_error) for turn in trace.turns[3:5]] == [("k1", False), ("k2", True)]
    finish = trace.turns[6]
    assert (finish.tool_calls[0].name, finish.tool_calls[0].arguments) == ("finish", {"final_thought": "done"})
    assert finish.usage == Usage(input_tokens=30, output_tokens=4, cached_tokens=10, cache_write_tokens=2)
    assert trace.tools == [{"type": "function", "function": {"name": "execute_bash"}}]
    assert (trace.model, trace.final_reward) == ("model-a", 0.0)
    assert trace.meta == {"instance_id": "repo__c-3", "agent": "CodeActAgent", "accumulated_cost": 0.5}
    assert stats.skipped == {"recall action": 1, "recall observation": 1, "agent_state_changed observation": 1}


def test_events_of_version_1() -> None:
    (trace,), stats = read_path(openhands, EVENTS)
    assert (trace.trace_id, trace.source.version) == ("events", "1")
    assert contents(trace) == [
        ("system", "You code.\nHost: h"),
        ("user", "Fix d.py\nSkill: d"),
        ("assistant", "Both."),
        ("tool", "denied\nRule: no pwd"),
        ("tool", "bad"),
        ("user", "Tried."),
        ("assistant", "I stop."),
    ]
    reply = trace.turns[2]
    expected = [("m1", "terminal", {"command": "ls"}), ("m2", "terminal", {"command": "pwd"})]
    assert [(call.id, call.name, call.arguments) for call in reply.tool_calls] == expected
    assert (reply.thinking, reply.id) == ("Hm.", "q1")
    assert [(turn.tool_call_id, turn.is_error) for turn in trace.turns[3:5]] == [("m2", True), ("m1", True)]
    assert trace.turns[6].thinking == "Enough."
    assert trace.tools == [
        {"type": "function", "function": {"name": "terminal"}},
        {"type": "function", "function": {"name": "finish", "description": "Ends."}},
    ]
    assert stats.skipped == {"ConversationStateUpdateEvent": 1}


@pytest.mark.parametrize("path", [ROWS, EVENTS])
def test_a_condensation_leaves_what_was_not_forgotten(path: Path) -> None:
    (trace,), _ = read_path(openhands, path)
    summary = trace.turns[5]
    assert (summary.origin, summary.follows, summary.keeps) == ("summary", 1, [])
    assert last_messages(trace) == [trace.turns[0].content, trace.turns[1].content, summary.content]


def test_a_second_condensation_and_what_stays_behind_it(tmp_path: Path) -> None:
    trace, _ = read_events(
        tmp_path,
        action("message", 1, "user", content="go"),
        action("run", 2, command="a"), seen("run", "of a", 3, cause=2),
        action("run", 4, command="b"), seen("run", "of b", 5, cause=4),
        action("condensation", 6, forgotten_event_ids=[2], summary="did a"),
        action("run", 7, command="c"), seen("run", "of c", 8, cause=7),
        action("condensation", 9, forgotten_event_ids=[2, 4, 5], summary="did a and b"),
        action("finish", 10, thought="done"),
    )  # fmt: skip
    first, second = (turn for turn in trace.turns if turn.origin == "summary")
    assert (first.follows, [trace.turns[one].content for one in first.keeps]) == (0, ["", "of b"])
    assert (second.follows, [trace.turns[one].content for one in second.keeps]) == (0, ["", "of c"])
    assert last_messages(trace) == ["go", "did a and b", "", "of c"]


def test_a_range_of_forgotten_events_has_both_its_ends(tmp_path: Path) -> None:
    texts = [action("message", number, "user", content=f"m{number}") for number in range(1, 6)]
    change = action("condensation", 6, forgotten_events_start_id=2, forgotten_events_end_id=4, summary="s")
    trace, _ = read_events(tmp_path, *texts, change, action("finish", 7))
    assert last_messages(trace) == ["m1", "s", "m5"]


@pytest.mark.parametrize("forgotten", [None, [], [99], "x"])
def test_a_condensation_that_names_no_known_event_begins_the_context(tmp_path: Path, forgotten: Any) -> None:
    trace, _ = read_events(
        tmp_path,
        action("message", 1, "user", content="go"),
        {"id": 2, "kind": "Condensation", "source": "environment", "summary": "s", "forgotten_event_ids": forgotten},
        action("message", 3, content="on"),
    )
    assert trace.turns[1].follows == -1
    assert last_messages(trace) == ["s"]


@pytest.mark.parametrize(
    "event",
    [
        seen("condense", "short", 2),
        {"id": "x", "kind": "CondensationSummaryEvent", "source": "environment", "summary": "short"},
    ],
)
def test_a_logged_summary_begins_the_context(tmp_path: Path, event: dict[str, Any]) -> None:
    trace, _ = read_events(
        tmp_path, action("message", 1, "user", content="go"), event, action("message", 3, content="on")
    )
    assert last_messages(trace) == ["short"]


def test_a_condensation_without_a_summary_says_so(tmp_path: Path) -> None:
    trace, _ = read_events(
        tmp_path, action("message", 1, "user", content="go"), action("condensation", 2, forgotten_event_ids=[1])
    )
    assert trace.turns[1].content == "[earlier events were dropped from the context]"


FLAT = [
    {"action": "message", "content": "go", "wait_for_response": False},
    {"action": "run", "command": "ls", "thought": "Look.", "keep_prompt": True, "is_confirmed": "confirmed"},
    {"observation": "run", "content": "a.py", "command": "ls", "exit_code": 0, "command_id": -1},
    {"action": "run_ipython", "code": "1/0", "thought": "", "kernel_init_code": "x"},
    {"observation": "run_ipython", "content": "ZeroDivisionError"},
    {"action": "message", "content": "Shall I?", "wait_for_response": True},
    {"action": "message", "content": "yes"},
    {"action": "think", "thought": "hm"},
    {"observation": "null", "content": ""},
    {"action": "run", "command": "false"},
    {"observation": "run", "content": "", "exit_code": 1},
    {"action": "finish", "thought": "Done.", "outputs": {}},
]


@pytest.mark.parametrize("paired", [False, True])
def test_old_flat_events_and_pairs(tmp_path: Path, paired: bool) -> None:
    none = {"observation": "null", "content": ""}
    pairs = [[FLAT[0], none], FLAT[1:3], FLAT[3:5], [FLAT[5], none], [FLAT[6]], FLAT[7:9], FLAT[9:11], [FLAT[11], none]]
    (trace,), stats = read_value(openhands, tmp_path, {"history": pairs if paired else FLAT, "success": True})
    assert contents(trace) == [
        ("user", "go"),
        ("assistant", "Look."),
        ("tool", "a.py"),
        ("assistant", ""),
        ("tool", "ZeroDivisionError"),
        ("assistant", "Shall I?"),
        ("user", "yes"),
        ("assistant", "hm"),
        ("assistant", ""),
        ("tool", ""),
        ("assistant", "Done."),
    ]
    calls = [(call.name, call.arguments, answer.content if answer else None) for _, call, answer in trace.calls()]
    assert calls == [
        ("execute_bash", {"command": "ls"}, "a.py"),
        ("execute_ipython_cell", {"code": "1/0"}, "ZeroDivisionError"),
        ("think", {}, None),
        ("execute_bash", {"command": "false"}, ""),
        ("finish", {"outputs": {}}, None),
    ]
    assert [turn.is_error for turn in trace.turns if turn.role == "tool"] == [False, False, True]
    assert trace.final_reward == 1.0
    assert stats.skipped == {"null observation": 4 if paired else 1}


def test_a_result_stands_behind_its_call_wherever_it_was_logged(tmp_path: Path) -> None:
    trace, _ = read_events(
        tmp_path,
        action("run", 1, command="slow"),
        action("message", 2, "user", content="hurry"),
        action("run", 3, command="fast"),
        seen("run", "fast", 4, cause=3),
        seen("run", "slow", 5, cause=1),
    )
    expected = [("assistant", ""), ("tool", "slow"), ("user", "hurry"), ("assistant", ""), ("tool", "fast")]
    assert contents(trace) == expected
    expected = [("slow", "slow"), ("fast", "fast")]
    assert [(call.arguments["command"], answer.content) for _, call, answer in trace.calls() if answer] == expected


def test_a_result_whose_action_is_unknown_stays_in_order(tmp_path: Path) -> None:
    trace, _ = read_events(
        tmp_path, action("run", 1, command="a"), seen("error", "boom", 2, cause=77), seen("run", "of a", 3)
    )
    expected = [("of a", "call_0_0", False), ("boom", None, True)]
    assert [(turn.content, turn.tool_call_id, turn.is_error) for turn in trace.turns[1:]] == expected


@pytest.mark.parametrize(
    ("event", "failed"),
    [
        (seen("run", "", extras={"exit_code": 1}), True),
        (seen("run", "", extras={"metadata": {"exit_code": 127}}), True),
        (seen("run", "", exit_code=2), True),
        (seen("run", "", extras={"metadata": {"exit_code": 0}}, success=True), False),
        (seen("edit", "", success=False), True),
        (seen("user_rejected", "no"), True),
        (seen("error", "no"), True),
        (seen("read", "text"), False),
        ({"kind": "ObservationEvent", "tool_call_id": "call_0_0", "observation": {"is_error": True}}, True),
        ({"kind": "ObservationEvent", "observation": {"metadata": {"exit_code": 1}, "output": "o"}}, True),
        ({"kind": "ObservationEvent", "observation": {"content": "fine", "exit_code": None}}, False),
        ({"kind": "UserRejectObservation", "action_id": 1, "rejection_reason": "no"}, True),
    ],
)
def test_error_flags(tmp_path: Path, event: dict[str, Any], failed: bool) -> None:
    trace, _ = read_events(tmp_path, action("run", 1, command="x"), event)
    assert trace.turns[1].tool_call_id == "call_0_0"
    assert trace.turns[1].is_error is failed


@pytest.mark.parametrize(
    ("observation", "text"),
    [
        ({"kind": "X", "content": [{"text": "a"}], "output": "b"}, "a"),
        ({"kind": "X", "output": "b"}, "b"),
        ({"kind": "X", "files": ["c"]}, '{"files": ["c"]}'),
        ("plain", "plain"),
        (None, ""),
    ],
)
def test_texts_of_observations(tmp_path: Path, observation: Any, text: str) -> None:
    trace, _ = read_events(tmp_path, {"kind": "ObservationEvent", "observation": observation})
    assert trace.turns[0].content == text


def test_a_rejection_reads_as_the_model_saw_it(tmp_path: Path) -> None:
    trace, _ = read_events(tmp_path, {"kind": "UserRejectObservation", "rejection_reason": "no"})
    assert trace.turns[0].content == "Action rejected: no"


def test_an_action_event_without_its_tool_call(tmp_path: Path) -> None:
    trace, _ = read_events(
        tmp_path,
        {
            "kind": "ActionEvent",
            "id": "a",
            "tool_name": "edit",
            "tool_call_id": "t",
            "action": {"kind": "E", "path": "p"},
        },
        {"kind": "ActionEvent", "id": "b", "action": {"kind": "Glob"}},
        {"kind": "ActionEvent", "id": "c"},
        {"kind": "ObservationEvent", "action_id": "b", "observation": {"content": "found"}},
    )
    calls = [
        (call.id, call.name, call.arguments, answer.content if answer else None) for _, call, answer in trace.calls()
    ]
    assert calls == [
        ("t", "edit", {"path": "p"}, None),
        ("call_1_0", "Glob", {}, "found"),
        ("call_2_0", "unknown", {}, None),
    ]


def test_text_of_one_reply_in_two_events_is_kept(tmp_path: Path) -> None:
    trace, _ = read_events(
        tmp_path,
        {"kind": "MessageEvent", "source": "agent", "llm_response_id": "r", "llm_message": {"content": "First."}},
        {"kind": "ActionEvent", "llm_response_id": "r", "tool_name": "t", "thought": [{"text": "Then."}]},
    )
    assert contents(trace) == [("assistant", "First.\nThen.")]
    assert len(trace.turns[0].tool_calls) == 1


def test_tokens_from_the_running_total(tmp_path: Path) -> None:
    def total(prompt: int, completion: int, cached: int) -> dict[str, Any]:
        usage = {"prompt_tokens": prompt, "completion_tokens": completion, "cache_read_tokens": cached}
        return {"llm_metrics": {"accumulated_token_usage": usage}}

    trace, _ = read_events(
        tmp_path,
        {**action("run", 1, command="a"), **total(10, 2, 0)},
        {**action("run", 2, command="b"), **total(25, 5, 8)},
        {**action("run", 3, command="c"), **total(25, 5, 8)},
        action("run", 4, command="d"),
    )
    assert [turn.usage for turn in trace.turns] == [
        Usage(input_tokens=10, output_tokens=2),
        Usage(input_tokens=15, output_tokens=3, cached_tokens=8),
        None,
        None,
    ]


def test_commands_of_the_user_and_messages_by_tool_call(tmp_path: Path) -> None:
    trace, _ = read_events(
        tmp_path,
        action("run", 1, "user", command="ls"),
        {**action("message", 2, content="Which?"), "tool_call_metadata": {"tool_call_id": "q", "function_name": "ask"}},
        action("message", 3, "agent", content="Plain."),
    )
    expected = (
        "user",
        "command",
        '{"command": "ls"}',
    )
    assert (trace.turns[0].role, trace.turns[0].origin, trace.turns[0].content) == expected
    assert [call.name for call in trace.turns[1].tool_calls] == ["ask"]
    assert trace.turns[2].tool_calls == []


def test_unknown_events_are_counted(tmp_path: Path) -> None:
    trace, stats = read_events(
        tmp_path,
        action("message", 1, "user", content="go"),
        action("levitate", 2),
        seen("levitated", "up", 3),
        {"kind": "NewEvent", "id": "n"},
        {"id": 5},
        7,
        {**action("custom", 8, x=1), "tool_call_metadata": {"tool_call_id": "z", "function_name": "custom_tool"}},
    )
    assert [turn.role for turn in trace.turns] == ["user", "assistant"]
    assert trace.turns[1].tool_calls[0].name == "custom_tool"
    assert stats.skipped == {
        "levitate action": 1,
        "levitated observation": 1,
        "NewEvent": 1,
        "event without a type": 1,
        "event that is not an object": 1,
    }


def test_the_instruction_of_a_row_stands_in_for_a_missing_prompt(tmp_path: Path) -> None:
    trace, _ = read_events(tmp_path, action("system", 0, content="s"), action("finish", 1), instruction="Fix it")
    assert contents(trace) == [("system", "s"), ("user", "Fix it"), ("assistant", "")]
    trace, _ = read_events(tmp_path, action("message", 0, "user", content="go"), instruction="Fix it")
    assert contents(trace) == [("user", "go")]


@pytest.mark.parametrize(
    ("row", "instance"),
    [
        ({"instance": {"instance_id": "i"}}, "i"),
        ({"issue": {"owner": "o", "repo": "r", "number": 4}}, "o/r#4"),
        ({"issue": {"number": 4}}, None),
    ],
)
def test_instances(tmp_path: Path, row: dict[str, Any], instance: str | None) -> None:
    trace, _ = read_events(tmp_path, action("finish", 1), **row)
    assert trace.meta.get("instance_id") == instance


def test_rows_and_lines(tmp_path: Path) -> None:
    path = tmp_path / "output.jsonl"
    rows = [{"history": FLAT}, {"history": []}, {"history": None}, {"other": 1}, {"history": FLAT}]
    path.write_text("\n".join(json.dumps(row) for row in rows) + '\n{"history": [')
    traces, stats = read_path(openhands, path)
    assert [trace.trace_id for trace in traces] == ["output#1", "output#5"]
    assert [trace.source.line for trace in traces] == [1, 5]
    assert stats.skipped["row without a history"] == 2
    assert stats.skipped["history without turns"] == 1
    assert stats.skipped_truncated_lines == 1


def test_events_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text("\n".join(json.dumps(event) for event in json.loads(EVENTS.read_text())))
    (trace,), _ = read_path(openhands, path)
    assert len(trace.turns) == 7


def test_a_row_over_many_lines_and_a_single_event(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    path.write_text(json.dumps({"history": FLAT, "instance_id": "i"}, indent=1))
    (trace,), _ = read_path(openhands, path)
    assert (trace.trace_id, trace.meta["instance_id"]) == ("one", "i")
    path.write_text(json.dumps(action("finish", 1), indent=1))
    (trace,), _ = read_path(openhands, path)
    assert len(trace.turns) == 1
    path.write_text("[{")
    traces, stats = read_path(openhands, path)
    assert traces == []
    assert stats.skipped == {"not valid JSON": 1}
    path.write_text("")
    assert read_path(openhands, path)[0] == []


@pytest.mark.parametrize("name", ["event-{:05d}-ab.json", "{}.json"])
def test_a_folder_of_events_is_one_trace(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "events"
    folder.mkdir()
    events = json.loads(EVENTS.read_text())
    paths = [folder / name.format(number) for number in range(8, 8 + len(events))]
    for path, event in zip(paths, events, strict=True):
        path.write_text(json.dumps(event))
    (folder / "notes.json").write_text("[]")
    (trace,), stats = read_path(openhands, paths[0])
    assert (trace.trace_id, len(trace.turns)) == (paths[0].stem, 7)
    assert stats.n_records_total == len(events)
    traces, stats = read_path(openhands, paths[1])
    assert traces == []
    assert stats.skipped == {"event read with the first file of its folder": 1}


@pytest.mark.parametrize(
    ("value", "ours"),
    [
        ({"history": FLAT}, True),
        ({"history": [FLAT[1:3]]}, True),
        ({"history": [{"kind": "ActionEvent"}]}, True),
        (action("run", 1, command="ls"), True),
        (seen("run", "x"), True),
        ({"kind": "MessageEvent", "source": "user", "id": "e"}, True),
        ({"kind": "MessageEvent", "id": "e"}, False),
        ({"kind": "ClickEvent", "source": "user", "id": "e"}, False),
        ({"action": "run", "user": "u"}, False),
        ({"action": "run", "source": "agent"}, False),
        ({"action": "jump", "source": "agent", "args": {}}, False),
        ({"history": [{"role": "assistant", "action": "run", "content": "x"}]}, False),
        ({"history": [{"action": "run", "observation": "a"}]}, False),
        ({"messages": []}, False),
        ({"history": "x"}, False),
    ],
)
def test_only_its_own_events_are_claimed(value: dict[str, Any], ours: bool) -> None:
    assert openhands.sniff(Head(records=[value], document=value)) is ours
    if "history" not in value:
        assert openhands.sniff(Head(document=[value])) is ours


def test_damage(tmp_path: Path) -> None:
    survives_damage(openhands, tmp_path, json.loads(ROWS.read_text()))
    survives_damage(openhands, tmp_path, json.loads(EVENTS.read_text()))
    survives_damage(openhands, tmp_path, {"history": FLAT, "issue": {"repo": "r"}, "instruction": "i"})
