"""Packed pairs give what two rows give: values and gradients, for every architecture that is said to pack."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import transformers
from packable_models import VOCABULARY, Passes, build
from peft import LoraConfig, PromptTuningConfig, get_peft_model

from composer_replication import shared_prefix
from composer_replication._tiny import tiny_model
from composer_replication.channels.preference import Preference
from composer_replication.channels.scoring import preference_logprobs
from composer_replication.shared_prefix import PACKABLE_ARCHITECTURES


def pairs(
    *, lengths: tuple[tuple[int, int, int], ...] = ((20, 6, 4), (17, 3, 8), (22, 1, 1)), left: bool = False
) -> dict[str, torch.Tensor]:
    """Pairs by the lengths of their prompt and responses; in the first, the responses begin alike."""
    numbers = random.Random(3)
    batch: dict[str, torch.Tensor] = {}
    prompts = [[numbers.randrange(VOCABULARY) for _ in range(prompt)] for prompt, _, _ in lengths]
    for place, side in enumerate(("chosen", "rejected")):
        rows = []
        for number, prompt in enumerate(prompts):
            response = [numbers.randrange(1, VOCABULARY) for _ in range(lengths[number][1 + place])]
            if number == 0:
                response[:2] = [5, 6]
            if len(response) == 1:
                response = [7 + place]
            rows.append((prompt, response))
        width = max(len(prompt) + len(response) for prompt, response in rows) + place
        for name, fill in (
            ("input_ids", lambda p, r: [*p, *r]),
            ("attention_mask", lambda p, r: [1] * (len(p) + len(r))),
            ("response_mask", lambda p, r: [0] * len(p) + [1] * len(r)),
        ):
            cells = [fill(prompt, response) for prompt, response in rows]
            gaps = [[0] * (width - len(row)) for row in cells]
            padded = [gap + row if left else row + gap for row, gap in zip(cells, gaps, strict=True)]
            batch[f"dpo_{side}_{name}"] = torch.tensor(padded)
    return batch


def in_two_rows(monkeypatch: pytest.MonkeyPatch, model: Any, batch: dict[str, torch.Tensor]) -> Any:
    with monkeypatch.context() as patch:
        patch.setattr(shared_prefix, "packs", lambda *_: False)
        return measured(model, batch)


def measured(model: Any, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Sums, lengths, and the gradients of a weighted sum that tells the sides and rows apart."""
    model.zero_grad()
    sums, lengths = preference_logprobs(model, batch)
    if sums.requires_grad:
        (sums * torch.linspace(0.5, 2.0, sums.numel())).sum().backward()
    return sums.detach(), lengths, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def check_same(
    monkeypatch: pytest.MonkeyPatch, model: Any, batch: dict[str, torch.Tensor], packed: bool = True
) -> None:
    passes = Passes(model)
    sums, lengths, gradients = measured(model, batch)
    expected_sums, expected_lengths, expected_gradients = in_two_rows(monkeypatch, model, batch)
    rows = batch["dpo_chosen_input_ids"].shape[0]
    assert [shape[0] for shape in passes.shapes] == [rows if packed else 2 * rows, 2 * rows]
    assert torch.equal(lengths, expected_lengths)
    torch.testing.assert_close(sums, expected_sums, rtol=1e-5, atol=1e-5)
    assert gradients.keys() == expected_gradients.keys()
    for name, gradient in gradients.items():
        size = float(expected_gradients[name].abs().max())
        torch.testing.assert_close(gradient, expected_gradients[name], rtol=1e-3, atol=1e-5 + 1e-5 * size, msg=name)


