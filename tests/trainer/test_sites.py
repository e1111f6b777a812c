"""The shapes in which environments and reward functions speak about turns."""

from __future__ import annotations

from typing import Any

import pytest

from composer_replication.rendering import TurnSpan
from composer_replication.trainer.sites import Remark, SiteFinder, remarks


def told(given: Any, turns: int = 3) -> list[Remark]:
    return list(remarks(given, turns, "environment"))


def test_nothing_to_say() -> None:
    assert told(None) == told({}) == told([]) == told([None, None, None]) == told("  \n") == told({0: ""}) == []


def test_a_text_is_about_the_last_turn() -> None:
    assert told("Look first.") == [Remark(2, "environment", "Look first.")]


def test_turns_by_number_and_from_the_end() -> None:
    assert told({0: "a", -1: "b", 1: None}) == [Remark(0, "environment", "a"), Remark(2, "environment", "b")]
    assert told({3: "a", -4: "b"}) == [Remark(None, "environment", "a"), Remark(None, "environment", "b")]


def test_one_per_turn() -> None:
    assert told([None, "a", ("type_error", {"tool_name": "x"})]) == [
        Remark(1, "environment", "a"),
        Remark(2, "environment", kind="type_error", meta={"tool_name": "x"}),
    ]
    assert told(["a", "b", "c", "d"])[-1].turn is None
    assert told({0: ["timeout", None]}) == [Remark(0, "environment", kind="timeout", meta=None)]


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (3, "an environment's feedback must be a text, a mapping .* got 3"),
        ({"0": "a"}, "an environment's feedback must name turns by whole numbers, got '0'"),
        ({True: "a"}, "got True"),
        ({0: 3}, r"an environment's feedback of turn 0 must be a text, \(kind, meta\) or None, got 3"),
        ({0: ("kind", "meta")}, "got \\('kind', 'meta'\\)"),
        ([("a", {}, {})], "feedback of turn 0"),
    ],
)
def test_other_shapes_are_refused(given: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        told(given)


def test_a_hint_without_a_place_leaves_the_limit_to_the_next(qwen_tokenizer: Any) -> None:
    finder = SiteFinder(qwen_tokenizer, lambda kind, meta: None, max_length=100, max_turns=1)
    spans = [TurnSpan(None, start - 3, start, start + 5) for start in (20, 40, 60)]
    said = finder.by_turn(remarks(["Look first. " * 100, "Look first.", "Look first."], 3, "environment"))
    placed = [
        finder.place(hint, [spans[hint.turn]], [{"role": "user", "content": "Go."}])
        for hint in finder.hints(said, range(3), [[], [], []])
    ]
    assert [site.spans for site in placed if site is not None] == [((40, 45),)]
    assert finder.counts == {"too_long": 1, "sites": 1, "too_many": 1}
