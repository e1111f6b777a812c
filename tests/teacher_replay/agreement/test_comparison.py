"""Equality of texts, and a judge for what looks alike."""

from __future__ import annotations

import pytest
from teacher_replay.actions import on_texts

from composer_replication.teacher_replay.agreement.comparison import Comparison, ExactComparer, JudgedComparer
from composer_replication.traces import Turn

EXACT = on_texts(ExactComparer())
EQUAL = [
    ("run it", "run it"),
    ("  run\n\tit ", "run it"),
    ("[THINKING]\nhm\n[/THINKING]\nrun it", "run it"),
    ("[THINKING]\none\n[/THINKING]\nrun it", "[THINKING]\nanother\n[/THINKING]\nrun it"),
    ("[THINKING]\nhm\n[/THINKING]", ""),
]
OTHER = [
    ("run it", "run them"),
    ("runit", "run it"),
    ("run it", "Run it"),
    ("", "run it"),
    ('[TOOL_USE] name=Read input={"a": 1, "b": 2}', '[TOOL_USE] name=Read input={"b": 2, "a": 1}'),
    ("run it [THINKING]\nhm\n[/THINKING]", "run it"),
]


READ = '[TOOL_USE] name=Read input={"file_path": "a.py"}'
READ_OTHER = '[TOOL_USE] name=Read input={"file_path": "b.py"}'
WRITE = '[TOOL_USE] name=Write input={"file_path": "a.py"}'


@pytest.mark.parametrize(("first", "second"), EQUAL)
def test_equal_texts(first: str, second: str) -> None:
    assert EXACT(first, second) == EXACT(second, first) == Comparison(True, 1.0)


@pytest.mark.parametrize(("first", "second"), OTHER)
def test_other_texts(first: str, second: str) -> None:
    assert EXACT(first, second) == EXACT(second, first) == Comparison(False, 0.0)


class Comparer:
    """Says the same of everything."""

    def __init__(self, same: bool, similarity: float) -> None:
        self.answer = Comparison(same, similarity)

    def __call__(self, first: Turn, second: Turn, /) -> Comparison:
        return self.answer


class Judge:
    def __init__(self, *answers: bool | None) -> None:
        self.answers = list(answers)
        self.questions: list[tuple[str, str]] = []

    def __call__(self, first: str, second: str) -> bool | None:
        self.questions.append((first, second))
        return self.answers.pop(0)


def test_what_looks_alike_is_put_to_the_judge_once() -> None:
    judge = Judge(True)
    judged = JudgedComparer(Comparer(False, 0.5), judge)
    assert on_texts(judged)(READ, READ_OTHER) == on_texts(judged)(READ_OTHER, READ) == Comparison(True, 0.5)
    assert judge.questions == [(READ, READ_OTHER)]
    assert (judged.asked, judged.said_same) == (1, 1)


def test_the_judge_may_say_no() -> None:
    judged = JudgedComparer(Comparer(False, 0.9), Judge(False))
    assert on_texts(judged)("this", "that") == on_texts(judged)("this", "that") == Comparison(False, 0.9)
    assert (judged.asked, judged.said_same) == (1, 0)


def test_without_an_answer_they_stay_different_and_it_is_asked_again() -> None:
    judged = JudgedComparer(Comparer(False, 0.9), Judge(None, True))
    assert not on_texts(judged)("this", "that").same
    assert on_texts(judged)("this", "that").same
    assert (judged.asked, judged.said_same) == (2, 1)


@pytest.mark.parametrize(
    ("comparer", "first", "second"),
    [
        (Comparer(True, 0.7), READ, READ_OTHER),
        (Comparer(False, 0.49), READ, READ_OTHER),
        (Comparer(False, 0.9), READ, WRITE),
        (Comparer(False, 0.9), READ, "I read it."),
        (Comparer(False, 0.9), READ, f"{READ}\n{READ_OTHER}"),
    ],
)
def test_what_is_clear_is_not_asked(comparer: Comparer, first: str, second: str) -> None:
    judged = JudgedComparer(comparer, Judge())
    assert on_texts(judged)(first, second) == comparer.answer
    assert judged.asked == 0


def test_where_doubt_begins_can_be_said() -> None:
    assert on_texts(JudgedComparer(Comparer(False, 0.3), Judge(True), low=0.3))(READ, READ_OTHER).same
    with pytest.raises(ValueError, match=r"low must be in \[0, 1\], got 1.5"):
        JudgedComparer(Comparer(False, 0.3), Judge(), low=1.5)


def test_the_judge_sees_no_thinking() -> None:
    judge = Judge(True)
    on_texts(JudgedComparer(Comparer(False, 0.9), judge))(f"[THINKING]\nhm\n[/THINKING]\n{READ}", READ_OTHER)
    assert judge.questions == [(READ, READ_OTHER)]
