"""Token log-probabilities and cross-entropy from hidden states, against plain torch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from composer_replication.distillation import LogitHead, fused_cross_entropy, fused_token_logprobs
from composer_replication.distillation.fused import sweep

POSITIONS, HIDDEN, VOCABULARY = 7, 5, 13


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "CHUNK_ELEMENTS", 3 * VOCABULARY)
    monkeypatch.setattr(sweep, "CPU_BLOCK_ELEMENTS", 2 * VOCABULARY)


def make(*, frozen_head: bool = False) -> tuple[torch.Tensor, torch.Tensor, LogitHead]:
    hidden = torch.randn(POSITIONS, HIDDEN, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(VOCABULARY, HIDDEN, dtype=torch.float64, requires_grad=not frozen_head)
    bias = torch.randn(VOCABULARY, dtype=torch.float64, requires_grad=not frozen_head)
    return hidden, torch.randint(0, VOCABULARY, (POSITIONS,)), LogitHead(weight, bias, softcap=5.0)


def trainable(hidden: torch.Tensor, head: LogitHead) -> list[Any]:
    return [tensor for tensor in (hidden, head.weight, head.bias) if tensor.requires_grad]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_is_torchs(smoothing: float) -> None:
    hidden, targets, head = make()
    fused = fused_cross_entropy(hidden, targets, head, label_smoothing=smoothing)
    eager = F.cross_entropy(head.logits(hidden), targets, reduction="none", label_smoothing=smoothing)
    torch.testing.assert_close(fused.loss, eager.mean())
    torch.testing.assert_close(fused.per_position, eager.detach())
    for mine, other in zip(
        torch.autograd.grad(fused.loss, trainable(hidden, head)),
        torch.autograd.grad(eager.mean(), trainable(hidden, head)),
        strict=True,
    ):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("frozen_head", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_and_gradients_through_a_nonlinear_use(frozen_head: bool, temperature: float) -> None:
    hidden, targets, head = make(frozen_head=frozen_head)
    fused = fused_token_logprobs(hidden, targets, head, temperature=temperature)
    eager = (head.logits(hidden) / temperature).log_softmax(-1).gather(-1, targets[:, None]).squeeze(-1)
    torch.testing.assert_close(fused, eager)

    def preference(logprobs: torch.Tensor) -> torch.Tensor:
        return -F.logsigmoid(0.3 * (logprobs[:3].sum() - logprobs[3:].sum()))

    for mine, other in zip(
        torch.autograd.grad(preference(fused), trainable(hidden, head), retain_graph=True),
        torch.autograd.grad(preference(eager), trainable(hidden, head)),
        strict=True,
    ):
        torch.testing.assert_close(mine, other)
    # The same graph may be walked twice.
    again = torch.autograd.grad(fused.sum(), hidden)[0]
    assert again.abs().max() > 0


@pytest.mark.parametrize("frozen_head", [False, True])
def test_gradcheck(frozen_head: bool) -> None:
    hidden, targets, head = make(frozen_head=frozen_head)

    def logprobs(hidden: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        weight, bias = rest if rest else (head.weight, head.bias)
        return fused_token_logprobs(hidden, targets, LogitHead(weight, bias, softcap=5.0))

    assert torch.autograd.gradcheck(logprobs, tuple(trainable(hidden, head)))


def test_gradcheck_of_cross_entropy() -> None:
    hidden, targets, head = make()

    def loss(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return fused_cross_entropy(hidden, targets, LogitHead(weight, bias, softcap=5.0), label_smoothing=0.2).loss

    assert torch.autograd.gradcheck(loss, tuple(trainable(hidden, head)))


def test_no_gradient_is_computed_when_none_is_wanted() -> None:
    hidden, targets, head = make()
    with torch.no_grad():
        assert not fused_token_logprobs(hidden, targets, head).requires_grad
        assert not fused_cross_entropy(hidden, targets, head).loss.requires_grad


def test_bad_input_is_named() -> None:
    hidden, targets, head = make()
    with pytest.raises(ValueError, match=r"targets has ids from .* to 13, the vocabulary has 13"):
        fused_token_logprobs(hidden, targets.index_fill(0, torch.tensor([2]), 13), head)
    with pytest.raises(ValueError, match="targets has ids from -100"):
        fused_cross_entropy(hidden, targets.index_fill(0, torch.tensor([2]), -100), head)
    with pytest.raises(ValueError, match="targets has shape"):
        fused_token_logprobs(hidden, targets[:-1], head)
    with pytest.raises(ValueError, match="label_smoothing must be in"):
        fused_cross_entropy(hidden, targets, head, label_smoothing=1.2)
    with pytest.raises(ValueError, match="temperature must be a positive finite number, got 0"):
        fused_token_logprobs(hidden, targets, head, temperature=0)
    with pytest.raises(ValueError, match="hidden has 35 NaN values"):
        fused_token_logprobs(torch.full_like(hidden, math.nan), targets, head)
