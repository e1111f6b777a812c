"""Two models on the same tasks or sessions: the difference, its interval, and how likely chance alone would make it."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import NamedTuple

from composer_replication._arguments import check_count
from composer_replication.evaluation.intervals import Cluster, Statistic, interval, mean

_Both = tuple[Cluster, Cluster]

# Up to here, all ways to swap are tried: 4,096 of them.
_ALL_SWAPS = 12
_DRAWN_SWAPS = 2000


class Comparison(NamedTuple):
    """Ours minus theirs, with its 95 % interval (None: see `interval`), the p-value (two-sided), and the clusters in
    which ours is higher and lower."""

    difference: float
    low: float | None
    high: float | None
    p_value: float
    test: str
    clusters: int
    higher: int
    lower: int


def compare(
    ours: Mapping[str, Cluster], theirs: Mapping[str, Cluster], statistic: Statistic = mean, *, seed: int = 0
) -> Comparison:
    """Compare a statistic over the same clusters.

    The interval is a bootstrap over clusters. The p-value is McNemar's exact one if every cluster is a single 0 or 1.
    Otherwise it is that of a permutation test, in which a cluster's two sides change places.

    Raises:
        ValueError: no clusters, or not the same ones; the message names the first that is missing.
    """
    check_same_tasks(ours, theirs)
    both = [(cluster, theirs[name]) for name, cluster in ours.items()]
    differences = [_difference([pair], statistic) for pair in both]
    higher, lower = sum(one > 0 for one in differences), sum(one < 0 for one in differences)
    is_binary = all(cluster.number == 1 and cluster.total in (0, 1) for pair in both for cluster in pair)
    p_value = mcnemar(higher, lower) if is_binary else permutation(both, statistic, seed=seed)
    difference = partial(_difference, statistic=statistic)
    low, high = interval(both, difference, seed=seed)
    test = "mcnemar" if is_binary else "permutation"
    return Comparison(difference(both), low, high, p_value, test, len(both), higher, lower)


def check_same_tasks(ours: Iterable[str], theirs: Iterable[str]) -> None:
    """Require the same names, and at least one.

    Raises:
        ValueError: otherwise; the message counts those that only one side has, and names the first.
    """
    one, other = dict.fromkeys(ours), dict.fromkeys(theirs)
    check_count("tasks", len(one))
    sides = {"first": [name for name in one if name not in other], "second": [n for n in other if n not in one]}
    missing = [f"{len(names)} only in the {side} ({names[0]})" for side, names in sides.items() if names]
    if missing:
        raise ValueError(f"the two results are not of the same tasks: {', '.join(missing)}")


def mcnemar(higher: int, lower: int) -> float:
    """Return the exact two-sided p-value for tasks that only one of two models passed."""
    discordant = higher + lower
    tail = sum(math.comb(discordant, number) for number in range(min(higher, lower) + 1))
    return min(1.0, 2 * tail / (1 << discordant))


def permutation(both: Sequence[_Both], statistic: Statistic = mean, *, seed: int = 0) -> float:
    """Return the two-sided p-value of a difference, if any cluster's two sides might change places.

    With up to twelve clusters that differ, all ways are tried; otherwise some are drawn, the same for the same seed.
    """
    differing = [(one.total - other.total, one.number - other.number) for one, other in both if one != other]
    ours, theirs = (Cluster(*map(sum, zip(*side, strict=True))) for side in zip(*both, strict=True))
    draw = random.Random(seed)
    tries_all = len(differing) <= _ALL_SWAPS
    swaps: Iterable[Sequence[bool]] = (
        product((False, True), repeat=len(differing))
        if tries_all
        else ([draw.random() < 0.5 for _ in differing] for _ in range(_DRAWN_SWAPS))
    )
    # Sums in another order may differ by rounding.
    observed = abs(_difference(both, statistic)) * (1 - 1e-9)
    tried = as_extreme = 0
    for swapped in swaps:
        total = sum(difference for (difference, _), swap in zip(differing, swapped, strict=True) if swap)
        number = sum(difference for (_, difference), swap in zip(differing, swapped, strict=True) if swap)
        sides = Cluster(ours.total - total, ours.number - number), Cluster(theirs.total + total, theirs.number + number)
        as_extreme += abs(_difference([sides], statistic)) >= observed
        tried += 1
    return as_extreme / tried if tries_all else (as_extreme + 1) / (tried + 1)


def _difference(both: Sequence[_Both], statistic: Statistic) -> float:
    return statistic([one for one, _ in both]) - statistic([other for _, other in both])
