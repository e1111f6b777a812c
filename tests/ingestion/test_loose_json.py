"""Guards for values of any type."""

from __future__ import annotations

from typing import Any

import pytest

from composer_replication.ingestion.loose_json import first_of, is_nonzero, objects, time_of, whole


@pytest.mark.parametrize("value", [True, None, [], float("nan"), 10**30, ""])
def test_times_that_are_none(value: Any) -> None:
    assert time_of(value) is None


@pytest.mark.parametrize(("value", "count"), [(3, 3), (3.0, 3), (3.5, 0), (-3, 0), (True, 0), (2**63, 0), ("3", 0)])
def test_counts(value: Any, count: int) -> None:
    assert whole(value) == count


@pytest.mark.parametrize(("code", "fails"), [(1, True), (-9, True), (0, False), (True, False), ("1", False)])
def test_exit_codes(code: Any, fails: bool) -> None:
    assert is_nonzero(code) is fails


def test_what_is_no_object_holds_nothing() -> None:
    assert objects([{"a": 1}, 2, None]) == [{"a": 1}]
    assert objects({"a": 1}) == []
    assert first_of({"a": None, "b": 0}, "a", "b") == 0
    assert first_of([1], "a") is None
