"""One training step's forward and backward with all three channels: `compose_loss` against the straightforward way.

The straightforward way runs a pass each for student, teacher, chosen and rejected, and takes logits at all positions,
although half of them are responses and a tenth carries the hint's loss. Memory is the peak above the model, the batch
and the parameters' gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from harness import Benchmark, Prepared, Target, run

from composer_replication import compose_loss, generalized_jsd_loss
from composer_replication._tiny import tiny_model
from composer_replication.channels.scoring import preference_logprobs
from composer_replication.distillation import dpo_loss

ALPHA_SDPO = 0.1
BETA_REPLAY = 0.05

Batch = dict[str, torch.Tensor]
Losses = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Shape:
    """Sizes of the model (a Qwen2 with an untied head) and of the batch."""

    vocabulary: int
    hidden: int
    layers: int
    rows: int
    columns: int
    hint: int
    preference_pairs: int


def ours(model: Any, batch: Batch) -> Losses:
    """The package's own step."""
    losses = compose_loss(model, batch, alpha_sdpo=ALPHA_SDPO, beta_replay=BETA_REPLAY)
    return losses.lm_ce, losses.sdpo_jsd, losses.trace_replay_dpo


def straightforward(model: Any, batch: Batch) -> Losses:
    """The same losses from full logits, as one would first write them."""
    input_ids, is_response = batch["input_ids"], batch["response_mask"][:, 1:].bool()
    logits = _logits(model, input_ids)
    lm_ce = F.cross_entropy(logits[:, :-1][is_response], input_ids[:, 1:][is_response])
    with torch.no_grad():
        teacher_logits = _logits(model, batch["ctx_teacher_input_ids"])
    student_rows, teacher_rows = (
        source[index[:, 0], index[:, 1] - 1][None]
        for source, index in ((logits, batch["sdpo_student_index"]), (teacher_logits, batch["sdpo_teacher_index"]))
    )
    sdpo_jsd = generalized_jsd_loss(student_rows, teacher_rows, beta=0.5)
    chosen, rejected = (_response_logprobs(model, batch, side) for side in ("chosen", "rejected"))
    replay = dpo_loss(chosen, rejected, batch["dpo_chosen_ref_logprobs"], batch["dpo_rejected_ref_logprobs"], beta=0.1)
    return lm_ce, sdpo_jsd, replay


def _logits(model: Any, input_ids: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = model(input_ids=input_ids, use_cache=False).logits
    return logits


def _response_logprobs(model: Any, batch: Batch, side: str) -> torch.Tensor:
    input_ids = batch[f"dpo_{side}_input_ids"]
    logprobs = _logits(model, input_ids).log_softmax(-1)[:, :-1].gather(-1, input_ids[:, 1:, None]).squeeze(-1)
    return (logprobs * batch[f"dpo_{side}_response_mask"][:, 1:]).sum(-1)


LOSSES: dict[str, Callable[[Any, Batch], Losses]] = {"ours": ours, "straightforward": straightforward}


def random_batch(shape: Shape) -> Batch:
    """Rows whose second half is the response; a hint before it in the teacher's rows; pairs that share a prompt."""
    generator = torch.Generator().manual_seed(0)

    def token_ids(rows: int, columns: int) -> torch.Tensor:
        return torch.randint(shape.vocabulary, (rows, columns), generator=generator)

    prompt = shape.columns // 2
    input_ids = token_ids(shape.rows, shape.columns)
    # Scattered over the response, so that no pass can be cut short.
    per_row = shape.columns // 10
    columns = [
        torch.randperm(shape.columns - prompt, generator=generator)[:per_row] + prompt for _ in range(shape.rows)
    ]
    student_index = torch.stack([torch.arange(shape.rows).repeat_interleave(per_row), torch.cat(columns)], dim=1)
    response_mask = (torch.arange(shape.columns) >= prompt).long()
    batch = {
        "input_ids": input_ids,
        "response_mask": response_mask.repeat(shape.rows, 1),
        "ctx_teacher_input_ids": torch.cat(
            [input_ids[:, :prompt], token_ids(shape.rows, shape.hint), input_ids[:, prompt:]], dim=1
        ),
        "sdpo_student_index": student_index,
        "sdpo_teacher_index": student_index + torch.tensor([0, shape.hint]),
    }
    shared_prompt = token_ids(shape.preference_pairs, prompt)
    for side in ("chosen", "rejected"):
        response = token_ids(shape.preference_pairs, shape.columns - prompt)
        batch[f"dpo_{side}_input_ids"] = torch.cat([shared_prompt, response], dim=1)
        batch[f"dpo_{side}_response_mask"] = response_mask.repeat(shape.preference_pairs, 1)
    # A reference that the policy has moved from: with equals every margin would be 0, and the check would see little.
    reference = _model(shape)
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.mul_(0.98)
        references, _ = preference_logprobs(reference, batch)
    batch["dpo_chosen_ref_logprobs"], batch["dpo_rejected_ref_logprobs"] = references.chunk(2)
    return batch


def _model(shape: Shape) -> Any:
    return tiny_model(vocab_size=shape.vocabulary, hidden_size=shape.hidden, layers=shape.layers)


def prepare(contestant: str, shape: Shape) -> Prepared:
    """The same model and batch for both."""
    batch, model = random_batch(shape), _model(shape)

    def forward_backward() -> dict[str, float]:
        lm_ce, sdpo_jsd, replay = LOSSES[contestant](model, batch)
        (lm_ce + ALPHA_SDPO * sdpo_jsd + BETA_REPLAY * replay).backward()
        return {"lm_ce": lm_ce.item(), "sdpo_jsd": sdpo_jsd.item(), "trace_replay_dpo": replay.item()}

    parameters = list(model.parameters())
    return Prepared(forward_backward, {"gradient": parameters}, excluded=parameters)


BENCHMARK = Benchmark(
    name="compose_step",
    contestants=list(LOSSES),
    prepare=prepare,
    full=Shape(vocabulary=151_936, hidden=256, layers=4, rows=4, columns=512, hint=24, preference_pairs=2),
    quick=Shape(vocabulary=151_936, hidden=128, layers=2, rows=2, columns=256, hint=24, preference_pairs=1),
    warm_up=Shape(vocabulary=512, hidden=32, layers=1, rows=2, columns=20, hint=4, preference_pairs=1),
    tolerances={"lm_ce": 1e-3, "sdpo_jsd": 1e-3, "trace_replay_dpo": 1e-3, "gradient": 1e-3},
    targets=[
        Target("time_vs_straightforward", "seconds", "ours", "straightforward", 0.6),
        Target("memory_vs_straightforward", "peak_bytes", "ours", "straightforward", 0.3),
    ],
)


if __name__ == "__main__":
    run(BENCHMARK)
