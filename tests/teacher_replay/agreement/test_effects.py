"""Sequences of effects."""

from __future__ import annotations

import pytest

from composer_replication.teacher_replay.agreement.effects import Effect, effect, same_effect, same_effects


def look(path: str) -> Effect:
    return effect("look", path, reads=True, touches=frozenset({path}))


def change(path: str) -> Effect:
    return effect("change", path, touches=frozenset({path}))


def anything(name: str) -> Effect:
    return effect("run", name)


@pytest.mark.parametrize(
    ("first", "second", "are_same"),
    [
        ([look("a"), look("b")], [look("b"), look("a")], True),
        ([change("a"), change("b")], [change("b"), change("a")], True),
        ([change("a"), look("b")], [look("b"), change("a")], True),
        ([change("a"), look("a")], [look("a"), change("a")], False),
        ([change("a"), look("a/b")], [look("a/b"), change("a")], False),
        ([change("a/b"), look("a")], [look("a"), change("a/b")], False),
        ([change("a"), look("ab")], [look("ab"), change("a")], True),
        ([change("a"), look(".")], [look("."), change("a")], False),
        ([anything("x"), look("a")], [look("a"), anything("x")], False),
        ([anything("x"), anything("y")], [anything("y"), anything("x")], False),
        ([look("a"), anything("x"), look("b")], [look("a"), anything("x"), look("b")], True),
        ([look("a"), anything("x"), look("b")], [look("b"), anything("x"), look("a")], False),
        ([look("a")], [look("a"), look("a")], False),
        ([look("a"), look("a")], [look("a"), look("b")], False),
    ],
)
def test_independent_effects_may_change_places(first: list[Effect], second: list[Effect], are_same: bool) -> None:
    assert (same_effects(first, second) is not None) is are_same
    assert (same_effects(second, first) is not None) is are_same


def test_very_long_sequences_keep_their_order() -> None:
    many = [look(str(number)) for number in range(301)]
    assert same_effects(many, list(many)) == 1.0
    assert same_effects(many, many[::-1]) is None
    assert same_effects(many[:300], many[:300][::-1]) == 1.0


def test_the_least_alike_text_counts() -> None:
    told = [
        ("Run the linter over the package", "Run the linter over the whole package"),
        ("Write tests", "Write tests"),
    ]
    first = [effect("say", place, prose=(one,)) for place, (one, _) in enumerate(told)]
    second = [effect("say", place, prose=(other,)) for place, (_, other) in enumerate(told)]
    alone = same_effect(first[0], second[0])
    assert alone is not None
    assert 0.7 < alone < 1
    assert same_effects(first, second) == same_effects(first[::-1], second[::-1]) == alone


@pytest.mark.parametrize(
    ("first", "second", "are_same"),
    [
        (None, None, True),
        (None, "/repo", True),
        ("~", None, True),
        ("/repo", "/repo", True),
        ("/repo", "/other", False),
        (None, "below", False),
        ("below", "below", True),
        ("/repo", "below", False),
    ],
)
def test_where_a_command_runs(first: str | None, second: str | None, are_same: bool) -> None:
    one, other = (Effect(("make",), ("make", where), where) for where in (first, second))
    assert (same_effect(one, other) is not None) is are_same
    assert (same_effect(other, one) is not None) is are_same


def test_paths_that_meet() -> None:
    there = Effect(("look", "a"), ("look", "/repo/a"), "/repo", is_bound=True)
    assert same_effect(there, effect("look", "/repo/a")) == 1.0
    assert same_effect(there, effect("look", "a")) == 1.0
    assert same_effect(there, effect("look", "b")) is None
    below = Effect(("look", "a"), ("look", "src/a"), "src", is_bound=True)
    assert same_effect(below, effect("look", "src/a")) == 1.0
    assert same_effect(below, effect("look", "a")) is None
    # A program that also looks at where it runs.
    unbound = Effect(("test", "a"), ("test", "src/a"), "src")
    assert same_effect(unbound, Effect(("test", "src/a"), ("test", "src/a"))) is None
