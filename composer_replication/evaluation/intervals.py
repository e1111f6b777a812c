"""Means with intervals. Values of one task, or one session, depend on each other: the unit is a `Cluster` of them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Sequence
from statistics import NormalDist
from typing import NamedTuple, TypeAlias, TypeVar

from composer_replication._arguments import check_count, check_range

Item = TypeVar("Item")

CONFIDENCE = 0.95
RESAMPLES = 1000


class Cluster(NamedTuple):
    """The values of one task or session: their sum, and their number (of samples, tokens, ...)."""

    total: float
    number: float


Statistic: TypeAlias = Callable[[Collection[Cluster]], float]


class Estimate(NamedTuple):
    """A statistic over clusters with its 95 % interval; None: the clusters are all alike, or there is only one."""

    value: float
    low: float | None
    high: float | None
    method: str
    clusters: int


def mean(clusters: Collection[Cluster]) -> float:
    """Return the sum of all values by their number; 0 if there are none."""
    number = sum(cluster.number for cluster in clusters)
    return sum(cluster.total for cluster in clusters) / number if number else 0.0


def perplexity(clusters: Collection[Cluster]) -> float:
    """Return the perplexity of tokens whose log-probabilities are the values."""
    return math.exp(-mean(clusters))


def estimate(
    clusters: Collection[Cluster], statistic: Statistic = mean, *, is_share: bool = False, seed: int = 0
) -> Estimate:
    """Return a statistic with an interval by a bootstrap over clusters.

    A share has Wilson's interval if each cluster is a single 0 or 1. It has it too if it is 0 or 1 as a whole, where a
    bootstrap has no width: clusters then count as single values.

    Raises:
        ValueError: there are no clusters.
    """
    check_count("clusters", len(clusters))
    value, number = statistic(clusters), len(clusters)
    if is_share and (value in (0, 1) or all(one.number == 1 and one.total in (0, 1) for one in clusters)):
        return Estimate(value, *wilson(value * number, number), "wilson", number)
    low, high = interval(list(clusters), statistic, seed=seed)
    return Estimate(value, low, high, "bootstrap", number)


def interval(
    items: Sequence[Item], statistic: Callable[[Sequence[Item]], float], *, seed: int = 0
) -> tuple[float, float] | tuple[None, None]:
    """Return the 95 % interval of a bootstrap; None if items that are all alike, or a single one, give it no width."""
    low, high = bootstrap(items, statistic, seed=seed)
    return (None, None) if low == high else (low, high)


def wilson(successes: float, trials: int, *, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return Wilson's score interval of a share.

    Raises:
        ValueError: no trials, more successes than trials, or a confidence outside [0, 1].
    """
    check_count("trials", trials)
    check_range("successes", successes, 0, trials)
    check_range("confidence", confidence, 0, 1)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share, spread = successes / trials, z * z / trials
    centre = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / trials + spread / (4 * trials))
    return max(0.0, centre - half), min(1.0, centre + half)


def bootstrap(
    items: Sequence[Item],
    statistic: Callable[[Sequence[Item]], float],
    *,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the percentile interval of a statistic over resampled items; the same for the same seed.

    Raises:
        ValueError: no items, or no resamples.
    """
    check_count("items", len(items))
    check_count("resamples", resamples)
    draw = random.Random(seed)
    values = sorted(statistic(draw.choices(items, k=len(items))) for _ in range(resamples))
    tail = int((1 - confidence) / 2 * resamples)
    return values[tail], values[-1 - tail]
