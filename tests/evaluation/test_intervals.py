"""Intervals against published values, and bootstraps against what they must do."""

from __future__ import annotations

import math

import pytest

from composer_replication.evaluation.intervals import Cluster, bootstrap, estimate, mean, wilson


@pytest.mark.parametrize(
    ("successes", "trials", "confidence", "expected"),
    [
        # Newcombe (1998), Statistics in Medicine 17, table I, method 3.
        (81, 263, 0.95, (0.2553, 0.3662)),
        (15, 148, 0.95, (0.0624, 0.1605)),
        (0, 20, 0.95, (0.0000, 0.1611)),
        (1, 29, 0.95, (0.0061, 0.1718)),
        # scipy.stats.binomtest(...).proportion_ci(method="wilson")
        (8, 10, 0.95, (0.4902, 0.9433)),
        (0, 10, 0.95, (0.0000, 0.2775)),
        (10, 10, 0.95, (0.7225, 1.0000)),
        (8, 10, 0.99, (0.4008, 0.9599)),
    ],
)
def test_wilson(successes: int, trials: int, confidence: float, expected: tuple[float, float]) -> None:
    assert wilson(successes, trials, confidence=confidence) == pytest.approx(expected, abs=5e-5)


def test_wilson_refuses_what_is_no_share() -> None:
    with pytest.raises(ValueError, match="trials must be a positive whole number, got 0"):
        wilson(0, 0)
    with pytest.raises(ValueError, match=r"successes must be in \[0, 10\], got 11"):
        wilson(11, 10)


def test_a_bootstrap_is_as_wide_as_the_standard_error_says_and_repeatable() -> None:
    values = [float(number % 10) for number in range(400)]

    def average(items: object) -> float:
        return math.fsum(items) / len(items)  # type: ignore[arg-type]

    low, high = bootstrap(values, average, seed=3)
    error = math.sqrt(8.25 / 400)
    assert (low, high) == pytest.approx((4.5 - 1.96 * error, 4.5 + 1.96 * error), abs=0.4 * error)
    assert bootstrap(values, average, seed=3) == (low, high)
    assert bootstrap(values, average, seed=4) != (low, high)
    narrow = bootstrap(values, average, seed=3, confidence=0.5)
    assert low < narrow[0] < narrow[1] < high


def test_the_mean_is_over_values_and_the_interval_over_clusters() -> None:
    clusters = [Cluster(9.0, 9.0), Cluster(0.0, 1.0)] * 20
    assert mean(clusters) == 0.9
    found = estimate(clusters, is_share=True)
    # As 40 samples that are independent it would be (0.77, 0.96) by Wilson, as 200 even narrower.
    assert (found.value, found.method, found.clusters) == (0.9, "bootstrap", 40)
    assert found.low is not None
    assert found.high is not None
    assert found.low < 0.85
    assert found.high < 0.95
    assert estimate(clusters, is_share=True) == found


def test_a_share_of_single_values_or_without_width_has_wilsons_interval() -> None:
    single = [Cluster(1.0, 1.0)] * 8 + [Cluster(0.0, 1.0)] * 2
    assert estimate(single, is_share=True)[1:] == (*wilson(8, 10), "wilson", 10)
    assert estimate(single).method == "bootstrap"
    # pass@k of a task with more samples is a share between 0 and 1.
    assert estimate([*single, Cluster(0.5, 1.0)], is_share=True).method == "bootstrap"
    # Ten tasks with four samples each are ten tasks.
    assert estimate([Cluster(0.0, 4.0)] * 10, is_share=True)[:3] == (0.0, *wilson(0, 10))
    assert estimate([Cluster(4.0, 4.0)] * 10, is_share=True)[:3] == (1.0, *wilson(10, 10))


def test_clusters_that_are_all_alike_have_no_interval() -> None:
    assert estimate([Cluster(3.0, 4.0)]) == (0.75, None, None, "bootstrap", 1)
    assert estimate([Cluster(3.0, 4.0)] * 5) == (0.75, None, None, "bootstrap", 5)
    with pytest.raises(ValueError, match="clusters must be a positive whole number, got 0"):
        estimate([])
