"""Token counts in the dialects of providers and harnesses."""

from __future__ import annotations

from typing import Any

import pytest

from composer_replication.ingestion.loose_json import usage_of
from composer_replication.traces import Usage


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
