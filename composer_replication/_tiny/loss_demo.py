"""The three channels on a small model that has a bad habit and follows hints.

A random model is first taught both: without a hint it makes the wrong call of the sample traces, with the hint in its
context it makes the right one. Then it trains with the channels, with a frozen copy as teacher and reference. Channel 1
sees the right call only where the trace recovers, after the error message. Channel 3 sees it in preference pairs, where
teachers agreed on it against the student. The demo shows whether the model makes the right call at the erring turn.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from composer_replication._tiny.models import tiny_model, tiny_tokenizer
from composer_replication.batch import VARIANTS, build_batch
from composer_replication.causal_lm import run_causal_lm
from composer_replication.channels.policy import lm_channel
from composer_replication.loss import compose_loss

Batch = dict[str, torch.Tensor]


@dataclass(frozen=True)
class DemoStep:
    """One optimiser step: the losses, each channel's number of tokens, and the probability of the right call before it.

    `right_call` is the probability, without the hint, of the token in which the right call first differs from the
    wrong one.
    """

    step: int
    trace: str
    losses: dict[str, float]
    active_tokens: dict[str, int]
    right_call: float


def run_loss_demo(
    *,
    steps: int = 20,
    template: str = "qwen2_5",
    alpha_sdpo: float = 1.0,
    beta_replay: float = 0.5,
    seed: int = 0,
    warm_up_steps: int = 40,
    pairs: Mapping[str, Mapping[str, Any]] | None = None,
) -> Iterator[DemoStep]:
    """Warm a small Qwen2 up, then train it on alternating traces and yield every step.

    Args:
        steps: optimiser steps after the warm-up.
        template: whose chat template.
        alpha_sdpo: weight of channel 2.
        beta_replay: weight of channel 3; 0 needs no pairs.
        seed: of the random model and of the traces.
        warm_up_steps: optimiser steps of the warm-up.
        pairs: a preference pair for each trace, by its variant, of the same seed; those of `replay_samples` if None.

    Raises:
        ValueError: a trace has no pair, or one of another trace.
    """
    pairs = _pairs(seed, pairs) if beta_replay else {}
    tokenizer = tiny_tokenizer(template)
    model = tiny_model("qwen2", vocab_size=len(tokenizer), seed=seed)
    # Lessons and probabilities depend on the traces alone, not on the teachers.
    samples = [build_batch(tokenizer, variant=variant, seed=seed, model=model) for variant in VARIANTS]
    _warm_up(model, [lesson for sample in samples for lesson in _lessons(sample)], warm_up_steps)
    teacher = copy.deepcopy(model)
    batches = [
        _without_the_mistake(build_batch(tokenizer, variant=variant, seed=seed, model=teacher, pair=pairs.get(variant)))
        for variant in VARIANTS
    ]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        turn = step % len(VARIANTS)
        batch, trace = batches[turn], VARIANTS[turn]
        right_call = _right_call(model, samples[turn])
        components = compose_loss(model, batch, alpha_sdpo=alpha_sdpo, beta_replay=beta_replay, teacher_model=teacher)
        optimizer.zero_grad()
        components.total.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        yield DemoStep(step, trace, components.detached(), components.active_tokens, right_call)


def _pairs(seed: int, given: Mapping[str, Mapping[str, Any]] | None) -> Mapping[str, Mapping[str, Any]]:
    if given is None:
        # Imported here: without pairs, the demo needs no teachers.
        from composer_replication._tiny.sample_replay import replay_samples

        given = replay_samples(seed).pairs
    if missing := [variant for variant in VARIANTS if variant not in given]:
        raise ValueError(
            f"there is no preference pair for {', '.join(missing)}: too few teachers agreed against the student, or "
            "the recipe dropped it; with a weight of 0 for the pairs, the demo does without"
        )
    return given


def _lessons(batch: Batch) -> Iterator[Batch]:
    """Yield the habit (the wrong call without a hint), then the right call after the hint."""
    yield {"input_ids": batch["dpo_rejected_input_ids"], "response_mask": batch["dpo_rejected_response_mask"]}
    hinted_prompt = batch["ctx_teacher_input_ids"][:1, : int(batch["sdpo_teacher_index"][0, 1])]
    right_call = batch["dpo_chosen_input_ids"][batch["dpo_chosen_response_mask"] > 0].unsqueeze(0)
    yield {
        "input_ids": torch.cat([hinted_prompt, right_call], dim=1),
        "response_mask": torch.cat([torch.zeros_like(hinted_prompt), torch.ones_like(right_call)], dim=1),
    }


def _warm_up(model: Any, lessons: Sequence[Batch], steps: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        for lesson in lessons:
            lm_channel(run_causal_lm(model, lesson["input_ids"]), lesson).loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def _without_the_mistake(batch: Batch) -> Batch:
    """Take the erring turn out of channel 1: it belongs to channel 2."""
    rows, columns = batch["sdpo_student_index"].T
    batch["response_mask"][rows, columns] = 0
    return batch


def _right_call(model: Any, batch: Batch) -> float:
    chosen, rejected = batch["dpo_chosen_input_ids"][0], batch["dpo_rejected_input_ids"][0]
    shared = min(len(chosen), len(rejected))
    column = int((chosen[:shared] != rejected[:shared]).nonzero()[0])
    with torch.no_grad():
        logits = model(chosen[None, :column], logits_to_keep=1).logits
    return float(logits[0, -1].softmax(-1)[chosen[column]])
