"""The same numbers as TRL's own code. TRL is installed with the development extra; without it these tests fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from trl import DPOConfig, DPOTrainer
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.sdpo.loss_utils import (
    compute_divergence,
    compute_full_logit_self_distillation_loss,
    compute_topk_self_distillation_loss,
)
from trl.trainer.distillation_trainer import _chunked_divergence_loss
from trl.trainer.utils import selective_log_softmax

from composer_replication._tiny import tiny_model
from composer_replication.channels.preference import Preference
from composer_replication.channels.scoring import preference_logprobs
from composer_replication.distillation import (
    GeneralizedJSD,
    LogitHead,
    fused_divergence,
    fused_token_logprobs,
    generalized_jsd_loss,
    simpo_loss,
)

BETAS = (0.0, 0.1, 0.5, 0.9, 1.0)


@pytest.mark.parametrize("beta", BETAS)
def test_divergence_and_its_gradient(beta: float) -> None:
    student = torch.randn(3, 4, 50, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(3, 4, 50, dtype=torch.float64)
    theirs = compute_full_logit_self_distillation_loss(student, teacher, distillation_alpha=beta)
    ours = generalized_jsd_loss(student, teacher, beta=beta, reduction="none")
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(
        torch.autograd.grad(ours.sum(), student)[0], torch.autograd.grad(theirs.sum(), student)[0]
    )
    log_probs = student.detach().log_softmax(-1), teacher.log_softmax(-1)
    torch.testing.assert_close(ours.detach(), compute_divergence(*log_probs, beta))


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("tail", [True, False])
@pytest.mark.parametrize("spread", [1.0, 30.0])  # at 30 the support holds all the mass, and the tail is at its floor
def test_student_top_k_and_its_gradient(beta: float, tail: bool, spread: float) -> None:
    student = (torch.randn(3, 4, 50, dtype=torch.float64) * spread).requires_grad_()
    teacher = torch.randn(3, 4, 50, dtype=torch.float64) * spread
    theirs = compute_topk_self_distillation_loss(
        student, teacher, distillation_topk=7, distillation_alpha=beta, distillation_add_tail=tail
    )
    ours = generalized_jsd_loss(
        student, teacher, beta=beta, top_k=7, top_k_support="student", top_k_tail=tail, reduction="none"
    )
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(
        torch.autograd.grad(ours.sum(), student)[0], torch.autograd.grad(theirs.sum(), student)[0]
    )


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("extras", [{}, {"scale": 0.3, "softcap": 5.0}])
def test_fused_divergence_against_their_chunked_kernel(beta: float, extras: dict[str, float]) -> None:
    hidden, teacher_hidden = torch.randn(2, 20, 16, requires_grad=True), torch.randn(2, 20, 16)
    weight, bias = torch.randn(90, 16, requires_grad=True), torch.randn(90, requires_grad=True)
    mask = torch.rand(2, 20) > 0.3
    theirs = _chunked_divergence_loss(
        hidden,
        teacher_hidden,
        weight,
        weight,
        mask.long(),
        beta,
        student_lm_head_bias=bias,
        teacher_lm_head_bias=bias,
        student_logit_scale=extras.get("scale", 1.0),
        teacher_logit_scale=extras.get("scale", 1.0),
        student_final_logit_softcapping=extras.get("softcap"),
        teacher_final_logit_softcapping=extras.get("softcap"),
        temperature=1.3,
    )[0]
    ours = fused_divergence(
        GeneralizedJSD(beta=beta, temperature=1.3),
        hidden[mask],
        teacher_hidden[mask],
        LogitHead(weight, bias, **extras),
    ).loss
    torch.testing.assert_close(ours, theirs)
    for mine, other in zip(
        torch.autograd.grad(ours, (hidden, weight, bias)),
        torch.autograd.grad(theirs, (hidden, weight, bias)),
        strict=True,
    ):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)


def test_token_logprobs() -> None:
    hidden, weight = torch.randn(30, 16), torch.randn(90, 16)
    targets = torch.randint(0, 90, (30,))
    torch.testing.assert_close(
        fused_token_logprobs(hidden, targets, LogitHead(weight)), selective_log_softmax(hidden @ weight.T, targets)
    )


PREFERENCES = [
    {"prompt": "def f(n):", "chosen": " return n", "rejected": " pass # later"},
    {"prompt": "print(", "chosen": "factorial(5))", "rejected": "5)"},
]


def preference_batch(trainer: Any) -> dict[str, torch.Tensor]:
    return next(iter(trainer.get_train_dataloader()))


def as_our_batch(theirs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    ours = {}
    for theirs_name, our_name in (
        ("input_ids", "input_ids"),
        ("attention_mask", "attention_mask"),
        ("completion_mask", "response_mask"),
    ):
        chosen, rejected = theirs[theirs_name].chunk(2)
        ours[f"dpo_chosen_{our_name}"], ours[f"dpo_rejected_{our_name}"] = chosen, rejected
    return ours


@pytest.mark.parametrize(
    ("loss_types", "weights", "settings"),
    [
        (["sigmoid"], None, {}),
        (["sigmoid_norm"], None, {"variant": "dpo_norm"}),
        (["sft"], None, {"variant": "nll"}),
        (["sigmoid", "sft"], [1.0, 0.7], {"nll_weight": 0.7}),
        (["sigmoid_norm", "sft"], [1.0, 0.7], {"variant": "dpo_norm", "nll_weight": 0.7}),
    ],
)
def test_dpo_and_its_anchor_against_a_real_dpo_trainer(
    tmp_path: Path,
    qwen_tokenizer: Any,
    qwen_model: Any,
    loss_types: list[str],
    weights: list[float] | None,
    settings: dict[str, Any],
) -> None:
    reference = tiny_model("qwen2", vocab_size=640, seed=2)
    trainer = DPOTrainer(
        model=qwen_model,
        ref_model=reference,
        args=DPOConfig(
            output_dir=str(tmp_path),
            per_device_train_batch_size=2,
            beta=0.3,
            loss_type=loss_types,
            loss_weights=weights,
            report_to="none",
            use_cpu=True,
            gradient_checkpointing=False,
            bf16=False,
        ),
        train_dataset=Dataset.from_list(PREFERENCES),
        processing_class=qwen_tokenizer,
    )
    theirs = preference_batch(trainer)
    their_loss = trainer.compute_loss(trainer.model, dict(theirs))
    their_gradients = torch.autograd.grad(their_loss, list(qwen_model.parameters()), allow_unused=True)

    policy, fresh_reference = (tiny_model("qwen2", vocab_size=640, seed=seed) for seed in (1, 2))
    batch = as_our_batch(theirs)
    with torch.no_grad():
        references = preference_logprobs(fresh_reference, batch)[0]
    batch["dpo_chosen_ref_logprobs"], batch["dpo_rejected_ref_logprobs"] = references.chunk(2)
    ours = Preference(dpo_beta=0.3, **settings).loss(policy, batch)
    torch.testing.assert_close(ours.loss, their_loss)
    assert ours.active_tokens == int(theirs["completion_mask"].sum())
    for mine, other in zip(torch.autograd.grad(ours.loss, list(policy.parameters())), their_gradients, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-6)


def test_simpo_against_cpo_trainers_loss(tmp_path: Path, qwen_tokenizer: Any, qwen_model: Any) -> None:
    trainer = CPOTrainer(
        model=qwen_model,
        args=CPOConfig(
            output_dir=str(tmp_path),
            loss_type="simpo",
            cpo_alpha=0.0,
            beta=2.0,
            simpo_gamma=1.0,
            per_device_train_batch_size=2,
            report_to="none",
            use_cpu=True,
            bf16=False,
        ),
        train_dataset=Dataset.from_list(PREFERENCES),
        processing_class=qwen_tokenizer,
    )
    chosen, rejected = torch.randn(6) - 2, torch.randn(6) - 2
    theirs, _, _ = trainer.cpo_loss(chosen, rejected)
    torch.testing.assert_close(simpo_loss(chosen, rejected, beta=2.0, gamma=1.0), theirs.mean())
