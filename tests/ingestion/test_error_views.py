"""Error sites, counts of errors, traces turn by turn, and lists of hints."""

from __future__ import annotations

from pathlib import Path

import pytest
from ingestion.failing_traces import calling, failing_trace, result
from ingestion.sessions_on_disk import answer, result_of, session, turn, write

from composer_replication.ingestion.error_views import (
    ErrorTable,
    ExplainedTurn,
    HintList,
    SiteFilter,
    call_sites,
    explain_trace,
    with_neighbours,
)
from composer_replication.ingestion.pipeline import read_traces
from composer_replication.traces import Source, ToolCall, Trace, Turn


def test_every_call_with_its_result_and_what_it_is_charged_with() -> None:
    sites = [
        (site.index, site.tool, site.answer_index, site.failed_as, site.charged_as)
        for site in call_sites(failing_trace())
    ]
    assert sites == [
        (1, "Edit", 2, None, "test_failure"),
        (3, "Bash", 4, "test_failure", None),
        (5, "Edit", 6, "edit_before_read", "edit_before_read"),
        (7, "Bash", 8, "user_rejected", "user_rejected"),
        (9, "Grep", 10, "no_match", None),
    ]


def test_the_turns_that_show_what_went_wrong() -> None:
    assert [site.turns for site in call_sites(failing_trace())] == [[1, 4], [3, 4], [5, 6], [7, 8], [9, 10]]


def test_only_a_charged_mistake_of_the_student_has_a_hint() -> None:
    assert [site.index for site in call_sites(failing_trace()) if site.hint] == [1, 5]


def test_of_parallel_calls_the_one_that_is_meant_is_charged() -> None:
    both = Turn("assistant", tool_calls=[ToolCall("call_1", "Read"), ToolCall("call_2", "Bash")])
    both.tool_error, both.error_meta = "timeout", {"tool_call_id": "call_2"}
    sites = call_sites(Trace("s", [both], Source("s", "x")))
    expected = [("Read", None, None), ("Bash", "timeout", None)]
    assert [(site.tool, site.charged_as, site.answer) for site in sites] == expected


def test_results_without_a_call_and_turns_without_one_count_too() -> None:
    lost = result("lost", "no", failed=True)
    lost.error_kind = "runtime_error"
    unparsed = Turn("assistant", "do it", tool_error="malformed_call")
    sites = call_sites(Trace("s", [unparsed, lost, result("fine", "yes")], Source("s", "x")))
    expected = [(0, None, None, None, "malformed_call"), (1, None, 1, "runtime_error", None)]
    assert [(site.index, site.call, site.answer_index, site.failed_as, site.charged_as) for site in sites] == expected


def test_copies_from_another_file_are_left_out() -> None:
    copied, answer = calling("a", "Bash"), result("a", "no", failed=True)
    copied.repeats, answer.error_kind = True, "timeout"
    assert list(call_sites(Trace("s", [copied, answer], Source("s", "x")))) == []


@pytest.mark.parametrize(
    ("kinds", "tools", "wanted"),
    [
        ([], [], [1, 3, 5, 7, 9]),
        (["test_failure"], [], [1, 3]),
        (["no_match", "user_rejected"], [], [7, 9]),
        ([], ["Edit"], [1, 5]),
        (["test_failure"], ["Bash"], [3]),
        (["no_match"], ["Bash"], []),
    ],
)
def test_a_filter_by_kind_and_tool(kinds: list[str], tools: list[str], wanted: list[int]) -> None:
    chosen = SiteFilter(kinds, tools)
    assert [site.index for site in chosen.sites(failing_trace())] == wanted
    chosen.check()


def test_what_occurs_nowhere_is_said_with_what_does() -> None:
    chosen = SiteFilter(["typo"], [])
    chosen.sites(failing_trace())
    each = r"test_failure \(1\), edit_before_read \(1\), user_rejected \(1\), no_match \(1\)$"
    with pytest.raises(ValueError, match=r"^no error of kind typo here; there are " + each):
        chosen.check()
    chosen = SiteFilter([], ["Write"])
    chosen.sites(failing_trace())
    with pytest.raises(
        ValueError, match=r"^no error of tool Write here; there are Edit \(2\), Bash \(2\), Grep \(1\)$"
    ):
        chosen.check()
    with pytest.raises(ValueError, match=r"^no error of kind typo here; there are none at all$"):
        SiteFilter(["typo"], []).check()


