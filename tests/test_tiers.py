from __future__ import annotations

from pathlib import Path

import pytest
from tiers import TIERS

TESTS = Path(__file__).parent


@pytest.mark.parametrize("place", [place for places in TIERS.values() for place in places])
def test_every_place_is_there(place: str) -> None:
    path, _, name = place.partition("::")
    found = list(TESTS.glob(f"{path}*"))
    assert found
    assert not name or f"def {name.partition('[')[0]}" in found[0].read_text(encoding="utf-8")


def test_every_tier_is_a_marker(pytestconfig: pytest.Config) -> None:
    assert {line.partition(":")[0] for line in pytestconfig.getini("markers")} >= set(TIERS)