@pytest.mark.parametrize("architecture", sorted(PACKABLE_ARCHITECTURES))
def test_every_listed_architecture_gives_the_same_packed(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_same(monkeypatch, build(architecture), pairs())


@pytest.mark.parametrize("architecture", ["qwen2", "llama", "gpt2"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_both_kinds_of_attention(architecture: str, attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_same(monkeypatch, build(architecture, attention), pairs())


@pytest.mark.parametrize("architecture", ["qwen2", "gpt2"])
def test_padding_on_the_left_packs_where_the_columns_agree(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = pairs(lengths=((20, 6, 6), (14, 4, 4)), left=True)
    batch = {name: tensor[:, -26:] for name, tensor in batch.items()}  # of one width
    check_same(monkeypatch, build(architecture), batch)
    check_same(monkeypatch, build(architecture), pairs(left=True), packed=False)


def test_a_column_that_only_one_side_sees_is_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = pairs()
    batch["dpo_rejected_attention_mask"][:, 12] = 0
    monkeypatch.setattr(shared_prefix, "WORTHWHILE_SHARE", 1.0)
    check_same(monkeypatch, build("llama"), batch)


def test_no_attention_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = {name: tensor for name, tensor in pairs().items() if "attention" not in name}
    check_same(monkeypatch, build("llama"), batch)


def test_a_side_that_is_the_others_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = pairs(lengths=((12, 3, 6), (12, 6, 3)))
    for row, (short, long) in enumerate((("chosen", "rejected"), ("rejected", "chosen"))):
        batch[f"dpo_{long}_input_ids"][row, :15] = batch[f"dpo_{short}_input_ids"][row, :15]
    check_same(monkeypatch, build("qwen2"), batch)


def test_lora_and_gradient_checkpointing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = get_peft_model(
        build("qwen2"), LoraConfig(target_modules=["q_proj", "v_proj"], r=2, init_lora_weights=False)
    )
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()  # no dropout in it; transformers checkpoints in training mode only
    check_same(monkeypatch, model, pairs())


def test_without_gradient_and_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("llama").to(torch.bfloat16)
    for attention in ("sdpa", "eager"):
        model.set_attn_implementation(attention)
        with torch.no_grad():
            sums, _, _ = measured(model, pairs())
            expected, _, _ = in_two_rows(monkeypatch, model, pairs())
        assert not sums.requires_grad
        torch.testing.assert_close(sums, expected, rtol=0.02, atol=0.1)


def test_the_rejected_response_does_not_see_the_chosen_one() -> None:
    model, batch = build("qwen2"), pairs()
    other = {name: tensor.clone() for name, tensor in batch.items()}
    chosen = other["dpo_chosen_response_mask"].bool()
    other["dpo_chosen_input_ids"][chosen] = (other["dpo_chosen_input_ids"][chosen] + 30) % VOCABULARY
    with torch.no_grad():
        (before, after) = (preference_logprobs(model, each)[0].chunk(2) for each in (batch, other))
    assert not torch.allclose(before[0], after[0])
    torch.testing.assert_close(before[1], after[1])


def test_each_side_is_held_against_its_own_reference() -> None:
    model, batch = build("qwen2"), pairs()
    with torch.no_grad():
        chosen, rejected = preference_logprobs(model, batch)[0].chunk(2)
    batch["dpo_chosen_ref_logprobs"], batch["dpo_rejected_ref_logprobs"] = chosen - 3.0, rejected + 1.0
    # Every pair's margin is 3 - (-1) = 4.
    loss = Preference(dpo_beta=0.5).loss(model, batch).loss
    torch.testing.assert_close(loss.detach(), -torch.nn.functional.logsigmoid(torch.tensor(2.0)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "columns"),
    [({"sliding_window": 64}, True), ({"sliding_window": 26}, True), ({"sliding_window": 25}, False)],
)
def test_a_window_that_cuts_nothing_off_packs(
    settings: dict[str, int], columns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_same(monkeypatch, build("mistral", **settings), pairs(), packed=columns)


def test_a_prefix_too_short_to_pay_runs_in_two_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    check_same(monkeypatch, build("qwen2"), pairs(lengths=((4, 22, 22), (9, 16, 14))), packed=False)


def _other_forward() -> Any:
    class Own(transformers.Qwen2ForCausalLM):
        def forward(self, input_ids: Any, attention_mask: Any = None, position_ids: Any = None, **kwargs: Any) -> Any:
            return super().forward(input_ids, attention_mask=attention_mask, **kwargs)

    return Own(build("qwen2").config)


def _prompt_tuned() -> Any:
    return get_peft_model(build("qwen2"), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4))


def _invoked() -> Any:
    return get_peft_model(
        build("qwen2"),
        LoraConfig(target_modules=["q_proj"], r=2, task_type="CAUSAL_LM", alora_invocation_tokens=[5, 6]),
    )


def _hybrid() -> Any:
    model = build("qwen2")
    model.config.layer_types = ["full_attention", "linear_attention"]
    return model


@pytest.mark.parametrize(
    "unpackable",
    [_other_forward, _prompt_tuned, _invoked, _hybrid, lambda: build("bloom"), lambda: build("mamba")],
    ids=["own_forward", "virtual_tokens", "invocation", "hybrid", "alibi", "state_space"],
)
def test_models_that_cannot_take_packed_rows_are_told(unpackable: Any) -> None:
    assert not shared_prefix.packs(unpackable(), 8)


def test_wrappers_are_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrapped(torch.nn.Module):
        def __init__(self, module: torch.nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, **kwargs: Any) -> Any:
            return self.module(**kwargs)

    check_same(monkeypatch, Wrapped(tiny_model("llama", vocab_size=VOCABULARY)), pairs())
    assert not shared_prefix.packs(Wrapped(_prompt_tuned()), 8)
