"""Sessions that are held out: the same ones in traces and pairs, sub-agents with their session."""

from __future__ import annotations

from pathlib import Path

import pytest
from run.training_material import json_lines, pair, trace_folder

from composer_replication.config import ConfigError
from composer_replication.ingestion.store import load_traces
from composer_replication.run.data import load_training_data
from composer_replication.run.held_out import Sessions, is_held_out
from composer_replication.run.loading import parse_config
from composer_replication.run.sections import DataSection
from composer_replication.teacher_replay.pair_files import save_preference
from composer_replication.traces import Source, Trace


def trace(trace_id: str, *, session: str | None = None, parent: str | None = None) -> Trace:
    return Trace(trace_id=trace_id, turns=[], source=Source("a", "b"), session_id=session, parent=parent)


def test_a_share_of_the_sessions_is_held_out_and_a_larger_share_holds_out_these_too() -> None:
    names = [f"session {number}" for number in range(5000)]
    small, large = ({name for name in names if is_held_out(name, share)} for share in (0.2, 0.5))
    assert small < large
    assert (len(small) / 5000, len(large) / 5000) == pytest.approx((0.2, 0.5), abs=0.03)
    assert not any(is_held_out(name, 0.0) for name in names)
    assert all(is_held_out(name, 1.0) for name in names)


def test_agents_belong_to_the_session_that_started_them() -> None:
    sessions = Sessions(
        [
            trace("k1:main", session="s1"),
            trace("k1:main/a", session="s1", parent="k1:main"),
            trace("k2:agent-b", session="s1", parent="k1:main"),
            # Without ids of sessions: agents of agents, and one before the trace that started it.
            trace("k3:run#a#b", parent="k3:run#a"),
            trace("k3:run#a", parent="k3:run"),
            trace("k3:run"),
            # A log that names its parent by the session, and one whose parent is not there.
            trace("k4:rollout-1", session="s4"),
            trace("k5:rollout-2", session="s5", parent="k5:s4"),
            trace("k6:rollout-3", session="s6", parent="k6:gone"),
            # A circle does not hang.
            trace("k7:x", parent="k7:y"),
            trace("k7:y", parent="k7:x"),
        ]
    )
    assert [sessions.of(name) for name in ("k1:main", "k1:main/a", "k2:agent-b")] == ["s1"] * 3
    assert [sessions.of(name) for name in ("k3:run#a#b", "k3:run#a", "k3:run")] == ["k3:run"] * 3
    assert [sessions.of(name) for name in ("k4:rollout-1", "k5:rollout-2", "k6:rollout-3")] == ["s4", "s4", "s6"]
    assert sessions.of("k7:x") in ("k7:x", "k7:y")
    assert sessions.of("unknown") == "unknown"


def test_training_leaves_the_held_out_sessions_out_of_traces_and_pairs(tmp_path: Path) -> None:
    folder = trace_folder(tmp_path, sessions=12)
    names = {one.trace_id: one.session_id or "" for one in load_traces(folder)}
    held_out = {name for name, session in names.items() if is_held_out(session, 0.4)}
    assert 0 < len(held_out) < 12
    rows = [pair(number, state_id=f"{name}::{number:04d}") for number in (0, 1) for name in names]
    file = json_lines(tmp_path / "pairs.jsonl", *rows)
    data = load_training_data(DataSection(traces=folder, pairs=(file,), held_out=0.4))
    assert {one["trace_id"] for one in data.traces} == names.keys() - held_out
    assert {one.state_id.rpartition("::")[0] for one in data.pairs} == names.keys() - held_out
    # The limits count what is left.
    few = load_training_data(DataSection(traces=folder, pairs=(file,), held_out=0.4, max_traces=2, max_pairs=3))
    assert (len(few.traces), len(few.pairs)) == (2, 3)
    assert {one["trace_id"] for one in few.traces}.isdisjoint(held_out)
    whole = load_training_data(DataSection(traces=folder, pairs=(file,)))
    assert (len(whole.traces), len(whole.pairs)) == (12, 24)


def test_pairs_that_do_not_say_their_session_cannot_be_held_out(tmp_path: Path) -> None:
    save_preference([pair(0)], tmp_path / "p.jsonl")  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"data.held_out: 0.2 needs pairs that say which session"):
        load_training_data(DataSection(pairs=(tmp_path / "p.jsonl",), held_out=0.2))
    assert len(load_training_data(DataSection(pairs=(tmp_path / "p.jsonl",))).pairs) == 1


def test_nothing_left_and_nothing_to_hold_out(tmp_path: Path) -> None:
    folder = trace_folder(tmp_path, sessions=1)
    with pytest.raises(ValueError, match=r"no turn of an assistant beside what data.held_out \(0.999\) leaves out"):
        load_training_data(DataSection(traces=folder, held_out=0.999))
    file = json_lines(tmp_path / "pairs.jsonl", pair(0))
    with pytest.raises(ValueError, match=r"there is no pair in it beside what data.held_out \(0.999\) leaves out"):
        load_training_data(DataSection(pairs=(file,), held_out=0.999))
    given = {"model": {"name": "m"}, "environment": {"class": "a:B"}, "training": {"output_dir": "o"}}
    with pytest.raises(ConfigError, match=r"data.held_out: 0.2 without data.traces and data.pairs has no effect"):
        parse_config({**given, "data": {"prompts": "p.jsonl", "held_out": 0.2}})
