"""The sample batch: real, aligned token by token, live in every channel it promises."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from composer_replication import build_batch, compose_loss
from composer_replication.batch import VARIANTS

BASE_KEYS = {
    "input_ids",
    "attention_mask",
    "response_mask",
    "ctx_teacher_input_ids",
    "ctx_teacher_attention_mask",
    "sdpo_loss_mask",
    "sdpo_student_index",
    "sdpo_teacher_index",
}
PREFERENCE_KEYS = {
    f"dpo_{side}_{part}"
    for side in ("chosen", "rejected")
    for part in ("input_ids", "attention_mask", "response_mask", "ref_logprobs")
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("align", [False, True])
def test_channels_1_and_2_are_live_from_the_tokenizer_alone(
    tokenizer: Any, qwen_model: Any, variant: str, align: bool
) -> None:
    batch = build_batch(tokenizer, variant=variant, align_sdpo_shapes=align)
    assert set(batch) == BASE_KEYS
    if align:
        assert batch["ctx_teacher_input_ids"].shape[1] == batch["input_ids"].shape[1]
    tokens = compose_loss(qwen_model, batch).active_tokens
    assert tokens["lm_ce"] == int(batch["response_mask"].sum())
    assert tokens["sdpo_jsd"] == int(batch["sdpo_loss_mask"].sum()) > 0
    assert tokens["trace_replay_dpo"] == 0


def test_all_three_are_live_with_a_model_and_references_are_real(tokenizer: Any, model: Any) -> None:
    batch = build_batch(tokenizer, model=model)
    assert set(batch) == BASE_KEYS | PREFERENCE_KEYS
    components = compose_loss(model, batch)
    assert all(count > 0 for count in components.active_tokens.values())
    for side in ("chosen", "rejected"):
        with torch.no_grad():
            logprobs = model(batch[f"dpo_{side}_input_ids"]).logits.log_softmax(-1)[:, :-1]
        picked = logprobs.gather(-1, batch[f"dpo_{side}_input_ids"][:, 1:, None]).squeeze(-1)
        expected = (picked * batch[f"dpo_{side}_response_mask"][:, 1:]).sum(-1)
        torch.testing.assert_close(batch[f"dpo_{side}_ref_logprobs"], expected, rtol=1e-4, atol=1e-4)
    # The policy is its own reference here, so the margin is 0 and the loss is log 2.
    assert components.trace_replay_dpo.item() == pytest.approx(0.6931472, abs=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_pairs_are_the_erring_turn_in_both_contexts(tokenizer: Any, variant: str) -> None:
    batch = build_batch(tokenizer, variant=variant)
    student, teacher = batch["sdpo_student_index"], batch["sdpo_teacher_index"]
    student_text = tokenizer.decode(batch["input_ids"][student[:, 0], student[:, 1]])
    teacher_text = tokenizer.decode(batch["ctx_teacher_input_ids"][teacher[:, 0], teacher[:, 1]])
    assert student_text == teacher_text
    assert ("open_file" if variant == "factorial" else "script") in student_text
    assert "Reminder" in tokenizer.decode(batch["ctx_teacher_input_ids"][0])
    assert "Reminder" not in tokenizer.decode(batch["input_ids"][0])
    assert (teacher[:, 1] > student[:, 1]).all()


def test_padding_is_by_attention_mask(tokenizer: Any) -> None:
    batch = build_batch(tokenizer, align_sdpo_shapes=True)
    for ids, mask in (("input_ids", "attention_mask"), ("ctx_teacher_input_ids", "ctx_teacher_attention_mask")):
        assert ((batch[ids] == tokenizer.pad_token_id) == (batch[mask] == 0)).all()
    assert (batch["response_mask"] <= batch["attention_mask"]).all()
    assert batch["attention_mask"].sum(-1).unique().numel() == 2


def test_seed_changes_the_content_and_not_the_global_random_state(qwen_tokenizer: Any) -> None:
    before = torch.get_rng_state()
    one, same, other = (build_batch(qwen_tokenizer, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert one["input_ids"].shape != other["input_ids"].shape or not torch.equal(one["input_ids"], other["input_ids"])


def test_a_template_without_tools_still_shows_the_calls(qwen_tokenizer: Any, qwen_model: Any) -> None:
    plain = copy.deepcopy(qwen_tokenizer)
    plain.chat_template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
        "{{ '<|im_start|>assistant\n' if add_generation_prompt }}"
    )
    batch = build_batch(plain, model=qwen_model)
    assert "open_file" in plain.decode(batch["input_ids"][0])
    assert "read_file" in plain.decode(batch["dpo_chosen_input_ids"][0])
    assert compose_loss(qwen_model, batch).active_tokens["sdpo_jsd"] > 0


def test_a_template_that_refuses_a_late_system_message_gets_the_hint_from_the_user(qwen_tokenizer: Any) -> None:
    strict = copy.deepcopy(qwen_tokenizer)
    strict.chat_template = (
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('late system') }}"
        "{% endif %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
        "{{ '<|im_start|>assistant\n' if add_generation_prompt }}"
    )
    text = strict.decode(build_batch(strict)["ctx_teacher_input_ids"][0])
    assert "<|im_start|>user\nReminder" in text


def test_teacher_rows_match_the_students_and_only_the_hinted_one_carries_loss(tokenizer: Any) -> None:
    batch = build_batch(tokenizer)
    assert batch["ctx_teacher_input_ids"].shape[0] == batch["input_ids"].shape[0] == 2
    assert batch["sdpo_loss_mask"].any(-1).tolist() == [True, False]
    assert batch["sdpo_teacher_index"][:, 0].unique().tolist() == [0]


def test_tensors_go_to_the_device(qwen_tokenizer: Any) -> None:
    assert {tensor.device.type for tensor in build_batch(qwen_tokenizer, device="meta").values()} == {"meta"}


def test_references_are_computed_without_dropout(qwen_tokenizer: Any, qwen_model: Any) -> None:
    noisy = get_peft_model(
        qwen_model, LoraConfig(target_modules=["q_proj"], r=4, lora_dropout=0.5, init_lora_weights=False)
    ).train()
    one, other = (build_batch(qwen_tokenizer, model=noisy)["dpo_chosen_ref_logprobs"] for _ in range(2))
    assert torch.equal(one, other)


def test_an_unknown_variant_is_named(qwen_tokenizer: Any) -> None:
    with pytest.raises(ValueError, match=r"variant must be one of 'factorial', 'binary_search', got 'sorting'"):
        build_batch(qwen_tokenizer, variant="sorting")
