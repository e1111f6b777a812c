"""The second opinion: equal on whole files, and every planted loss is named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ingestion.sessions_on_disk import answer, call, result_of, session, turn, write

from composer_replication.ingestion.audit import Audit, audit_file, count_raw
from composer_replication.ingestion.claude_code import ClaudeCodeIngester
from composer_replication.traces import Trace, Turn


def audit(path: Path) -> Audit:
    found = audit_file(path)
    assert found is not None
    return found


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Three states, one of them split; a copy of a result, a result without a call; and what is no state."""
    records = [
        *turn("a"),
        answer("b", [call("b")]),
        result_of("b", "one"),
        answer("b", [call("b2")]),
        result_of("b2", "two"),
        result_of("b2", "two"),
        result_of("lost", "of a call that was never logged"),
        answer("agent", [call("agent")], isSidechain=True),
        {**result_of("agent", "no result of the session"), "isSidechain": True},
        answer("oops", [{"type": "text", "text": "API Error"}], isApiErrorMessage=True),
        {**answer("c", [{"type": "text", "text": "end"}]), "uuid": None},
    ]
    synthetic = answer("synthetic", [{"type": "text", "text": "No response requested."}])
    synthetic["message"]["model"] = "<synthetic>"
    return write(tmp_path / "s1.jsonl", [*records, synthetic])


def test_both_counts_of_a_whole_file_are_equal(log: Path) -> None:
    found = audit(log)
    assert found.holds
    assert (found.raw_states, found.read_states) == (3, 3)
    assert (found.raw_results, found.read_results) == (5, 4)
    assert (found.duplicate_results, found.unpaired_results) == (1, 1)
    raw = count_raw(log)
    assert raw.states == {"msg_a", "msg_b", "msg_c"}
    assert set(raw.results) == {"call_a", "call_b", "call_b2", "call_lost"}


def _without(remove: Callable[[Turn], bool], monkeypatch: pytest.MonkeyPatch, log: Path) -> list[str]:
    read = ClaudeCodeIngester.traces

    def lossy(self: ClaudeCodeIngester, path: Path) -> Iterator[Trace]:
        for trace in read(self, path):
            trace.turns = [turn for turn in trace.turns if not remove(turn)]
            yield trace

    monkeypatch.setattr(ClaudeCodeIngester, "traces", lossy)
    return audit(log).differences


def test_every_lost_turn_and_result_is_named(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = _without(lambda turn: turn.id in ("msg_a", "msg_c"), monkeypatch, log)
    assert lost == ["state lost: msg_a", "state lost: msg_c"]
    lost = _without(lambda turn: turn.tool_call_id == "call_b2", monkeypatch, log)
    assert "result lost: call_b2" in lost


def test_whatever_is_made_up_is_named(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def invent(turn: Turn) -> bool:
        turn.id = "invented" if turn.id == "msg_a" else turn.id
        turn.tool_call_id = "made up" if turn.tool_call_id == "call_a" else turn.tool_call_id
        return False

    assert _without(invent, monkeypatch, log) == [
        "state lost: msg_a",
        "state that is not in the file: invented",
        "result lost: call_a",
        "result that is not in the file: made up",
    ]


def test_a_turn_that_is_there_but_no_state_is_a_difference(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hide(turn: Turn) -> bool:
        turn.repeats = turn.id == "msg_a"
        return False

    assert _without(hide, monkeypatch, log) == ["2 states from 3 turns"]


@pytest.mark.parametrize(
    ("counter", "message"),
    [
        ("duplicate_results", "1 copies of results in the file, 0 counted"),
        ("results_without_call", "1 results without a call in the file, 0 counted"),
    ],
)
def test_what_is_not_counted_is_a_difference(
    log: Path, monkeypatch: pytest.MonkeyPatch, counter: str, message: str
) -> None:
    read = ClaudeCodeIngester.traces

    def forgetful(self: ClaudeCodeIngester, path: Path) -> Iterator[Trace]:
        yield from read(self, path)
        setattr(self.last_stats, counter, 0)

    monkeypatch.setattr(ClaudeCodeIngester, "traces", forgetful)
    assert audit(log).differences == [message]


def test_damaged_lines_count_on_both_sides(tmp_path: Path) -> None:
    lines = [json.dumps(record) for record in session("a", "b")]
    text = f"{lines[0]}\n{lines[1]}{lines[2]}\n{lines[3]}\n{lines[4][:60]}{lines[4]}\n{lines[5]}\n{lines[0][:40]}"
    log = tmp_path / "s1.jsonl"
    log.write_text(text)
    found = audit(log)
    assert found.differences == []
    assert (found.raw_states, found.raw_results) == (2, 2)


def test_results_inside_the_assistants_own_record(tmp_path: Path) -> None:
    search: list[dict[str, Any]] = [
        {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [{"type": "text", "text": "found"}]},
    ]
    found = audit(write(tmp_path / "s1.jsonl", [*turn("a"), answer("b", search)]))
    assert found.differences == []
    assert (found.raw_results, found.read_results, found.unpaired_results) == (2, 2, 0)


def test_records_without_ids_count_one_by_one(tmp_path: Path) -> None:
    records = [answer(name, [{"type": "text", "text": name}]) for name in "abc"]
    for record, uuid in zip(records, (None, None, "u"), strict=True):
        del record["message"]["id"]
        record["uuid"] = uuid
    found = audit(write(tmp_path / "s1.jsonl", [*session("x"), *records, records[2]]))
    assert found.differences == []
    assert found.raw_states == 4


def test_files_of_agents_have_no_states_of_the_session_and_other_files_are_no_sessions(tmp_path: Path) -> None:
    agent = audit(write(tmp_path / "agent-1.jsonl", session("a")))
    assert (agent.raw_states, agent.read_states, agent.holds) == (0, 0, True)
    assert audit_file(write(tmp_path / "chat.jsonl", [{"messages": []}])) is None
    (tmp_path / "binary").write_bytes(bytes(range(256)) * 10)
    assert audit_file(tmp_path / "binary") is None
