"""Answers: which can be used, and gates that ask no more teachers than needed and lose no pair."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_replication.ingestion.store import load_traces
from composer_replication.teacher_replay.agreement.comparison import Comparison, ExactComparer
from composer_replication.teacher_replay.answers import AnswerReader, CallChecks, Reading, SequentialGate, gate_for
from composer_replication.teacher_replay.ledger import Answer
from composer_replication.teacher_replay.pairs import extract_dpo_pairs
from composer_replication.teacher_replay.prices import Tokens
from composer_replication.teacher_replay.records import TeacherRow
from composer_replication.teacher_replay.tool_schemas import complete_tools
from composer_replication.traces import Step, Turn, action_text, parse_action

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from replay_setting import write_traces

READ = {
    "name": "Read",
    "input_schema": {
        "type": "object",
        "properties": {
            "file_path": {"type": "string"},
            "limit": {"type": "integer"},
            "mode": {"enum": ["text", "bytes"]},
            "ranges": {"type": "array", "items": {"$ref": "#/$defs/range"}},
        },
        "required": ["file_path"],
        "additionalProperties": False,
        "$defs": {"range": {"type": "object", "required": ["start"]}},
    },
}


def call(name: str, **arguments: Any) -> str:
    return f"[TOOL_USE] name={name} input={json.dumps(arguments)}"


def problem(action: str, *tools: dict[str, Any]) -> str | None:
    return CallChecks(tools).problem(parse_action(action))


def steps(*actions: str) -> list[Step]:
    return [Step(str(number), [], parse_action(action)) for number, action in enumerate(actions)]


def read(text: str, finish: str, completion: int = 1) -> Reading:
    return AnswerReader([READ]).read(Answer(parse_action(text), finish, Tokens(1, completion), 5, 0.1), 64)


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ("Done.", None),
        (call("Read", file_path="a"), None),
        (call("Read", file_path="a", limit=3, mode="text", ranges=[{"start": 1}]), None),
        (call("Grep", pattern="a"), "the answer calls Grep, which is none of the tools that were offered"),
        (call("Read"), "the answer's call of Read does not fit the tool: 'file_path' is a required property"),
        (call("Read", file_path=3), "the answer's call of Read does not fit the tool: file_path (type)"),
        (call("Read", file_path="a", limit="3"), "the answer's call of Read does not fit the tool: limit (type)"),
        (call("Read", file_path="a", mode="x"), "the answer's call of Read does not fit the tool: mode (enum)"),
        (call("Read", file_path="a", ranges=[{}]),
         "the answer's call of Read does not fit the tool: ranges.0: 'start' is a required property"),
        (call("Read", file_path="a", other=1),
         "the answer's call of Read does not fit the tool: its arguments (additionalProperties)"),
        (f"{call('Read', file_path='a')}\n{call('Read')}",
         "the answer's call of Read does not fit the tool: 'file_path' is a required property"),
        ('[TOOL_USE] name=Read input={"file_path": "a',
         "the answer's call of Read has arguments that are no JSON object"),
        ("[TOOL_USE] name=Read input=[1]", "the answer's call of Read has arguments that are no JSON object"),
    ],
)  # fmt: skip
def test_calls_fit_the_tools_that_were_offered(action: str, reason: str | None) -> None:
    assert problem(action, READ) == reason


def test_without_tools_only_calls_that_do_not_parse_are_refused() -> None:
    assert problem(call("Read", any=1)) is None
    assert problem('[TOOL_USE] name=Read input={"file_path": "a') is not None


def test_an_inferred_definition_is_checked_for_its_name_alone() -> None:
    """Its types and what it requires are a guess: the student's calls may all have had an argument by chance."""
    inferred = complete_tools([], steps(call("Bash", command="ls", timeout=5), call("Bash", command="pwd", timeout=5)))
    twice = complete_tools(inferred, [])
    assert inferred[0]["function"]["parameters"]["required"] == ["command", "timeout"]
    for tools in (inferred, twice, json.loads(json.dumps(twice))):
        assert problem(call("Bash", command="ls"), *tools) is None
        assert problem(call("Bash", command=["ls"], timeout="5"), *tools) is None
        assert problem(call("Read", file_path="a"), *tools) is not None
        assert problem(call("Read"), READ, *tools) is not None


