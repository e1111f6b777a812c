"""The fused divergence is the eager one: same values, same gradients, for every setting and any chunking."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.distillation import TAID, EntropyAwareOPD, GeneralizedJSD, LogitHead, fused_divergence
from composer_replication.distillation.fused import sweep

CRITERIA = [
    *(GeneralizedJSD(beta=beta) for beta in (0.0, 0.1, 0.5, 0.9, 1.0)),
    GeneralizedJSD(temperature=1.7),
    GeneralizedJSD(token_clip=0.6),
    GeneralizedJSD(elementwise_clip=0.02),
    GeneralizedJSD(top_k=5),
    GeneralizedJSD(top_k=5, top_k_support="student", beta=1.0),
    GeneralizedJSD(top_k=5, top_k_tail=False),
    TAID(0.0),
    TAID(0.4),
    TAID(1.0),
    EntropyAwareOPD(),
    EntropyAwareOPD(gate="switch", entropy_threshold=2.0),
    EntropyAwareOPD(gate="additive", entropy_threshold=2.0, forward_top_k=4),
]
POSITIONS, HIDDEN, VOCABULARY = 7, 5, 13


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rows a chunk and two a block, so that a handful of positions needs several of both, uneven at the end."""
    monkeypatch.setattr(sweep, "CHUNK_ELEMENTS", 3 * VOCABULARY)
    monkeypatch.setattr(sweep, "CPU_BLOCK_ELEMENTS", 2 * VOCABULARY)


def make(dtype: torch.dtype = torch.float64, **head: Any) -> tuple[torch.Tensor, torch.Tensor, LogitHead]:
    hidden = torch.randn(POSITIONS, HIDDEN, dtype=dtype, requires_grad=True)
    teacher_hidden = torch.randn(POSITIONS, HIDDEN, dtype=dtype)
    weight = torch.randn(VOCABULARY, HIDDEN, dtype=dtype, requires_grad=True)
    bias = torch.randn(VOCABULARY, dtype=dtype, requires_grad=True)
    return hidden, teacher_hidden, LogitHead(weight, bias, **head)


def tracked(hidden: torch.Tensor, head: LogitHead) -> tuple[torch.Tensor, ...]:
    assert head.weight is not None
    assert head.bias is not None
    return hidden, head.weight, head.bias


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("criterion", CRITERIA, ids=str)
def test_value_and_gradients_equal_the_eager_ones(criterion: Any) -> None:
    hidden, teacher_hidden, head = make(scale=0.7, softcap=4.0)
    weight = torch.rand(POSITIONS, dtype=torch.float64)
    eager_losses = criterion(head.logits(hidden), head.logits(teacher_hidden).detach())
    eager = (eager_losses * weight).sum() / POSITIONS
    fused = fused_divergence(criterion, hidden, teacher_hidden, head, position_weight=weight)
    torch.testing.assert_close(fused.loss, eager)
    torch.testing.assert_close(fused.per_position, eager_losses.detach())
    assert not fused.per_position.requires_grad
    expected = torch.autograd.grad(eager, tracked(hidden, head))
    for gradient, reference in zip(torch.autograd.grad(fused.loss, tracked(hidden, head)), expected, strict=True):
        torch.testing.assert_close(gradient, reference)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("reduction", ["batchmean", "sum", "none"])
