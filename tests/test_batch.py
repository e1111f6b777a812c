"""The sample batch: real, aligned token by token, live in every channel it promises."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from composer_replication import build_batch, compose_loss
from composer_replication.batch import VARIANTS, SampleTrace, sample_trace
from composer_replication.traces import ToolCall, Turn, render_action

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


@pytest.fixture(scope="session")
def plain_tokenizer(qwen_tokenizer: Any) -> Any:
    """One whose template knows no tools."""
    plain = copy.deepcopy(qwen_tokenizer)
    plain.chat_template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
        "{{ '<|im_start|>assistant\n' if add_generation_prompt }}"
    )
    return plain


def test_a_template_without_tools_still_shows_the_calls(plain_tokenizer: Any, qwen_model: Any) -> None:
    plain = plain_tokenizer
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


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_sample_trace_is_what_is_rendered_and_the_callers_own(tokenizer: Any, variant: str) -> None:
    sample = sample_trace(variant, 7)
    batch = build_batch(tokenizer, variant=variant, seed=7)
    ids = tokenizer.apply_chat_template(sample.messages, tools=sample.tools, return_dict=True)["input_ids"]
    assert batch["input_ids"][0][: len(ids)].tolist() == ids
    wrong = sample.messages[sample.erring_message]["tool_calls"][0]["function"]["name"]
    assert wrong in tokenizer.decode(batch["input_ids"][0][batch["sdpo_student_index"][:, 1]])
    sample.tools[0]["function"]["name"] = "gone"
    sample.messages[0]["content"] = "gone"
    assert "gone" not in str(sample_trace(variant, 7))


def pair_of(sample: SampleTrace, *, said: str = "", **better: str) -> dict[str, str]:
    """The sample's own pair as actions, or one that chooses another call."""

    def action(message: dict[str, Any], content: str = "", **changed: str) -> str:
        function = message["tool_calls"][0]["function"]
        return render_action(
            Turn("assistant", content, tool_calls=[ToolCall("", function["name"], function["arguments"] | changed)])
        )

    chosen = action(sample.better_action, said, **better)
    return {"chosen": chosen, "rejected": action(sample.messages[sample.erring_message])}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_pair_of_the_samples_own_actions_changes_nothing(tokenizer: Any, qwen_model: Any, variant: str) -> None:
    own = build_batch(tokenizer, variant=variant, model=qwen_model)
    given = build_batch(tokenizer, variant=variant, model=qwen_model, pair=pair_of(sample_trace(variant)))
    assert set(given) == set(own)
    assert all(torch.equal(given[name], own[name]) for name in own)


def test_the_chosen_side_is_the_pairs(qwen_tokenizer: Any, plain_tokenizer: Any, qwen_model: Any) -> None:
    pair = pair_of(sample_trace(), said="Let me look.", path="./elsewhere.py")
    for tokenizer in (qwen_tokenizer, plain_tokenizer):
        own, given = (build_batch(tokenizer, model=qwen_model, pair=one) for one in (None, pair))
        sides = {}
        for side in ("chosen", "rejected"):
            mask = given[f"dpo_{side}_response_mask"] > 0
            sides[side] = tokenizer.decode(given[f"dpo_{side}_input_ids"][mask])
        assert sides["chosen"].startswith("Let me look.\n<tool_call>")
        assert "./elsewhere.py" in sides["chosen"]
        assert "open_file" in sides["rejected"]
        assert not torch.equal(given["dpo_chosen_ref_logprobs"], own["dpo_chosen_ref_logprobs"])
        # Both sides share a pass, so another chosen side may round the rejected one's log-probability differently.
        torch.testing.assert_close(given.pop("dpo_rejected_ref_logprobs"), own.pop("dpo_rejected_ref_logprobs"))
        others = [name for name in own if not name.startswith("dpo_chosen")]
        assert all(torch.equal(given[name], own[name]) for name in others)


def test_a_template_without_tools_shows_every_call_of_a_pair(plain_tokenizer: Any, qwen_model: Any) -> None:
    pair = pair_of(sample_trace())
    pair["chosen"] += '\n[TOOL_USE] name=run_python input={"code": "1"}'
    ids = build_batch(plain_tokenizer, model=qwen_model, pair=pair)["dpo_chosen_input_ids"][0]
    assert plain_tokenizer.decode(ids).count("<tool_call>") == 2


def test_a_pair_that_cannot_be_used_is_refused(qwen_tokenizer: Any, qwen_model: Any) -> None:
    own = pair_of(sample_trace())
    with pytest.raises(ValueError, match="pair needs model"):
        build_batch(qwen_tokenizer, pair=own)
    for changed, message in (
        ({"rejected": own["chosen"]}, r"pair rejects .*read_file.*goes wrong here is .*open_file"),
        ({"chosen": own["rejected"]}, "pair chooses what it rejects"),
        ({"chosen": "[TOOL_USE] name=read_file input={broken"}, "read_file with arguments that are not a JSON object"),
        ({"chosen": None}, "pair must have the text of an action as 'chosen', got None"),
    ):
        with pytest.raises(ValueError, match=message):
            build_batch(qwen_tokenizer, model=qwen_model, pair=own | changed)
    with pytest.raises(ValueError, match="take a pair of the same variant and seed"):
        build_batch(qwen_tokenizer, model=qwen_model, seed=43, pair=own)
