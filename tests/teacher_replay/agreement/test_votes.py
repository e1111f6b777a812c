"""The vote on a state, finished or not, and clusters of equal actions."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_replication.teacher_replay.agreement.comparison import Comparison, ExactComparer
from composer_replication.teacher_replay.agreement.votes import Cluster, Rival, Tally, Verdict, cluster, decide
from composer_replication.traces import Turn


def said(text: str) -> Turn:
    return Turn(role="assistant", content=text)


def counted(*support: int, student: int = 0) -> Tally:
    """A tally with so many teachers behind each rival."""
    rivals = tuple(
        Rival(said(f"rival {place}"), tuple(f"t{place}.{one}" for one in range(n))) for place, n in enumerate(support)
    )
    return Tally(rivals, tuple(f"s{one}" for one in range(student)))


def finished(support: list[int], student: int, threshold: int, min_margin: int) -> int | None:
    """The rules of a vote in which all have answered, written down once more: the winner, None if there is no pair."""
    if not any(support):
        return None
    ranked = sorted(range(len(support)), key=lambda place: (-support[place], place))
    others = [support[place] for place in ranked[1:]] + [student]
    best = support[ranked[0]]
    return ranked[0] if best >= threshold and best - max(others) >= min_margin else None


def continuations(support: list[int], student: int, remaining: int) -> list[tuple[list[int], int]]:
    """Every way in which the rest may vote: for the student (-1), a rival, a new one, or not at all (-2)."""
    ends = []
    for choice in product(range(-2, len(support) + remaining), repeat=remaining):
        counts, with_student = [*support, *([0] * remaining)], student
        for side in choice:
            if side == -1:
                with_student += 1
            elif side >= 0:
                counts[side] += 1
        ends.append((counts, with_student))
    return ends


def test_an_answer_like_the_students_supports_the_student() -> None:
    given = [("one", "look"), ("two", "run"), ("three", " look "), ("four", "edit"), ("five", "run")]
    tally = Tally.of(said("look"), [(name, said(text)) for name, text in given], ExactComparer())
    assert tally == Tally((Rival(said("run"), ("two", "five")), Rival(said("edit"), ("four",))), ("one", "three"))


def test_no_answers_no_rivals() -> None:
    assert decide(Tally.of(said("look"), [], ExactComparer()), 1) == Verdict("none", None, 0, 0, tie=False)
    assert decide(counted(student=2), 1) == Verdict("none", None, 0, -2, tie=False)


@pytest.mark.parametrize(
    ("tally", "threshold", "min_margin", "expected"),
    [
        (counted(2, 1), 2, 0, Verdict("pair", 0, 2, 1, tie=False)),
        (counted(1, 2), 2, 0, Verdict("pair", 1, 2, 1, tie=False)),
        (counted(1, 1), 2, 0, Verdict("none", 0, 1, 0, tie=True)),
        (counted(2, 2), 2, 0, Verdict("pair", 0, 2, 0, tie=True)),
        (counted(2, 2), 2, 1, Verdict("none", 0, 2, 0, tie=True)),
        (counted(2, 1, student=2), 2, 0, Verdict("pair", 0, 2, 0, tie=False)),
        (counted(2, 1, student=2), 2, 1, Verdict("none", 0, 2, 0, tie=False)),
        (counted(2, student=3), 2, 0, Verdict("none", 0, 2, -1, tie=False)),
        (counted(3, student=1), 2, 2, Verdict("pair", 0, 3, 2, tie=False)),
        (counted(3, student=1), 2, 3, Verdict("none", 0, 3, 2, tie=False)),
    ],
)
def test_a_finished_vote(tally: Tally, threshold: int, min_margin: int, expected: Verdict) -> None:
    assert decide(tally, threshold, min_margin) == expected


def test_unless_told_a_tie_is_enough() -> None:
    assert decide(counted(2, 2), 2) == decide(counted(2, 2), 2, 0, 0)


@pytest.mark.parametrize(
    ("tally", "remaining", "outcome"),
    [
        (counted(), 3, "open"),
        (counted(), 1, "none"),
        (counted(2), 1, "pair"),
        (counted(2), 2, "pair"),
        (counted(2), 3, "open"),
        (counted(student=1), 2, "open"),
        (counted(student=2), 1, "none"),
        (counted(1, student=1), 1, "open"),
        # The later one would only draw level, and the earlier one leads a tie.
        (counted(2, 1), 1, "pair"),
        # The earlier one would draw level and lead.
        (counted(1, 2), 1, "open"),
    ],
)
def test_a_vote_that_goes_on(tally: Tally, remaining: int, outcome: str) -> None:
    assert decide(tally, 2, 0, remaining).outcome == outcome


@settings(max_examples=400)
@given(
    support=st.lists(st.integers(1, 3), max_size=3),
    student=st.integers(0, 3),
    threshold=st.integers(1, 4),
    min_margin=st.integers(-1, 3),
    remaining=st.integers(0, 3),
)
def test_decide_agrees_with_every_continuation(
    support: list[int], student: int, threshold: int, min_margin: int, remaining: int
) -> None:
    winners = {
        finished(counts, with_student, threshold, min_margin)
        for counts, with_student in continuations(support, student, remaining)
    }
    expected = "open" if len(winners) > 1 else "none" if winners == {None} else "pair"
    verdict = decide(counted(*support, student=student), threshold, min_margin, remaining)
    assert verdict.outcome == expected
    if expected == "pair":
        assert {verdict.leader} == winners


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="agreement_threshold must be at least 1 teacher, got 0"):
        decide(counted(1), 0)
    with pytest.raises(ValueError, match="remaining must not be negative, got -1"):
        decide(counted(1), 1, 0, -1)


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