@pytest.mark.parametrize(
    "criterion",
    [criterion for criterion in CRITERIA if not isinstance(criterion, TAID)],
    ids=str,
)
def test_gradcheck(criterion: Any, reduction: Any) -> None:
    hidden, teacher_hidden, head = make(softcap=4.0)
    # A copy: the check nudges the student's weight in place, and the teacher must stay where it is.
    teacher_head = LogitHead(head.weight.detach().clone(), head.bias.detach().clone(), softcap=4.0)

    def loss(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        student_head = LogitHead(weight, bias, softcap=4.0)
        return fused_divergence(
            criterion, hidden, teacher_hidden, student_head, teacher_head=teacher_head, reduction=reduction
        ).loss

    assert torch.autograd.gradcheck(loss, tracked(hidden, head))


@pytest.mark.usefixtures("small_chunks")
def test_gradcheck_of_taid_against_its_constant_target() -> None:
    """TAID's target moves with the student but is held constant, so the check needs the target frozen by hand."""
    hidden, teacher_hidden, head = make()
    start = head.logits(hidden).detach()
    target = torch.lerp(start, head.logits(teacher_hidden).detach(), 0.4)

    def frozen_target(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        student = LogitHead(weight, bias).logits(hidden)
        return -(target.softmax(-1) * student.log_softmax(-1)).sum(-1).mean()

    fused = fused_divergence(TAID(0.4), hidden, teacher_hidden, head).loss
    reference = frozen_target(*tracked(hidden, head))
    torch.testing.assert_close(fused, reference)
    for gradient, expected in zip(
        torch.autograd.grad(fused, tracked(hidden, head)),
        torch.autograd.grad(reference, tracked(hidden, head)),
        strict=True,
    ):
        torch.testing.assert_close(gradient, expected)


@given(
    positions=st.integers(1, 12),
    chunk=st.integers(1, 14),
    block=st.integers(1, 14),
    beta=st.sampled_from([0.0, 0.5, 1.0]),
    seed=st.integers(0, 1000),
)
def test_chunk_and_block_sizes_change_nothing(positions: int, chunk: int, block: int, beta: float, seed: int) -> None:
    torch.manual_seed(seed)
    hidden = torch.randn(positions, HIDDEN, dtype=torch.float64, requires_grad=True)
    teacher_hidden = torch.randn(positions, HIDDEN, dtype=torch.float64)
    head = LogitHead(torch.randn(VOCABULARY, HIDDEN, dtype=torch.float64, requires_grad=True))

    def run() -> tuple[torch.Tensor, ...]:
        loss = fused_divergence(GeneralizedJSD(beta=beta), hidden, teacher_hidden, head).loss
        return loss, *torch.autograd.grad(loss, (hidden, head.weight))

    whole = run()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep, "CHUNK_ELEMENTS", chunk * VOCABULARY)
        patch.setattr(sweep, "CPU_BLOCK_ELEMENTS", block * VOCABULARY)
        for one, other in zip(whole, run(), strict=True):
            torch.testing.assert_close(one, other)


def test_no_tensor_of_all_positions_and_the_whole_vocabulary_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, (tuple, list)) else (out,):
                if isinstance(tensor, torch.Tensor):
                    self.elements = max(self.elements, tensor.numel())
            return out

    positions, vocabulary = 64, 501
    monkeypatch.setattr(sweep, "CHUNK_ELEMENTS", 8 * vocabulary)
    hidden = torch.randn(positions, 4, requires_grad=True)
    head = LogitHead(torch.randn(vocabulary, 4, requires_grad=True))
    with Largest() as largest:
        fused_divergence(GeneralizedJSD(), hidden, torch.randn(positions, 4), head).loss.backward()
    assert largest.elements <= 2 * 8 * vocabulary < positions * vocabulary


def test_backward_scales_by_the_incoming_gradient_and_may_run_twice() -> None:
    hidden, teacher_hidden, head = make()
    loss = fused_divergence(GeneralizedJSD(), hidden, teacher_hidden, head).loss
    first = torch.autograd.grad(3.0 * loss, tracked(hidden, head), retain_graph=True)
    second = torch.autograd.grad(loss, tracked(hidden, head))
    for tripled, plain in zip(first, second, strict=True):
        torch.testing.assert_close(tripled, 3.0 * plain)


def test_gradient_accumulates_into_an_existing_one() -> None:
    hidden, teacher_hidden, head = make()
    for _ in range(2):
        fused_divergence(GeneralizedJSD(), hidden, teacher_hidden, head).loss.backward()
    once = torch.autograd.grad(
        fused_divergence(GeneralizedJSD(), hidden, teacher_hidden, head).loss, tracked(hidden, head)
    )
    for tensor, gradient in zip(tracked(hidden, head), once, strict=True):
        torch.testing.assert_close(tensor.grad, 2 * gradient)


