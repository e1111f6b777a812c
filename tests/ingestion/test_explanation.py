"""A trace in words: its error sites, whose mistake they were, and the hints."""

from __future__ import annotations

from pathlib import Path

import pytest
from ingestion.failing_traces import calling, failing_trace, result
from ingestion.sessions_on_disk import answer, result_of, session, turn, write

from composer_replication.ingestion.error_views import ExplainedTurn, explain_trace, with_neighbours
from composer_replication.ingestion.reading import read_traces
from composer_replication.traces import Source, Trace, Turn

REJECTED = "The user doesn't want to proceed with this tool use. The tool use was rejected."


def explain(path: Path) -> list[ExplainedTurn]:
    (trace,) = read_traces(path)
    explained = explain_trace(trace)
    assert (explained["trace_id"], explained["format"]) == (path.stem, "claude_code")
    return explained["turns"]


def explain_turns(*turns: Turn) -> list[ExplainedTurn]:
    return explain_trace(Trace("s", list(turns), Source("s", "x")))["turns"]


def test_turns_in_order_with_where_they_stand(tmp_path: Path) -> None:
    user, assistant, tool = explain(write(tmp_path / "s1.jsonl", session("a")))
    began = "2026-03-01T10:00:00.000Z"
    assert user == {
        "index": 0,
        "role": "user",
        "text": "please do a",
        "origin": "prompt",
        "line": 1,
        "timestamp": began,
    }
    assert assistant == {
        "index": 1,
        "role": "assistant",
        "text": "doing a",
        "calls": ['Bash {"command": "make a"}'],
        "line": 2,
        "model": "claude-x",
        "tokens": {"input": 15, "output": 2, "cached": 5},
        "timestamp": began,
        "seconds": 0.0,
    }
    assert tool == {
        "index": 2,
        "role": "tool",
        "text": "done",
        "line": 3,
        "tool": "Bash",
        "lines": 1,
        "characters": 4,
        "timestamp": began,
        "seconds": 0.0,
    }


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


def test_an_outcome_names_the_turn_that_is_charged_and_that_turn_names_it() -> None:
    turns = explain_trace(failing_trace())["turns"]
    assert (turns[4]["outcome"], turns[4]["masked"], turns[4]["charged_to"]) == (True, True, [1])
    assert (turns[1]["tool_error"], turns[1]["reported_by"]) == ("test_failure", 4)
    assert "reported_by" not in turns[5]
    assert (turns[10]["outcome"], turns[10]["charged_to"]) == (True, [])
    assert "outcome" not in turns[6]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\n\n> shop@1.0 build\n> tsc\n\nbuilt in 3 s\nerror: none", "built in 3 s"),
        ('{\n  "name": "shop",\n  "size": 3\n}', '"name": "shop",'),
        ("Exit code: 0\nWall time: 1 s\nOutput:\nfirst\nsecond", "first"),
        ("all\n<system-reminder>be good</system-reminder>", "all"),
        ("<returncode>0</returncode>\n<output>\n</output>", ""),
        ("---", "---"),
        ("", ""),
    ],
)
def test_a_result_shows_the_first_line_that_says_something(text: str, shown: str) -> None:
    _, told = explain_turns(calling("a", "Bash"), result("a", text))
    assert told["text"] == shown


def test_an_error_shows_the_line_that_failed() -> None:
    output = "Exit code 1\n" + "collecting\n" * 50 + "Traceback (most recent call last):\n  …\nKeyError: 'x'\n"
    failed = result("a", output, failed=True)
    failed.error_kind = "traceback"
    _, told = explain_turns(calling("a", "Bash", command="python a.py"), failed)
    assert (told["text"], told["lines"]) == ("KeyError: 'x'", 54)


def test_an_error_shows_the_line_that_its_hint_is_made_of() -> None:
    trace = failing_trace()
    trace.turns[5].error_meta = {"tool_call_id": "call_blind", "error_message": "the line of the hint\nand more"}
    # To a tool that reads files, this would be a missing file.
    trace.turns[4].content = "File does not exist.\nE   assert 2 == 3\n1 failed"
    turns = explain_trace(trace)["turns"]
    assert (turns[4]["text"], turns[6]["text"]) == ("assert 2 == 3", "the line of the hint")


def test_thinking_is_shown_as_such() -> None:
    (silent,) = explain_turns(Turn("assistant", thinking="so  it\nis"))
    assert (silent["text"], silent["thinking"]) == ("", "so it is")


def test_the_seconds_since_the_turn_before() -> None:
    times = [
        "2026-03-01T10:00:00.000Z",
        "2026-03-01T10:00:02.5Z",
        None,
        "2026-03-01T10:00:03",
        "soon",
        "2026-03-01T09:00",
    ]
    turns = explain_turns(*(Turn("assistant", timestamp=time) for time in times))
    assert [turn.get("seconds") for turn in turns] == [None, 2.5, None, 0.5, None, None]


def test_calls_whose_arguments_are_no_json_are_shown_as_they_are() -> None:
    broken = calling("a", "Edit")
    broken.tool_calls[0].raw_arguments = '{"path": '
    assert explain_turns(broken)[0]["calls"] == ['Edit {"path":']


def test_turns_with_their_neighbours() -> None:
    assert with_neighbours([0, 5, 6], 1, 9) == [0, 1, 4, 5, 6, 7]
    assert with_neighbours([8], 2, 9) == [6, 7, 8]
    assert with_neighbours([3], 0, 9) == [3]