def test_a_failure_that_another_turn_is_charged_with_counts_once() -> None:
    """As `--stats` counts it: the call that it is charged to did not fail itself."""
    unparsed = Turn("assistant", "do it", tool_error="malformed_call")
    chosen = SiteFilter(["typo"], [])
    for trace in (failing_trace(), failing_trace(), Trace("s", [unparsed], Source("s", "x"))):
        chosen.sites(trace)
    with pytest.raises(ValueError, match=r"test_failure \(2\), .*, malformed_call \(1\)$"):
        chosen.check()


def test_the_cross_table_and_its_margins() -> None:
    table = ErrorTable()
    table.add(failing_trace())
    fine = [calling("a", "Bash"), result("a", "yes")]
    table.add(Trace("s2", fine, Source("/logs/by_hand/s2.jsonl", "x"), cwd="C:\\work\\depot\\"))
    table.add(Trace("s3", [calling("b", "Bash")], Source("/logs/by_hand/s3.jsonl", "x")))
    assert {(row["project"], row["tool"], row["model"]): row["calls"] for row in table.rows()} == {
        ("shop", "Edit", "model-a"): 2,
        ("shop", "Bash", "model-a"): 2,
        ("shop", "Grep", "model-a"): 1,
        ("depot", "Bash", "model-a"): 1,
        ("by_hand", "Bash", "model-a"): 1,
    }
    bash, edit, grep = table.by("tool")
    assert bash == {
        "tool": "Bash",
        "calls": 4,
        "failed": 2,
        "outcomes": 1,
        "charged": 1,
        "masked": 1,
        "hints": 0,
        "kinds": {"test_failure": 1, "user_rejected": 1},
    }
    assert (edit["failed"], edit["hints"], edit["kinds"]) == (1, 2, {"edit_before_read": 1})
    assert (grep["tool"], grep["failed"], grep["outcomes"], grep["charged"]) == ("Grep", 1, 1, 0)
    expected = [("shop", 4), ("by_hand", 0), ("depot", 0)]
    assert [(row["project"], row["failed"]) for row in table.by("project")] == expected
    (model,) = table.by("model")
    assert (model["model"], model["calls"], model["failed"]) == ("model-a", 7, 4)


def test_a_failure_nobody_asked_for_is_no_call() -> None:
    lost = result("lost", "no", failed=True)
    lost.error_kind = "runtime_error"
    table = ErrorTable()
    table.add(Trace("s", [lost], Source("s.jsonl", "x"), model="model-c"))
    assert table.rows() == [
        {
            "project": "?",
            "tool": "?",
            "model": "model-c",
            "calls": 0,
            "failed": 1,
            "outcomes": 0,
            "charged": 0,
            "masked": 0,
            "hints": 0,
            "kinds": {"runtime_error": 1},
        }
    ]


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
    expected = {"index": 0, "role": "user", "text": "please do a", "origin": "prompt", "line": 1, "timestamp": began}
    assert user == expected
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


def test_hints_with_their_turn_call_and_failing_line() -> None:
    listed = HintList()
    trace = failing_trace()
    listed.add(trace, call_sites(trace))
    charged, blind = listed.hints
    assert "assert 2 == 3" in charged.pop("hint")
    assert charged == {
        "trace": "s1",
        "file": "/logs/shop/s1.jsonl",
        "turn": 1,
        "line": 10,
        "kind": "test_failure",
        "tool": "Edit",
        "call": 'Edit {"file_path": "a.py", "new_string": "return 2"}',
        "error": "assert 2 == 3",
        "reported_by": 4,
    }
    expected = (
        5,
        "edit_before_read",
        "File has not been read yet. Read it first before writing to it.",
    )
    assert (blind["turn"], blind["kind"], blind["error"]) == expected
    assert blind["reported_by"] is None
    assert (listed.without_hint, listed.outcomes_not_charged) == (1, 1)
