"""The labelled pairs of actions are what their readers take them for."""

from __future__ import annotations

from collections import Counter

import pytest
from teacher_replay.actions import labelled

from composer_replication.traces import parse_action, render_action


def pairs_of(half: str) -> list[frozenset[str]]:
    return [frozenset((row["first"], row["second"])) for row in labelled(half)]


@pytest.mark.parametrize("half", ["dev", "test"])
def test_a_half_is_large_and_balanced(half: str) -> None:
    rows = labelled(half)
    same = sum(row["same"] for row in rows)
    assert len(rows) >= 150
    assert 0.45 <= same / len(rows) <= 0.55


@pytest.mark.parametrize("half", ["dev", "test"])
def test_rows_have_their_fields(half: str) -> None:
    for row in labelled(half):
        assert {key: type(value) for key, value in row.items()} == {
            "first": str,
            "second": str,
            "same": bool,
            "kind": str,
            "why": str,
        }
        assert all(row[key].strip() for key in ("first", "second", "kind", "why")), row


@pytest.mark.parametrize("half", ["dev", "test"])
def test_actions_are_as_render_action_writes_them(half: str) -> None:
    for row in labelled(half):
        assert row["first"] != row["second"]
        for action in (row["first"], row["second"]):
            turn = parse_action(action)
            assert render_action(turn) == action
            assert "[TOOL_USE]" not in turn.content


def test_no_pair_stands_twice() -> None:
    pairs = pairs_of("dev") + pairs_of("test")
    assert len(set(pairs)) == len(pairs)


def test_the_halves_follow_one_distribution() -> None:
    counts = [Counter((row["kind"], row["same"]) for row in labelled(half)) for half in ("dev", "test")]
    assert counts[0].keys() == counts[1].keys()
    assert all(abs(counts[0][stratum] - counts[1][stratum]) <= 1 for stratum in counts[0])
