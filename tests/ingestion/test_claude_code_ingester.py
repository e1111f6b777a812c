"""`ClaudeCodeIngester`: the states of one file, and what its options do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from claude_sessions import Session, write_lines
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.histories import estimate_tokens
from composer_replication.ingestion.claude_code import SYSTEM_PROMPT, ClaudeCodeIngester
from composer_replication.traces import TraceState


def small_session() -> Session:
    session = Session()
    session.then.prompt("go").thinks("m1", "hm").says("m1", "I look.").calls("m1", "c1", "Read", file_path="ä.py")
    session.then.result("c1", "x = 1").says("m2", "Done.")
    return session


def test_states(tmp_path: Path) -> None:
    ingester = ClaudeCodeIngester()
    first, second = ingester.ingest(small_session().write(tmp_path, "my session.jsonl"))
    system = {"role": "system", "content": SYSTEM_PROMPT}
    user = {"role": "user", "content": "go"}
    function = {"name": "Read", "arguments": '{"file_path": "ä.py"}'}
    call = {"id": "c1", "type": "function", "function": function}
    assert first == {
        "state_id": "my session::0000",
        "messages": [system, user],
        "student_action": '[THINKING]\nhm\n[/THINKING]\nI look.\n[TOOL_USE] name=Read input={"file_path": "ä.py"}',
    }
    said = {"role": "assistant", "content": "I look.", "tool_calls": [call]}
    answer = {"role": "tool", "tool_call_id": "c1", "content": "x = 1"}
    expected = {"state_id": "my session::0001", "messages": [system, user, said, answer], "student_action": "Done."}
    assert second == expected
    assert isinstance(first["messages"], list)
    assert json.loads(json.dumps([first, second])) == [first, second]


def test_the_counters(tmp_path: Path) -> None:
    path = small_session().write(tmp_path)
    ingester = ClaudeCodeIngester()
    assert ingester.last_stats.n_records_total == 0
    list(ingester.ingest(path))
    stats = ingester.last_stats
    assert (stats.n_records_total, stats.n_records_skipped, stats.n_states_emitted) == (6, 0, 2)
    assert (stats.n_assistant_turns, stats.n_tool_use_blocks, stats.n_text_blocks) == (2, 1, 2)
    assert (stats.n_turns, stats.n_tool_results, stats.states_truncated) == (4, 1, 0)
    assert stats.version_warnings == []
    list(ingester.ingest(path))
    assert ingester.last_stats is not stats
    assert ingester.last_stats == stats


def test_errors_are_classified(tmp_path: Path) -> None:
    session = Session()
    session.calls("m1", "c1", "Bash", command="ls /x")
    session.result("c1", "Exit code 2\nls: cannot access '/x': No such file or directory", is_error=True)
    ingester = ClaudeCodeIngester()
    (trace,) = ingester.traces(session.write(tmp_path))
    assert trace.turns[0].tool_error == trace.turns[1].error_kind is not None
    assert sum(ingester.last_stats.errors.values()) == 1


def test_the_system_prompt(tmp_path: Path) -> None:
    path = small_session().write(tmp_path)
    assert SYSTEM_PROMPT.startswith("You are a senior software engineer working as a coding agent in a terminal env")
    for state in ClaudeCodeIngester(system_prompt="Be brief.").ingest(path):
        assert state["messages"][0] == {"role": "system", "content": "Be brief."}
    for state in ClaudeCodeIngester(system_prompt="").ingest(path):
        assert state["messages"][0]["role"] == "user"


def test_thinking_stays_in_the_action_and_leaves_the_history(tmp_path: Path) -> None:
    path = small_session().write(tmp_path)
    stripped = list(ClaudeCodeIngester().ingest(path))
    shown = list(ClaudeCodeIngester(strip_thinking=False).ingest(path))
    assert stripped[1]["messages"][2]["content"] == "I look."
    assert shown[1]["messages"][2]["content"] == "[THINKING]\nhm\n[/THINKING]\nI look."
    assert stripped[0]["student_action"] == shown[0]["student_action"]


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_raises(limit: int) -> None:
    with pytest.raises(ValueError, match=f"max_history_tokens .* got {limit}"):
        ClaudeCodeIngester(max_history_tokens=limit)


def test_a_missing_file_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(ClaudeCodeIngester().ingest(tmp_path / "none.jsonl"))


def test_an_empty_file_gives_nothing(tmp_path: Path) -> None:
    ingester = ClaudeCodeIngester()
    assert list(ingester.ingest(write_lines(tmp_path / "empty.jsonl", []))) == []
    assert ingester.last_stats.n_records_total == 0


def long_session() -> Session:
    session = Session()
    for number in range(4):
        session.then.prompt(f"{number}" * 40).calls(f"m{number}", f"c{number}", "Read", path="x" * 24)
        session.result(f"c{number}", "r" * 40)
    session.says("end", "Done.")
    return session


def test_a_limit_takes_the_oldest_messages(tmp_path: Path) -> None:
    path = long_session().write(tmp_path)
    ingester = ClaudeCodeIngester(system_prompt="s" * 40, max_history_tokens=60)
    last = list(ingester.ingest(path))[-1]["messages"]
    # 10 tokens the system prompt, 10 each prompt, 20 each call with its result: one prompt and two calls fit exactly.
    assert [message["role"] for message in last] == ["system", "assistant", "tool", "user", "assistant", "tool"]
    assert last[3]["content"] == "3" * 40
    assert ingester.last_stats.states_truncated == 3
    assert ingester.last_stats.n_states_emitted == 5


def test_tokens_are_counted_by_whom_one_likes(tmp_path: Path) -> None:
    path = long_session().write(tmp_path)
    counted: list[str] = []

    def count(text: str) -> int:
        counted.append(text)
        return 1

    ingester = ClaudeCodeIngester(system_prompt="s", max_history_tokens=4, count_tokens=count)
    assert [len(state["messages"]) for state in ingester.ingest(path)] == [2, 4, 4, 4, 4]
    assert 'Read{"path": "xxxxxxxxxxxxxxxxxxxxxxxx"}' in counted
    assert len(counted) == 13  # each message once


def tokens_of(messages: list[dict[str, Any]]) -> int:
    total = 0
    for message in messages:
        calls = "".join(
            call["function"]["name"] + call["function"]["arguments"] for call in message.get("tool_calls", [])
        )
        total += estimate_tokens(message["content"] + calls)
    return total


@st.composite
def sessions(draw: st.DrawFn) -> Session:
    session = Session()
    for number in range(draw(st.integers(1, 8))):
        if draw(st.booleans()):
            session.prompt("p" * draw(st.integers(0, 60)))
        calls = [f"c{number}.{index}" for index in range(draw(st.integers(0, 3)))]
        session.says(f"m{number}", "t" * draw(st.integers(1, 60)))
        for call in calls:
            session.calls(f"m{number}", call, "Read", path="x" * draw(st.integers(0, 30)))
        for call in draw(st.permutations(calls)):
            if draw(st.integers(0, 9)):
                session.result(call, "r" * draw(st.integers(0, 90)))
    return session


@given(sessions(), st.integers(1, 150))
def test_a_limit_never_splits_a_call_from_its_results(
    tmp_path_factory: pytest.TempPathFactory, session: Session, limit: int
) -> None:
    path = session.write(tmp_path_factory.getbasetemp(), "limited.jsonl")
    whole: list[TraceState] = list(ClaudeCodeIngester(system_prompt="s" * 20).ingest(path))
    cut: list[TraceState] = list(ClaudeCodeIngester(system_prompt="s" * 20, max_history_tokens=limit).ingest(path))
    for full, short in zip(whole, cut, strict=True):
        assert (short["state_id"], short["student_action"]) == (full["state_id"], full["student_action"])
        system, *kept = list(short["messages"])
        assert system == full["messages"][0]
        everything = list(full["messages"])[1:]
        assert kept == everything[len(everything) - len(kept) :]
        open_calls: list[str] = []
        for message in kept:
            if message["role"] == "tool":
                open_calls.remove(message["tool_call_id"])
            else:
                assert not open_calls
                open_calls = [call["id"] for call in message.get("tool_calls", [])]
        assert not open_calls
        # What was dropped did not fit; what was kept fits, or is the newest message with its call.
        dropped = everything[: len(everything) - len(kept)]
        newest = 1 + max(index for index, message in enumerate(kept) if message["role"] != "tool") if kept else 0
        if newest > 1:
            assert tokens_of([system, *kept]) <= limit
        if dropped:
            next_unit = max(index for index, message in enumerate(dropped) if message["role"] != "tool")
            assert tokens_of([system, *dropped[next_unit:], *kept]) > limit
