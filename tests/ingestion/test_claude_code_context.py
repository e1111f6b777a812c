"""What the model saw at each turn of a Claude Code session: compactions, microcompactions, rewinds (rules 3 and 8)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from claude_sessions import Session, contents, histories, read_file, read_turns, shape
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_replication.histories import CLEARED_RESULT, NO_RESULT


def test_after_a_compaction_the_summary_is_the_context(tmp_path: Path) -> None:
    session = Session()
    session.then.prompt("go").calls("m1", "c1").result("c1", "old").says("m2", "old answer")
    session.then.compaction("So far: nothing.").prompt("go on").says("m3", "new").says("m4", "newer")
    before = ["go", "", "old"]
    after = ["So far: nothing.", "go on"]
    assert list(map(contents, histories(session.write(tmp_path)))) == [["go"], before, after, [*after, "new"]]
    turns = read_turns(tmp_path / "session.jsonl")
    assert [(turn.content, turn.origin) for turn in turns if turn.follows == -1] == [
        ("So far: nothing.", "compact_summary")
    ]


def test_messages_that_a_compaction_preserves_stay_behind_the_summary(tmp_path: Path) -> None:
    session = Session()
    session.then.prompt("go").calls("m1", "c1").result("c1", "dropped")
    kept_call = session.calls("m2", "c2")
    kept_result = session.result("c2", "kept")
    kept_prompt = session.prompt("kept prompt")
    session.says("m3", "dropped too")
    session.compaction("Summary", kept=[kept_prompt, kept_call, kept_result, {"uuid": "not in this file"}])
    session.says("m4", "new")
    messages = histories(session.write(tmp_path))[-1]
    assert contents(messages) == ["Summary", "", "kept", "kept prompt"]
    assert messages[1]["tool_calls"][0]["id"] == messages[2]["tool_call_id"] == "c2"


def test_a_preserved_call_without_result_is_answered(tmp_path: Path) -> None:
    session = Session()
    session.prompt("go")
    kept = session.calls("m1", "c1")
    session.then.compaction("Summary", kept=[kept]).says("m2", "new")
    assert contents(histories(session.write(tmp_path))[-1]) == ["Summary", "", NO_RESULT]


def test_a_summary_without_a_boundary_begins_the_context_too(tmp_path: Path) -> None:
    session = Session()
    session.then.prompt("go").says("m1", "old").prompt("Summary", isCompactSummary=True).says("m2", "new")
    assert contents(histories(session.write(tmp_path))[-1]) == ["Summary"]


def test_the_second_compaction_counts_as_well(tmp_path: Path) -> None:
    session = Session()
    session.then.prompt("go").compaction("First").says("m1", "old").compaction("Second").says("m2", "new")
    assert list(map(contents, histories(session.write(tmp_path)))) == [["First"], ["Second"]]


def test_a_result_that_comes_after_a_compaction_stays_before_it(tmp_path: Path) -> None:
    session = Session()
    session.then.calls("m1", "c1").compaction("Summary").result("c1", "late").says("m2", "new")
    (trace,), stats = read_file(session.write(tmp_path))
    assert shape(trace)[:2] == [("assistant", ""), ("tool", "late")]
    assert contents(histories(tmp_path / "session.jsonl")[-1]) == ["Summary"]
    assert stats.results_without_call == 0


def test_a_microcompaction_clears_results_from_there_on(tmp_path: Path) -> None:
    session = Session()
    session.prompt("go")
    for number in (1, 2):
        session.then.calls(f"m{number}", f"c{number}").result(f"c{number}", f"r{number}")
    session.then.says("m3", "before").microcompaction("c1", "not in this file").says("m4", "after").says("m5", "later")
    seen = list(map(contents, histories(session.write(tmp_path))))
    assert seen[2] == ["go", "", "r1", "", "r2"]
    assert seen[3] == ["go", "", CLEARED_RESULT, "", "r2", "before"]
    assert seen[4] == [*seen[3], "after"]


def test_a_rewind_cuts_the_branch_from_the_context_and_keeps_its_states(tmp_path: Path) -> None:
    session = Session()
    session.prompt("go")
    fork = session.says("m1", "ready")
    session.then.prompt("wrong", parentUuid=fork["uuid"]).says("m2", "abandoned")
    session.then.prompt("right", parentUuid=fork["uuid"]).says("m3", "kept")
    session.then.prompt("right again", parentUuid=fork["uuid"]).says("m4", "last")
    seen = list(map(contents, histories(session.write(tmp_path))))
    assert seen == [["go"], ["go", "ready", "wrong"], ["go", "ready", "right"], ["go", "ready", "right again"]]


def test_a_branch_that_is_continued_was_no_rewind(tmp_path: Path) -> None:
    session = Session()
    fork = session.says("m1", "ready")
    session.prompt("one", parentUuid=fork["uuid"])
    answer = session.says("m2", "first")
    session.then.prompt("two", parentUuid=fork["uuid"]).says("m3", "second", parentUuid=answer["uuid"])
    assert contents(histories(session.write(tmp_path))[-1]) == ["ready", "one", "first", "two"]


def test_an_answer_to_the_first_prompt_shows_that_it_was_no_rewind(tmp_path: Path) -> None:
    session = Session()
    fork = session.says("m1", "ready")
    first = session.prompt("one", parentUuid=fork["uuid"])
    session.then.prompt("two", parentUuid=fork["uuid"]).says("m2", "both", parentUuid=first["uuid"])
    assert contents(histories(session.write(tmp_path))[-1]) == ["ready", "one", "two"]


def test_an_answer_to_the_second_prompt_leaves_the_rewind(tmp_path: Path) -> None:
    session = Session()
    fork = session.says("m1", "ready")
    session.prompt("one", parentUuid=fork["uuid"])
    second = session.prompt("two", parentUuid=fork["uuid"])
    session.then.says("m2", "a", parentUuid=second["uuid"]).says("m3", "b", parentUuid=fork["uuid"])
    assert contents(histories(session.write(tmp_path))[-1]) == ["ready", "two", "a"]


def test_a_rewind_to_the_start_of_a_compacted_context_stays_in_it(tmp_path: Path) -> None:
    session = Session()
    session.then.prompt("go").says("m1", "old")
    boundary = session.compaction("dropped") and session.records[-2]
    session.records.pop()
    session.then.prompt("wrong", parentUuid=boundary["uuid"]).says("m2", "abandoned")
    session.then.prompt("right", parentUuid=boundary["uuid"]).says("m3", "new")
    assert list(map(contents, histories(session.write(tmp_path)))) == [["go"], ["wrong"], ["right"]]


def test_a_rewind_to_the_first_prompt(tmp_path: Path) -> None:
    session = Session()
    session.then.prompt("first").says("m1", "abandoned").prompt("instead", parentUuid=None).says("m2", "new")
    assert [contents(one) for one in histories(session.write(tmp_path))] == [["first"], ["instead"]]


def test_a_log_without_parents_has_no_rewinds(tmp_path: Path) -> None:
    session = Session()
    session.then.prompt("first").says("m1", "one", parentUuid=None).prompt("second", parentUuid=None)
    session.says("m2", "two", parentUuid=None)
    assert [contents(one) for one in histories(session.write(tmp_path))] == [["first"], ["first", "one", "second"]]


def test_a_rewind_over_a_command(tmp_path: Path) -> None:
    session = Session()
    session.prompt("first")
    fork = session.says("m1", "one")["uuid"]
    session.then.prompt("<command-name>/review</command-name>").says("m2", "abandoned")
    session.then.prompt("instead", parentUuid=fork).says("m3", "new")
    assert contents(histories(session.write(tmp_path))[-1]) == ["first", "one", "instead"]


def test_only_messages_show_that_a_branch_goes_on(tmp_path: Path) -> None:
    session = Session()
    session.prompt("first")
    fork = session.says("m1", "one")["uuid"]
    session.prompt("second")
    abandoned = session.says("m2", "abandoned")["uuid"]
    session.then.prompt("instead", parentUuid=fork).record("system", subtype="turn_duration", parentUuid=abandoned)
    session.says("m3", "new", parentUuid=session.records[-2]["uuid"])
    assert contents(histories(session.write(tmp_path))[-1]) == ["first", "one", "instead"]


def test_a_result_that_comes_after_the_model_went_on_was_not_seen_before(tmp_path: Path) -> None:
    session = Session()
    session.then.prompt("first").calls("m1", "c1").prompt("never mind").says("m2", "fine").result("c1", "too late")
    session.says("m3", "I see")
    path = session.write(tmp_path)
    second, third = histories(path)[1:]
    assert contents(second) == ["first", "", NO_RESULT, "never mind"]
    assert contents(third) == ["first", "", NO_RESULT, "never mind", "fine", "too late"]
    _, stats = read_file(path)
    assert (stats.n_tool_results, stats.results_without_call, stats.calls_without_result) == (1, 0, 0)


def test_a_result_that_was_only_written_late_stays_with_its_call(tmp_path: Path) -> None:
    session = Session()
    session.then.prompt("first").calls("m1", "c1").prompt("a reminder", isMeta=True).says("m2", "fine")
    session.result("c1", "in time")
    assert contents(histories(session.write(tmp_path))[1]) == ["first", "", "in time", "a reminder"]


def test_two_notices_behind_one_record_are_no_rewind(tmp_path: Path) -> None:
    session = Session()
    fork = session.says("m1", "ready")
    session.then.prompt("<bash-input>ls</bash-input>", parentUuid=fork["uuid"]).prompt("real", parentUuid=fork["uuid"])
    session.then.prompt("note", parentUuid=fork["uuid"], isMeta=True).says("m2", "yes")
    assert len(histories(session.write(tmp_path))[-1]) == 4


@st.composite
def tagged_sessions(draw: st.DrawFn) -> Session:
    """Sessions in which every text names the line it stands on, and every result its call."""
    session = Session()
    open_calls: list[str] = []
    prompts: list[str] = []

    def tag() -> str:
        return f"<line {len(session.records) + 1}>"

    def foreign() -> None:
        kind = draw(st.sampled_from(["none"] * 4 + ["progress", "queued", "result", "result", "sidechain", "prompt"]))
        if kind == "progress":
            session.progress()
        elif kind == "queued":
            session.queued(tag())
        elif kind == "prompt":
            session.prompt(tag())
        elif kind == "sidechain":
            session.says("sub", tag(), isSidechain=True)
        elif kind == "result" and open_calls:
            call = open_calls.pop(draw(st.integers(0, len(open_calls) - 1)))
            session.result(call, f"<result {call}>")

    session.prompt(tag())
    for number in range(draw(st.integers(1, 7))):
        for part in range(draw(st.integers(1, 4))):
            foreign()
            if draw(st.booleans()):
                session.says(f"m{number}", tag())
            else:
                session.calls(f"m{number}", f"c{number}.{part}", "Read", at=tag())
                open_calls.append(f"c{number}.{part}")
        event = draw(st.sampled_from(["none", "none", "compaction", "microcompaction", "rewind", "prompt", "orphan"]))
        if event == "compaction":
            kept = draw(st.lists(st.sampled_from(session.records), max_size=3))
            session.compaction(f"<line {len(session.records) + 2}>", kept=[one for one in kept if "uuid" in one])
        elif event == "microcompaction":
            session.microcompaction(f"c{number}.0", f"c{number - 1}.0")
        elif event == "orphan":
            session.result(f"x{number}", tag())
        elif event in ("prompt", "rewind"):
            fork = draw(st.sampled_from(prompts)) if event == "rewind" and prompts else session.records[-1]["uuid"]
            prompts.append(fork)
            session.prompt(tag(), parentUuid=fork)
    return session


@settings(max_examples=300)
@given(tagged_sessions())
def test_a_history_holds_nothing_that_came_later(tmp_path_factory: pytest.TempPathFactory, session: Session) -> None:
    path = session.write(tmp_path_factory.getbasetemp(), "tagged.jsonl")
    (trace,), stats = read_file(path)
    assert stats.skipped_truncated_lines == 0
    turns = [turn for turn in trace.turns if turn.role == "assistant"]
    assert [turn.id for turn in turns] == list(dict.fromkeys(turn.id for turn in turns))
    own: set[str] = set()
    for turn, state in zip(turns, trace.states(), strict=True):
        own.update(call.id for call in turn.tool_calls)
        text = json.dumps(list(state["messages"]))
        assert turn.line is not None
        assert all(int(line) < turn.line for line in re.findall(r"<line (\d+)>", text))
        earlier = own - {call.id for call in turn.tool_calls}
        assert set(re.findall(r"<result ([\w.]+)>", text)) <= earlier
        # And every call that it holds is answered, at once.
        waiting: list[str] = []
        for message in state["messages"]:
            if message["role"] == "tool":
                waiting.remove(message["tool_call_id"])
            else:
                assert not waiting
                waiting = [call["id"] for call in message.get("tool_calls", [])]
        assert not waiting
