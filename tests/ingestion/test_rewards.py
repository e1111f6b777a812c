"""Rewards under the names that logs give them."""

from __future__ import annotations

from typing import Any

import pytest

from composer_replication.ingestion.loose_json import SCORES, reward_of


@pytest.mark.parametrize(
    ("record", "reward"),
    [
        ({"resolved": True}, 1.0),
        ({"success": False}, 0.0),
        ({"reward": 0.25}, 0.25),
        ({"resolved": "yes"}, None),
        ({"reward": float("nan")}, None),
        ({"reward": 10**400}, None),
        ({}, None),
    ],
)
def test_verdicts(record: dict[str, Any], reward: float | None) -> None:
    assert reward_of({}, record) == reward


def test_scores_of_data_sets_are_asked_for_by_name() -> None:
    row = {"resolved": True, "score": 3}
    assert (reward_of(row), reward_of(row, keys=SCORES)) == (1.0, 3.0)
