"""Hidden states and head of real architectures give back the model's own logits; what cannot be taken apart is said."""

from __future__ import annotations

import logging
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from peft import LoraConfig, PromptTuningConfig, get_peft_model

from composer_replication import causal_lm
from composer_replication._tiny import tiny_model
from composer_replication.causal_lm import evaluating, run_causal_lm

SMALL = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
# Each finishes its logits in another way: not at all, capped, multiplied, divided, with a bias, under other names.
ARCHITECTURES = {
    "Qwen2": SMALL,
    "Llama": SMALL,
    "Gemma2": {**SMALL, "head_dim": 8, "final_logit_softcapping": 2.0},
    "Cohere": {**SMALL, "logit_scale": 0.3},
    "Granite": {**SMALL, "logits_scaling": 4.0},
    "Phi": SMALL,
    "GPT2": {"vocab_size": 60, "n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": None, "eos_token_id": None},
}


def build(name: str) -> Any:
    config = getattr(transformers, f"{name}Config")(**ARCHITECTURES[name])
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_hidden_states_and_head_reproduce_the_logits(name: str) -> None:
    model = build(name)
    ids = torch.randint(0, 60, (2, 9))
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    with torch.no_grad():
        states = run_causal_lm(model, ids, mask)
        expected = model(ids, attention_mask=mask).logits
    assert states.head.weight is model.get_output_embeddings().weight
    torch.testing.assert_close(states.head.logits(states.hidden), expected)
    # The second call goes by what the first found out.
    with torch.no_grad():
        again = run_causal_lm(model, ids, mask)
    assert again.head.is_same(states.head)


def test_a_head_is_recognised_through_the_rounding_of_bfloat16() -> None:
    config = transformers.GraniteConfig(**SMALL, logits_scaling=3.0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    states = run_causal_lm(model, torch.randint(0, 60, (2, 9)))
    assert states.head.weight is model.lm_head.weight
    assert states.head.scale == pytest.approx(1 / 3)


def test_only_one_position_is_projected(qwen_model: Any) -> None:
    projected = []
    qwen_model.lm_head.register_forward_hook(lambda _, inputs, __: projected.append(inputs[0].shape[1]))
    run_causal_lm(qwen_model, torch.randint(0, 640, (2, 9)))
    assert projected == [1]


def test_predicting_reads_one_column_earlier(qwen_model: Any) -> None:
    states = run_causal_lm(qwen_model, torch.randint(0, 640, (2, 9)))
    picked = states.predicting(torch.tensor([[1, 3], [0, 8]]))
    assert torch.equal(picked, torch.stack([states.hidden[1, 2], states.hidden[0, 7]]))


def test_lora_beside_the_head_keeps_the_fused_path(qwen_model: Any) -> None:
    model = get_peft_model(qwen_model, LoraConfig(target_modules=["q_proj"], r=2, init_lora_weights=False))
    ids = torch.randint(0, 640, (2, 9))
    states = run_causal_lm(model, ids)
    assert states.head.weight is not None
    torch.testing.assert_close(states.head.logits(states.hidden), model(ids).logits)


def test_lora_on_the_head_falls_back_to_full_logits_and_says_so(
    qwen_model: Any, caplog: pytest.LogCaptureFixture
) -> None:
    model = get_peft_model(qwen_model, LoraConfig(target_modules=["lm_head"], r=2))
    ids = torch.randint(0, 640, (2, 9))
    with caplog.at_level(logging.WARNING):
        states = run_causal_lm(model, ids)
        run_causal_lm(model, ids)
    assert states.head.weight is None
    assert torch.equal(states.hidden, model(ids).logits)
    assert [record.message for record in caplog.records if "logits at every position" in record.message] == [
        "Qwen2ForCausalLM: its head is a peft.tuners.lora.layer.Linear. Losses will use logits at every position, "
        "and memory will grow with the vocabulary."
    ]


def test_a_head_with_a_forward_of_its_own_is_not_taken_apart(qwen_model: Any) -> None:
    """Quantised layers are subclasses of Linear whose weight is not what they multiply by."""

    class Quantised(torch.nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input)

    qwen_model.lm_head.__class__ = Quantised
    ids = torch.randint(0, 640, (2, 9))
    states = run_causal_lm(qwen_model, ids)
    assert states.head.weight is None
    assert torch.equal(states.hidden, qwen_model(ids).logits)


def test_logits_post_processed_in_an_unknown_way_fall_back(caplog: pytest.LogCaptureFixture) -> None:
    class Shifted(transformers.Qwen2ForCausalLM):
        def forward(self, *args: Any, logits_to_keep: int = 0, **kwargs: Any) -> Any:
            output = super().forward(*args, logits_to_keep=logits_to_keep, **kwargs)
            output.logits = output.logits * torch.linspace(1, 2, output.logits.shape[-1])
            return output

    model = Shifted(tiny_model("qwen2", vocab_size=60).config)
    ids = torch.randint(0, 60, (2, 5))
    with caplog.at_level(logging.WARNING):
        states = run_causal_lm(model, ids)
    assert states.head.weight is None
    assert torch.equal(states.hidden, model(ids).logits)
    assert "not a scaled, capped linear map" in caplog.text


def test_any_module_that_returns_logits_will_do() -> None:
    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(60, 60)

        def forward(self, input_ids: torch.Tensor) -> Any:
            return SimpleNamespace(logits=self.embedding(input_ids))

    model, ids = Plain(), torch.randint(0, 60, (2, 5))
    states = run_causal_lm(model, ids)
    assert torch.equal(states.head.logits(states.hidden), model(ids).logits)


def test_a_nan_says_nothing_of_the_head(qwen_model: Any, caplog: pytest.LogCaptureFixture) -> None:
    ids = torch.randint(0, 640, (1, 4))
    weight = qwen_model.model.layers[0].mlp.up_proj.weight
    with torch.no_grad():
        kept = weight[0, 0].clone()
        weight[0, 0] = math.nan
        run_causal_lm(qwen_model, ids)
        weight[0, 0] = kept
    assert run_causal_lm(qwen_model, ids).head.weight is not None
    assert caplog.text == ""


def test_prompt_tuning_reads_the_real_tokens(qwen_model: Any) -> None:
    model = get_peft_model(qwen_model, PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4))
    ids = torch.randint(0, 640, (2, 9))
    with torch.no_grad():
        states, logits = run_causal_lm(model, ids), model(ids).logits
    assert logits.shape[1] == 13
    assert states.hidden.shape[1] == 9
    torch.testing.assert_close(states.head.logits(states.hidden), logits[:, 4:])


