"""What is known of prompts: an upper bound of their tokens that gets tighter, and marks for those who want them."""

from __future__ import annotations

from typing import Any

import pytest

from composer_replication.teacher_replay.prompts import KnownPrompts, Prompt, PromptWriter, token_bound
from composer_replication.teacher_replay.teachers import resolve_teachers

LETTERS = 5000


def prompts(*histories: str) -> list[Prompt]:
    """A prompt for each word; a letter is a long message that begins with it."""
    writer = PromptWriter([], ())
    return [writer.prompt([{"role": "user", "content": letter * LETTERS} for letter in word]) for word in histories]


def teacher(**spec: Any) -> Any:
    return resolve_teachers([{"slug": "t", "base_url": "http://127.0.0.1:1/v1", **spec}])[0]


def test_without_knowledge_every_byte_may_be_a_token() -> None:
    (prompt,) = prompts("ab")
    assert token_bound(prompt) == KnownPrompts().token_bound(prompt) == prompt.size + 1024


def test_where_a_beginning_was_counted_only_the_rest_is_guessed() -> None:
    a, ab, abc, ax = prompts("a", "ab", "abc", "ax")
    known = KnownPrompts()
    known.add(ab, 2500)
    assert known.token_bound(abc) == 2500 + (abc.size - ab.size) + 256
    assert known.token_bound(ab) == 2500 + 256
    known.add(a, 1250)
    assert known.token_bound(abc) == 2500 + (abc.size - ab.size) + 256  # the longest beginning knows most
    assert known.token_bound(ax) == 1250 + (ax.size - a.size) + 256
    assert known.token_bound(a) == 1250 + 256


def test_what_is_no_beginning_says_nothing() -> None:
    (ab, abc, xb) = prompts("ab", "abc", "xb")
    known = KnownPrompts()
    known.add(abc, 10_000)
    known.add(xb, 10_000)
    assert known.token_bound(ab) == token_bound(ab)


def test_a_count_that_cannot_be_is_not_believed() -> None:
    a, ab = prompts("a", "ab")
    for count in (0, a.size // 16):
        known = KnownPrompts()
        known.add(a, count)
        assert known.token_bound(ab) == token_bound(ab)
    known.add(a, a.size // 16 + 1)
    assert known.token_bound(ab) < token_bound(ab)


def test_a_count_above_the_bound_does_not_raise_it() -> None:
    a, ab = prompts("a", "ab")
    known = KnownPrompts()
    known.add(a, 10 * a.size)
    assert known.token_bound(ab) == token_bound(ab)


def test_only_so_many_prompts_are_remembered() -> None:
    first, *others = prompts("a", *("b" * length for length in range(1, 65)))
    known = KnownPrompts()
    known.add(first, 1250)
    for other in others[:63]:
        known.add(other, other.size)
    assert known.token_bound(first) == 1250 + 256
    known.add(others[63], others[63].size)
    assert known.token_bound(first) == token_bound(first)


@pytest.mark.parametrize("wants", [True, False])
def test_marks_are_for_teachers_that_want_them(wants: bool) -> None:
    a, _, abc = prompts("a", "ab", "abc")
    known = KnownPrompts()
    known.add(a, 1250)
    assert known.marks(abc, teacher(cache_control=wants)) == ([0, 2] if wants else [])
