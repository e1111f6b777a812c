"""The gate before channel 2 drops hints that have no effect, or that work against what was rewarded.

The gap of a site is how much the hint changes the teacher's log-probabilities of the turn's own tokens: those without
it minus those with it. Both come from the teacher, because an averaged or frozen teacher differs from the policy even
without a hint. A hint that changes little teaches little; the gap predicts the gain, so it is logged either way.

Shapes: P paired positions, S sites.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from composer_replication.channels.hint_distillation import HintGate


class GateResult(NamedTuple):
    """The sites that stay (S,), the mean absolute and signed change of a token's log-probability per site (S,), and the
    number of sites that each rule dropped. The signed change is positive where the hint makes the turn less likely."""

    kept_S: torch.Tensor
    gap_S: torch.Tensor
    signed_gap_S: torch.Tensor
    too_small: int
    conflicting: int


def judge_sites(
    gate: HintGate | None,
    bare_logprobs_P: torch.Tensor,
    hinted_logprobs_P: torch.Tensor,
    site_of_pair_P: torch.Tensor,
    rewarded_S: torch.Tensor | None = None,
) -> GateResult:
    """Measure every site, and decide which ones reach the divergence; without a gate, all do.

    Args:
        gate: the rules, or None.
        bare_logprobs_P: of the turns' own tokens, without the hint.
        hinted_logprobs_P: of the same tokens, with it.
        site_of_pair_P: the number of the site that a position belongs to, from 0 without gaps.
        rewarded_S: whether a site's turn is in a rewarded rollout; None where there are no rewards.
    """
    sites = int(site_of_pair_P.max()) + 1
    change_P = bare_logprobs_P.detach().float() - hinted_logprobs_P.detach().float()
    gap_S, signed_gap_S = (_mean_per_site(values_P, site_of_pair_P, sites) for values_P in (change_P.abs(), change_P))
    kept_S = torch.ones_like(gap_S, dtype=torch.bool)
    if gate is None:
        return GateResult(kept_S, gap_S, signed_gap_S, 0, 0)
    small_S = gap_S < gate.min_gap
    conflicting_S = torch.zeros_like(small_S)
    if gate.drop_conflicts and rewarded_S is not None:
        conflicting_S = rewarded_S.to(small_S.device) & (signed_gap_S > 0) & ~small_S
    return GateResult(~(small_S | conflicting_S), gap_S, signed_gap_S, int(small_S.sum()), int(conflicting_S.sum()))


def _mean_per_site(values_P: torch.Tensor, site_of_pair_P: torch.Tensor, sites: int) -> torch.Tensor:
    sums_S = values_P.new_zeros(sites).index_add(0, site_of_pair_P, values_P)
    counts_S = torch.bincount(site_of_pair_P, minlength=sites)
    return sums_S / counts_S.clamp(min=1)
