"""Clusters of equal actions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.teacher_replay.agreement.comparison import Comparison
from composer_replication.teacher_replay.agreement.votes import Cluster, cluster
from composer_replication.traces import Turn


def by_first_letter(first: str, second: str) -> Comparison:
    """Transitive: one letter, one group; the likeness falls with the distance of the numbers behind it."""
    return Comparison(first[0] == second[0], 1 - abs(int(first[1:]) - int(second[1:])) / 100)


def within_ten(first: str, second: str) -> Comparison:
    """Not transitive: numbers are the same if they are close."""
    distance = abs(int(first) - int(second))
    return Comparison(distance <= 10, 1 - distance / 100)


def clustered(actions: list[str], same: Callable[[str, str], Comparison]) -> list[Cluster]:
    turns = [Turn(role="assistant", content=action) for action in actions]
    return cluster(turns, lambda first, second: same(first.content, second.content))


def groups(actions: list[str], clusters: list[Cluster]) -> set[frozenset[str]]:
    return {frozenset(actions[member] for member in one.members) for one in clusters}


def test_groups_come_in_the_order_of_their_first_members() -> None:
    found = clustered(["b1", "a1", "b2", "c1", "a2", "b3"], by_first_letter)
    assert [one.members for one in found] == [(0, 2, 5), (1, 4), (3,)]


def test_the_representative_is_the_member_most_like_the_others() -> None:
    (found,) = clustered(["a1", "a9", "a6"], by_first_letter)
    assert found.representative == 2
    assert found.similarity == pytest.approx(1 - (8 + 5 + 3) / 3 / 100)


def test_of_equally_typical_members_the_earliest_stands_for_all() -> None:
    assert [one.representative for one in clustered(["a3", "b7", "a5", "b7", "b7"], by_first_letter)] == [0, 1]


def test_a_single_action_is_like_itself() -> None:
    assert clustered(["a1"], by_first_letter) == [Cluster((0,), 1.0, 0)]
    assert clustered([], by_first_letter) == []


def test_a_chain_of_small_differences_does_not_join_what_differs() -> None:
    # 0~8~16~24: neighbours are the same, the ends are not.
    assert [one.members for one in clustered(["0", "8", "16", "24"], within_ten)] == [(0, 1), (2, 3)]
    assert [one.members for one in clustered(["8", "16", "0", "24"], within_ten)] == [(0, 1), (2,), (3,)]
    actions = ["0", "9", "12"]
    # The closest come together first, wherever they stand.
    assert groups(actions, clustered(actions, within_ten)) == {frozenset({"0"}), frozenset({"9", "12"})}


@given(st.lists(st.integers(0, 60).map(str), max_size=9))
def test_members_of_a_cluster_are_all_the_same(actions: list[str]) -> None:
    found = clustered(actions, within_ten)
    assert sorted(member for one in found for member in one.members) == list(range(len(actions)))
    for one in found:
        assert all(within_ten(actions[a], actions[b]).same for a in one.members for b in one.members)
        assert one.representative in one.members
    # And what could still be joined has been.
    for one in found:
        for other in found:
            if one is not other:
                assert not all(within_ten(actions[a], actions[b]).same for a in one.members for b in other.members)


@given(st.permutations([f"{letter}{number}" for letter in "abc" for number in range(3)]))
def test_the_order_does_not_matter_where_sameness_is_transitive(actions: list[str]) -> None:
    expected = {frozenset(f"{letter}{number}" for number in range(3)) for letter in "abc"}
    assert groups(actions, clustered(actions, by_first_letter)) == expected
