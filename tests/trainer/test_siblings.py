"""Which sibling a failed rollout is told of, and in which words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainer.scripted_rollouts import ANSWER, CONTENT, READ, play, says

from composer_replication.trainer.rollout_hints import best_siblings, solution_text


def test_the_best_of_the_group_and_the_first_of_equals() -> None:
    rewards = [0.0, 1.0, 2.0, 2.0, 9.0, 0.0]
    groups = ["a", "a", "a", "a", "b", "c"]
    assert best_siblings(rewards, groups, [False, True, True, True, True, False]) == [2, None, None, None, None, None]


def test_one_that_nothing_scored_is_nobodys_example() -> None:
    assert best_siblings([0.0, float("nan"), 1.0], [0, 0, 0], [False, True, True]) == [2, None, None]
    assert best_siblings([0.0, float("nan")], [0, 0], [False, True]) == [None, None]


@given(st.lists(st.tuples(st.floats(-1, 1), st.integers(0, 2), st.booleans()), min_size=1, max_size=12))
def test_a_sibling_succeeded_shares_the_prompt_and_is_another(rollouts: list[tuple[float, int, bool]]) -> None:
    rewards, groups, succeeded = (list(column) for column in zip(*rollouts, strict=True))
    for index, sibling in enumerate(best_siblings(rewards, groups, succeeded)):
        candidates = [other for other in range(len(rollouts)) if groups[other] == groups[index] and succeeded[other]]
        if succeeded[index] or not candidates:
            assert sibling is None
            continue
        assert sibling in candidates
        assert sibling != index
        assert rewards[sibling] == max(rewards[other] for other in candidates)
        assert all(rewards[other] < rewards[sibling] for other in candidates if other < sibling)


def test_lists_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="got 1, 2 and 2"):
        best_siblings([1.0], [0, 0], [True, False])


def test_a_solution_is_its_calls_and_its_answer(tokenizer: Any) -> None:
    rollout = play(tokenizer, [READ, CONTENT, ANSWER])
    assert solution_text(rollout, tokenizer) == (
        'A correct solution of this task:\nCall read_file with {"path": "a.py"}\nIt prints 1.'
    )
    bare = solution_text(replace(rollout, messages=[]), tokenizer)
    assert "read_file" in bare
    assert "It prints 1." in bare
    assert "print(1)" not in bare
    assert tokenizer.eos_token not in bare


def test_a_long_solution_keeps_its_beginning_and_its_end(qwen_tokenizer: Any) -> None:
    rollout = play(qwen_tokenizer, [says("first " + "x" * 5000 + " last")])
    text = solution_text(rollout, qwen_tokenizer, max_characters=101).removeprefix("A correct solution of this task:\n")
    assert text.startswith("first x")
    assert text.endswith("x last")
    assert len(text.replace(" … ", "")) == 101


def test_a_rollout_without_words_is_no_solution(qwen_tokenizer: Any) -> None:
    assert solution_text(play(qwen_tokenizer, [says("")]), qwen_tokenizer) == ""
