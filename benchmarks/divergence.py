"""A divergence over a large vocabulary, forward and backward: fused, on full logits, and TRL's two.

Memory is the peak above the inputs, the head's weight and its gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from harness import Benchmark, Prepared, Target, run

BETA = 0.5


@dataclass(frozen=True)
class Shape:
    """Sizes of the problem."""

    positions: int
    hidden: int
    vocabulary: int


@dataclass(frozen=True)
class Inputs:
    """(N, H) hidden states of student and teacher, and the (V, H) head that they share."""

    student: torch.Tensor
    teacher: torch.Tensor
    weight: torch.Tensor


# Contestants return from here before backward runs, so none is charged for logits that only a variable still holds.
def fused(inputs: Inputs) -> torch.Tensor:
    """Ours: a few rows of logits at a time."""
    from composer_replication.distillation import GeneralizedJSD, LogitHead, fused_divergence

    return fused_divergence(GeneralizedJSD(beta=BETA), inputs.student, inputs.teacher, LogitHead(inputs.weight)).loss


def eager(inputs: Inputs) -> torch.Tensor:
    """Ours on full logits."""
    from composer_replication.opsd import generalized_jsd_loss

    student_logits, teacher_logits = _full_logits(inputs)
    return generalized_jsd_loss(student_logits[None], teacher_logits[None], beta=BETA)


def trl_full(inputs: Inputs) -> torch.Tensor:
    """What TRL's SDPO trainer computes without top-k."""
    from trl.experimental.sdpo.loss_utils import compute_full_logit_self_distillation_loss

    return compute_full_logit_self_distillation_loss(*_full_logits(inputs), distillation_alpha=BETA).mean()


def trl_chunked(inputs: Inputs) -> torch.Tensor:
    """What TRL's distillation trainer computes: tiles of the vocabulary, projected once per pass over them."""
    from trl.trainer.distillation_trainer import _chunked_divergence_loss

    mask = torch.ones(1, inputs.student.shape[0], dtype=torch.long)
    student, teacher, weight = inputs.student[None], inputs.teacher[None], inputs.weight
    return _chunked_divergence_loss(student, teacher, weight, weight, mask, BETA)[0]


def _full_logits(inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.no_grad():
        teacher_logits = inputs.teacher @ inputs.weight.t()
    return inputs.student @ inputs.weight.t(), teacher_logits


LOSSES: dict[str, Callable[[Inputs], torch.Tensor]] = {
    "fused": fused,
    "eager": eager,
    "trl_full": trl_full,
    "trl_chunked": trl_chunked,
}


def prepare(contestant: str, shape: Shape) -> Prepared:
    """The same random inputs for everyone, with logits of the spread that a trained model's have."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(shape.vocabulary, shape.hidden, generator=generator).mul_(2 * shape.hidden**-0.5)
    student = torch.randn(shape.positions, shape.hidden, generator=generator)
    teacher = student + 0.5 * torch.randn(shape.positions, shape.hidden, generator=generator)
    inputs = Inputs(student.requires_grad_(), teacher.detach(), weight.requires_grad_())
    if contestant == "mm_only":
        return _products_only(inputs)

    def forward_backward() -> dict[str, float]:
        loss = LOSSES[contestant](inputs)
        loss.backward()
        return {"loss": loss.item()}

    leaves = {"hidden_gradient": [inputs.student], "weight_gradient": [inputs.weight]}
    return Prepared(forward_backward, leaves, excluded=[inputs.weight])


def _products_only(inputs: Inputs) -> Prepared:
    """The four matrix products that any exact method needs, into memory that is there: a floor for the time."""
    student, teacher, weight = inputs.student.detach(), inputs.teacher, inputs.weight.detach()
    student_logits = torch.ones(student.shape[0], weight.shape[0])
    teacher_logits = torch.ones_like(student_logits)
    hidden_gradient, weight_gradient = torch.ones_like(student), torch.ones_like(weight)

    def products() -> dict[str, float]:
        torch.mm(student, weight.t(), out=student_logits)
        torch.mm(teacher, weight.t(), out=teacher_logits)
        torch.mm(student_logits, weight, out=hidden_gradient)
        torch.mm(student_logits.t(), student, out=weight_gradient)
        return {}

    return Prepared(products)


BENCHMARK = Benchmark(
    name="divergence",
    contestants=[*LOSSES, "mm_only"],
    prepare=prepare,
    full=Shape(positions=512, hidden=896, vocabulary=151_936),
    quick=Shape(positions=256, hidden=256, vocabulary=151_936),
    warm_up=Shape(positions=8, hidden=32, vocabulary=512),
    tolerances={"loss": 1e-4, "hidden_gradient": 1e-3, "weight_gradient": 1e-3},
    targets=[
        Target("time_vs_trl_full", "seconds", "fused", "trl_full", 0.7),
        Target("memory_vs_trl_full", "peak_bytes", "fused", "trl_full", 0.1),
        Target("time_vs_trl_chunked", "seconds", "fused", "trl_chunked", 0.5),
        Target("memory_vs_trl_chunked", "peak_bytes", "fused", "trl_chunked", 0.5),
    ],
    quick_repeats=1,
    environment={"TRL_EXPERIMENTAL_SILENCE": "1"},
)


def print_profile(shape: Shape) -> None:
    """Print where the fused contestant's time goes, by operator, on its second run."""
    prepared = prepare("fused", shape)
    prepared.run()
    prepared.clear_gradients()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        prepared.run()
    print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=15))


if __name__ == "__main__":
    run(BENCHMARK, profile=print_profile)
