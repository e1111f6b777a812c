"""mini-swe-agent trajectories of both versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from damaged_logs import FIXTURES, read_path, read_value, survives_damage

from composer_replication.ingestion.formats import Head, mini_swe_agent, read_head
from composer_replication.ingestion.log_file import LogFile
from composer_replication.ingestion.statistics import IngestionStats
from composer_replication.traces import Trace, Usage


def read_messages(folder: Path, *messages: dict[str, Any]) -> tuple[Trace, IngestionStats]:
    traces, stats = read_value(mini_swe_agent, folder, list(messages))
    return traces[0], stats


def say(role: str, content: Any, **extra: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **({"extra": extra} if extra else {})}


def test_tool_calls_and_their_results() -> None:
    path = FIXTURES / "mini_swe_agent" / "tool_calls.traj.json"
    (trace,), stats = read_path(mini_swe_agent, path)
    assert trace.trace_id == "tool_calls.traj"
    assert [turn.role for turn in trace.turns] == [
        "system", "user", "assistant", "tool", "tool", "assistant", "user", "assistant", "tool",
    ]  # fmt: skip
    assert trace.turns[1].content == "Fix b.py"
    assert trace.turns[1].origin == "prompt"
    reply = trace.turns[2]
    assert (reply.content, reply.thinking, reply.id, reply.model) == ("Two looks.", "Look twice.", "resp-1", "model-a")
    expected = [("u1", "bash", {"command": "ls"}), ("u2", "bash", {"command": "cat c.py"})]
    assert [(call.id, call.name, call.arguments) for call in reply.tool_calls] == expected
    assert reply.usage == Usage(input_tokens=50, output_tokens=5, cached_tokens=20)
    assert reply.timestamp == "2026-01-01T00:00:00+00:00"
    assert [(turn.tool_call_id, turn.is_error) for turn in trace.turns[3:5]] == [("u1", False), ("u2", True)]
    assert (trace.model, trace.cwd, trace.source.version) == ("vendor/model-a", "/repo", "2.1.0")
    assert trace.meta == {
        "instance_id": "repo__b-2",
        "exit_status": "Submitted",
        "submission": "the patch",
        "model_stats": {"instance_cost": 0.02, "api_calls": 3},
        "trajectory_format": "mini-swe-agent-1.1",
    }
    assert stats.skipped == {}
    assert stats.n_records_total == 1


def test_a_refused_reply_is_a_state_that_later_states_do_not_see() -> None:
    (trace,), _ = read_path(mini_swe_agent, FIXTURES / "mini_swe_agent" / "tool_calls.traj.json")
    refused, complaint = trace.turns[5:7]
    assert (refused.role, refused.content) == ("assistant", "I am done.")
    assert refused.usage == Usage(input_tokens=70, output_tokens=3)
    assert (complaint.role, complaint.origin, complaint.follows) == ("user", "format_error", 4)
    states = list(trace.states())
    assert states[1]["student_action"] == "I am done."
    assert [message["content"] for message in states[2]["messages"]][-2:] == ["no such file", "Use the tool."]


def test_the_submitting_command_gets_the_exit_message() -> None:
    (trace,), _ = read_path(mini_swe_agent, FIXTURES / "mini_swe_agent" / "tool_calls.traj.json")
    assert (trace.turns[-1].tool_call_id, trace.turns[-1].content) == ("u3", "the patch")


def test_an_exit_by_a_limit_is_counted(tmp_path: Path) -> None:
    document = {
        "trajectory_format": "mini-swe-agent-1",
        "info": {},
        "messages": [
            say("user", "go"),
            say("assistant", "hm\n```bash\nls\n```"),
            say("exit", "LimitsExceeded", exit_status="LimitsExceeded"),
        ],
    }
    (trace,), stats = read_value(mini_swe_agent, tmp_path, document)
    assert [turn.role for turn in trace.turns] == ["user", "assistant"]
    assert trace.meta["exit_status"] == "LimitsExceeded"
    assert stats.skipped == {"exit message": 1}


@pytest.mark.parametrize(
    ("reply", "command"),
    [
        ("Look.\n```mswea_bash_command\nls -l\n```", "ls -l"),
        ("Look.\n```bash\nls -l\n```", "ls -l"),
        ("Look.\n<mswea_bash_command>ls -l</mswea_bash_command>", "ls -l"),
        ("Not this:\n```bash\nrm x\n```\nbut\n```mswea_bash_command\nls -l\n```", "ls -l"),
        ("```bash\nls\n```\n```bash\npwd\n```", None),
        ("```python\nprint()\n```", None),
        ("Only words.", None),
    ],
)
def test_the_command_of_a_text_reply(tmp_path: Path, reply: str, command: str | None) -> None:
    trace, _ = read_messages(
        tmp_path,
        say("user", "go"),
        say("assistant", reply),
        say("user", "<returncode>0</returncode>\n<output>\na\n</output>"),
    )
    assert trace.turns[1].content == reply
    calls = [(call.name, call.arguments) for call in trace.turns[1].tool_calls]
    assert calls == ([("bash", {"command": command})] if command else [])
    answer = trace.turns[2]
    if command:
        assert (answer.role, answer.tool_call_id) == ("tool", trace.turns[1].tool_calls[0].id)
    else:
        assert (answer.role, answer.origin) == ("user", "format_error")


@pytest.mark.parametrize(
    ("text", "extra", "failed"),
    [
        ("<returncode>1</returncode>\n<output>\n</output>", {}, True),
        ("<returncode>-1</returncode>", {}, True),
        ("<exception>timeout</exception>\n<returncode>3</returncode>", {}, True),
        ("<returncode>0</returncode>\n<output>\n<returncode>1</returncode></output>", {}, False),
        ("output: <returncode>1</returncode>", {}, False),
        ("fine", {"returncode": 2}, True),
        ("<returncode>1</returncode>", {"returncode": 0}, False),
        ("gone", {"returncode": 0, "exception_info": "not run"}, True),
    ],
)
def test_exit_codes_are_errors(tmp_path: Path, text: str, extra: dict[str, Any], failed: bool) -> None:
    trace, _ = read_messages(tmp_path, say("assistant", "```bash\nls\n```"), say("user", text, **extra))
    assert trace.turns[1].is_error is failed
    assert trace.turns[1].content == text


def test_several_actions_of_one_reply_get_their_results_in_order(tmp_path: Path) -> None:
    trace, _ = read_messages(
        tmp_path,
        say("assistant", "both", actions=[{"command": "a"}, {"command": "b"}, {"command": None}]),
        say("user", "of a", returncode=0),
        say("user", "of b", returncode=0),
        say("user", "by hand", returncode=0),
        say("user", "and now?"),
    )
    assert [call.arguments["command"] for call in trace.turns[0].tool_calls] == ["a", "b"]
    ids = [call.id for call in trace.turns[0].tool_calls]
    assert [turn.tool_call_id for turn in trace.turns[1:3]] == ids
    assert [turn.origin for turn in trace.turns[3:]] == ["command", "prompt"]


def test_an_interrupt_of_a_native_call_is_no_result(tmp_path: Path) -> None:
    call = {"id": "x", "function": {"name": "bash", "arguments": "not json"}}
    trace, _ = read_messages(
        tmp_path,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        say("user", "stop", interrupt_type="UserInterruption"),
        {"role": "tool", "tool_call_id": "unknown", "content": "late"},
    )
    assert trace.turns[0].tool_calls[0].raw_arguments == "not json"
    assert (trace.turns[1].role, trace.turns[1].origin) == ("user", "UserInterruption")
    assert trace.turns[2].tool_call_id == "unknown"


def test_a_refused_reply_that_is_already_there_is_not_repeated(tmp_path: Path) -> None:
    trace, _ = read_messages(
        tmp_path,
        say("assistant", "words"),
        say("user", "no", interrupt_type="FormatError", model_response="words"),
        say("user", "no again", interrupt_type="FormatError", model_response="other words"),
        say("user", "no reply", interrupt_type="FormatError"),
    )
    assert [(turn.role, turn.content, turn.follows) for turn in trace.turns] == [
        ("assistant", "words", None),
        ("user", "no", None),
        ("assistant", "other words", None),
        ("user", "no again", 1),
        ("user", "no reply", None),
    ]


def test_the_protocol_of_replies_without_tool_calls(tmp_path: Path) -> None:
    def protocol(*messages: dict[str, Any]) -> str | None:
        return read_messages(tmp_path, *messages)[0].meta.get("text_protocol")

    own, bash = say("assistant", "```mswea_bash_command\nls\n```"), say("assistant", "```bash\nls\n```")
    call = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
    assert protocol(own) == "mswea_bash_command"
    assert protocol(bash, say("user", "<returncode>0</returncode>")) == "single_bash_code_block"
    assert protocol(say("assistant", "```bash\nls\n```", actions=[{"command": "pwd"}])) is None
    assert protocol(say("assistant", "words")) is None
    assert protocol(bash, {**bash, "tool_calls": [call]}) is None


def test_the_responses_api(tmp_path: Path) -> None:
    response = {
        "object": "response",
        "id": "resp",
        "model": "m",
        "output": [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "why"}]},
            {"type": "message", "content": [{"type": "output_text", "text": "so"}]},
            {"type": "function_call", "call_id": "f1", "name": "bash", "arguments": '{"command": "ls"}'},
            {"type": "function_call", "call_id": "f2", "arguments": "{}"},
            {"type": "web_search_call"},
        ],
        "usage": {"input_tokens": 8, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 4}},
        "extra": {"actions": []},
    }
    traces, stats = read_value(
        mini_swe_agent,
        tmp_path,
        {
            "messages": [
                response,
                {"type": "function_call_output", "call_id": "f1", "output": "no", "extra": {"returncode": 127}},
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "on"}]},
            ]
        },
    )
    reply, result, user = traces[0].turns
    assert (reply.content, reply.thinking, reply.id, reply.model) == ("so", "why", "resp", "m")
    assert reply.usage == Usage(input_tokens=8, output_tokens=2, cached_tokens=4)
    assert [call.id for call in reply.tool_calls] == ["f1"]
    assert (result.tool_call_id, result.is_error) == ("f1", True)
    assert user.content == "on"
    assert stats.skipped == {"tool call without a name": 1, "response item web_search_call": 1}


def test_ids_that_a_log_uses_twice_stay_apart(tmp_path: Path) -> None:
    def call(command: str) -> dict[str, Any]:
        function = {"name": "bash", "arguments": json.dumps({"command": command})}
        return {"role": "assistant", "content": "", "tool_calls": [{"id": "same", "function": function}]}

    result = {"role": "tool", "tool_call_id": "same"}
    trace, _ = read_messages(
        tmp_path, call("a"), {**result, "content": "of a"}, call("b"), {**result, "content": "of b"}
    )
    answers = {call.arguments["command"]: answer.content for _, call, answer in trace.calls() if answer}
    assert answers == {"a": "of a", "b": "of b"}


def test_unknown_roles_and_broken_messages_are_counted(tmp_path: Path) -> None:
    traces, stats = read_value(
        mini_swe_agent, tmp_path, [say("user", "go"), say("oracle", "?"), 5, {"content": "no role"}]
    )
    assert len(traces[0].turns) == 1
    assert stats.skipped == {"role oracle": 1, "message that is not an object": 1, "role NoneType": 1}


@pytest.mark.parametrize("document", [{}, [], {"messages": {}}, {"messages": []}, 5, "text"])
def test_a_document_without_messages_is_counted(tmp_path: Path, document: Any) -> None:
    traces, stats = read_value(mini_swe_agent, tmp_path, document)
    assert traces == []
    assert stats.skipped == {"document without messages": 1}


def test_a_cut_file_is_counted(tmp_path: Path) -> None:
    (tmp_path / "cut.json").write_text('[{"role": "user"')
    traces, stats = read_path(mini_swe_agent, tmp_path / "cut.json")
    assert traces == []
    assert stats.skipped == {"not valid JSON": 1}


@pytest.mark.parametrize(
    ("document", "ours"),
    [
        ([say("assistant", "```mswea_bash_command\nls\n```")], True),
        ([say("user", "<returncode>0</returncode>")], True),
        ([say("user", "Answer in one ```mswea_bash_command block"), say("assistant", "hi")], False),
        ([say("assistant", "```bash\nls\n```")], False),
        ([say("assistant", "```mswea_bash_command\nls\n```"), {"content": "no role"}], False),
        ([], False),
        ({"messages": [say("user", "hi"), say("assistant", "hi")]}, False),
        ({"messages": [say("user", "hi")], "info": {"mini_version": "1"}}, True),
        ({"messages": [say("user", "<returncode>0</returncode>")], "info": {}}, True),
        ({"messages": [say("user", "hi")], "info": {}}, False),
        ({"messages": [], "trajectory_format": "mini-swe-agent-1"}, True),
        ({"messages": [], "trajectory_format": "other"}, False),
        ({"trajectory_format": "mini-swe-agent-1"}, False),
        (None, False),
    ],
)
def test_only_its_own_marks_are_claimed(document: Any, ours: bool) -> None:
    records = [document] if isinstance(document, dict) else []
    assert mini_swe_agent.sniff(Head(records=records, document=document)) is ours


def test_its_files_are_found(tmp_path: Path) -> None:
    assert mini_swe_agent.sniff(read_head(LogFile(FIXTURES / "mini_swe_agent" / "tool_calls.traj.json")))


def test_damage(tmp_path: Path) -> None:
    document = json.loads((FIXTURES / "mini_swe_agent" / "tool_calls.traj.json").read_text())
    survives_damage(mini_swe_agent, tmp_path, document)
    text = [
        say("assistant", "```bash\nls\n```", actions=[{"command": "ls"}]),
        say("user", "no", returncode=1, timestamp=5.0),
        {"object": "response", "output": [{"type": "message", "content": []}, {"type": "reasoning", "summary": []}]},
        {"type": "function_call_output", "call_id": "f", "output": "o"},
        say("user", "no", interrupt_type="FormatError", model_response="words"),
        say("exit", "", exit_status="Submitted"),
    ]
    survives_damage(mini_swe_agent, tmp_path, text)
