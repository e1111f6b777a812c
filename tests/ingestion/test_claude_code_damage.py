"""Damaged Claude Code lines, and records whose types have changed (rules 12 and 13)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from claude_sessions import (
    SESSION_ID,
    Session,
    contents,
    histories,
    read_file,
    read_turns,
    shape,
    without_places,
    write_lines,
)

from composer_replication.histories import NO_RESULT


def test_calls_without_results_and_results_without_calls_are_counted(tmp_path: Path) -> None:
    session = Session()
    session.then.calls("m1", "c1").calls("m1", "c2").result("c1", "r").result("c9", "whose?").says("m2", "yes")
    path = session.write(tmp_path)
    _, stats = read_file(path)
    assert (stats.calls_without_result, stats.results_without_call, stats.n_tool_results) == (1, 1, 2)
    messages = histories(path)[-1]
    assert contents(messages) == ["", "r", NO_RESULT, "whose?"]
    assert [message["role"] for message in messages] == ["assistant", "tool", "tool", "user"]


def test_glued_records_are_both_read(tmp_path: Path) -> None:
    session = Session()
    session.then.prompt("go").says("m1", "a").says("m2", "b")
    whole = read_turns(session.write(tmp_path))
    first, second, third = session.lines()
    for glue in (b"", b" ", b"\x00\x00", b"\t"):
        (trace,), stats = read_file(write_lines(tmp_path / "glued.jsonl", [first + glue + second + glue + third]))
        assert without_places(trace.turns) == without_places(whole)
        assert stats.recovered["glued to another record"] == 2
        assert (stats.n_records_total, stats.skipped_truncated_lines) == (3, 0)


def test_what_stands_beside_a_broken_part_is_read(tmp_path: Path) -> None:
    session = Session()
    session.then.prompt("go").calls("m1", "c1", "Edit", old={"type": "user", "sessionId": SESSION_ID}, new="b")
    session.says("m2", "b")
    first, second, third = session.lines()
    cut = second[: second.index(b'"new"') + 8]
    path = write_lines(tmp_path / "broken.jsonl", [first, cut + third, third[20:], second[:-1]])
    (trace,), stats = read_file(path)
    # Not the piece of the cut record that looks like a record, nor the message inside the last line.
    assert shape(trace) == [("user", "go"), ("assistant", "b")]
    assert stats.skipped_truncated_lines == stats.skipped["broken line"] == 3
    assert stats.recovered["beside a broken part"] == 1
    assert stats.n_records_total == 2


def test_doubled_lines_change_nothing(tmp_path: Path) -> None:
    session = Session()
    session.then.prompt("go").thinks("m1", "hm").says("m1", "look").calls("m1", "c1").result("c1", "r").queued("hurry")
    session.then.microcompaction("c1").says("m2", "yes").compaction("Summary").says("m3", "new")
    whole = read_turns(session.write(tmp_path))
    lines = session.lines()
    doubled = [line for line in lines for _ in range(2)]
    (trace,), stats = read_file(write_lines(tmp_path / "doubled.jsonl", doubled))
    assert without_places(trace.turns) == without_places(whole)
    assert (stats.n_records_total, stats.n_records_skipped) == (2 * len(lines), len(lines))
    assert stats.duplicate_results == 1
    (trace,), stats = read_file(write_lines(tmp_path / "twice.jsonl", lines + lines + [b""]))
    assert without_places(trace.turns) == without_places(whole)
    assert stats.skipped["doubled record"] == len(lines)


def test_unknown_types_are_counted_and_no_error(tmp_path: Path) -> None:
    session = Session()
    session.then.record("hologram", payload={"a": 1}).record("hologram").record("system", subtype="turn_duration")
    session.then.record("queue-operation", operation="enqueue").summary()
    session.records.append({"sessionId": SESSION_ID})
    session.says("m1", "yes")
    (trace,), stats = read_file(session.write(tmp_path))
    assert shape(trace) == [("assistant", "yes")]
    expected = {"hologram": 2, "system/turn_duration": 1, "queue-operation": 1, "summary": 1, "no type": 1}
    assert stats.skipped == expected
    assert (stats.n_records_total, stats.n_records_skipped, stats.skipped_summary) == (7, 6, 1)


def test_values_that_are_no_objects_are_counted(tmp_path: Path) -> None:
    session = Session()
    session.says("m1", "yes")
    path = write_lines(tmp_path / "s.jsonl", [b"[1, 2]", b'"text"', b"null", b"   ", *session.lines()])
    (trace,), stats = read_file(path)
    assert shape(trace) == [("assistant", "yes")]
    assert stats.skipped["not a JSON object"] == 3
    assert (stats.n_records_total, stats.n_records_skipped) == (4, 3)


@pytest.mark.parametrize("drifted", [None, [], ["x"], 5, 1.5, False, {"a": 1}])
@pytest.mark.parametrize(
    "field",
    [
        *("uuid", "parentUuid", "timestamp", "version", "isSidechain", "isMeta", "isCompactSummary"),
        *("isApiErrorMessage", "agentId", "subtype", "attachment", "compactMetadata", "microcompactMetadata"),
        *("sessionId", "cwd", "gitBranch"),
    ],
)
def test_drift_of_the_envelope_does_not_lose_the_record(tmp_path: Path, field: str, drifted: Any) -> None:
    session = Session()
    session.then.says("m1", "first").prompt("second")
    for record in session.records:
        record[field] = drifted
    (trace,), stats = read_file(session.write(tmp_path))
    assert shape(trace) == [("assistant", "first"), ("user", "second")]
    assert stats.n_records_skipped == 0


@pytest.mark.parametrize("drifted", [None, [], 5, True, {"a": 1}])
@pytest.mark.parametrize("field", ["id", "model", "usage", "role", "stop_reason"])
def test_drift_of_a_message_does_not_lose_the_record(tmp_path: Path, field: str, drifted: Any) -> None:
    session = Session()
    session.says("m1", "first")["message"][field] = drifted
    (trace,), stats = read_file(session.write(tmp_path))
    assert shape(trace) == [("assistant", "first")]
    assert stats.n_records_skipped == 0


def test_drift_of_blocks_does_not_lose_them(tmp_path: Path) -> None:
    session = Session()
    session.fragment("m1", {"type": "text", "text": None}, {"type": "text", "text": 5}, "bare", {"type": "text"})
    session.fragment("m1", {"type": "tool_use", "id": 7, "name": None, "input": "ls -l"})
    session.fragment("m1", {"type": "tool_use", "id": "c2", "name": "Read", "input": None})
    session.result("7", "r")["message"]["content"][0].update(tool_use_id=7, is_error="true")
    session.then.prompt(12).prompt(None).record("user", message="only a text")
    (trace,), stats = read_file(session.write(tmp_path))
    first = trace.turns[0]
    assert first.content.split() == ["5", "bare"]
    expected = [("7", "", {"input": "ls -l"}), ("c2", "Read", {})]
    assert [(call.id, call.name, call.arguments) for call in first.tool_calls] == expected
    expected = [("tool", "r", True), ("user", "12", False), ("user", "", False), ("user", "only a text", False)]
    assert [(turn.role, turn.content, turn.is_error) for turn in trace.turns[1:]] == expected
    assert stats.n_records_skipped == 0


def test_records_without_a_message_are_counted(tmp_path: Path) -> None:
    session = Session()
    session.then.record("user").record("assistant", message=None)
    traces, stats = read_file(session.write(tmp_path))
    assert traces == []
    assert (stats.n_records_total, stats.n_records_skipped) == (2, 2)


def test_one_uuid_on_everything_loses_nothing(tmp_path: Path) -> None:
    session = Session()
    session.then.record("mode").prompt("go").says("m1", "a").queued("b").prompt("c").prompt([])
    for record in session.records:
        record["uuid"] = record["parentUuid"] = "trimmed"
    (trace,), _ = read_file(session.write(tmp_path))
    assert shape(trace) == [("user", "go"), ("assistant", "a"), ("user", "b"), ("user", "c")]
