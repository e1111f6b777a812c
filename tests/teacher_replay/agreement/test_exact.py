"""Equality of texts, white space and thinking apart."""

from __future__ import annotations

import pytest
from teacher_replay.actions import on_texts

from composer_replication.teacher_replay.agreement.comparison import Comparison, ExactComparer

COMPARER = on_texts(ExactComparer())
SAME = [
    ("run it", "run it"),
    ("  run\n\tit ", "run it"),
    ("[THINKING]\nhm\n[/THINKING]\nrun it", "run it"),
    ("[THINKING]\none\n[/THINKING]\nrun it", "[THINKING]\nanother\n[/THINKING]\nrun it"),
    ("[THINKING]\nhm\n[/THINKING]", ""),
]
DIFFERENT = [
    ("run it", "run them"),
    ("runit", "run it"),
    ("run it", "Run it"),
    ("", "run it"),
    ('[TOOL_USE] name=Read input={"a": 1, "b": 2}', '[TOOL_USE] name=Read input={"b": 2, "a": 1}'),
    ("run it [THINKING]\nhm\n[/THINKING]", "run it"),
]


@pytest.mark.parametrize(("first", "second"), SAME)
def test_same(first: str, second: str) -> None:
    assert COMPARER(first, second) == COMPARER(second, first) == Comparison(True, 1.0)


@pytest.mark.parametrize(("first", "second"), DIFFERENT)
def test_different(first: str, second: str) -> None:
    assert COMPARER(first, second) == COMPARER(second, first) == Comparison(False, 0.0)
