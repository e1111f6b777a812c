"""Clusters of equal actions. Sameness need not be transitive, so a cluster holds only actions that are all the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product

from composer_replication.teacher_replay.agreement.comparison import Comparer, Comparison
from composer_replication.traces import Turn


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
