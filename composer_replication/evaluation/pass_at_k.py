"""pass@k: the chance that at least one of k samples passes, from n samples of each task."""

from __future__ import annotations

import math

from composer_replication._arguments import check_count, check_range


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """Return the unbiased estimate 1 - C(n - c, k) / C(n, k) for one task with c of n samples passed.

    Raises:
        ValueError: more passed than samples, or k is not in 1..samples.
    """
    check_count("k", k)
    check_range("passed", passed, 0, samples)
    if k > samples:
        raise ValueError(f"k is {k}, and a task has {samples} samples: take a smaller k, or more samples")
    return 1.0 - math.comb(samples - passed, k) / math.comb(samples, k)
