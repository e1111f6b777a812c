"""The judge of agreement against a real server: what it says, what it costs, and that it ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from teacher_replay.loopback_teacher import LoopbackTeachers, Refusal

from composer_replication.teacher_replay import action_judge
from composer_replication.teacher_replay.action_judge import ActionJudge
from composer_replication.teacher_replay.ledger import Ledger, LedgerError
from composer_replication.teacher_replay.teachers import MissingKeyError, resolve_teachers


@pytest.fixture
def server() -> Iterator[LoopbackTeachers]:
    with LoopbackTeachers(lambda _: "SAME") as server:
        yield server


def judge(server: LoopbackTeachers, *, ledger: Path | None = None, usd: float = 1.0, **spec: Any) -> ActionJudge:
    (teacher,) = resolve_teachers([server.spec("judge", **spec)])
    return ActionJudge(teacher, max_total_usd=usd, ledger=ledger)


def threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith(("action-judge", "ledger"))]


VERDICTS: dict[str, bool | None] = {
    "SAME": True,
    "same.": True,
    "**Same**": True,
    "Answer: SAME": True,
    "SAME: neither does not read the file": True,
    "DIFFERENT": False,
    "Different, the second isn't the same file.": False,
    "They are different": False,
    "They are not the same.": None,
    "They aren't different": None,
    "It could be the same or different": None,
    "samesame": None,
    "Maybe": None,
    "": None,
}


def test_an_answer_is_yes_no_or_neither(server: LoopbackTeachers) -> None:
    answers = list(VERDICTS)
    server.answer = lambda asked: answers[asked.earlier]
    with judge(server) as asks:
        assert {said: asks("ls", str(number)) for number, said in enumerate(answers)} == VERDICTS
        assert (asks.failed, asks.no_room) == (0, 0)


def test_the_judge_is_shown_both_actions_and_no_secret(server: LoopbackTeachers) -> None:
    secret = "ghp_" + "a1B2" * 9
    with judge(server) as asks:
        asks("[TOOL_USE] one", f"[TOOL_USE] two {secret}")
    (asked,) = server.asked
    system, user = asked.body["messages"]
    assert system == {"role": "system", "content": action_judge.PROMPT}
    assert "[TOOL_USE] one" in user["content"]
    assert "[TOOL_USE] two" in user["content"]
    assert secret not in user["content"]


def test_a_question_is_asked_once_in_whichever_order_and_process(server: LoopbackTeachers, ledger: Path) -> None:
    with judge(server, ledger=ledger) as asks:
        assert (asks("a", "b"), asks("b", "a"), asks("a", "b")) == (True, True, True)
    server.answer = lambda _: "DIFFERENT"
    with judge(server, ledger=ledger) as asks:
        assert asks("b", "a") is True
        assert asks("b", "c") is False
    assert len(server.asked) == 2
    with Ledger(ledger) as opened:
        assert opened.balance("judge").answered == 2


def test_a_judge_without_an_answer_says_nothing_and_may_be_asked_again(server: LoopbackTeachers) -> None:
    server.answer = lambda _: Refusal(400, "no") if len(server.asked) == 1 else "SAME"
    with judge(server) as asks:
        assert asks("a", "b") is None
        assert (asks.failed, asks.no_room) == (1, 0)
        assert asks("a", "b") is True
        assert asks.failed == 1


def test_a_judge_that_can_only_fail_is_asked_once(server: LoopbackTeachers) -> None:
    server.answer = lambda _: Refusal(401)
    with judge(server) as asks:
        assert [asks("a", str(number)) for number in range(5)] == [None] * 5
        assert asks.failed == 5
    assert len(server.asked) == 1


def test_a_judge_that_fails_too_often_in_a_row_is_not_asked_any_more(server: LoopbackTeachers) -> None:
    server.answer = lambda asked: "SAME" if asked.earlier == 3 else Refusal(400)
    with judge(server) as asks:
        said = [asks("a", str(number)) for number in range(20)]
        assert said == [None] * 3 + [True] + [None] * 16
        assert asks.failed == 19
    assert len(server.asked) == 4 + 8


def test_the_cap_holds(server: LoopbackTeachers, ledger: Path) -> None:
    prices = {"input_per_mtok": 10, "output_per_mtok": 10, "max_output_tokens": 10}
    with judge(server, ledger=ledger, usd=0.03, **prices) as asks:
        said = [asks("a", str(number)) for number in range(30)]
    answered = said.count(True)
    assert 0 < answered < 30
    assert said == [True] * answered + [None] * (30 - answered)
    assert (asks.no_room, asks.failed) == (30 - answered, 0)
    assert len(server.asked) == answered
    with Ledger(ledger) as opened:
        assert 0 < opened.charged("judge") <= 0.03 * 10**9
        assert opened.charged("replay") == 0


def test_actions_that_are_too_long_are_not_compared_by_their_beginnings(server: LoopbackTeachers) -> None:
    long = "x" * 20_000
    with judge(server) as asks:
        assert asks(f"{long}a", f"{long}b") is None
        assert asks(long, "x") is True
        assert asks.failed == 0
    assert len(server.asked) == 1


def test_nothing_runs_on_behind_it(server: LoopbackTeachers, tmp_path: Path) -> None:
    def ask_and_fail() -> None:
        with judge(server) as asks:
            asks("a", "b")
            assert len(threads()) == 2
            raise KeyError("the caller fails")

    with pytest.raises(KeyError, match="the caller fails"):
        ask_and_fail()
    assert threads() == []


def test_a_ledger_that_cannot_be_used_leaves_nothing_behind(server: LoopbackTeachers, ledger: Path) -> None:
    (ledger).write_text("not a database, but long enough to be one" * 100)
    with pytest.raises(LedgerError, match=r"ledger\.sqlite cannot be used as a replay ledger"):
        judge(server, ledger=ledger)
    assert threads() == []


def test_a_judge_needs_its_key(server: LoopbackTeachers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(MissingKeyError, match="teacher judge needs a key: set NO_SUCH_KEY"):
        judge(server, api_key_variable="NO_SUCH_KEY")
    assert threads() == []