def test_teacher_and_its_head_receive_no_gradient() -> None:
    hidden, teacher_hidden, head = make()
    teacher_hidden.requires_grad_()
    teacher_head = LogitHead(torch.randn(VOCABULARY, HIDDEN, dtype=torch.float64, requires_grad=True))
    fused_divergence(GeneralizedJSD(), hidden, teacher_hidden, head, teacher_head=teacher_head).loss.backward()
    assert teacher_hidden.grad is None
    assert teacher_head.weight.grad is None
    assert hidden.grad.abs().max() > 0


def test_a_teacher_with_its_own_head_and_width() -> None:
    hidden, _, head = make()
    teacher_hidden = torch.randn(POSITIONS, 3, dtype=torch.float64)
    teacher_head = LogitHead(torch.randn(VOCABULARY, 3, dtype=torch.float64), softcap=2.0)
    fused = fused_divergence(GeneralizedJSD(), hidden, teacher_hidden, head, teacher_head=teacher_head).loss
    eager = GeneralizedJSD()(head.logits(hidden), teacher_head.logits(teacher_hidden)).mean()
    torch.testing.assert_close(fused, eager)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("trainable", ["hidden", "weight", "bias", "none"])
def test_only_what_needs_a_gradient_gets_one(trainable: str) -> None:
    hidden, teacher_hidden, head = make()
    tensors = dict(zip(("hidden", "weight", "bias"), tracked(hidden, head), strict=True))
    for name, tensor in tensors.items():
        tensor.requires_grad_(name == trainable)
    for reduction in ("batchmean", "none"):
        fused = fused_divergence(GeneralizedJSD(), hidden, teacher_hidden, head, reduction=reduction).loss
        assert fused.requires_grad == (trainable != "none")
        if trainable == "none":
            continue
        eager = GeneralizedJSD()(head.logits(hidden), head.logits(teacher_hidden).detach())
        factor = torch.arange(1.0, POSITIONS + 1, dtype=torch.float64) if reduction == "none" else None
        fused_total = fused if factor is None else (fused * factor).sum()
        eager_total = eager.mean() if factor is None else (eager * factor).sum()
        torch.testing.assert_close(
            torch.autograd.grad(fused_total, tensors[trainable]), torch.autograd.grad(eager_total, tensors[trainable])
        )


def test_a_head_without_weight_takes_logits() -> None:
    logits = torch.randn(POSITIONS, VOCABULARY, dtype=torch.float64, requires_grad=True)
    teacher_logits = torch.randn(POSITIONS, VOCABULARY, dtype=torch.float64)
    fused = fused_divergence(GeneralizedJSD(), logits, teacher_logits, LogitHead(None)).loss
    eager = GeneralizedJSD()(logits, teacher_logits).mean()
    torch.testing.assert_close(fused, eager)
    torch.testing.assert_close(torch.autograd.grad(fused, logits), torch.autograd.grad(eager, logits))


