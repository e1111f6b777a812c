"""What the benchmarks of replay and of pair files are made of."""

from __future__ import annotations

import sys
from pathlib import Path

from composer_replication.ingestion.store import load_traces
from composer_replication.teacher_replay.answers import CallChecks
from composer_replication.traces import Turn

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from replay_setting import write_traces


def test_its_calls_fit_its_tools(tmp_path: Path) -> None:
    """Teachers spell the student's calls in ways of their own; a call that does not fit would have no vote."""
    write_traces(tmp_path, 2, 40)
    for trace in load_traces(tmp_path):
        checks = CallChecks(trace.tools)
        turns = [turn for turn in trace.turns if turn.tool_calls]
        assert {call.name for turn in turns for call in turn.tool_calls} >= {"Bash", "Read", "Edit", "Grep"}
        assert [checks.problem(Turn("assistant", tool_calls=turn.tool_calls)) for turn in turns] == [None] * len(turns)
