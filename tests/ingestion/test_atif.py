"""Harbor's ATIF documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from damaged_logs import FIXTURES, read_path, read_value, survives_damage

from composer_replication.ingestion.formats import Head, atif, mini_swe_agent, openhands, read_head, swe_agent
from composer_replication.ingestion.log_file import LogFile
from composer_replication.ingestion.statistics import IngestionStats
from composer_replication.traces import Trace, Usage

FILE = FIXTURES / "atif" / "subagents.json"


def read_steps(folder: Path, *steps: Any, **root: Any) -> tuple[Trace, IngestionStats]:
    traces, stats = read_value(atif, folder, {"schema_version": "ATIF-v1.7", "steps": list(steps), **root})
    assert len(traces) == 1
    return traces[0], stats


def step(source: str, message: Any = "", **more: Any) -> dict[str, Any]:
    return {"source": source, "message": message, **more}


def results(*given: Any) -> dict[str, Any]:
    return {"results": list(given)}


def call(call_id: str | None, name: str = "tool", **arguments: Any) -> dict[str, Any]:
    return {"tool_call_id": call_id, "function_name": name, "arguments": arguments}


def test_a_document() -> None:
    (trace,), stats = read_path(atif, FILE)
    assert (trace.trace_id, trace.session_id, trace.parent) == ("subagents", "run-1", None)
    assert [turn.role for turn in trace.turns] == ["system", "user", "assistant", "tool", "tool", "user", "assistant"]
    assert trace.turns[1].content == "Bake this:\n[image: images/loaf.png]"
    assert (trace.turns[1].origin, trace.turns[1].timestamp) == ("prompt", "2026-01-01T00:00:00Z")
    reply = trace.turns[2]
    assert (reply.content, reply.thinking, reply.model) == ("Heating and asking.", "Two things at once.", "model-b")
    expected = [("c1", "oven", {"degrees": 220}), ("c2", "delegate", {"task": "knead"})]
    assert [(one.id, one.name, one.arguments) for one in reply.tool_calls] == expected
    assert reply.usage == Usage(input_tokens=100, output_tokens=9, cached_tokens=60, cache_write_tokens=7)
    expected = [("c2", "kneaded", False), ("c1", "too hot", True)]
    assert [(turn.tool_call_id, turn.content, turn.is_error) for turn in trace.turns[3:5]] == expected
    assert trace.model == "model-a"
    assert trace.tools[0]["function"]["name"] == "oven"
    assert trace.final_reward == 0.5
    assert trace.source.version == "ATIF-v1.8"
    assert trace.meta["agent"] == "baker"
    assert trace.meta["notes"] == "a loaf"
    assert trace.meta["trajectory_id"] == "root"
    assert stats.skipped == {}


def test_embedded_sub_agents_are_traces_of_their_own_if_asked_for() -> None:
    _, stats = read_path(atif, FILE)
    assert stats.skipped_subagent == 2
    traces, stats = read_path(atif, FILE, subagents=True)
    assert [(trace.trace_id, trace.parent) for trace in traces] == [
        ("subagents", None),
        ("subagents#kneader", "subagents"),
        ("subagents#kneader#hands", "subagents#kneader"),
    ]
    assert stats.skipped_subagent == 0


def test_sub_agents_without_ids_and_under_extra(tmp_path: Path) -> None:
    children = [{"steps": [step("user", "a")]}, {"steps": []}, 5]
    document = {"steps": [step("user", "go")], "extra": {"subagent_trajectories": children, "job": "j"}}
    traces, stats = read_value(atif, tmp_path, document, subagents=True)
    assert [trace.trace_id for trace in traces] == ["log", "log#0"]
    assert stats.skipped == {"trajectory without steps": 2}
    assert traces[0].meta["extra"] == {"job": "j"}


def test_steps_of_a_sidechain_are_a_sub_agents(tmp_path: Path) -> None:
    aside = {"extra": {"is_sidechain": True}}
    named = {"extra": {"is_sidechain": True, "agent_id": "scout"}}
    document = {
        "schema_version": "ATIF-v1.6",
        "steps": [step("user", "go"), step("user", "look", **aside), step("agent", "I look", **aside),
                  step("user", "scout", **named), step("agent", "done")],
    }  # fmt: skip
    traces, stats = read_value(atif, tmp_path, document)
    assert [turn.content for turn in traces[0].turns] == ["go", "done"]
    assert stats.skipped_subagent == 2
    traces, _ = read_value(atif, tmp_path, document, subagents=True)
    assert [(trace.trace_id, len(trace.turns)) for trace in traces] == [
        ("log", 2),
        ("log#sidechain", 2),
        ("log#scout", 1),
    ]


def test_a_boundary_with_a_summary_begins_the_context() -> None:
    (trace,), _ = read_path(atif, FILE)
    summary = trace.turns[5]
    assert (summary.role, summary.origin, summary.follows) == ("user", "summary", -1)
    last = list(trace.states())[-1]
    assert [message["content"] for message in last["messages"]] == ["You bake.", "The oven was too hot."]


def test_a_boundary_without_a_summary_begins_the_context_with_the_next_step(tmp_path: Path) -> None:
    boundary = {"extra": {"context_management": {"type": "compaction", "boundary": "replace"}}}
    trace, stats = read_steps(
        tmp_path,
        step("user", "old"),
        step("system", "compacted", observation=results({"subagent_trajectory_ref": [{}]}), **boundary),
        step("user", "new"),
        step("agent", "answer"),
    )
    assert [turn.follows for turn in trace.turns] == [None, -1, None]
    assert [message["content"] for message in next(trace.states())["messages"]] == ["new"]
    assert stats.skipped == {"context boundary without content": 1}


def test_a_compaction_by_a_tool_of_the_agent(tmp_path: Path) -> None:
    trace, _ = read_steps(
        tmp_path,
        step("user", "old"),
        step(
            "agent",
            tool_calls=[call("c", "compact")],
            observation=results({"source_call_id": "c", "content": "short"}),
            llm_call_count=0,
            extra={"context_management": {"boundary": "replace"}},
        ),
        step("agent", "answer"),
    )
    assert [message["content"] for message in next(trace.states())["messages"]] == ["short"]


@pytest.mark.parametrize(("boundary", "content"), [("append", "known facts"), ("truncate", None), (None, None)])
def test_other_changes_of_the_context(tmp_path: Path, boundary: str | None, content: str | None) -> None:
    change = {"extra": {"context_management": {"type": "x", "boundary": boundary}}}
    trace, stats = read_steps(
        tmp_path, step("user", "go"), step("system", "note", observation=results({"content": content}), **change)
    )
    if content:
        assert (trace.turns[1].content, trace.turns[1].origin, trace.turns[1].follows) == (content, "system", None)
    else:
        assert len(trace.turns) == 1
        assert stats.skipped == {"context boundary without content": 1}


@pytest.mark.parametrize("mark", [{"is_copied_context": True}, {"llm_call_count": 0}])
def test_steps_that_are_only_context(tmp_path: Path, mark: dict[str, Any]) -> None:
    trace, _ = read_steps(tmp_path, step("user", "go"), step("agent", "old", **mark), step("agent", "new"))
    assert [turn.repeats for turn in trace.turns] == [False, True, False]
    (state,) = trace.states()
    assert [message["content"] for message in state["messages"]] == ["go", "old"]


def test_system_steps_after_the_first(tmp_path: Path) -> None:
    steps = [
        step("system", "You code."),
        step("user", "go"),
        step("system", "Note", observation=results({"content": "n"})),
    ]
    trace, stats = read_steps(tmp_path, *steps, agent={"name": "other"})
    assert [(turn.role, turn.content, turn.origin) for turn in trace.turns][2] == ("user", "Note\nn", "system")
    assert stats.skipped == {}
    trace, stats = read_steps(tmp_path, *steps, agent={"name": "openhands"})
    assert len(trace.turns) == 2
    assert stats.skipped == {"system step about the harness": 1}


KEYS = json.dumps({"analysis": "a", "commands": [{"keystrokes": "cd x\n"}, {"keystrokes": "ls\n"}, {"duration": 1}]})


@pytest.mark.parametrize(
    ("message", "command"),
    [
        (KEYS, "cd x\nls\n"),
        (f"Sure:\n```json\n{KEYS}\n```", "cd x\nls\n"),
        ('<commands><keystrokes duration="0.1">ls\n</keystrokes></commands>', "ls\n"),
        ("```bash\nls\n```", "ls"),
        ('{"commands": []}', None),
        ("{broken}", None),
        ("} {", None),
        ("words", None),
    ],
)
def test_keystrokes_of_a_reply_without_tool_calls(tmp_path: Path, message: str, command: str | None) -> None:
    trace, _ = read_steps(tmp_path, step("agent", message, observation=results({"content": "screen"})))
    reply, screen = trace.turns
    assert reply.content == message
    assert [(one.name, one.arguments) for one in reply.tool_calls] == (
        [("bash", {"command": command})] if command else []
    )
    assert screen.tool_call_id == (reply.tool_calls[0].id if command else None)
    assert (screen.role, screen.content) == ("tool", "screen")


def test_a_reply_without_an_observation_has_no_derived_call(tmp_path: Path) -> None:
    trace, _ = read_steps(tmp_path, step("agent", KEYS))
    assert trace.turns[0].tool_calls == []


def test_results_without_an_id_take_the_calls_that_are_left(tmp_path: Path) -> None:
    trace, stats = read_steps(
        tmp_path,
        step(
            "agent",
            "x",
            step_id=9,
            tool_calls=[call("a"), call(None), call("c"), {"tool_call_id": "d"}],
            observation=results(
                {"content": "first"}, {"source_call_id": "a", "content": "of a"}, {"content": "second"},
                {"content": "third"}, {"subagent_trajectory_ref": []}, {"source_call_id": "a"}, 5,
            ),
        ),
    )  # fmt: skip
    assert [one.id for one in trace.turns[0].tool_calls] == ["a", "call_0_1", "c"]
    assert trace.turns[0].id == "9"
    assert [(turn.content, turn.tool_call_id) for turn in trace.turns[1:]] == [
        ("first", "call_0_1"), ("of a", "a"), ("second", "c"), ("", "a"), ("third", None),
    ]  # fmt: skip
    expected = {"tool call without a name": 1, "result without content": 1, "result that is not an object": 1}
    assert stats.skipped == expected


@pytest.mark.parametrize(
    ("result", "extra", "failed"),
    [
        ({"is_error": True}, {}, True),
        ({"extra": {"exit_code": 1}}, {}, True),
        ({"extra": {"returncode": 2}}, {}, True),
        ({"extra": {"exit_code": 0}}, {}, False),
        ({"is_error": "true"}, {}, False),
        ({}, {"tool_result_is_error": True}, True),
        ({}, {}, False),
    ],
)
def test_error_flags(tmp_path: Path, result: dict[str, Any], extra: dict[str, Any], failed: bool) -> None:
    observation = results({"content": "r", "source_call_id": "a", **result})
    trace, _ = read_steps(tmp_path, step("agent", tool_calls=[call("a")], observation=observation, extra=extra))
    assert trace.turns[1].is_error is failed


def test_one_flag_for_several_results_says_nothing(tmp_path: Path) -> None:
    observation = results({"content": "r", "source_call_id": "a"}, {"content": "s", "source_call_id": "b"})
    flag = {"tool_result_is_error": True}
    trace, _ = read_steps(
        tmp_path, step("agent", tool_calls=[call("a"), call("b")], observation=observation, extra=flag)
    )
    assert [turn.is_error for turn in trace.turns[1:]] == [False, False]


def test_unknown_sources_and_broken_steps_are_counted(tmp_path: Path) -> None:
    trace, stats = read_steps(tmp_path, step("user", "go"), step("judge", "?"), None, {"message": "no source"})
    assert len(trace.turns) == 1
    assert stats.skipped == {"step source judge": 1, "step that is not an object": 1, "step source NoneType": 1}


@pytest.mark.parametrize("document", [{}, {"steps": []}, {"steps": 5}, [], "x"])
def test_a_document_without_steps_is_counted(tmp_path: Path, document: Any) -> None:
    traces, stats = read_value(atif, tmp_path, document)
    assert traces == []
    assert stats.skipped == {"trajectory without steps": 1}


def test_a_cut_file_is_counted(tmp_path: Path) -> None:
    (tmp_path / "cut.json").write_text('{"schema_version": "ATIF-v1.6", "steps": [')
    traces, stats = read_path(atif, tmp_path / "cut.json")
    assert traces == []
    assert stats.skipped == {"not valid JSON": 1}


@pytest.mark.parametrize(
    ("document", "ours"),
    [
        ({"schema_version": "ATIF-v1.5", "steps": []}, True),
        ({"schema_version": "ATIF-v1.5"}, False),
        ({"schema_version": "1.5", "steps": []}, False),
        ({"schema_version": 1, "steps": []}, False),
        ([], False),
        (None, False),
    ],
)
def test_only_documents_that_name_the_format_are_claimed(document: Any, ours: bool) -> None:
    assert atif.sniff(Head(document=document)) is ours


READERS = {"atif": atif, "mini_swe_agent": mini_swe_agent, "openhands": openhands, "swe_agent": swe_agent}
FILES = sorted(path for name in READERS for path in FIXTURES.glob(f"{name}/*"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_each_file_belongs_to_one_reader(path: Path) -> None:
    head = read_head(LogFile(path))
    assert [name for name, reader in READERS.items() if reader.sniff(head)] == [path.parent.name]


def test_damage(tmp_path: Path) -> None:
    survives_damage(atif, tmp_path, json.loads(FILE.read_text()))