def test_a_norm_between_backbone_and_head_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    class Normed(transformers.Qwen2ForCausalLM):
        def forward(self, input_ids: torch.Tensor, logits_to_keep: int = 0, **_: Any) -> Any:
            hidden = self.model(input_ids).last_hidden_state * 2.0
            return SimpleNamespace(logits=self.lm_head(hidden[:, -logits_to_keep:]))

    model, ids = Normed(tiny_model("qwen2", vocab_size=60).config), torch.randint(0, 60, (2, 5))
    states = run_causal_lm(model, ids)
    assert torch.equal(states.hidden, model(ids).logits)
    assert "not a scaled, capped linear map" in caplog.text


def test_a_sharded_or_offloaded_head_falls_back(qwen_model: Any, caplog: pytest.LogCaptureFixture) -> None:
    qwen_model.lm_head.weight.device_mesh = "as a DTensor has"
    states = run_causal_lm(qwen_model, torch.randint(0, 640, (1, 4)))
    assert states.head.weight is None
    assert "not here in one piece" in caplog.text


def test_the_configs_cap_is_kept_where_logits_are_too_small_to_show_it() -> None:
    config = transformers.Gemma2Config(**ARCHITECTURES["Gemma2"] | {"final_logit_softcapping": 1e6})
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    assert run_causal_lm(model, torch.randint(0, 60, (1, 4))).head.softcap == 1e6


def test_what_was_found_out_is_kept(qwen_model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    real = causal_lm._candidates
    monkeypatch.setattr(causal_lm, "_candidates", lambda inner: looked.append(inner) or real(inner))
    for _ in range(3):
        run_causal_lm(qwen_model, torch.randint(0, 640, (1, 4)))
    assert len(looked) == 1


def test_a_fallback_costs_one_pass_once_it_is_known() -> None:
    class Shifted(transformers.Qwen2ForCausalLM):
        def forward(self, *args: Any, logits_to_keep: int = 0, **kwargs: Any) -> Any:
            output = super().forward(*args, logits_to_keep=logits_to_keep, **kwargs)
            output.logits = output.logits * torch.linspace(1, 2, output.logits.shape[-1])
            return output

    model, ids = Shifted(tiny_model("qwen2", vocab_size=60).config), torch.randint(0, 60, (2, 5))
    run_causal_lm(model, ids)
    passes = []
    model.model.register_forward_hook(lambda *_: passes.append(1))
    run_causal_lm(model, ids)
    assert len(passes) == 1


def test_a_resized_vocabulary_is_noticed(qwen_model: Any) -> None:
    run_causal_lm(qwen_model, torch.randint(0, 640, (1, 4)))
    qwen_model.resize_token_embeddings(700)
    states = run_causal_lm(qwen_model, torch.randint(0, 700, (1, 4)))
    assert states.head.weight.shape[0] == 700


def test_evaluating_restores_each_modules_own_mode(qwen_model: Any) -> None:
    qwen_model.train()
    frozen = qwen_model.model.layers[0].eval()
    with evaluating(qwen_model):
        assert not any(module.training for module in qwen_model.modules())
    assert qwen_model.training
    assert qwen_model.model.layers[1].training
    assert not frozen.training


def test_a_backbone_that_can_no_longer_be_watched_gets_full_logits(
    qwen_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler may drop hooks that were not there when it traced the model."""
    ids = torch.randint(0, 640, (2, 5))
    run_causal_lm(qwen_model, ids)
    monkeypatch.setattr(qwen_model.model, "register_forward_hook", lambda _: SimpleNamespace(remove=lambda: None))
    states = run_causal_lm(qwen_model, ids)
    assert states.head.weight is None
    assert torch.equal(states.hidden, qwen_model(ids).logits)
