"""What tests of paid calls share: states whose histories grow, specs for the teachers of a metered server, and what a
ledger's file holds, read from a copy so that a run that was killed stays as it was."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import sys
from pathlib import Path
from typing import Any, NamedTuple

from composer_replication.traces import TraceState

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from metered_billing import Teacher
from metered_server import MeteredServer

# In the text of every answer of `plain_answer`.
_ANSWER = re.compile(r"(\S+) answers ([0-9a-f]{32})")


def growing_states(count: int, *, letters: int = 200, restart: int | None = None) -> list[TraceState]:
    """The states of one trace: each sees two messages more than the one before it. From `restart` on, the history is
    another one, of digits instead of words."""
    states = []
    messages = [{"role": "system", "content": "You write code. " * (letters // 16)}]
    for number in range(count):
        if number == restart:
            messages = [{"role": "system", "content": "0123456789;" * (letters // 11)} for _ in range(2 * number)]
        messages.append({"role": "user", "content": f"Step {number}: " + "go on, " * (letters // 7)})
        states.append(
            TraceState(state_id=f"t::{number:04d}", messages=list(messages), student_action=f"the student's {number}")
        )
        messages.append({"role": "assistant", "content": f"I did step {number}."})
    return states


def spec_of(server: MeteredServer, name: str, teacher: Teacher, **fields: Any) -> dict[str, Any]:
    """A teacher as a user would write it who knows its prices."""
    cached, written = teacher.cached_per_mtok, teacher.cache_write_per_mtok
    return {
        "slug": name,
        "base_url": server.url,
        "input_per_mtok": teacher.input_per_mtok,
        "output_per_mtok": teacher.output_per_mtok,
        "cached_input_per_mtok": teacher.input_per_mtok if cached is None else cached,
        "cache_write_per_mtok": teacher.input_per_mtok if written is None else written,
        "max_output_tokens": 64,
        "cache_control": teacher.cache == "explicit",
        **fields,
    }


class LedgerFile(NamedTuple):
    """What is in a ledger's file. `stored` are the answers' questions as the server counts them."""

    stored: set[tuple[str, str]]
    attempts: list[tuple[str, str, str, int]]  # key, budget, state, charge
    charged: dict[str, int]

    def in_state(self, state: str) -> int:
        """How many attempts are."""
        return sum(attempt[2] == state for attempt in self.attempts)


def read_ledger(ledger: Path, scratch: Path) -> LedgerFile:
    """Read a copy; nothing is there yet if a run was killed before it began."""
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    for file in ledger.parent.glob(f"{ledger.name}*"):
        if file.is_file():
            shutil.copy(file, scratch / file.name)
    database = sqlite3.connect(scratch / ledger.name)
    try:
        if not database.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]:
            return LedgerFile(set(), [], {})
        turns = [json.loads(turn) for (turn,) in database.execute("SELECT turn FROM answers")]
        found = [_ANSWER.fullmatch(turn["content"]) for turn in turns]
        return LedgerFile(
            {(match[1], match[2]) for match in found if match is not None},
            database.execute("SELECT key, budget, state, charge FROM attempts").fetchall(),
            dict(database.execute("SELECT name, charged FROM budgets").fetchall()),
        )
    finally:
        database.close()
