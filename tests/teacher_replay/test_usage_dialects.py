"""The cap holds, whatever words an endpoint reports its usage in."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from teacher_replay.metered_replays import growing_states, read_ledger, spec_of

from composer_replication.teacher_replay import replay_trace

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from metered_billing import Teacher
from metered_server import MeteredServer
from usage_dialects import DIALECTS

CLAUDE = {"cached_per_mtok": 0.5, "cache_write_per_mtok": 6.25, "cache": "explicit"}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_cap_holds_in_every_dialect(dialect: str, tmp_path: Path) -> None:
    # Most of what is billed is thinking, or writing to the cache: what a wrong reading overlooks.
    teacher = Teacher(
        input_per_mtok=5, output_per_mtok=25, thinking_tokens=1500, message_tokens=0, dialect=dialect, **CLAUDE
    )
    cap = 0.25
    ledger = tmp_path / "ledger.sqlite"
    with MeteredServer({"a": teacher}) as server:
        spec = spec_of(server, "a", teacher, max_output_tokens=2000)
        rows = asyncio.run(replay_trace(growing_states(12, letters=6000), [spec], cap, ledger=ledger, concurrency=1))
        spent, broken = server.meter.spent, server.meter.broken
    assert broken == []
    charged = sum(read_ledger(ledger, tmp_path / "copy").charged.values())
    assert spent <= charged <= cap * 10**9
    assert 0 < len(rows) < 12  # it was the cap that ended it
    assert charged >= cap * 10**9 / 3  # and not the fear of it


def test_a_teacher_that_is_thought_to_be_free_and_bills_comes_to_its_end(tmp_path: Path) -> None:
    # As a proxy on this machine that hands calls on: no price is known, and the report says what was billed.
    teacher = Teacher(input_per_mtok=20, output_per_mtok=100, dialect="openrouter_cost")
    free = {f"{name}_per_mtok": 0 for name in ("input", "output", "cached_input", "cache_write")}
    states = growing_states(40, letters=3000)
    with MeteredServer({"a": teacher}) as server:
        spec = {**spec_of(server, "a", teacher), **free}
        rows = asyncio.run(replay_trace(states, [spec], 0.5, ledger=tmp_path / "ledger.sqlite", concurrency=1))
        # Prompts that grow are dearer than those before them, so the last call may pass the cap.
        assert server.meter.spent <= 0.5 * 10**9 + server.meter.records[-1].billed
    assert 0 < len(rows) < 40
