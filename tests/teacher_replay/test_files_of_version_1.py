"""Files that version 1 wrote (ledger, answers, settings) are read, and nobody is asked again for what they hold.

`fixtures/files_of_version_1` is a replay of three states with two teachers and one question to a judge, in which the
ledger and the answers hold actions as texts.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from teacher_replay.loopback_teacher import LoopbackTeachers, Refusal

from composer_replication.teacher_replay import ReplayOptions, TeacherCallResult, open_replay, replay_trace
from composer_replication.teacher_replay.action_judge import ActionJudge
from composer_replication.teacher_replay.estimate import estimate_replay
from composer_replication.teacher_replay.ledger import Ledger, LedgerError
from composer_replication.teacher_replay.records import TeacherRow
from composer_replication.teacher_replay.replay_files import AnswerIndex, ReplayFolder, traces_to_replay
from composer_replication.teacher_replay.teachers import resolve_teachers
from composer_replication.traces import ToolCall, Turn, parse_action

FILES = Path(__file__).parent / "fixtures" / "files_of_version_1"
STATES = FILES / "states.jsonl"
RESULTS: list[TeacherCallResult] = [json.loads(line) for line in (FILES / "answers.jsonl").read_text().splitlines()]


def call(number: int, name: str, **arguments: str) -> ToolCall:
    return ToolCall(f"call_{number}", name, arguments)


# The answers that can be used, by state and teacher.
TURNS = {
    ("t::0000", "careful"): Turn(
        "assistant", "I read it.", tool_calls=[call(0, "Read", file_path="tests/test_sum.py")]
    ),
    ("t::0001", "careful"): Turn(
        "assistant",
        "Both files.",
        thinking="Both at once.",
        tool_calls=[call(0, "Read", file_path="sum.py"), call(1, "Bash", command="ls -l")],
    ),
    ("t::0002", "careful"): Turn(
        "assistant", tool_calls=[call(0, "Bash", command="sed -i 's/return 0/return sum(numbers)/' sum.py")]
    ),
    ("t::0002", "quick"): Turn("assistant", "Schöner wär's so: \U0001f600\n\n  return sum(numbers)\n"),
}


@pytest.fixture
def server() -> Iterator[LoopbackTeachers]:
    with LoopbackTeachers(lambda _: Refusal(500, "nobody may be asked")) as server:
        yield server


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.sqlite"
    database = sqlite3.connect(path)
    database.executescript((FILES / "ledger.sql").read_text())
    database.execute("PRAGMA journal_mode = WAL")
    database.close()
    return path


def specs(server: LoopbackTeachers) -> list[Any]:
    fields = {"input_per_mtok": 2, "output_per_mtok": 10, "max_output_tokens": 500}
    return [server.spec(slug, family=slug, **fields) for slug in ("careful", "quick")]


def version(ledger: Path) -> int:
    """The version that the file says, if its answers are stored as that version stores them."""
    database = sqlite3.connect(ledger)
    try:
        found = int(database.execute("PRAGMA user_version").fetchone()[0])
        column, kind = ("text", "text") if found == 1 else ("turn", "blob")
        assert database.execute(f"SELECT DISTINCT typeof({column}) FROM answers").fetchall() == [(kind,)]
        return found
    finally:
        database.close()


def test_a_second_run_asks_nobody_and_has_the_same_rows(server: LoopbackTeachers, ledger: Path) -> None:
    states = [json.loads(line) for line in STATES.read_text().splitlines()]
    for _ in range(2):  # the ledger that is migrated, and the one that was
        rows = asyncio.run(replay_trace(states, specs(server), 1.0, ledger=ledger, max_retries=0))
        assert rows == [{**result, "stored": True} for result in RESULTS]
        assert version(ledger) == 2
    assert server.asked == []
    with Ledger(ledger) as opened:
        assert (opened.balance("replay").spent, opened.charged("replay"), opened.charged("judge")) == (
            4_952_000, 4_952_000, 147_000,
        )  # fmt: skip


def test_rows_carry_turns(server: LoopbackTeachers, ledger: Path) -> None:
    async def run() -> list[TeacherRow]:
        options = ReplayOptions(max_total_usd=1.0, ledger=ledger, max_retries=0)
        async with open_replay(resolve_teachers(specs(server)), options) as replay:
            return [row async for rows in replay.run(traces_to_replay(STATES)) for row in rows]

    rows = asyncio.run(run())
    assert {(row.state_id, row.teacher_slug): row.turn for row in rows if row.turn is not None} == TURNS
    assert server.asked == []


def test_a_judges_answer_is_found(server: LoopbackTeachers, ledger: Path) -> None:
    (judge,) = resolve_teachers([server.spec("judge", input_per_mtok=1, output_per_mtok=1)])
    with ActionJudge(judge, ledger=ledger) as asks:
        first, second = (f'[TOOL_USE] name=Bash input={{"command": "{command}"}}' for command in ("ls", "ls -l"))
        assert asks(second, first) is True
        assert asks.failed == 0
    assert server.asked == []


def test_an_estimate_reads_the_ledger_and_leaves_it_as_it_is(server: LoopbackTeachers, ledger: Path) -> None:
    before = ledger.read_bytes()
    options = ReplayOptions(ledger=ledger)
    estimate = estimate_replay(traces_to_replay(STATES), resolve_teachers(specs(server)), options)
    assert {slug: (one.stored, one.calls) for slug, one in estimate.teachers.items()} == {
        "careful": (3, 0),
        "quick": (3, 0),
    }
    assert ledger.read_bytes() == before


def test_answers_and_settings_are_read(tmp_path: Path) -> None:
    (tmp_path / "answers.jsonl").write_bytes((FILES / "answers.jsonl").read_bytes())
    (tmp_path / "replay.json").write_bytes((FILES / "replay.json").read_bytes())
    folder = ReplayFolder(tmp_path)
    assert folder.state_options().system_prompt.startswith("You are a senior software engineer")
    assert folder.teacher_families() == {"careful": ["careful"], "quick": ["quick"]}
    assert folder.last_report()["calls"] == 6
    rows = list(AnswerIndex(folder.answers).rows(["t::0000", "t::0001", "t::0002"]))
    assert {(row.state_id, row.teacher_slug): row.turn for row in rows if row.turn is not None} == TURNS
    assert [row.result() for row in rows] == RESULTS
    # Old lines stay as they are, new ones hold the turn: neither is read from its text.
    writer = folder.writer()
    writer.add([TeacherRow("t::0000", "careful", Turn("assistant", "[TOOL_USE] name=Read input={}"))])
    writer.finish()
    lines = folder.answers.read_text().splitlines()
    assert lines[1:] == (FILES / "answers.jsonl").read_text().splitlines()[2:]
    assert json.loads(lines[0])["response_text"] == "[TOOL_USE] name=Read input={}"
    (row,) = AnswerIndex(folder.answers).rows(["t::0000"])
    assert row.turn == Turn("assistant", "[TOOL_USE] name=Read input={}")


OPENS = """
import sys
from composer_replication.teacher_replay.ledger import Ledger
print("ready", flush=True)
with Ledger(sys.argv[1]) as ledger:
    print(ledger.charged("replay"), flush=True)
