"""SimPO, preference optimisation without a reference: `-log σ(β·(avg logπ(chosen) - avg logπ(rejected)) - γ)`."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from composer_replication._arguments import check_no_nan, check_non_negative, check_positive, check_same_shape
from composer_replication.distillation.dpo import sum_sequence_logprob


def simpo_loss(
    chosen_avg_logprobs: torch.Tensor,
    rejected_avg_logprobs: torch.Tensor,
    *,
    beta: float = 2.0,
    gamma: float = 1.0,
) -> torch.Tensor:
    """Mean SimPO loss over (B,) pairs of length-averaged response log-probabilities.

    Raises:
        ValueError: shapes that differ, beta not positive, gamma negative, or NaN inputs.
    """
    check_positive("beta", beta)
    check_non_negative("gamma", gamma)
    check_same_shape("rejected_avg_logprobs", rejected_avg_logprobs, "chosen_avg_logprobs", chosen_avg_logprobs)
    losses_B = -F.logsigmoid(beta * (chosen_avg_logprobs - rejected_avg_logprobs) - gamma)
    check_no_nan(losses_B, chosen_avg_logprobs=chosen_avg_logprobs, rejected_avg_logprobs=rejected_avg_logprobs)
    return losses_B.mean()


def avg_sequence_logprob(model_logprobs: torch.Tensor, response_mask: torch.Tensor) -> torch.Tensor:
    """Average (B, T) token log-probabilities over each row's response tokens, to (B,).

    Raises:
        ValueError: shapes that differ, or a row without response tokens (its average does not exist).
    """
    total_B = sum_sequence_logprob(model_logprobs, response_mask)
    length_B = response_mask.bool().sum(-1)
    if bool((length_B == 0).any()):
        rows = (length_B == 0).nonzero().flatten().tolist()
        raise ValueError(f"response_mask selects no token in rows {rows}")
    return total_B / length_B
