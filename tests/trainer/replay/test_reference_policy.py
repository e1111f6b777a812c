"""The reference policy: adapters off and back as they were; its fingerprint sees every weight and no adapter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model

from composer_replication._tiny import tiny_model
from composer_replication.trainer.replay.reference_policy import acts_as_reference, model_fingerprint, reference_policy

IDS = torch.arange(12).view(2, 6)


def base() -> Any:
    return tiny_model("qwen2", vocab_size=40, hidden_size=16, layers=1, heads=2, seed=2).eval()


def adapted(**settings: Any) -> Any:
    chosen = {"target_modules": ["q_proj", "down_proj"], "modules_to_save": ["lm_head"], "r": 2, **settings}
    model = get_peft_model(base(), LoraConfig(**chosen, init_lora_weights=False)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter))
    return model


def test_a_peft_model_without_its_adapters_and_saved_modules_is_its_base() -> None:
    model = adapted()
    trained = model(IDS).logits
    with torch.no_grad(), reference_policy(model) as policy:
        assert acts_as_reference(model)
        torch.testing.assert_close(policy(IDS).logits, base()(IDS).logits)
    assert not acts_as_reference(model)
    assert torch.equal(model(IDS).logits, trained)


def test_what_was_frozen_stays_frozen_and_what_was_trained_stays_trained() -> None:
    model = adapted()
    frozen = next(name for name, parameter in model.named_parameters() if "lora_A" in name)
    model.get_parameter(frozen).requires_grad_(False)
    before = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    with pytest.raises(KeyError), reference_policy(model):
        raise KeyError
    assert {name: parameter.requires_grad for name, parameter in model.named_parameters()} == before
    assert any(before.values())


def test_virtual_tokens_are_off_too() -> None:
    model = get_peft_model(base(), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))
    with torch.no_grad(), reference_policy(model) as policy:
        torch.testing.assert_close(policy(IDS).logits, base()(IDS).logits)
    assert model_fingerprint(model) == model_fingerprint(base())


def test_a_plain_model_is_its_own_reference_inside_wrappers() -> None:
    model = base()
    wrapper = torch.nn.Module()
    wrapper.module = model
    with reference_policy(wrapper) as policy:
        assert policy is model
    assert acts_as_reference(wrapper)
    assert model_fingerprint(wrapper) == model_fingerprint(model)


@pytest.mark.parametrize(
    "settings", [{}, {"use_dora": True}, {"trainable_token_indices": [1, 2], "modules_to_save": None}]
)
def test_a_fingerprint_is_that_of_the_base_whatever_the_adapters(settings: dict[str, Any]) -> None:
    model = adapted(**settings)
    assert model_fingerprint(model) == model_fingerprint(base())
    with reference_policy(model):
        assert model_fingerprint(model) == model_fingerprint(base())
    with torch.no_grad():
        model.get_parameter("base_model.model.model.layers.0.self_attn.q_proj.base_layer.weight")[0, 0] += 1e-6
    assert model_fingerprint(model) != model_fingerprint(base())


def test_a_fingerprint_sees_any_one_weight() -> None:
    model = base()
    seen = {model_fingerprint(model)}
    for count, parameter in enumerate(model.parameters(), start=1):
        flat = parameter.data.view(-1)
        place = count * 7 % flat.numel()
        flat[place] = torch.nextafter(flat[place], torch.tensor(9.0))
        seen.add(model_fingerprint(model))
        assert len(seen) == count + 1


def test_a_fingerprint_sees_swaps_across_any_distance() -> None:
    layer = torch.nn.Linear(1 << 12, (1 << 10) + 1, bias=False).to(torch.bfloat16)
    flat = layer.weight.data.view(-1)
    for one, other in ((0, 1), (3, (1 << 22) + 3)):
        before = model_fingerprint(layer)
        flat[one], flat[other] = 1.0, 2.0
        set_so = model_fingerprint(layer)
        flat[one], flat[other] = 2.0, 1.0
        assert len({before, set_so, model_fingerprint(layer)}) == 3


def test_a_fingerprint_sees_dtype_shape_and_what_the_config_says_of_the_pass() -> None:
    model = base()
    model.config.rope_parameters["rope_theta"] = 5e5
    idle = base()
    idle.config.use_cache, idle.config.pad_token_id, idle.config._name_or_path = False, 3, "elsewhere"
    assert model_fingerprint(idle) == model_fingerprint(base())
    others = [model_fingerprint(m) for m in (base(), base().to(torch.bfloat16), model)]
    assert len(set(others)) == 3
    flat, square = torch.nn.Linear(4, 1, bias=False), torch.nn.Linear(2, 2, bias=False)
    flat.weight.data.fill_(1.0), square.weight.data.fill_(1.0)
    assert model_fingerprint(flat) != model_fingerprint(square)


def test_a_fingerprint_does_not_depend_on_the_number_of_threads() -> None:
    layer = torch.nn.Linear(1 << 9, 1 << 8)
    alone = model_fingerprint(layer)
    torch.set_num_threads(3)
    try:
        assert model_fingerprint(layer) == alone
    finally:
        torch.set_num_threads(1)


def test_weights_that_are_elsewhere_are_refused() -> None:
    with torch.device("meta"):
        layer = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"bias is not here in one piece: .* before it is sharded or offloaded"):
        model_fingerprint(layer)