@pytest.mark.parametrize("mode", ["bfloat16 model", "autocast"])
def test_half_precision_accumulates_in_float32(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "CHUNK_ELEMENTS", 2 * 300)
    hidden, teacher_hidden = torch.randn(24, 16), torch.randn(24, 16)
    weight = torch.randn(300, 16)
    if mode == "bfloat16 model":
        hidden, teacher_hidden, weight = hidden.bfloat16(), teacher_hidden.bfloat16(), weight.bfloat16()
    hidden.requires_grad_()
    weight.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mode == "autocast"):
        loss = fused_divergence(GeneralizedJSD(), hidden, teacher_hidden, LogitHead(weight)).loss
    loss.backward()
    assert loss.dtype == torch.float32
    assert hidden.grad.dtype == hidden.dtype
    assert weight.grad.dtype == weight.dtype

    exact = [t.detach().bfloat16().double() for t in (hidden, teacher_hidden, weight)]
    exact[0].requires_grad_()
    exact[2].requires_grad_()
    reference = fused_divergence(GeneralizedJSD(), exact[0], exact[1], LogitHead(exact[2])).loss
    reference.backward()
    # The products are exact in float32; all that is lost is the rounding of the results to bfloat16.
    torch.testing.assert_close(loss.double(), reference, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(weight.grad.double(), exact[2].grad, rtol=1e-2, atol=1e-5)
    torch.testing.assert_close(hidden.grad.double(), exact[0].grad, rtol=1e-2, atol=1e-5)


def test_autocast_does_not_reach_into_the_criterion() -> None:
    hidden, teacher_hidden, weight = torch.randn(6, 8), torch.randn(6, 8), torch.randn(40, 8)
    mixing = torch.randn(40, 40)

    def criterion(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
        return ((student - teacher) @ mixing).square().mean(-1)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = fused_divergence(criterion, hidden, teacher_hidden, LogitHead(weight)).loss
    rounded = [tensor.bfloat16().float() for tensor in (hidden, teacher_hidden, weight)]
    exact = fused_divergence(criterion, rounded[0], rounded[1], LogitHead(rounded[2])).loss
    torch.testing.assert_close(cast, exact)


def test_float16_with_a_loss_scale_does_not_overflow_on_the_way() -> None:
    hidden = (torch.randn(24, 16) * 8).half().requires_grad_()
    weight = torch.randn(300, 16).half().requires_grad_()
    losses = fused_divergence(
        GeneralizedJSD(), hidden, torch.randn(24, 16).half(), LogitHead(weight), reduction="none"
    ).loss
    (losses * 3000.0).sum().backward()
    assert weight.grad.isfinite().all()


def test_a_position_weight_is_a_constant_in_every_reduction() -> None:
    hidden, teacher_hidden, head = make()
    weight = torch.rand(POSITIONS, dtype=torch.float64, requires_grad=True)
    for reduction in ("batchmean", "sum", "none"):
        loss = fused_divergence(
            GeneralizedJSD(), hidden, teacher_hidden, head, position_weight=weight, reduction=reduction
        ).loss
        loss.sum().backward()
    assert weight.grad is None


def test_nan_in_the_head_is_named() -> None:
    weight = torch.randn(13, 5)
    weight[3, 3] = math.nan
    with pytest.raises(ValueError, match=r"head\.weight has 1 NaN values of 65"):
        fused_divergence(GeneralizedJSD(), torch.randn(3, 5), torch.randn(3, 5), LogitHead(weight))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"position_weight": torch.full((3,), math.nan)}, "position_weight has 3 NaN values"),
        ({"student_hidden": torch.randn(3, 4)}, r"student_hidden has shape \(3, 4\), expected \(positions, 5\)"),
        ({"student_hidden": torch.randn(3, 2, 5)}, "student_hidden has shape"),
        ({"student_hidden": torch.randn(0, 5)}, "student_hidden has no positions"),
        ({"teacher_hidden": torch.randn(4, 5)}, "student_hidden has 3 positions, teacher_hidden 4"),
        ({"position_weight": torch.ones(4)}, r"position_weight has shape \(4,\), expected \(3,\)"),
        ({"reduction": "mean"}, "reduction must be one of 'batchmean', 'sum', 'none', got 'mean'"),
        ({"student_hidden": torch.full((3, 5), math.nan)}, "student_hidden has 15 NaN values"),
        ({"teacher_hidden": torch.full((3, 5), math.nan)}, "teacher_hidden has 15 NaN values"),
        ({"teacher_head": LogitHead(torch.randn(9, 5))}, "head has a vocabulary of 13, teacher_head of 9"),
    ],
)
def test_bad_input_is_named(change: dict[str, Any], message: str) -> None:
    arguments = {"student_hidden": torch.randn(3, 5), "teacher_hidden": torch.randn(3, 5), **change}
    with pytest.raises(ValueError, match=message):
        fused_divergence(GeneralizedJSD(), head=LogitHead(torch.randn(13, 5)), **arguments)


def test_bad_heads_are_named() -> None:
    with pytest.raises(ValueError, match="softcap must be a positive finite number, got 0"):
        LogitHead(torch.randn(3, 2), softcap=0)
    with pytest.raises(ValueError, match="scale must be a positive finite number, got nan"):
        LogitHead(torch.randn(3, 2), scale=math.nan)
    with pytest.raises(ValueError, match=r"weight has shape \(3, 2, 1\)"):
        LogitHead(torch.randn(3, 2, 1))
    with pytest.raises(ValueError, match="bias needs a weight"):
        LogitHead(None, torch.randn(3))
    with pytest.raises(ValueError, match="expected one bias per row of weight"):
        LogitHead(torch.randn(3, 2), torch.randn(2))
