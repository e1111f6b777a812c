"""From teachers' answers to preference pairs, and the report of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from composer_replication.teacher_replay.agreement.comparison import Comparison
from composer_replication.teacher_replay.pairs import (
    PairReport,
    TeacherVotes,
    comparer_for,
    extract_dpo_pairs,
    extract_pairs_with_report,
)
from composer_replication.teacher_replay.records import TeacherCallResult
from composer_replication.traces import Source, ToolCall, Trace, TraceState, Turn, parse_arguments, render_action

FIXTURES = Path(__file__).parent / "fixtures"


def state(state_id: str, action: str = "student") -> TraceState:
    return {"state_id": state_id, "messages": [{"role": "user", "content": "go"}], "student_action": action}


def row(state_id: str, teacher: str, text: str | None, error: str | None = None) -> TeacherCallResult:
    return {
        "state_id": state_id,
        "teacher_slug": teacher,
        "response_text": text,
        "latency_s": 0.1,
        "prompt_tokens": 1,
        "completion_tokens": 1,
        "cost_usd": 0.0,
        "error": error,
    }


def rows(state_id: str, *texts: str) -> list[TeacherCallResult]:
    return [row(state_id, f"teacher {number}", text) for number, text in enumerate(texts)]


def test_a_pair_keeps_what_the_teachers_agreed_on() -> None:
    (pair,) = extract_dpo_pairs([state("s")], rows("s", "other", "read  it\n", "read it"))
    assert pair == {
        "state_id": "s",
        "state_messages": [{"role": "user", "content": "go"}],
        "chosen": "read  it\n",
        "rejected": "student",
        "n_teachers_agreeing": 2,
        "teachers": ["teacher 1", "teacher 2"],
        "margin": 1,
        "similarity": 1.0,
    }


def test_the_threshold_is_two_unless_told() -> None:
    answers = rows("s", "a", "b", "a")
    assert len(extract_dpo_pairs([state("s")], answers)) == 1
    assert extract_dpo_pairs([state("s")], rows("s", "a", "b")) == []
    assert extract_dpo_pairs([state("s")], answers, 3) == []
    assert len(extract_dpo_pairs([state("s")], rows("s", "a"), 1)) == 1


def test_pairs_come_in_the_order_of_the_states_one_each() -> None:
    answers = [*rows("b", "x", "x", "y", "y"), *rows("a", "x", "x"), *rows("c", "student", "student")]
    pairs = extract_dpo_pairs([state("a"), state("b"), state("c")], answers)
    assert [(pair["state_id"], pair["chosen"]) for pair in pairs] == [("a", "x"), ("b", "x")]


def test_what_the_student_did_is_no_pair_and_outvotes_a_rival() -> None:
    assert extract_dpo_pairs([state("s")], rows("s", "student", " student", "student")) == []
    assert extract_dpo_pairs([state("s")], rows("s", "x", "x", "student", "student", "student")) == []
    assert len(extract_dpo_pairs([state("s")], rows("s", "x", "x", "student", "student"))) == 1
    assert extract_dpo_pairs([state("s")], rows("s", "x", "x", "student", "student"), min_margin=1) == []


def test_neither_side_holds_thinking() -> None:
    thought = "[THINKING]\nlet me see\n[/THINKING]\n"
    (pair,) = extract_dpo_pairs([state("s", thought + "student")], rows("s", thought + "read it", "read it"))
    assert (pair["chosen"], pair["rejected"]) == ("read it", "student")
    assert extract_dpo_pairs([state("s", thought + "same")], rows("s", "same", "same")) == []


def test_failed_rows_do_not_vote() -> None:
    answers = [row("s", "one", "x"), row("s", "two", None, "timeout"), row("s", "three", "x", "cut off")]
    report = extract_pairs_with_report([state("s")], [*answers, row("s", "four", "[THINKING]\nx\n[/THINKING]")])
    assert (report.pairs, report.failed_rows, report.states_with_answers) == ([], 3, 1)


def test_a_call_that_cannot_be_made_does_not_vote() -> None:
    broken, unfit = '[TOOL_USE] name=Read input={"file_path": "a', '[TOOL_USE] name=Read input={"path": "a"}'
    tool = {"name": "Read", "input_schema": {"type": "object", "required": ["file_path"]}}
    for action, tools, pairs in ((broken, None, 0), (unfit, None, 1), (unfit, [tool], 0), (broken, [tool], 0)):
        report = extract_pairs_with_report([state("s")], [row("s", "a", action), row("s", "b", action)], tools=tools)
        assert (report.pair_count, report.failed_rows) == (pairs, 0 if pairs else 2)


def test_a_teacher_votes_once_with_its_last_answer() -> None:
    answers = [row("s", "one", "x"), row("s", "two", "y"), row("s", "one", "y"), row("s", "one", None, "timeout")]
    report = extract_pairs_with_report([state("s")], answers)
    assert [pair.details["teachers"] for pair in report.pairs] == [["one", "two"]]
    assert (report.repeated_rows, report.failed_rows) == (1, 1)
    assert extract_dpo_pairs([state("s")], [row("s", "one", "x"), row("s", "one", "x")]) == []


def test_a_teacher_that_failed_first_keeps_its_place() -> None:
    answers = [row("s", "one", None, "timeout"), *rows("s", "y"), row("s", "one", "x")]
    (pair,) = extract_dpo_pairs([state("s")], answers, 1)
    assert pair["chosen"] == "x"


def test_a_student_that_did_nothing_makes_no_pair() -> None:
    report = extract_pairs_with_report([state("s", "[THINKING]\nhm\n[/THINKING]")], rows("s", "x", "x"))
    assert (report.pairs, report.no_student_action, report.below_margin) == ([], 1, 0)


def test_the_tools_go_along() -> None:
    tools = [{"type": "function", "function": {"name": "Read", "parameters": {}}}]
    (pair,) = extract_dpo_pairs([state("s")], rows("s", "x", "x"), tools=tools)
    assert pair["tools"] == tools


def test_a_comparer_of_ones_own() -> None:
    def by_length(first: Turn, second: Turn) -> Comparison:
        assert not first.thinking
        assert not second.thinking
        return Comparison(len(first.content) == len(second.content), 0.5)

    thought = "[THINKING]\nhm\n[/THINKING]\n"
    answers = rows("s", thought + "abc", "xyz", "7 chars")
    (pair,) = extract_dpo_pairs([state("s", thought + "student")], answers, agreement=by_length)
    assert (pair["chosen"], pair["similarity"], pair["n_teachers_agreeing"]) == ("abc", 0.5, 2)


def test_agreement_by_meaning() -> None:
    first = '[TOOL_USE] name=Read input={"file_path": "a.py", "limit": 5}'
    second = '[TOOL_USE] name=Read input={"limit": 5, "file_path": "./a.py"}'
    assert extract_dpo_pairs([state("s")], rows("s", first, second)) == []
    (pair,) = extract_dpo_pairs([state("s")], rows("s", first, second), agreement="action")
    assert pair["chosen"] == first


def test_messages_are_not_copied_and_a_pair_survives_json() -> None:
    turns = [Turn("user", "go"), Turn("assistant", "student"), Turn("user", "on"), Turn("assistant", "student")]
    states = list(Trace("t", turns, Source("f", "made_up")).states())
    answers = [answer for one in states for answer in rows(one["state_id"], "x", "x")]
    pairs = extract_dpo_pairs(states, answers, tools=[{"type": "function"}])
    assert json.loads(json.dumps(pairs)) == pairs
    assert [pair["state_messages"] for pair in pairs] == [list(one["messages"]) for one in states]
    assert pairs[1]["state_messages"][0] is pairs[0]["state_messages"][0]
    with_report = extract_pairs_with_report(states, answers).pairs
    assert all(pair.messages is one["messages"] for pair, one in zip(with_report, states, strict=True))


BY_MEANING = {"agreement": "action", "agreement_threshold": 2, "min_margin": 0}
ALIKE = ('[TOOL_USE] name=Read input={"file_path": "a.py"}', '[TOOL_USE] name=Read input={"file_path": "./a.py"}')


def gated(answers: list[TeacherCallResult], **changed: Any) -> list[TeacherCallResult]:
    return [{**answer, "gated_by": {**BY_MEANING, **changed}} for answer in answers]  # type: ignore[typeddict-item]


def test_rows_are_compared_as_they_were_gated(caplog: pytest.LogCaptureFixture) -> None:
    answers = rows("s", *ALIKE)
    assert extract_dpo_pairs([state("s")], answers) == []
    assert len(extract_dpo_pairs([state("s")], gated(answers))) == 1
    assert extract_dpo_pairs([state("s")], gated(answers, agreement="exact")) == []
    assert len(extract_dpo_pairs([state("s")], gated(answers, agreement_threshold=3), 3)) == 0
    # Rows of a run without a gate are complete, however they are compared.
    assert len(extract_dpo_pairs([state("s")], [*gated(answers[:1]), *answers[1:]])) == 1
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("extraction", "used"),
    [
        ({"agreement": "exact"}, "agreement exact, threshold 2, margin 0"),
        ({"agreement_threshold": 3}, "agreement action, threshold 3, margin 0"),
        ({"agreement_threshold": 1}, "agreement action, threshold 1, margin 0"),
        ({"min_margin": 1}, "agreement action, threshold 2, margin 1"),
        ({"agreement": lambda one, other: Comparison(True, 1.0)}, "agreement custom, threshold 2, margin 0"),
    ],
)
def test_another_rule_than_the_gates_is_told_in_a_line(
    extraction: dict[str, Any], used: str, caplog: pytest.LogCaptureFixture
) -> None:
    extract_dpo_pairs([state("s"), state("t")], gated([*rows("s", *ALIKE), *rows("t", *ALIKE)]), **extraction)
    (told,) = caplog.messages
    assert told == (
        f"the rows were gated by agreement action, threshold 2, margin 0, and pairs are looked for by {used}: answers "
        "that the gate found needless are missing; use the gate's own, or replay without a gate (what is stored is "
        "not paid again)"
    )


def test_rows_that_were_gated_in_several_ways_are_told(caplog: pytest.LogCaptureFixture) -> None:
    mixed = [*gated(rows("s", *ALIKE)), *gated(rows("t", *ALIKE), agreement="exact")]
    assert extract_dpo_pairs([state("s"), state("t")], mixed) == []
    assert "by agreement action, threshold 2, margin 0, and pairs are looked for by agreement exact" in caplog.text
    caplog.clear()
    assert len(extract_dpo_pairs([state("s")], gated(rows("s", "x", "x"), agreement="custom"))) == 1
    assert "by agreement custom, " in caplog.text


def test_states_and_rows_may_be_streams() -> None:
    assert len(extract_dpo_pairs(iter([state("s")]), iter(rows("s", "x", "x")))) == 1


def test_every_state_and_row_is_accounted_for() -> None:
    states = [state(name) for name in ("pair", "tie", "below", "margin", "with student", "silent", "failed")]
    answers = [
        *rows("pair", "x", "x", "student"),
        *rows("tie", "x", "y", "x", "y"),
        *rows("below", "x", "y", "z"),
        *rows("margin", "x", "x", "student", "student", "student"),
        *rows("with student", "student", "student", "z"),
        row("failed", "teacher 0", None, "no"),
        *rows("nowhere", "x", "x"),
    ]
    report = extract_pairs_with_report(states, answers)
    assert [pair.state_id for pair in report.pairs] == ["pair", "tie"]
    assert report.as_dict() == {
        "pairs": 2,
        "states": 7,
        "states_with_answers": 5,
        "below_threshold": 2,
        "below_margin": 1,
        "no_student_action": 0,
        "ties": 1,
        "student_supported": 2,
        "unknown_rows": 2,
        "failed_rows": 1,
        "repeated_rows": 0,
        "histogram": {"1": 2, "2": 3},
        "by_teacher": {
            "teacher 0": {"answers": 5, "with_student": 1, "in_pairs": 2},
            "teacher 1": {"answers": 5, "with_student": 1, "in_pairs": 1},
            "teacher 2": {"answers": 5, "with_student": 2, "in_pairs": 1},
            "teacher 3": {"answers": 2, "with_student": 1, "in_pairs": 0},
            "teacher 4": {"answers": 1, "with_student": 1, "in_pairs": 0},
        },
    }
    json.dumps(report.as_dict())


def test_the_student_is_supported_if_no_rival_has_more() -> None:
    for answers, supported in ((("student", "x"), 1), (("student", "x", "x"), 0), (("x",), 0), ((), 0)):
        assert extract_pairs_with_report([state("s")], rows("s", *answers)).student_supported == supported


def test_counts_are_told_in_order() -> None:
    states = [state("a"), state("b")]
    answers = [row("a", "two", "x"), row("a", "one", "x"), row("b", "two", "x")]
    told = extract_pairs_with_report(states, answers).as_dict()
    assert (list(told["histogram"]), list(told["by_teacher"])) == (["1", "2"], ["one", "two"])


def test_reports_of_traces_add_up() -> None:
    states = [state(name) for name in "abcd"]
    answers = [*rows("a", "x", "x"), *rows("b", "x", "y"), *rows("c", "student", "x", "x"), *rows("zz", "x")]
    answers.append(row("d", "teacher 9", None, "no"))
    whole = extract_pairs_with_report(states, answers)
    total = PairReport()
    for one in states:
        own = [answer for answer in answers if answer["state_id"] == one["state_id"]]
        total.add(extract_pairs_with_report([one], own))
    total.add(extract_pairs_with_report([], rows("zz", "x")))
    assert total == whole

    counts_only = PairReport()
    counts_only.add(whole, keep_pairs=False)
    assert (counts_only.pairs, counts_only.as_dict()) == ([], whole.as_dict())
    counts_only.by_teacher["teacher 0"].answers += 1
    assert whole.by_teacher["teacher 0"] == TeacherVotes(answers=3, with_student=1, in_pairs=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"agreement_threshold": 0}, "agreement_threshold must be at least 1 teacher, got 0"),
        ({"min_margin": -1}, "min_margin must not be negative, got -1"),
        ({"agreement": "fuzzy"}, "agreement must be 'exact', 'action' or a comparer, got 'fuzzy'"),
        ({"agreement": 5}, "agreement must be 'exact', 'action' or a comparer, got 5"),
    ],
)
def test_bad_arguments_are_named_before_anything_is_done(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        extract_dpo_pairs([], [], **options)


def test_a_state_id_that_comes_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="state_id 's' comes twice"):
        extract_dpo_pairs([state("s"), state("s")], [])


@pytest.mark.parametrize("name", ["teacher_slug", "response_text", "error"])
def test_a_result_that_lacks_something_is_named(name: str) -> None:
    (result,) = rows("s", "x")
    broken: Any = {key: value for key, value in result.items() if key != name}
    with pytest.raises(ValueError, match=f"a teacher's result lacks '{name}'"):
        extract_dpo_pairs([state("s", "y")], [broken])


@pytest.mark.parametrize("name", ["state_id", "messages", "student_action"])
def test_a_state_that_lacks_something_is_named(name: str) -> None:
    lacking = {key: value for key, value in state("s").items() if key != name}
    with pytest.raises(ValueError, match=rf"states\[1\]: a state needs '{name}'"):
        extract_dpo_pairs([state("r"), lacking], [])  # type: ignore[list-item]


def test_comparers_by_name() -> None:
    assert repr(comparer_for("exact")) == "ExactComparer()"


def recorded_rows() -> list[TeacherCallResult]:
    """The recorded teachers' messages as rows of a replay."""
    rows = []
    for line in (FIXTURES / "coding_answers.jsonl").read_text().splitlines():
        answer = json.loads(line)
        functions = [call["function"] for call in answer["message"].get("tool_calls", [])]
        calls = [ToolCall("", function["name"], *parse_arguments(function["arguments"])) for function in functions]
        text = render_action(Turn("assistant", answer["message"]["content"] or "", tool_calls=calls))
        rows.append(row(answer["state_id"], answer["teacher_slug"], text))
    return rows


def test_the_pairs_of_a_recorded_session_are_those_that_an_engineer_sees() -> None:
    trace = msgspec.json.decode((FIXTURES / "coding_trace.jsonl").read_bytes(), type=Trace)
    outcomes = json.loads((FIXTURES / "coding_outcomes.json").read_text())
    pairs = extract_dpo_pairs(trace.states(), recorded_rows(), agreement="action", tools=trace.tools)
    expected = {state_id: set(outcome["teachers"]) for state_id, outcome in outcomes.items() if outcome["pair"]}
    assert [pair["state_id"] for pair in pairs] == sorted(expected)
    assert all(set(pair["teachers"]) <= expected[pair["state_id"]] for pair in pairs)
    assert sum(len(pair["teachers"]) for pair in pairs) >= 0.95 * sum(map(len, expected.values()))
    assert len(extract_dpo_pairs(trace.states(), recorded_rows())) < 0.1 * len(pairs)
