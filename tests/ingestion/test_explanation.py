"""A trace in words: its error sites, whose mistake they were, and the hints."""

from __future__ import annotations

from pathlib import Path

from ingestion.sessions_on_disk import answer, result_of, session, turn, write

from composer_replication.ingestion.explanation import ExplainedTurn, explain_trace
from composer_replication.ingestion.reading import read_traces

REJECTED = "The user doesn't want to proceed with this tool use. The tool use was rejected."


def explain(path: Path) -> list[ExplainedTurn]:
    (trace,) = read_traces(path)
    explained = explain_trace(trace)
    assert (explained["trace_id"], explained["format"]) == (path.stem, "claude_code")
    return explained["turns"]


def test_turns_in_order_with_where_they_stand(tmp_path: Path) -> None:
    user, assistant, tool = explain(write(tmp_path / "s1.jsonl", session("a")))
    assert user == {"index": 0, "role": "user", "text": "please do a", "origin": "prompt", "line": 1}
    assert assistant == {
        "index": 1,
        "role": "assistant",
        "text": "doing a",
        "calls": ['Bash {"command": "make a"}'],
        "line": 2,
    }
    assert tool == {"index": 2, "role": "tool", "text": "done", "line": 3}


def test_an_error_site_carries_its_hint(tmp_path: Path) -> None:
    edit = {"type": "tool_use", "id": "call_e", "name": "Edit", "input": {"file_path": "a.py", "old_string": "x"}}
    failed = "<tool_use_error>File has not been read yet. Read it first before writing to it.</tool_use_error>"
    _, site, result = explain(
        write(tmp_path / "s1.jsonl", [*turn("x")[:1], answer("e", [edit]), result_of("e", failed, failed=True)])
    )
    assert site["tool_error"] == result["error_kind"] == "edit_before_read"
    assert site["students_mistake"] is True
    assert "a.py" in site["hint"] or "read" in site["hint"].lower()
    assert "hint" not in result


def test_a_rejected_call_is_not_the_students_mistake_and_has_no_hint(tmp_path: Path) -> None:
    turns = explain(write(tmp_path / "s1.jsonl", turn("a", result=REJECTED, failed=True)))
    assert turns[1]["tool_error"] == "user_rejected"
    assert turns[1]["students_mistake"] is False
    assert "hint" not in turns[1]


def test_long_texts_are_cut_and_a_new_context_is_marked(tmp_path: Path) -> None:
    summary = {**turn("s", prompt="the story so far")[0], "isCompactSummary": True}
    long = turn("a", prompt="many   words\n" * 100)
    turns = explain(write(tmp_path / "s1.jsonl", [*long, summary, *session("b")]))
    assert len(turns[0]["text"]) == 240
    assert turns[0]["text"].startswith("many words many words")
    assert turns[0]["text"].endswith("…")
    assert [turn.get("context_begins", False) for turn in turns] == [False] * 3 + [True] + [False] * 3
