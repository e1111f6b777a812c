"""Processes that share one ledger at the same time: no question is asked twice, and one cap holds for all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from teacher_replay.metered_replays import growing_states, read_ledger, spec_of

from composer_replication.teacher_replay.ledger import Attempt, Busy, Ledger

# isort: split
from metered_billing import Teacher
from metered_server import MeteredServer
from misbehaviour import Misbehaviour

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "replay_process.py"
TEACHERS = {
    "a": Teacher(input_per_mtok=5, output_per_mtok=25, cached_per_mtok=0.5, cache="automatic", latency=0.02),
    "b": Teacher(input_per_mtok=1, output_per_mtok=10, latency=0.01, latency_spread=1.0),
}
STATES = 30


def replay_at_once(folder: Path, server: MeteredServer, processes: int, cap_usd: float) -> list[dict[str, Any]]:
    """Every other process begins at the end, so that they meet on the way."""
    specs = [spec_of(server, name, teacher, concurrency=5) for name, teacher in TEACHERS.items()]
    options = {"max_total_usd": cap_usd, "ledger": str(folder / "ledger.sqlite")}
    states = growing_states(STATES)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    # The first call of a trace to a teacher goes alone: these are of one process from either end.
    firsts = 2 * len(TEACHERS)
    server.plan(*[Misbehaviour("hang")] * firsts)
    started = []
    for number in range(processes):
        traces = [states[::-1] if number % 2 else states]
        task = folder / f"task{number}.json"
        task.write_text(json.dumps({"traces": traces, "teachers": specs, "options": options}))
        command = [sys.executable, str(PROGRAM), str(task)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(command, **pipes, text=True, env=environment))
    # They hang until all have the ledger open and two are at work.
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
    server.wait_until(lambda meter: meter.in_flight == firsts)
    server.release()
    ended = [process.communicate() for process in started]
    assert [process.returncode for process in started] == [0] * processes, ended
    return [json.loads(out.splitlines()[-1]) for out, _ in ended]


def test_no_question_is_asked_twice(tmp_path: Path) -> None:
    with MeteredServer(TEACHERS) as server:
        results = replay_at_once(tmp_path, server, processes=3, cap_usd=10.0)
        assert {count.asked for count in server.meter.counts.values()} == {1}
        assert len(server.meter.counts) == STATES * len(TEACHERS)
        found = read_ledger(tmp_path / "ledger.sqlite", tmp_path / "copy")
        # Usage is told in full, so the ledger and the provider come to the same sum, to the nano-dollar.
        assert found.charged["replay"] == server.meter.spent
        assert server.meter.broken == []
    texts = [{(row["state_id"], row["response_text"]) for row in result["rows"]} for result in results]
    assert texts[0] == texts[1] == texts[2]
    assert len(texts[0]) == STATES * len(TEACHERS)
    calls = [result["report"]["calls"] for result in results]
    assert sum(calls) == STATES * len(TEACHERS)
    assert sum(made > 0 for made in calls) >= 2


def test_one_cap_holds_for_all(tmp_path: Path) -> None:
    cap_usd = 0.1
    with MeteredServer(TEACHERS) as server:
        results = replay_at_once(tmp_path, server, processes=2, cap_usd=cap_usd)
        found = read_ledger(tmp_path / "ledger.sqlite", tmp_path / "copy")
        assert 0 < server.meter.spent == found.charged["replay"] <= cap_usd * 10**9
        assert {count.asked for count in server.meter.counts.values()} == {1}
        assert all(result["report"]["not_asked_for_money"] > 0 for result in results)
        # What is left would not have paid for the worst case of another call.
        dearest = max(record.billed for record in server.meter.records)
        assert cap_usd * 10**9 - server.meter.spent < 20 * dearest


def test_a_call_of_a_process_that_dies_beside_us_is_in_doubt_and_ours_to_repeat(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    program = (
        "import sys; from composer_replication.teacher_replay.ledger import Ledger; ledger = Ledger(sys.argv[1]);"
        "ledger.begin('question', 'a', 70, cap=1000, budget='b'); print('begun', flush=True); sys.stdin.read()"
    )
    with Ledger(path) as ledger:
        other = subprocess.Popen(
            [sys.executable, "-c", program, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert other.stdout is not None
        assert other.stdout.readline() == "begun\n"
        assert ledger.begin("question", "a", 70, cap=1000, budget="b") == Busy()
        assert ledger.find_lost() == 0
        other.kill()
        other.communicate()
        assert isinstance(ledger.begin("question", "a", 70, cap=1000, budget="b"), Attempt)
        balance = ledger.balance("b")
        assert (balance.in_doubt, balance.in_doubt_reserved, balance.in_flight, balance.repeated) == (1, 70, 1, 1)
        assert ledger.charged("b") == 140
