"""Gates: which are known, and that the sequential one loses no pair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_replication.teacher_replay.agreement.comparison import Comparison
from composer_replication.teacher_replay.agreement.exact import ExactComparer
from composer_replication.teacher_replay.answers import SequentialGate, gate_for
from composer_replication.teacher_replay.pairs import extract_dpo_pairs
from composer_replication.teacher_replay.records import TeacherRow
from composer_replication.traces import Step, Turn, action_text, parse_action


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
        compared.extend((action_text(first), action_text(second)))
        return Comparison(action_text(first) == action_text(second), 1.0)

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
