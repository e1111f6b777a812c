"""Values in JSON logs: guards, rewards, token counts and tool definitions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from composer_replication.ingestion.loose_json import (
    SCORES,
    first_of,
    is_nonzero,
    nanoseconds,
    objects,
    reward_of,
    time_of,
    tool_definition,
    usage_of,
    whole,
)
from composer_replication.traces import Usage


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


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 5, "completion_tokens": 1}, Usage(input_tokens=5, output_tokens=1)),
        (
            {"input_tokens": 5, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 3, "output_tokens": 2},
            Usage(input_tokens=98, output_tokens=2, cached_tokens=90, cache_write_tokens=3),
        ),
        (
            {"prompt_tokens": 95, "cache_read_input_tokens": 90, "completion_tokens": 2.0},
            Usage(input_tokens=95, output_tokens=2, cached_tokens=90),
        ),
        (
            {"input_tokens": 9, "cached_input_tokens": 4, "output_tokens": 1},
            Usage(input_tokens=9, output_tokens=1, cached_tokens=4),
        ),
        ({"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4}}, Usage(input_tokens=9, cached_tokens=4)),
        ({"prompt_tokens": True, "completion_tokens": -4}, None),
        ({"prompt_tokens": 2**70}, None),
        ({}, None),
        (None, None),
        ([1], None),
    ],
)
def test_usage(usage: Any, expected: Usage | None) -> None:
    assert usage_of(usage) == expected


SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
CHAT = {"type": "function", "function": {"name": "read", "description": "Reads.", "parameters": SCHEMA}}


@pytest.mark.parametrize(
    "given",
    [
        CHAT,
        json.dumps(CHAT),
        {"type": "function", "name": "read", "description": "Reads.", "parameters": json.dumps(SCHEMA)},
        {"name": "read", "description": "Reads.", "input_schema": SCHEMA},
        {"title": "read", "description": "Reads.", "inputSchema": SCHEMA, "annotations": {}},
    ],
)
def test_every_form_becomes_the_chat_form(given: Any) -> None:
    assert tool_definition(given) == CHAT


@pytest.mark.parametrize(
    "given",
    [
        {"type": "custom", "name": "apply_patch", "description": "Edits.", "format": {"type": "grammar"}},
        {"type": "custom", "custom": {"name": "apply_patch", "description": "Edits.", "format": {"type": "text"}}},
    ],
)
def test_a_freeform_tool_takes_its_text_as_input(given: Any) -> None:
    assert tool_definition(given) == {
        "type": "function",
        "function": {
            "name": "apply_patch",
            "description": "Edits.",
            "parameters": {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]},
        },
    }


@pytest.mark.parametrize("given", [None, 3, "read", [], {}, {"function": {}}, {"name": 3}])
def test_what_has_no_name_is_none(given: Any) -> None:
    assert tool_definition(given) is None


@pytest.mark.parametrize(
    "time",
    [
        1_767_225_600,
        1_767_225_600_000,
        1_767_225_600_000_000,
        "1767225600000000000",
        [1_767_225_600, 0],
        "2026-01-01T00:00:00Z",
        "2026-01-01T01:00:00+01:00",
        "2026-01-01T00:00:00",
        "2026-01-01T00:00:00+0000",
        "2025-12-31T18:30:00-0530",
        "2026-01-01T00:00:00+00",
        "2026-01-01 00:00:00.0 +00:00",
        "2026-01-01t00:00:00z",
        "20260101T000000Z",
        "2026-01-01T00:00Z",
        "2026-01-01",
    ],
)
def test_times(time: Any) -> None:
    assert nanoseconds(time) == 1_767_225_600 * 10**9


@pytest.mark.parametrize(
    ("fraction", "nanos"),
    [
        (".123456789", 123_456_789),
        (".1234567891", 123_456_789),
        (".123456", 123_456_000),
        (".123", 123_000_000),
        (".12", 120_000_000),
        (",5", 500_000_000),
    ],
)
@pytest.mark.parametrize("zone", ["", "Z", "+00:00", "+0000", "+00"])
def test_fractions_of_any_length(fraction: str, nanos: int, zone: str) -> None:
    assert nanoseconds(f"2026-01-01T00:00:00{fraction}{zone}") == 1_767_225_600 * 10**9 + nanos


@pytest.mark.parametrize("time", ["2026-13-01", "2026-01-01T25:00:00Z", "2026-01-01T00:00:00+25:00", "2026-01-01TZ"])
def test_times_that_no_clock_shows(time: str) -> None:
    assert nanoseconds(time) is None


@pytest.mark.parametrize("time", [None, "", "soon", -1, True, {}, [1], 1e300, float("nan"), "1e5"])
def test_other_values_are_no_times(time: Any) -> None:
    assert nanoseconds(time) is None
