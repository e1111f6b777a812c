"""Sub-agents in Claude Code logs: four layouts, passed over and counted unless they are asked for (rule 11)."""

from __future__ import annotations

from pathlib import Path

from claude_sessions import SESSION_ID, Session, read_file, shape

from composer_replication.histories import CLEARED_RESULT
from composer_replication.ingestion.claude_code import ClaudeCodeIngester


def inline_session() -> Session:
    """As 1.0.x writes it: two agents between the records of the session, told apart by their chains alone."""
    session = Session(version="1.0.108")
    session.then.prompt("go").calls("m1", "c1", "Task")
    first = session.prompt("explore", isSidechain=True, parentUuid=None)
    second = session.prompt("test", isSidechain=True, parentUuid=None)
    first = session.says("a1", "exploring", isSidechain=True, parentUuid=first["uuid"])
    session.says("b1", "testing", isSidechain=True, parentUuid=second["uuid"])
    session.then.says("a2", "explored", isSidechain=True, parentUuid=first["uuid"]).result("c1", "report")
    session.says("m2", "Done.")
    return session


def agent_session() -> Session:
    """A file of its own."""
    session = Session()
    session.prompt("explore", isSidechain=True, agentId="a1b2")
    session.calls("a1", "c1").update(isSidechain=True, agentId="a1b2")
    session.result("c1", "found", isSidechain=True, agentId="a1b2")
    session.says("a2", "explored", isSidechain=True, agentId="a1b2")
    return session


def test_inline_agents_are_skipped_and_counted(tmp_path: Path) -> None:
    (trace,), stats = read_file(inline_session().write(tmp_path))
    assert shape(trace) == [("user", "go"), ("assistant", ""), ("tool", "report"), ("assistant", "Done.")]
    assert (stats.skipped_subagent, stats.skipped["sub-agent"], stats.n_records_skipped) == (5, 5, 5)
    assert stats.n_records_total == 9


def test_inline_agents_become_traces_if_asked_for(tmp_path: Path) -> None:
    (main, first, second), stats = read_file(inline_session().write(tmp_path), subagents=True)
    assert shape(main)[-1] == ("assistant", "Done.")
    assert shape(first) == [("user", "explore"), ("assistant", "exploring"), ("assistant", "explored")]
    assert shape(second) == [("user", "test"), ("assistant", "testing")]
    assert (first.trace_id, first.parent, first.meta) == ("session/u3", "session", {"agent_id": "u3"})
    assert (stats.skipped_subagent, stats.n_records_skipped, stats.n_assistant_turns) == (0, 0, 5)


def test_agent_files_are_skipped_and_counted(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "session" / "subagents"):
        session = agent_session()
        session.summary()
        traces, stats = read_file(session.write(folder, "agent-a1b2.jsonl"))
        assert traces == []
        assert (stats.skipped_subagent, stats.n_records_skipped, stats.n_records_total) == (5, 5, 5)


def test_agent_files_are_skipped_even_if_their_records_do_not_say_so(tmp_path: Path) -> None:
    session = Session()
    session.prompt("explore")
    assert read_file(session.write(tmp_path, "agent-x.jsonl"))[0] == []


def test_agent_files_are_traces_if_asked_for(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "session" / "subagents"):
        session = agent_session()
        # None of these belongs to an agent by its id, and none makes one.
        session.then.summary().record("progress", data={"type": "hook_progress"}, isSidechain=True)
        session.record("mode", uuid=None)
        (trace,), stats = read_file(session.write(folder, "agent-a1b2.jsonl"), subagents=True)
        assert shape(trace) == [("user", "explore"), ("assistant", ""), ("tool", "found"), ("assistant", "explored")]
        assert (trace.trace_id, trace.parent, trace.meta) == ("agent-a1b2", SESSION_ID, {"agent_id": "a1b2"})
        assert stats.skipped == {"summary": 1, "progress": 1, "mode": 1}


def test_an_agents_context_is_compacted_as_the_sessions_is(tmp_path: Path) -> None:
    session = agent_session()
    session.then.microcompaction("c1").says("a3", "third").queued("steered").says("a4", "fourth").compaction("Summary")
    session.says("a5", "fifth")
    for record in session.records:
        record.update(isSidechain=True, agentId="a1b2")
    (trace,), _ = read_file(session.write(tmp_path, "agent-a1b2.jsonl"), subagents=True)
    seen = [[message["content"] for message in state["messages"]] for state in trace.states()]
    assert seen[2] == ["explore", "", CLEARED_RESULT, "explored"]
    assert seen[3] == ["explore", "", CLEARED_RESULT, "explored", "third", "steered"]
    assert seen[4] == ["Summary"]


def embedded_session() -> Session:
    session = Session(version="2.1.41")
    session.then.prompt("go").calls("m1", "c1", "Task").progress()
    for record in agent_session().records:
        session.agent_progress("a1b2", {**record, "uuid": "inner-" + record["uuid"]})
    session.record("progress", data={"type": "agent_progress", "message": {"type": "hologram"}, "agentId": "a1b2"})
    session.result("c1", "report")
    return session


def test_embedded_agents_are_skipped_and_counted(tmp_path: Path) -> None:
    (trace,), stats = read_file(embedded_session().write(tmp_path))
    assert shape(trace) == [("user", "go"), ("assistant", ""), ("tool", "report")]
    assert (stats.skipped["progress"], stats.n_records_skipped, stats.n_records_total) == (6, 6, 9)


def test_embedded_agents_become_traces_if_asked_for(tmp_path: Path) -> None:
    (main, agent), stats = read_file(embedded_session().write(tmp_path), subagents=True)
    assert len(main.turns) == 3
    assert shape(agent) == [("user", "explore"), ("assistant", ""), ("tool", "found"), ("assistant", "explored")]
    assert (agent.trace_id, agent.parent) == ("session/a1b2", "session")
    assert [turn.line for turn in agent.turns] == [4, 5, 6, 7]
    assert (stats.skipped["progress"], stats.n_records_skipped) == (2, 2)


def test_embedded_records_of_drifted_types_are_read(tmp_path: Path) -> None:
    session = Session()
    session.agent_progress("a1b2", agent_session().records[0])["data"]["message"]["timestamp"] = 5
    session.agent_progress("a1b2", agent_session().records[3])["data"]["message"]["message"]["id"] = 5
    (agent,), _ = read_file(session.write(tmp_path), subagents=True)
    assert shape(agent) == [("user", "explore"), ("assistant", "explored")]


def test_summarising_agents_are_always_skipped(tmp_path: Path) -> None:
    path = agent_session().write(tmp_path, "agent-acompact-1f.jsonl")
    for subagents in (False, True):
        traces, stats = read_file(path, subagents=subagents)
        assert traces == []
        assert (stats.skipped_subagent, stats.n_records_skipped, stats.skipped["summarising agent"]) == (4, 4, 4)


def test_the_ingester_reads_agents_behind_the_session(tmp_path: Path) -> None:
    path = inline_session().write(tmp_path)
    assert [state["state_id"] for state in ClaudeCodeIngester().ingest(path)] == ["session::0000", "session::0001"]
    every = ClaudeCodeIngester(skip_sidechain=False)
    expected = ["session::0000", "session::0001", "session/u3::0000", "session/u3::0001", "session/u4::0000"]
    assert [state["state_id"] for state in every.ingest(path)] == expected
    assert every.last_stats.n_states_emitted == 5