def test_a_schema_that_is_none_refuses_nothing_and_nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[Any] = []
    monkeypatch.setattr("urllib.request.urlopen", lambda request, *_, **__: fetched.append(request))
    for broken in ({"type": "no such type"}, {"properties": {"a": 5}}, {"required": 7}, {"$ref": "https://a.test/b"},
                   {"$ref": "#/$defs/missing"}, {"properties": {"a": {"pattern": "("}}}, {"$ref": "#"}):  # fmt: skip
        tool = {"name": "Odd", "input_schema": {"type": "object", **broken}}
        assert problem(call("Odd", a="x"), tool) is None, broken
        assert problem(call("Other", a="x"), tool) is not None
    assert fetched == []


@pytest.mark.parametrize("finish", ["length", "max_tokens", "MAX_TOKENS", "model_length", "max_output_tokens"])
def test_an_answer_that_was_cut(finish: str) -> None:
    reading = read("Half", finish)
    assert reading.turn is None
    assert reading.is_cut
    assert reading.problem == "the answer was cut at 64 tokens: raise max_output_tokens"


def test_an_answer_of_all_tokens_that_does_not_say_how_it_ended_was_cut() -> None:
    assert read("Half", "", 64).is_cut
    assert read("Whole", "", 63).turn == parse_action("Whole")
    assert read("Whole", "stop", 64).turn == parse_action("Whole")


def test_none_for_what_need_not_be_given_is_as_good_as_nothing() -> None:
    assert problem(call("Read", file_path="a", limit=None), READ) is None
    assert problem(call("Read", file_path=None), READ) is not None


@pytest.mark.parametrize(
    ("text", "finish", "reason"),
    [
        ("x", "content_filter", "the endpoint broke the answer off, or kept it back (content_filter)"),
        ("x", "SAFETY", "the endpoint broke the answer off, or kept it back (safety)"),
        ("x", "error", "the endpoint broke the answer off, or kept it back (error)"),
        (" \n", "stop", "the answer is empty"),
        (call("Grep"), "tool_calls", "the answer calls Grep, which is none of the tools that were offered"),
    ],
)
def test_an_answer_that_cannot_be_used(text: str, finish: str, reason: str) -> None:
    reading = read(text, finish)
    assert reading == Reading(problem=reason)


def test_an_answer_that_can_be_used_stays_as_it_is() -> None:
    text = f"So.\n{call('Read', file_path='a')}"
    reading = read(text, "tool_calls")
    assert reading == Reading(parse_action(text))


def row(teacher: str, answer: str | None, error: str | None = None) -> TeacherRow:
    turn = None if answer is None else parse_action(answer)
    return TeacherRow("s", teacher, turn, error=error or (None if answer is not None else "it failed"))


def step(action: str = "s") -> Step:
    return Step("s", [], parse_action(action))


def asked(gate: SequentialGate, action: str, answers: Sequence[tuple[str, str | None]]) -> list[TeacherRow]:
    """The rows of the teachers that are asked, if these are their answers and the order in which they are asked."""
    rows: list[TeacherRow] = []
    for index, (teacher, answer) in enumerate(answers):
        if not gate(step(action), rows, [name for name, _ in answers[index:]]):
            break
        rows.append(row(teacher, answer))
    return rows


def sequential(threshold: int = 2, min_margin: int = 0) -> SequentialGate:
    return SequentialGate(ExactComparer(), threshold=threshold, min_margin=min_margin)


@pytest.mark.parametrize(
    ("answers", "calls"),
    [
        ("xx?", 2),  # enough agree: the third could not change it
        ("xy?", 3),
        ("ss?", 2),  # no two can agree any more
        ("sx?", 3),
        ("x-?", 3),  # a failure decides nothing
        ("--?", 2),
        ("xx??", 4),  # the last two might agree on another, and stand before these
        ("xxs?", 3),
        ("xxx?", 3),
        ("xs??", 4),
    ],
)
def test_teachers_are_asked_until_it_is_decided(answers: str, calls: int) -> None:
    given = [(f"t{index}", None if letter == "-" else letter) for index, letter in enumerate(answers)]
    assert len(asked(sequential(), "s", given)) == calls


@pytest.mark.parametrize("action", ["", "  \n", "[THINKING]\nwhat now\n[/THINKING]"])
def test_nobody_is_asked_where_the_student_did_nothing(action: str) -> None:
    assert asked(sequential(), action, [("a", "x"), ("b", "x")]) == []


