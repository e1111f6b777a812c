"""The kit's models and tokenizers, and the demo of the three channels."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from composer_replication._tiny import CHAT_TEMPLATES, run_loss_demo, tiny_model, tiny_tokenizer

TOOL = {
    "type": "function",
    "function": {"name": "read_file", "description": "Read.", "parameters": {"type": "object", "properties": {}}},
}


def test_tokenizer_round_trips_any_text(tokenizer: Any) -> None:
    text = "def f(x):\n\treturn 'häßlich 🙂 \\u0000' # 漢字"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


@pytest.mark.parametrize("template", CHAT_TEMPLATES)
def test_tokenizers_are_small_repeatable_and_know_their_end_of_turn(template: str) -> None:
    one, other = tiny_tokenizer(template), tiny_tokenizer(template)
    assert one.get_vocab() == other.get_vocab()
    assert len(one) == 640
    for special in CHAT_TEMPLATES[template].special_tokens:
        assert len(one(special, add_special_tokens=False)["input_ids"]) == 1
    assert one.eos_token_id != one.pad_token_id


def test_templates_are_the_real_ones(tokenizer: Any) -> None:
    text = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tools=[TOOL], tokenize=False)
    assert "read_file" in text
    assert text.startswith(("<|im_start|>system\nYou are Qwen", "<|begin_of_text|><|start_header_id|>system"))


def test_models_are_repeatable_and_leave_the_random_state_alone(model: Any) -> None:
    before = torch.get_rng_state()
    architecture = "qwen2" if "Qwen2" in type(model).__name__ else "llama"
    twin, stranger = (tiny_model(architecture, vocab_size=640, seed=seed) for seed in (1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))
    assert not torch.equal(twin.lm_head.weight, stranger.lm_head.weight)
    assert model.lm_head.weight is not model.get_input_embeddings().weight
    assert sum(parameter.numel() for parameter in model.parameters()) < 300_000


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="template must be one of 'qwen2_5', 'llama3_1', got 'gpt5'"):
        tiny_tokenizer("gpt5")
    with pytest.raises(ValueError, match="architecture must be one of 'qwen2', 'llama', got 'gpt5'"):
        tiny_model("gpt5", vocab_size=10)


def right_calls(**settings: Any) -> dict[str, tuple[float, float]]:
    steps = list(run_loss_demo(steps=20, **settings))
    by_trace = {trace: [s.right_call for s in steps if s.trace == trace] for trace in ("factorial", "binary_search")}
    return {trace: (values[0], values[-1]) for trace, values in by_trace.items()}


def test_demo_keeps_all_channels_live() -> None:
    steps = list(run_loss_demo(steps=4))
    assert all(count > 0 for step in steps for count in step.active_tokens.values())
    assert all(loss > 0 for step in steps for loss in step.losses.values())


def test_demo_hint_distillation_alone_cures_the_habit_and_cross_entropy_does_not() -> None:
    distilled = right_calls(beta_replay=0.0)
    plain = right_calls(alpha_sdpo=0.0, beta_replay=0.0)
    for trace in distilled:
        assert distilled[trace][0] < 0.05
        assert distilled[trace][1] > 0.6
        assert plain[trace][1] < 0.4


def test_demo_preference_pairs_alone_cure_the_habit() -> None:
    preferred = right_calls(alpha_sdpo=0.0)
    for before, after in preferred.values():
        assert before < 0.05
        assert after > 0.6
