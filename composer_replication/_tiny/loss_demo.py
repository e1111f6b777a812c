"""The three channels on a small random model: what each of them reports, and that they all learn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from composer_replication._tiny.models import tiny_model
from composer_replication._tiny.tokenizer import tiny_tokenizer
from composer_replication.batch import VARIANTS, build_batch
from composer_replication.loss import compose_loss


@dataclass(frozen=True)
class DemoStep:
    """One optimiser step's losses and how many tokens each channel saw."""

    step: int
    batch: str
    losses: dict[str, float]
    active_tokens: dict[str, int]


def run_loss_demo(
    *, steps: int = 20, template: str = "qwen2_5", alpha_sdpo: float = 1.0, beta_replay: float = 0.5, seed: int = 0
) -> Iterator[DemoStep]:
    """Train a random two-layer Qwen2 on alternating batches, all three channels live, and yield every step.

    The teacher of channel 2 is a frozen copy of the starting model: a live one is known to collapse.
    """
    tokenizer = tiny_tokenizer(template)
    model = tiny_model("qwen2", vocab_size=len(tokenizer), seed=seed)
    teacher = tiny_model("qwen2", vocab_size=len(tokenizer), seed=seed)
    batches = [build_batch(tokenizer, variant=variant, seed=seed, model=model) for variant in VARIANTS]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        variant = step % len(VARIANTS)
        components = compose_loss(
            model, batches[variant], alpha_sdpo=alpha_sdpo, beta_replay=beta_replay, teacher_model=teacher
        )
        optimizer.zero_grad()
        components.total.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        yield DemoStep(step, VARIANTS[variant], components.detached(), components.active_tokens)