"""


def test_two_processes_may_open_it_at_once(ledger: Path) -> None:
    lock = sqlite3.connect(ledger, isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    command = [sys.executable, "-c", OPENS, str(ledger)]
    opening = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for process in opening:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    lock.execute("COMMIT")
    lock.close()
    assert [process.communicate() for process in opening] == [("4952000\n", None)] * 2
    assert version(ledger) == 2


def test_a_text_that_a_process_of_version_1_still_writes_is_read(ledger: Path) -> None:
    Ledger(ledger).close()
    database = sqlite3.connect(ledger)
    text = 'So.\n[TOOL_USE] name=Bash input={"command": "ls"}'
    database.execute("INSERT INTO answers VALUES ('k', 'quick', ?, 'stop', 1, 1, 0, 0, 5, 0.1, 0)", (text,))
    database.commit()
    database.close()
    with Ledger(ledger) as opened:
        answer = opened.answer("k")
    assert answer is not None
    assert answer.turn == parse_action(text)


def test_a_migration_that_fails_changes_nothing(ledger: Path) -> None:
    database = sqlite3.connect(ledger)
    database.execute("UPDATE answers SET text = CAST(x'ff' AS TEXT) WHERE teacher = 'judge'")
    database.commit()
    stored = database.execute("SELECT key, CAST(text AS BLOB) FROM answers").fetchall()
    database.close()
    with pytest.raises(LedgerError, match=r"ledger\.sqlite cannot be written"):
        Ledger(ledger)
    assert version(ledger) == 1
    database = sqlite3.connect(ledger)
    assert database.execute("SELECT key, CAST(text AS BLOB) FROM answers").fetchall() == stored
    database.close()


def test_a_ledger_of_a_later_version_is_refused_in_one_line(ledger: Path) -> None:
    database = sqlite3.connect(ledger)
    database.execute("PRAGMA user_version = 3")
    database.close()
    with pytest.raises(LedgerError, match=r"ledger\.sqlite is a ledger of version 3, this is for 2: give another path"):
        Ledger(ledger)
