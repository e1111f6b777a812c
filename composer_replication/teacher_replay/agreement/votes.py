"""The vote on a state: what teachers did instead of the student's action, and whether that makes a pair.

`decide` answers for a vote that is still going on too, so that no teacher is asked whose answer cannot matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Literal

from composer_replication.teacher_replay.agreement.comparison import Comparer, Comparison
from composer_replication.traces import Turn


@dataclass(frozen=True)
class Rival:
    """An action that is not the student's, and the teachers that did it, in the order of their answers.

    `action` is the answer that is most like the others; `similarity` is how alike they are (1.0: the same).
    """

    action: Turn
    teachers: tuple[str, ...]
    similarity: float = 1.0


@dataclass(frozen=True)
class Tally:
    """The votes on one state: rivals of the student's action, in the order of their first teachers' answers, and the
    teachers that did what the student did."""

    rivals: tuple[Rival, ...]
    with_student: tuple[str, ...] = ()

    @classmethod
    def of(cls, student: Turn, answers: Sequence[tuple[str, Turn]], same: Comparer) -> Tally:
        """Count answers, (teacher, action) in the order in which the teachers stand.

        An answer that is the same as the student's action supports the student, and is in no rival cluster.
        """
        with_student: list[str] = []
        others: list[tuple[str, Turn]] = []
        for teacher, action in answers:
            if same(student, action).same:
                with_student.append(teacher)
            else:
                others.append((teacher, action))
        rivals = [
            Rival(
                others[found.representative][1], tuple(others[member][0] for member in found.members), found.similarity
            )
            for found in cluster([action for _, action in others], same)
        ]
        return cls(tuple(rivals), tuple(with_student))


@dataclass(frozen=True)
class Verdict:
    """The result of a tally.

    `outcome` is "pair", "none", or "open" while answers still to come decide. The other fields describe the votes so
    far: the place of the leading rival in the tally (None if there is none), how many teachers support it, by how many
    it outnumbers the next best action (the student's own counts as one), and whether another rival has as many; of
    such, the one whose first answer came first leads.
    """

    outcome: Literal["pair", "none", "open"]
    leader: int | None
    support: int
    margin: int
    tie: bool


def decide(tally: Tally, threshold: int, min_margin: int = 0, remaining: int = 0) -> Verdict:
    """Whether a tally makes a pair: the leading rival has `threshold` teachers and a margin of `min_margin`.

    With `remaining` teachers not asked yet, "pair" means that whatever they do, there is a pair and this leader wins;
    "none", that whatever they do, there is none. They may join any side, open a new one, or fail to answer; their
    answers come after those counted.

    Raises:
        ValueError: a threshold below 1, or a negative number of teachers.
    """
    check_threshold(threshold)
    if remaining < 0:
        raise ValueError(f"remaining must not be negative, got {remaining}")
    support = [len(rival.teachers) for rival in tally.rivals]
    student = len(tally.with_student)
    leader, margin = _leader(support, student)
    won = leader is not None and support[leader] >= threshold and margin >= min_margin
    if won and _is_certain(support, student, min_margin, remaining):
        outcome: Literal["pair", "none", "open"] = "pair"
    elif _is_possible(support, student, threshold, min_margin, remaining):
        outcome = "open"
    else:
        outcome = "none"
    most = max(support, default=0)
    return Verdict(outcome, leader, most, margin, tie=support.count(most) > 1)


def check_threshold(threshold: int) -> None:
    """Require a number of teachers that can agree."""
    if threshold < 1:
        raise ValueError(f"agreement_threshold must be at least 1 teacher, got {threshold}")


def _leader(support: Sequence[int], student: int) -> tuple[int | None, int]:
    """The most supported rival, the earliest of equals, and its margin."""
    if not support:
        return None, -student
    leader = support.index(max(support))
    next_best = max((count for index, count in enumerate(support) if index != leader), default=0)
    return leader, support[leader] - max(next_best, student)


def _is_certain(support: Sequence[int], student: int, min_margin: int, remaining: int) -> bool:
    """Whether the leader, which has won so far, still does if all that remain join any one other side.

    That is the worst that can happen to it: the margin is taken against the strongest other side alone.
    """
    leader, _ = _leader(support, student)
    worst = [(support, student + remaining), ([*support, remaining], student)]
    worst += [(_joined(support, index, remaining), student) for index in range(len(support)) if index != leader]
    for supports, students in worst:
        winner, margin = _leader(supports, students)
        if winner != leader or margin < min_margin:
            return False
    return True


def _is_possible(support: Sequence[int], student: int, threshold: int, min_margin: int, remaining: int) -> bool:
    """Whether some rival, or a new one, would win if all that remain joined it, the best that can happen to it."""
    sides = [*support, 0]
    for index in range(len(sides)):
        best = _joined(sides, index, remaining)
        winner, margin = _leader(best, student)
        if winner is not None and best[winner] >= threshold and margin >= min_margin:
            return True
    return False


def _joined(support: Sequence[int], index: int, count: int) -> list[int]:
    joined = list(support)
    joined[index] += count
    return joined


@dataclass(frozen=True)
class Cluster:
    """Actions that are pairwise the same.

    `members` are their places in the sequence, in order. `similarity` is the mean over all pairs of members (1.0 for a
    single one). `representative` is the member that is most like the others, the earliest of those that are.
    """

    members: tuple[int, ...]
    similarity: float
    representative: int


def cluster(actions: Sequence[Turn], same: Comparer) -> list[Cluster]:
    """Group actions by complete linkage, the most similar first; clusters are in the order of their first members.

    Two clusters become one only if each member of one is the same as each of the other: a chain of small differences
    does not join what differs. If sameness is transitive, the groups do not depend on the order of the actions;
    otherwise, of two joins that are equally good, the one with the earliest actions is made.
    """
    compared = {pair: same(actions[pair[0]], actions[pair[1]]) for pair in combinations(range(len(actions)), 2)}
    groups: list[tuple[int, ...]] = [(index,) for index in range(len(actions))]
    while (best := _best_join(groups, compared)) is not None:
        first, second = best
        groups[first] = tuple(sorted((*groups[first], *groups[second])))
        del groups[second]
    return [_cluster(group, compared) for group in groups]


def _best_join(
    groups: Sequence[tuple[int, ...]], compared: dict[tuple[int, int], Comparison]
) -> tuple[int, int] | None:
    best, best_similarity = None, -1.0
    for first, second in combinations(range(len(groups)), 2):
        across = [compared[_ordered(*pair)] for pair in product(groups[first], groups[second])]
        if not all(one.same for one in across):
            continue
        similarity = sum(one.similarity for one in across) / len(across)
        if similarity > best_similarity:
            best, best_similarity = (first, second), similarity
    return best


def _cluster(members: tuple[int, ...], compared: dict[tuple[int, int], Comparison]) -> Cluster:
    likeness = dict.fromkeys(members, 0.0)
    for first, second in combinations(members, 2):
        similarity = compared[first, second].similarity
        likeness[first] += similarity
        likeness[second] += similarity
    pairs = len(members) * (len(members) - 1)
    # `max` keeps the first of equals, and members are in order.
    return Cluster(members, sum(likeness.values()) / pairs if pairs else 1.0, max(members, key=likeness.__getitem__))


def _ordered(first: int, second: int) -> tuple[int, int]:
    return (first, second) if first < second else (second, first)
