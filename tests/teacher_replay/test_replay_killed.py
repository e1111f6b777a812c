"""Replays as processes that are killed without warning: nothing stored is asked again, and the cap holds."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from teacher_replay.metered_replays import growing_states, read_ledger, spec_of

from composer_replication.teacher_replay.ledger import Ledger
from composer_replication.teacher_replay.records import TeacherCallResult
from composer_replication.teacher_replay.schedule import replay_trace

# isort: split
from metered_billing import Teacher
from metered_server import MeteredServer, Question
from misbehaviour import Misbehaviour

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "replay_process.py"

TEACHERS = {
    "a": Teacher(
        input_per_mtok=5, output_per_mtok=25, cached_per_mtok=0.5, cache_write_per_mtok=6.25, cache="explicit"
    ),
    "b": Teacher(
        input_per_mtok=1.25, output_per_mtok=10, cached_per_mtok=0.125, cache="automatic", dialect="openrouter_cost"
    ),
}
CONCURRENCY = 4  # per teacher


class Replays:
    """Starts the same replay again and again on one ledger."""

    def __init__(self, folder: Path, server: MeteredServer, states: int, cap_usd: float, **options: Any) -> None:
        self.ledger = folder / "ledger.sqlite"
        self._scratch = folder / "copy"
        self._task = folder / "task.json"
        specs = [spec_of(server, name, teacher, concurrency=CONCURRENCY) for name, teacher in TEACHERS.items()]
        settings = {"max_total_usd": cap_usd, "ledger": str(self.ledger), "backoff": 0.01, **options}
        self._task.write_text(json.dumps({"traces": [growing_states(states)], "teachers": specs, "options": settings}))

    def start(self) -> subprocess.Popen[str]:
        command = [sys.executable, str(PROGRAM), str(self._task)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)

    def finish(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        process = self.start()
        out, err = process.communicate()
        assert process.returncode == 0, err
        result = json.loads(out.splitlines()[-1])
        return result["rows"], result["report"]

    def read(self) -> Any:
        return read_ledger(self.ledger, self._scratch)


def asked_by_now(server: MeteredServer) -> Counter[tuple[str, str]]:
    return Counter({question: count.asked for question, count in server.meter.counts.items()})


@pytest.mark.parametrize("seed", range(2))
def test_killed_at_random_moments_and_resumed(seed: int, tmp_path: Path) -> None:
    states, kills, cap_usd = 70, 14, 3.0
    draw = random.Random(seed)
    asked_when_stored: dict[tuple[str, str], int] = {}
    lost = 0
    to_ask = states * len(TEACHERS)

    def latency(question: Question) -> float:
        return random.Random(question.digest).uniform(0.005, 0.04)

    def hang_late(_question: Question, _before: int) -> Misbehaviour | None:
        return Misbehaviour("hang") if server.meter.requests > last_answered else None

    with MeteredServer(TEACHERS, latency=latency, script=hang_late) as server:
        replays = Replays(tmp_path, server, states, cap_usd)
        for kill in range(kills):
            before = asked_by_now(server)
            # No run comes to its end before it is killed, however fast the machine, and a late kill finds calls.
            last_answered = server.meter.requests + to_ask // (kills - kill + 1)
            server.hold()
            process = replays.start()
            if kill % 5 == 4:  # at any moment, its beginning included
                time.sleep(draw.uniform(0.0, 0.6))
            else:
                assert process.stdout is not None
                assert process.stdout.readline() == "begun\n"
                more = draw.randrange(server.meter.requests, last_answered) + 1
                server.wait_until(lambda meter, more=more: meter.requests >= more)  # type: ignore[misc]
                time.sleep(draw.uniform(0.0, 0.03))
            if kill % 3 == 0:  # at least one teacher's first call and all that the other may have under way
                server.wait_until(lambda meter: meter.in_flight > CONCURRENCY)
            process.kill()
            process.communicate()
            server.release()
            server.wait_until_left()  # what was under way is billed, though nobody is there
            found, asked = replays.read(), asked_by_now(server)
            for question in found.stored:
                # Once an answer is stored, the server never hears the question again.
                assert asked_when_stored.setdefault(question, asked[question]) == asked[question]
            in_flight = [question for question in asked - before if question not in found.stored]
            assert len(in_flight) <= found.in_state("open") <= CONCURRENCY * len(TEACHERS)
            lost += len(in_flight)
            to_ask = states * len(TEACHERS) - len(found.stored)
            assert to_ask > 0, "the replay came to its end before it was killed often enough"
            unsettled = found.in_state("open") + found.in_state("doubt")
            assert server.meter.spent <= sum(found.charged.values()) <= cap_usd * 10**9
            assert sum(found.charged.values()) == sum(charge for *_, charge in found.attempts)
        last_answered = 10**9
        rows, report = replays.finish()
        asked, found = asked_by_now(server), replays.read()

    assert server.meter.broken == []
    assert lost >= kills  # or else nothing was shown
    assert len(rows) == states * len(TEACHERS)
    assert [row["error"] for row in rows] == [None] * len(rows)
    texts = {row["response_text"] for row in rows}
    assert texts == {f"{model} answers {digest}" for model, digest in found.stored}
    assert len(found.stored) == len(rows)
    assert {question: asked[question] for question in asked_when_stored} == asked_when_stored
    repeated = asked.total() - len(asked)
    assert repeated <= lost
    # Everything that was begun and lost is told; the server may not have received all of it.
    assert report["budget"]["in_doubt"] == unsettled >= lost
    assert report["budget"]["repeated"] >= repeated
    assert server.meter.spent <= sum(found.charged.values()) <= cap_usd * 10**9


def test_doubt_blocks_under_a_tight_cap_until_it_is_released(tmp_path: Path) -> None:
    states = 6
    answered, swallowed = 2 * len(TEACHERS), 4 * len(TEACHERS)

    def swallow(question: Question, before: int) -> Misbehaviour | None:
        """The first time that any but the first two states is asked."""
        return Misbehaviour("swallowed") if before == 0 and len(question.raw_messages) > 4 else None

    with MeteredServer(TEACHERS, script=swallow) as server:
        process = Replays(tmp_path, server, states, cap_usd=10.0).start()
        server.wait_until(lambda meter: meter.in_flight == swallowed == meter.requests - answered)
        process.kill()
        process.communicate()
        charged = Replays(tmp_path, server, states, 0).read().charged["replay"]

        tight = Replays(tmp_path, server, states, cap_usd=charged / 10**9)
        rows, report = tight.finish()
        assert len(rows) == report["stored"] == answered
        assert report["not_asked_for_money"] == report["budget"]["in_doubt"] == swallowed
        assert server.meter.requests == answered + swallowed  # nobody asked anything
        assert tight.read().charged["replay"] == charged

        with Ledger(tight.ledger) as ledger:
            spent = ledger.balance("replay").spent
            assert ledger.release("replay") == (swallowed, charged - spent)
            assert ledger.charged("replay") == spent
        rows, report = tight.finish()
        assert len(rows) == states * len(TEACHERS)
        assert [row["error"] for row in rows] == [None] * len(rows)
        assert report["budget"]["in_doubt"] == 0
        assert report["budget"]["repeated"] == swallowed
        assert server.meter.spent <= charged
        assert server.meter.broken == []


def test_a_lost_call_that_is_repeated_needs_no_more_than_its_counted_worst_case(tmp_path: Path) -> None:
    """What was lost stays reserved after it was repeated, by the tokens of the prompt instead of its bytes."""

    def hang_once(_question: Question, before: int) -> Misbehaviour | None:
        return Misbehaviour("hang_after_billing") if before == 0 else None

    with MeteredServer(TEACHERS, script=hang_once) as server:
        replays = Replays(tmp_path, server, 1, cap_usd=1.0)
        process = replays.start()
        server.wait_until(lambda meter: len([record for record in meter.records if record.billed]) == len(TEACHERS))
        process.kill()
        process.communicate()
        before = replays.read()
        assert before.in_state("open") == len(TEACHERS)
        rows, report = replays.finish()
        after = replays.read()
        assert [row["error"] for row in rows] == [None] * len(TEACHERS)
        assert (report["budget"]["in_doubt"], report["budget"]["repeated"]) == (len(TEACHERS), len(TEACHERS))
        doubts = sum(charge for _, _, state, charge in after.attempts if state == "doubt")
        prompts = {row["teacher_slug"]: row["prompt_tokens"] for row in rows}
        # 64 tokens of output at most; `a` may have written all of its prompt to its cache.
        assert doubts == prompts["a"] * 6250 + 64 * 25_000 + prompts["b"] * 1250 + 64 * 10_000
        assert doubts < before.charged["replay"]
        assert server.meter.spent <= after.charged["replay"]
        server.release()


def test_an_answer_is_stored_before_anybody_sees_it(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.sqlite"
    seen = []

    def look(row: TeacherCallResult) -> None:
        model, _, digest = (row["response_text"] or "").split()
        seen.append((model, digest) in read_ledger(ledger, tmp_path / "copy").stored)

    with MeteredServer(TEACHERS) as server:
        specs = [spec_of(server, name, teacher) for name, teacher in TEACHERS.items()]
        asyncio.run(replay_trace(growing_states(4), specs, 1.0, ledger=ledger, on_result=look))
    assert seen == [True] * 8
