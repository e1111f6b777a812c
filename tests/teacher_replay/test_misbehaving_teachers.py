"""Teachers over real HTTP that do everything but answer: a row for each state, the cap holds, the key stays secret."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from teacher_replay.metered_replays import LedgerFile, growing_states, read_ledger, spec_of

from composer_replication.teacher_replay.records import TeacherCallResult
from composer_replication.teacher_replay.schedule import replay_trace

# isort: split
from metered_billing import Teacher
from metered_server import MeteredServer, Question
from misbehaviour import KINDS, Misbehaviour

KEY = "sk-or-v1-0123456789abcdef-not-a-real-key"
TEACHER = Teacher(input_per_mtok=3, output_per_mtok=15, cached_per_mtok=0.3, cache="automatic")
STATES = growing_states(5)
CAP_USD = 0.1

# A status of 200 was billed, so asking again would pay twice; the others may be asked again.
NOT_ASKED_AGAIN = {
    *("malformed_json", "not_json", "empty_body", "json_null", "json_list", "not_utf8", "html_page"),
    *("empty_choices", "empty_choices_for_nothing", "no_choices", "null_message", "content_null", "message", "huge"),
    "redirect",
}


class Outcome:
    """A replay's rows, and what the ledger's file holds after it."""

    def __init__(self, rows: list[TeacherCallResult], ledger: LedgerFile) -> None:
        self.errors = {row["state_id"][-1]: row["error"] for row in rows}
        self.texts = {row["state_id"][-1]: row["response_text"] for row in rows}
        self.ledger = ledger


def replayed(server: MeteredServer, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Outcome:
    monkeypatch.setenv("METERED_KEY", KEY)
    spec = spec_of(server, "a", TEACHER, api_key_variable="METERED_KEY")
    settings = {"timeout": 30.0, "backoff": 0.001, "max_retries": 2, "concurrency": 2, **options}
    rows = asyncio.run(replay_trace(STATES, [spec], CAP_USD, ledger=folder / "ledger.sqlite", **settings))
    server.release()
    server.wait_until_idle()
    outcome = Outcome(rows, read_ledger(folder / "ledger.sqlite", folder / "copy"))
    # Whatever a teacher does or says it did: what it bills is covered, and under the cap.
    assert server.meter.spent <= outcome.ledger.charged["replay"] <= CAP_USD * 10**9
    assert outcome.ledger.charged["replay"] == sum(charge for *_, charge in outcome.ledger.attempts)
    assert server.meter.authorizations == {"a": {f"Bearer {KEY}"}}
    assert server.meter.broken == []
    return outcome


def assert_no_key(folder: Path, caplog: pytest.LogCaptureFixture, outcome: Outcome) -> None:
    written = b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())
    assert b"answers" in written  # the ledger was among it
    seen = written.decode("latin-1") + caplog.text + repr(outcome.errors) + repr(outcome.texts)
    for part in (KEY[:16], KEY[8:-4], KEY[-8:]):
        assert part not in seen


def at_third_state(how: Misbehaviour, times: int) -> Any:
    """A script for the first `times` times that the third state is asked."""
    length = len(STATES[2]["messages"])
    return lambda question, before: how if len(question.raw_messages) == length and before < times else None


@pytest.mark.parametrize("kind", KINDS)
def test_a_question_that_goes_wrong_once(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    how = Misbehaviour(kind, seconds=0.01, size=9 * 2**20, message={"role": "assistant"}, text=f"bad key {KEY}")
    waits = kind in ("hang", "hang_after_billing", "swallowed")
    with MeteredServer({"a": TEACHER}, script=at_third_state(how, times=1)) as server:
        outcome = replayed(server, tmp_path, monkeypatch, timeout=4.0 if waits else 30.0)
        asked = sorted(count.asked for count in server.meter.counts.values())
    assert_no_key(tmp_path, caplog, outcome)
    assert outcome.errors.keys() == set("01234")  # a row for every state
    failed = {state for state, error in outcome.errors.items() if error is not None}
    if kind in NOT_ASKED_AGAIN:
        assert failed == {"2"}
        assert outcome.texts["2"] is None
        assert asked == [1] * 5
    else:
        assert failed == set()
        assert asked == [1] * 5 if KINDS[kind].answers and not waits else [1, 1, 1, 1, 2]
    assert all("answers" in (text or "") for state, text in outcome.texts.items() if state not in failed)


@pytest.mark.parametrize("kind", ["500", "rate_limit", "503", "529", "502_after_billing", "cut_in_body"])
def test_a_question_that_goes_wrong_always_is_an_error_and_the_rest_goes_on(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MeteredServer({"a": TEACHER}, script=at_third_state(Misbehaviour(kind), times=99)) as server:
        outcome = replayed(server, tmp_path, monkeypatch)
        assert sorted(count.asked for count in server.meter.counts.values()) == [1, 1, 1, 1, 3]  # twice again
    assert {state for state, error in outcome.errors.items() if error is not None} == {"2"}
    # What may have been billed stays reserved, what was not is given back.
    assert outcome.ledger.in_state("doubt") == (3 if kind in ("502_after_billing", "cut_in_body") else 0)


def test_a_failed_question_is_asked_again_by_the_next_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with MeteredServer({"a": TEACHER}, script=at_third_state(Misbehaviour("500"), times=3)) as server:
        first = replayed(server, tmp_path, monkeypatch)
        second = replayed(server, tmp_path, monkeypatch)
        assert sorted(count.asked for count in server.meter.counts.values()) == [1, 1, 1, 1, 4]
    assert first.errors["2"] is not None
    assert set(second.errors.values()) == {None}


def test_a_huge_answer_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with MeteredServer({"a": TEACHER}, script=at_third_state(Misbehaviour("huge"), times=1)) as server:
        outcome = replayed(server, tmp_path, monkeypatch)
    assert "larger than" in (outcome.errors["2"] or "")
    assert sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()) < 2**22


@pytest.mark.parametrize("kind", ["rate_limit", "rate_limit_until"])
def test_retry_after_is_waited_for_by_every_call_to_the_teacher(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MeteredServer({"a": TEACHER}) as server:
        server.plan(Misbehaviour(kind, seconds=0.3))
        outcome = replayed(server, tmp_path, monkeypatch, max_retries=1)
        refused, *later = server.meter.records
    assert set(outcome.errors.values()) == {None}
    assert refused.status == 429
    assert refused.retry_at is not None
    # The very first call goes alone, so all others were sent after the refusal. A clock may tick a little early.
    assert len(later) == 5
    assert min(record.arrived for record in later) >= refused.retry_at - 0.01


def test_retry_after_is_waited_for_by_calls_that_waited_for_money(tmp_path: Path) -> None:
    teacher = Teacher(input_per_mtok=3, output_per_mtok=15)
    cap_usd = 0.12  # for one worst case, and not for two
    with MeteredServer({"a": teacher}, script=at_third_state(Misbehaviour("rate_limit", seconds=0.3), 1)) as server:
        spec = spec_of(server, "a", teacher, max_output_tokens=5000)
        rows = asyncio.run(replay_trace(STATES, [spec], cap_usd, concurrency=3, backoff=0.0))
        records = server.meter.records
    assert [row["error"] for row in rows] == [None] * len(STATES)
    assert server.meter.peak == 1
    refused = next(index for index, record in enumerate(records) if record.retry_at is not None)
    assert records[refused + 1].arrived >= (records[refused].retry_at or 0.0) - 0.01


def test_a_wait_that_is_too_long_is_an_error_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with MeteredServer({"a": TEACHER}, script=at_third_state(Misbehaviour("rate_limit", seconds=9999), 9)) as server:
        outcome = replayed(server, tmp_path, monkeypatch, concurrency=1)
        # Neither this question nor a later one is sent while the endpoint wants to be left alone.
        assert server.meter.requests == 3
    assert "left alone" in (outcome.errors["2"] or "")


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 413, 422])
def test_what_cannot_get_better_is_not_tried_again(
    status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    how = Misbehaviour("status", status=status, text=f"Incorrect key provided: {KEY}.\nSecond line {KEY[:12]}...")
    with MeteredServer({"a": TEACHER}, script=at_third_state(how, times=99)) as server:
        outcome = replayed(server, tmp_path, monkeypatch, concurrency=1)
        assert max(count.asked for count in server.meter.counts.values()) == 1
    assert f"HTTP {status}" in (outcome.errors["2"] or "")
    assert "\n" not in (outcome.errors["2"] or "")
    assert_no_key(tmp_path, caplog, outcome)


def test_a_key_does_not_follow_a_redirect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with MeteredServer({"a": TEACHER}) as elsewhere, MeteredServer({"a": TEACHER}) as server:
        server.plan(Misbehaviour("redirect", location=f"{elsewhere.url}/chat/completions"))
        outcome = replayed(server, tmp_path, monkeypatch)
        assert elsewhere.meter.records == []
    assert "307" in (outcome.errors["0"] or "")


def test_nobody_there_is_an_error_row_and_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with MeteredServer({"a": TEACHER}) as server:
        pass
    spec = spec_of(server, "a", TEACHER)
    ledger = tmp_path / "ledger.sqlite"
    rows = asyncio.run(replay_trace(STATES, [spec], CAP_USD, ledger=ledger, backoff=0.001, max_retries=1))
    assert len(rows) == len(STATES)
    assert all(row["error"] for row in rows)
    assert read_ledger(ledger, tmp_path / "copy").charged == {"replay": 0}


def test_one_teacher_that_fails_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def only_b(question: Question, _before: int) -> Misbehaviour | None:
        return Misbehaviour("cut_before_headers") if question.model == "b" else None

    with MeteredServer({"a": TEACHER, "b": TEACHER}, script=only_b) as server:
        specs = [spec_of(server, name, TEACHER) for name in "ab"]
        rows = asyncio.run(replay_trace(STATES, specs, CAP_USD, backoff=0.001, max_retries=1, give_up_after=3))
        assert server.meter.spent <= CAP_USD * 10**9
    assert [row["teacher_slug"] for row in rows if row["error"] is None] == ["a"] * 5
    assert [row["teacher_slug"] for row in rows if row["error"] is not None] == ["b"] * 5