def test_thinking_is_no_part_of_an_answer() -> None:
    thought = "[THINKING]\nmaybe\n[/THINKING]\nx"
    assert len(asked(sequential(), "s", [("a", "x"), ("b", thought), ("c", "x")])) == 2
    assert len(asked(sequential(), thought, [("a", "x"), ("b", "x"), ("c", "x")])) == 2


def test_a_comparer_of_ones_own_gets_actions_without_thinking_and_no_failed_ones() -> None:
    compared: list[str] = []

    def same(first: Turn, second: Turn, /) -> Comparison:
        assert not first.thinking
        assert not second.thinking
        compared.extend((action_text(first), action_text(second)))
        return Comparison(first == second, 1.0)

    thought = "[THINKING]\nmaybe\n[/THINKING]\n"
    rows = [row("a", f"{thought}x"), row("b", f"{thought}x"), row("c", "half of it", "it was cut")]
    assert SequentialGate(same)(step(f"{thought}s"), rows, ["d"]) is False
    assert set(compared) == {"s", "x"}


letters = st.sampled_from([*"xyzs", None])


@settings(max_examples=300)
@given(answers=st.lists(letters, min_size=1, max_size=5), data=st.data())
def test_the_pairs_are_those_of_asking_everybody(answers: list[str | None], data: Any) -> None:
    """Whatever the teachers say, and however the order of asking differs from the one in which they stand."""
    threshold, min_margin = data.draw(st.integers(1, 3)), data.draw(st.integers(0, 2))
    standing = [(f"t{index}", answer) for index, answer in enumerate(answers)]
    order = data.draw(st.permutations(standing))
    by_gate = asked(sequential(threshold, min_margin), "s", order)

    def pairs(rows: list[TeacherRow]) -> list[tuple[str, str]]:
        found = extract_dpo_pairs([step().state()], [one.result() for one in rows], threshold, min_margin=min_margin)
        return [(pair["chosen"], pair["rejected"]) for pair in found]

    assert pairs(sorted(by_gate, key=lambda one: one.teacher_slug)) == pairs([row(*one) for one in standing])
    gate = sequential(threshold, min_margin)
    assert len(by_gate) >= gate.fewest_asked(len(answers))


@settings(max_examples=100)
@given(teachers=st.integers(1, 5), threshold=st.integers(1, 4), min_margin=st.integers(0, 2))
def test_the_fewest_are_asked_where_all_say_the_same(teachers: int, threshold: int, min_margin: int) -> None:
    gate = sequential(threshold, min_margin)
    names = [f"t{index}" for index in range(teachers)]
    calls = [len(asked(gate, "s", [(name, answer) for name in names])) for answer in ("s", "x")]
    assert gate.fewest_asked(teachers) == min(calls)


def test_a_gate_is_known_by_its_name_or_is_a_callable() -> None:
    made: list[str] = []

    def comparer() -> ExactComparer:
        made.append("comparer")
        return ExactComparer()

    def own(*given: Any) -> bool:
        assert given == (step("[THINKING]\nhm\n[/THINKING]\ns").state(), [row("a", "x").result()], ["b"])
        return True

    ready = sequential()
    assert gate_for(ready, comparer, threshold=2, min_margin=0) is ready
    assert gate_for("none", comparer, threshold=2, min_margin=0) is None
    gate = gate_for(own, comparer, threshold=2, min_margin=0)
    assert gate is not None
    assert gate(step("[THINKING]\nhm\n[/THINKING]\ns"), [row("a", "x")], ["b"]) is True
    assert made == []
    assert isinstance(gate_for("sequential", comparer, threshold=2, min_margin=0), SequentialGate)
    assert made == ["comparer"]


@pytest.mark.parametrize("choice", ["sequentail", None, 3, ""])
def test_another_gate_is_refused(choice: Any) -> None:
    with pytest.raises(ValueError, match="gate must be 'none', 'sequential' or a callable, not "):
        gate_for(choice, ExactComparer, threshold=2, min_margin=0)


def test_the_calls_of_the_benchmark_fit_its_tools(tmp_path: Path) -> None:
    """Teachers spell the student's calls in ways of their own; a call that does not fit would have no vote."""
    write_traces(tmp_path, 2, 40)
    for trace in load_traces(tmp_path):
        checks = CallChecks(trace.tools)
        turns = [turn for turn in trace.turns if turn.tool_calls]
        assert {call.name for turn in turns for call in turn.tool_calls} >= {"Bash", "Read", "Edit", "Grep"}
        assert [checks.problem(Turn("assistant", tool_calls=turn.tool_calls)) for turn in turns] == [None] * len(turns)
