"""Paired comparisons against known p-values, and against all ways in which two sides may change places."""

from __future__ import annotations

from itertools import product

import pytest

from composer_replication.evaluation.intervals import Cluster, mean
from composer_replication.evaluation.paired import compare, mcnemar, permutation


@pytest.mark.parametrize(
    ("higher", "lower", "expected"),
    [
        (0, 0, 1.0),
        (5, 5, 1.0),
        (1, 0, 1.0),
        (6, 0, 0.03125),
        (8, 1, 0.0390625),
        (12, 2, 0.012939453125),
        (4, 21, 0.00091052),  # statsmodels' mcnemar(exact=True)
        (121, 59, 0.000004434),  # the exact p-value of the textbook's 121 against 59
    ],
)
def test_mcnemar(higher: int, lower: int, expected: float) -> None:
    assert mcnemar(higher, lower) == pytest.approx(expected, rel=1e-3)
    assert mcnemar(lower, higher) == mcnemar(higher, lower)


def single(passed: str) -> dict[str, Cluster]:
    return {f"task {number}": Cluster(float(one), 1.0) for number, one in enumerate(passed)}


def test_single_outcomes_are_compared_by_mcnemar() -> None:
    found = compare(single("1111111100"), single("0000001110"))
    assert (found.difference, found.higher, found.lower) == (pytest.approx(0.5), 6, 1)
    assert (found.test, found.p_value, found.clusters) == ("mcnemar", mcnemar(6, 1), 10)
    assert found.low is not None
    assert found.high is not None
    assert found.low < 0.5 < found.high
    assert compare(single("1111111100"), single("0000001110")) == found


def test_a_pairing_finds_what_means_alone_would_not() -> None:
    theirs = {str(n): Cluster(float(n % 5), 4.0) for n in range(40)}
    ours = {name: Cluster(cluster.total + 0.2, 4.0) for name, cluster in theirs.items()}
    found = compare(ours, theirs)
    assert (found.test, found.higher, found.lower) == ("permutation", 40, 0)
    assert (found.difference, found.low, found.high) == pytest.approx((0.05, 0.05, 0.05))
    assert found.p_value < 0.001


def test_the_permutation_test_is_that_of_all_swaps() -> None:
    # Counts differ too, as those of tokens or calls do.
    both = [
        (Cluster(3.0, 4.0), Cluster(1.0, 2.0)),
        (Cluster(2.0, 2.0), Cluster(0.0, 3.0)),
        (Cluster(1.0, 1.0), Cluster(1.0, 1.0)),
        (Cluster(0.0, 5.0), Cluster(2.0, 5.0)),
        (Cluster(4.0, 4.0), Cluster(1.0, 4.0)),
    ]

    def difference(pairs: list[tuple[Cluster, Cluster]]) -> float:
        return abs(mean([one for one, _ in pairs]) - mean([other for _, other in pairs]))

    ways = [
        [pair[::-1] if swap else pair for pair, swap in zip(both, swaps, strict=True)]
        for swaps in product((False, True), repeat=len(both))
    ]
    expected = sum(difference(way) >= difference(both) - 1e-12 for way in ways) / len(ways)
    assert permutation(both) == pytest.approx(expected)
    assert 0.1 < expected < 0.9


def test_drawn_swaps_come_near_the_exact_value() -> None:
    # Thirteen ones against zeros, and seven the other way: as McNemar would have it.
    both = [(Cluster(1.0, 1.0), Cluster(0.0, 1.0))] * 13 + [(Cluster(0.0, 1.0), Cluster(1.0, 1.0))] * 7
    assert permutation(both) == pytest.approx(mcnemar(13, 7), abs=0.04)
    assert permutation(both) == permutation(both)


def test_equal_results_and_a_single_task() -> None:
    same = {"a": Cluster(0.3, 1.0), "b": Cluster(0.9, 1.0)}
    assert compare(same, same) == (0.0, None, None, 1.0, "permutation", 2, 0, 0)
    alone = compare({"a": Cluster(0.3, 1.0)}, {"a": Cluster(0.1, 1.0)})
    assert (alone.low, alone.high, alone.p_value) == (None, None, 1.0)


def test_results_of_other_tasks_are_refused() -> None:
    with pytest.raises(ValueError, match=r"1 only in the first \(task 2\)$"):
        compare(single("111"), single("11"))
    with pytest.raises(ValueError, match=r"1 only in the first \(a\), 2 only in the second \(b\)"):
        compare({"a": Cluster(1, 1)}, {"b": Cluster(1, 1), "c": Cluster(1, 1)})
    with pytest.raises(ValueError, match="tasks must be a positive"):
        compare({}, {})
