"""What the channels refuse: inputs that are there but incomplete, misshapen or contradictory. None goes quiet."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from composer_replication import build_batch, compose_loss


def changed(batch: dict[str, torch.Tensor], **changes: torch.Tensor | None) -> dict[str, torch.Tensor]:
    merged = {**batch, **changes}
    return {name: tensor for name, tensor in merged.items() if tensor is not None}


def test_mask_without_pairs_needs_equal_shapes_and_equal_ids(qwen_tokenizer: Any, qwen_model: Any) -> None:
    batch = build_batch(qwen_tokenizer)
    bare = {name: t for name, t in batch.items() if not name.endswith("_index")}
    with pytest.raises(ValueError, match=r"ctx_teacher_input_ids has shape .* pass sdpo_student_index"):
        compose_loss(qwen_model, bare)

    aligned = {name: t for name, t in batch.items() if not name.startswith("ctx_") and not name.endswith("_index")}
    aligned["ctx_teacher_input_ids"] = batch["input_ids"].clone()
    aligned["ctx_teacher_input_ids"][0, :5] = 7  # another context, the same tokens at the masked positions
    aligned["sdpo_loss_mask"] = torch.full_like(batch["input_ids"], -100)
    columns = batch["sdpo_student_index"][:, 1]
    aligned["sdpo_loss_mask"][0, columns] = 1
    by_mask = compose_loss(qwen_model, aligned)
    assert by_mask.active_tokens["sdpo_jsd"] == columns.numel()
    pairs = {
        **aligned,
        "sdpo_student_index": batch["sdpo_student_index"],
        "sdpo_teacher_index": batch["sdpo_student_index"],
    }
    assert compose_loss(qwen_model, pairs).sdpo_jsd == by_mask.sdpo_jsd


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: {"input_ids": None}, "inputs lacks 'input_ids'; it has"),
        (lambda b: {"response_mask": None}, "inputs lacks 'response_mask'"),
        (lambda b: {"response_mask": b["response_mask"] * 0}, "response_mask selects no token of input_ids"),
        (lambda b: {"response_mask": b["response_mask"][:, :-1]}, "response_mask has shape"),
        (lambda b: {"sdpo_teacher_index": None}, "sdpo_student_index and sdpo_teacher_index come together"),
        (lambda b: {"sdpo_student_index": b["sdpo_student_index"][:-1]}, "sdpo_student_index has shape"),
        (
            lambda b: {"sdpo_teacher_index": b["sdpo_teacher_index"] - torch.tensor([0, 1]), "sdpo_loss_mask": None},
            "token ids differ at .* paired positions; the",
        ),
        (
            lambda b: {
                "sdpo_student_index": b["sdpo_student_index"] * 0,
                "sdpo_teacher_index": b["sdpo_teacher_index"],
            },
            r"sdpo_student_index spans rows 0..0 and columns 0..0; input_ids of shape .* columns 1\.\.",
        ),
        (lambda b: {"sdpo_teacher_index": b["sdpo_teacher_index"] + 10_000}, "sdpo_teacher_index spans rows 10000"),
        (
            lambda b: {
                "sdpo_student_index": b["sdpo_student_index"][:0],
                "sdpo_teacher_index": b["sdpo_teacher_index"][:0],
            },
            "with at least one pair",
        ),
        (lambda b: {"ctx_teacher_input_ids": None}, "inputs lacks 'ctx_teacher_input_ids'"),
        (lambda b: {"sdpo_student_index": b["sdpo_student_index"] * 1.0}, "sdpo_student_index must hold integers"),
        (lambda b: {"sdpo_loss_mask": b["sdpo_loss_mask"] * 0}, "sdpo_loss_mask is off at 28 of the 28 positions that"),
        (lambda b: {"sdpo_loss_mask": b["sdpo_loss_mask"][:, 1:]}, "sdpo_loss_mask has shape"),
        (lambda b: {"input_ids": b["input_ids"][0]}, r"input_ids must be \(rows, columns\) of token ids"),
        (lambda b: {"input_ids": b["input_ids"] * 1.0}, r"input_ids must be .* got torch.float32"),
        (lambda b: {"attention_mask": b["attention_mask"][:, 1:]}, "attention_mask has shape"),
        (lambda b: {"attention_mask": b["attention_mask"][:1]}, "attention_mask has shape"),
        (lambda b: {"attention_mask": b["attention_mask"] * 0}, "attention_mask is 0 at .* that response_mask selects"),
        (
            lambda b: {"ctx_teacher_attention_mask": b["ctx_teacher_attention_mask"][:, :5]},
            "ctx_teacher_attention_mask",
        ),
        (
            lambda b: {"ctx_teacher_attention_mask": b["ctx_teacher_attention_mask"] * 0},
            "ctx_teacher_attention_mask is 0 at 28 of the 28 positions that sdpo_teacher_index selects",
        ),
        (
            lambda b: {"dpo_chosen_attention_mask": b["dpo_chosen_attention_mask"][:, 1:]},
            "dpo_chosen_attention_mask has",
        ),
        (lambda b: {"dpo_chosen_attention_mask": b["dpo_chosen_attention_mask"] * 0}, "dpo_chosen_attention_mask is 0"),
        (lambda b: {"ctx_teacher_input_ids": b["ctx_teacher_input_ids"][0]}, "ctx_teacher_input_ids must be"),
        (lambda b: {"dpo_chosen_input_ids": b["dpo_chosen_input_ids"][0]}, "dpo_chosen_input_ids must be"),
        (lambda b: {"dpo_chosen_input_ids": None}, "inputs lacks 'dpo_chosen_input_ids'"),
        (lambda b: {"dpo_rejected_input_ids": None}, "inputs lacks 'dpo_rejected_input_ids'"),
        (lambda b: {"dpo_chosen_ref_logprobs": None}, "inputs lacks 'dpo_chosen_ref_logprobs'"),
        (lambda b: {"dpo_chosen_ref_logprobs": torch.zeros(2)}, r"dpo_chosen_ref_logprobs has shape \(2,\)"),
        (lambda b: {"dpo_chosen_response_mask": b["dpo_chosen_response_mask"] * 0}, r"selects no token in rows \[0\]"),
        (lambda b: {"dpo_chosen_response_mask": b["dpo_chosen_response_mask"][:, :-1]}, "dpo_chosen_response_mask has"),
        (
            lambda b: {
                name: b[name].repeat(2, 1) for name in b if name.startswith("dpo_chosen") and b[name].dim() == 2
            },
            "dpo_chosen_input_ids has 2 rows, dpo_rejected_input_ids 1",
        ),
    ],
)
def test_unusable_inputs_raise_instead_of_switching_a_channel_off(
    qwen_tokenizer: Any, qwen_model: Any, change: Any, message: str
) -> None:
    batch = build_batch(qwen_tokenizer, model=qwen_model)
    with pytest.raises(ValueError, match=message):
        compose_loss(qwen_model, changed(batch, **change(batch)))


def test_simpo_needs_no_references(qwen_tokenizer: Any, qwen_model: Any) -> None:
    batch = build_batch(qwen_tokenizer, model=qwen_model)
    bare = changed(batch, dpo_chosen_ref_logprobs=None, dpo_rejected_ref_logprobs=None)
    assert compose_loss(qwen_model, bare, dpo_variant="simpo").active_tokens["trace_replay_dpo"] > 0


def test_nan_in_the_model_is_an_error_not_a_loss(qwen_tokenizer: Any, qwen_model: Any) -> None:
    with torch.no_grad():
        qwen_model.model.layers[0].mlp.up_proj.weight[0, 0] = math.nan
    with pytest.raises(ValueError, match=r"hidden has .* NaN values"):
        compose_loss(qwen_model, build_batch(qwen_tokenizer))
