"""How a Claude Code session becomes turns: what real logs taught us, rule by rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from claude_sessions import SESSION_ID, Session, contents, histories, read_file, read_turns, shape, write_lines

from composer_replication.ingestion import IngestionStats, LogFile, ReadOptions
from composer_replication.ingestion.formats import read_head
from composer_replication.ingestion.formats.claude_code import read, sniff
from composer_replication.traces import Usage

# Turns: rules 1 to 5.


def test_a_turn_is_all_fragments_of_a_message(tmp_path: Path) -> None:
    session = Session()
    session.then.prompt("go").thinks("m1", "hm").says("m1", "I look.").says("m1", "Twice.")
    session.then.calls("m1", "c1", "Read", file_path="a.py").result("c1", "x = 1").says("m2", "Done.")
    user, first, result, second = read_turns(session.write(tmp_path))
    assert (user.role, user.content, user.origin, user.line) == ("user", "go", "prompt", 1)
    assert (first.thinking, first.content, first.id, first.line) == ("hm", "I look.\nTwice.", "m1", 2)
    assert first.tool_call is not None
    expected = (
        "c1",
        "Read",
        {"file_path": "a.py"},
    )
    assert (first.tool_call.id, first.tool_call.name, first.tool_call.arguments) == expected
    assert (result.role, result.content, result.tool_call_id, result.line) == ("tool", "x = 1", "c1", 6)
    assert (second.id, second.content, second.model) == ("m2", "Done.", "claude-x")
    assert first.timestamp == "2026-01-01T00:00:02.000Z"


def test_fragments_are_merged_across_foreign_records(tmp_path: Path) -> None:
    session = Session()
    session.then.prompt("go").says("m1", "I look.").progress().calls("m1", "c1").result("c1", "first").queued("hurry")
    session.then.record("file-history-snapshot", snapshot={}).calls("m1", "c2").result("c2", "second")
    session.says("m2", "Done.")
    turns = read_turns(session.write(tmp_path))
    assert [(turn.role, turn.content) for turn in turns] == [
        ("user", "go"),
        ("assistant", "I look."),
        ("tool", "first"),
        ("tool", "second"),
        ("user", "hurry"),
        ("assistant", "Done."),
    ]
    assert [call.id for call in turns[1].tool_calls] == ["c1", "c2"]


def test_results_are_paired_by_id_and_not_by_order(tmp_path: Path) -> None:
    session = Session()
    session.prompt("go")
    for call in ("c1", "c2", "c3"):
        session.calls("m1", call)
    for call in ("c3", "c1", "c2"):
        session.result(call, f"of {call}")
    session.says("m2", "Done.")
    (trace,), stats = read_file(session.write(tmp_path))
    answered = {call.id: answer.content for _, call, answer in trace.calls() if answer is not None}
    assert answered == {"c1": "of c1", "c2": "of c2", "c3": "of c3"}
    # Behind their turn, in the order of the calls.
    assert contents(histories(tmp_path / "session.jsonl")[1]) == ["go", "", "of c1", "of c2", "of c3"]
    assert (stats.n_tool_use_blocks, stats.n_tool_results, stats.n_assistant_turns) == (3, 3, 2)


def test_a_result_that_stands_before_its_call_is_found(tmp_path: Path) -> None:
    session = Session()
    session.then.prompt("go").result("c1", "early").calls("m1", "c1").says("m2", "Done.")
    turns = read_turns(session.write(tmp_path))
    assert [turn.role for turn in turns] == ["user", "assistant", "tool", "assistant"]
    assert turns[2].content == "early"


def test_parents_are_not_walked(tmp_path: Path) -> None:
    """Parallel calls fork the tree, and every result hangs on its own call: a walk from the last leaf loses most."""
    session = Session()
    session.prompt("go")
    calls = [session.calls("m1", f"c{number}") for number in range(4)]
    for number, call in enumerate(calls):
        session.result(f"c{number}", f"r{number}", parentUuid=call["uuid"])
    session.then.says("m2", "Done.", parentUuid=session.records[-4]["uuid"]).prompt("more", parentUuid="nobody")
    session.says("m3", "Yes.", parentUuid="nobody either")
    messages = histories(session.write(tmp_path))[-1]
    assert contents(messages) == ["go", "", "r0", "r1", "r2", "r3", "Done.", "more"]


def test_usage_is_that_of_the_last_fragment(tmp_path: Path) -> None:
    session = Session()
    session.prompt("go")
    session.says("m1", "a", usage={"input_tokens": 3, "output_tokens": 1, "cache_read_input_tokens": 100})
    counts = {"input_tokens": 3, "output_tokens": 40, "cache_read_input_tokens": 100}
    session.says("m1", "b", usage={**counts, "cache_creation_input_tokens": 7, "service_tier": "standard"})
    session.result("c9")
    (trace,), stats = read_file(session.write(tmp_path))
    expected = Usage(input_tokens=110, output_tokens=40, cached_tokens=100, cache_write_tokens=7)
    assert trace.turns[1].usage == expected
    assert (stats.input_tokens, stats.output_tokens, stats.cached_tokens) == (110, 40, 100)


def test_a_fragment_without_usage_leaves_it(tmp_path: Path) -> None:
    session = Session()
    session.then.says("m1", "a", usage={"input_tokens": 3, "output_tokens": None}).says("m1", "b")
    assert read_turns(session.write(tmp_path))[0].usage == Usage(input_tokens=3)


def test_stop_reason_is_not_needed(tmp_path: Path) -> None:
    session = Session()
    for reason in (None, "tool_use", "end_turn"):
        session.says("m1", str(reason))["message"]["stop_reason"] = reason
    assert [turn.content for turn in read_turns(session.write(tmp_path))] == ["None\ntool_use\nend_turn"]


def test_messages_without_an_id_are_turns_of_their_own(tmp_path: Path) -> None:
    session = Session()
    for text in ("a", "b"):
        session.fragment(None, {"type": "text", "text": text})
    session.fragment(None, {"type": "text", "text": "c"}, uuid=None)
    session.fragment(None, {"type": "text", "text": "d"}, uuid=None)
    assert [turn.content for turn in read_turns(session.write(tmp_path))] == ["a", "b", "c", "d"]


# What is no student's action: rules 6 and 7.


def test_empty_thinking_is_dropped(tmp_path: Path) -> None:
    session = Session()
    session.then.thinks("m1", "").thinks("m1", "one").thinks("m1", "").thinks("m1", "two").says("m1", "yes")
    session.then.thinks("m2", "").says("m2", "no")
    first, second = read_turns(session.write(tmp_path))
    assert (first.thinking, second.thinking) == ("one\ntwo", "")


def test_synthetic_and_error_messages_are_no_states(tmp_path: Path) -> None:
    session = Session()
    session.then.prompt("go").says("m1", "No response requested.", model="<synthetic>")
    session.then.says("m2", "API Error: 529", isApiErrorMessage=True).says("m3", "Done.")
    (trace,), stats = read_file(session.write(tmp_path))
    assert shape(trace) == [("user", "go"), ("assistant", "Done.")]
    assert stats.skipped["synthetic message"] == 2
    assert stats.n_records_skipped == 2


def test_unknown_blocks_are_counted(tmp_path: Path) -> None:
    session = Session()
    session.fragment("m1", {"type": "hologram"}, {"type": "text", "text": "yes"})
    (trace,), stats = read_file(session.write(tmp_path))
    assert shape(trace) == [("assistant", "yes")]
    assert stats.skipped["assistant block: hologram"] == 1


def test_what_the_providers_own_tools_answer_is_a_result(tmp_path: Path) -> None:
    session = Session()
    searched = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"type": "text", "text": "found"}]}
    session.fragment("m1", {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}, searched)
    expected = [("assistant", ""), ("tool", "found")]
    assert [(turn.role, turn.content) for turn in read_turns(session.write(tmp_path))] == expected


# The user's side: rules 9 and 10.


@pytest.mark.parametrize(
    ("text", "fields", "origin"),
    [
        ("please", {}, "prompt"),
        ("anything", {"isMeta": True}, "meta"),
        ("anything", {"isCompactSummary": True}, "compact_summary"),
        ("<command-name>/model</command-name>", {}, "command"),
        ("<command-message>init</command-message>", {}, "command"),
        ("  <local-command-stdout>ok</local-command-stdout>", {}, "local_output"),
        ("<local-command-caveat>so</local-command-caveat>", {}, "local_output"),
        ("Caveat: The messages below were generated by the user", {}, "meta"),
        ("<bash-input>ls</bash-input>", {}, "bash"),
        ("<bash-stdout>a.py</bash-stdout>", {}, "bash"),
        ("[Request interrupted by user for tool use]", {}, "interrupt"),
        ("<task-notification>done</task-notification>", {}, "notification"),
        ("what does <bash-input> mean?", {}, "prompt"),
    ],
)
def test_origins_of_user_records(tmp_path: Path, text: str, fields: dict[str, Any], origin: str) -> None:
    session = Session()
    session.then.prompt(text, **fields).prompt([{"type": "text", "text": text}], **fields)
    turns = read_turns(session.write(tmp_path))
    assert [(turn.origin, turn.content) for turn in turns] == [(origin, text)] * 2


def test_queued_prompts_exist_only_as_attachments(tmp_path: Path) -> None:
    session = Session()
    session.then.prompt("go").calls("m1", "c1").queued("stop that")
    session.then.queued([{"type": "text", "text": "and look:"}, {"type": "image", "source": {}}]).queued("")
    session.then.record("attachment", attachment={"type": "todo_reminder", "content": []}).result("c1", "r")
    session.says("m2", "yes")
    path = session.write(tmp_path)
    assert contents(histories(path)[-1]) == ["go", "", "r", "stop that", "and look:\n[image]"]
    assert [turn.origin for turn in read_turns(path) if turn.role == "user"] == ["prompt", "steering", "steering"]
    stats = read_file(path)[1]
    assert (stats.skipped["empty message"], stats.skipped["attachment"]) == (1, 1)


def test_images_and_empty_prompts(tmp_path: Path) -> None:
    session = Session()
    session.then.prompt([{"type": "text", "text": "see"}, {"type": "image", "source": {"data": "AAAA"}}]).prompt([])
    (trace,), stats = read_file(session.write(tmp_path))
    assert shape(trace) == [("user", "see\n[image]")]
    assert stats.skipped["empty message"] == 1


def test_a_record_with_a_result_and_a_text_gives_both(tmp_path: Path) -> None:
    session = Session()
    session.calls("m1", "c1")
    session.result("c1", "r")["message"]["content"].append({"type": "text", "text": "and now stop"})
    session.says("m2", "yes")
    assert contents(histories(session.write(tmp_path))[-1]) == ["", "r", "and now stop"]


@pytest.mark.parametrize("copy", [{"stdout": "x"}, "text", ["a", {"b": 1}], 3, None, True])
def test_tool_use_result_is_ignored_whatever_it_is(tmp_path: Path, copy: Any) -> None:
    session = Session()
    session.then.calls("m1", "c1").result("c1", "the answer", toolUseResult=copy)
    (trace,), stats = read_file(session.write(tmp_path))
    assert shape(trace)[1] == ("tool", "the answer")
    assert stats.n_records_skipped == 0


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("plain <system-reminder>x</system-reminder>", "plain <system-reminder>x</system-reminder>"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
        ([{"type": "image", "source": {}}], "[image]"),
        ([{"type": "text", "text": ""}, {"type": "image", "text": "no"}], "\n[image]"),
        ([{"type": "tool_reference", "tool_name": "X"}], "[tool_reference]"),
        ([], ""),
        (None, ""),
        ({"a": "ä"}, '{"a": "ä"}'),
        (7, "7"),
        (["x", 1], '["x", 1]'),
    ],
)
def test_results_become_text(tmp_path: Path, content: Any, text: str) -> None:
    session = Session()
    session.then.calls("m1", "c1").result("c1", content)
    assert read_turns(session.write(tmp_path))[1].content == text


@pytest.mark.parametrize(
    ("flag", "text", "failed"),
    [
        (True, "x", True),
        (False, "x", False),
        (None, "x", False),
        (None, "<tool_use_error>no</tool_use_error>", True),
        (False, "<tool_use_error>no</tool_use_error>", False),
        (None, "I saw <tool_use_error>", False),
    ],
)
@pytest.mark.parametrize("drifted", [False, True])
def test_errors_are_what_the_log_flags(
    tmp_path: Path, flag: bool | None, text: str, failed: bool, drifted: bool
) -> None:
    session = Session()
    session.then.calls("m1", "c1").result("c1", text, is_error=flag)
    if drifted:  # a field of another type elsewhere in the record must not change it
        session.records[-1]["timestamp"] = 5
    assert read_turns(session.write(tmp_path))[1].is_error is failed


def test_verbatim_results_are_the_text_of_the_line(tmp_path: Path) -> None:
    session = Session()
    for number, content in enumerate(["ä\n", ["list"], "failed"]):
        session.then.calls("m1", f"c{number}").result(f"c{number}", content, is_error=content == "failed")
    log = LogFile(session.write(tmp_path))
    (trace,) = read(log, ReadOptions(verbatim_results=True), IngestionStats())
    first, second, third = (turn.content for turn in trace.turns if turn.role == "tool")
    assert bytes(first) == '"ä\\n"'.encode()  # type: ignore[arg-type]
    assert (second, third) == ('["list"]', "failed")


# What a trace says about itself, and which files are sessions.


def test_where_a_trace_comes_from(tmp_path: Path) -> None:
    session = Session()
    session.then.summary().prompt("go").says("m1", "a")
    path = session.write(tmp_path, "one.jsonl")
    for lines in (session.lines(), [b"\xef\xbb\xbf" + session.lines()[1]], [session.lines()[1] + session.lines()[2]]):
        ((trace,), stats) = read_file(write_lines(path, lines))
        assert (trace.trace_id, trace.session_id, trace.cwd, trace.git_branch) == ("one", SESSION_ID, "/work", "main")
        assert (trace.source.file, trace.source.format, trace.source.version) == (str(path), "claude_code", "2.1.100")
        assert stats.version_warnings == []
    assert trace.model == "claude-x"
    assert trace.parent is None


@pytest.mark.parametrize(
    ("version", "warned"),
    [
        ("1.0.97", True),
        ("1.0.98", False),
        ("2.1.220", False),
        ("2.1.221", True),
        ("3.0.0-beta", True),
        ("9" * 5000, True),
        (None, False),
    ],
)
def test_versions_that_were_not_tried_are_warned_about(tmp_path: Path, version: str | None, warned: bool) -> None:
    session = Session(version=version)
    session.says("m1", "a")
    traces, stats = read_file(session.write(tmp_path))
    assert len(traces) == 1
    assert [str(version) in warning for warning in stats.version_warnings or []] == [True] * warned


@pytest.mark.parametrize(
    ("record", "is_session"),
    [
        ({"type": "user", "message": {"content": "x"}, "sessionId": "s"}, True),
        ({"type": "assistant", "message": {"content": []}, "parentUuid": None}, True),
        ({"type": "summary", "summary": "t", "leafUuid": "u"}, True),
        ({"type": "file-history-snapshot", "snapshot": {}}, True),
        ({"type": "hologram", "sessionId": "s"}, True),
        ({"type": "hologram", "sessionId": "s", "payload": {}}, False),
        ({"type": "user", "message": {"content": "x"}}, False),
        ({"type": "summary", "text": "x"}, False),
        ({"type": 5, "sessionId": "s"}, False),
        ({"messages": []}, False),
    ],
)
def test_sessions_are_told_by_their_records(tmp_path: Path, record: dict[str, Any], is_session: bool) -> None:
    session = Session()
    session.records = [record]
    assert sniff(read_head(LogFile(session.write(tmp_path)))) is is_session
