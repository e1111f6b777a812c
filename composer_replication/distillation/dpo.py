"""Direct preference optimisation: `-log σ(β·[(logπ - logπ_ref)(chosen) - (logπ - logπ_ref)(rejected)])`."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from composer_replication._arguments import check_no_nan, check_positive, check_same_shape


def dpo_loss(
    chosen_logprobs: torch.Tensor,
    rejected_logprobs: torch.Tensor,
    chosen_ref_logprobs: torch.Tensor,
    rejected_ref_logprobs: torch.Tensor,
    *,
    beta: float = 0.1,
) -> torch.Tensor:
    """Mean DPO loss over (B,) pairs of summed response log-probabilities; no gradient reaches the reference.

    Raises:
        ValueError: shapes that differ, a beta that is not positive, or NaN inputs.
    """
    check_positive("beta", beta)
    inputs = {
        "chosen_logprobs": chosen_logprobs,
        "rejected_logprobs": rejected_logprobs,
        "chosen_ref_logprobs": chosen_ref_logprobs,
        "rejected_ref_logprobs": rejected_ref_logprobs,
    }
    for name, tensor in inputs.items():
        check_same_shape(name, tensor, "chosen_logprobs", chosen_logprobs)
    chosen_gain = chosen_logprobs - chosen_ref_logprobs.detach()
    rejected_gain = rejected_logprobs - rejected_ref_logprobs.detach()
    losses_B = -F.logsigmoid(beta * (chosen_gain - rejected_gain))
    check_no_nan(losses_B, **inputs)
    return losses_B.mean()


def chosen_nll(chosen_logprobs: torch.Tensor, chosen_lengths: torch.Tensor) -> torch.Tensor:
    """Negative log-likelihood of a chosen token: (B,) summed response log-probabilities over all (B,) lengths.

    Beside a preference loss it is an anchor: preferences alone may lower both sides, the rejected one faster. The mean
    is over tokens, as in TRL: a long response counts for more, and so a mean over micro-batches depends on how the
    pairs are split.

    Raises:
        ValueError: shapes that differ, lengths that are not positive, or NaN inputs.
    """
    check_same_shape("chosen_lengths", chosen_lengths, "chosen_logprobs", chosen_logprobs)
    if bool((chosen_lengths <= 0).any()):
        raise ValueError(f"chosen_lengths must be positive, got {chosen_lengths.tolist()}")
    nll = -chosen_logprobs.sum() / chosen_lengths.sum()
    check_no_nan(nll, chosen_logprobs=chosen_logprobs)
    return nll


def sum_sequence_logprob(model_logprobs: torch.Tensor, response_mask: torch.Tensor) -> torch.Tensor:
    """Sum (B, T) token log-probabilities over each row's response tokens, to (B,)."""
    check_same_shape("response_mask", response_mask, "model_logprobs", model_logprobs)
    return torch.where(response_mask.bool(), model_logprobs, 0.0).sum(-1)
