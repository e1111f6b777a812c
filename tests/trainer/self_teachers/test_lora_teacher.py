"""The moving average of adapters: of what they do, over a real training run, at an adapter's cost."""

from __future__ import annotations

import gc
import logging
from typing import Any

import pytest
import torch
from peft import IA3Config, LoraConfig, PromptTuningConfig, get_peft_model
from trainer.self_teachers.small_policies import (
    ARCHITECTURES,
    INDEX,
    LINEAR,
    Training,
    hinted_batch,
    logits,
    lora_policy,
    own_logits,
    policy,
    read,
    with_parameters,
)

from composer_replication._tiny import tiny_model
from composer_replication.trainer.self_teachers import make_teacher

# The measured numbers: `pytest tests/trainer/teachers/test_lora_teacher.py --log-cli-level=INFO`
logger = logging.getLogger(__name__)


def lora_layers(model: Any) -> dict[str, Any]:
    return {name: module for name, module in model.named_modules() if hasattr(module, "lora_A")}


def effective(layer: Any) -> torch.Tensor:
    A, B = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    return (layer.scaling["default"] * B.double() @ A.double()).detach()


def kept(teacher: Any, name: str) -> torch.Tensor:
    state = teacher.state_dict()
    return state[f"{name}.left_OR"].double() @ state[f"{name}.right_RI"].double()


def relative(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize("trained", [False, True], ids=["new adapter", "trained adapter"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_fifty_steps_against_the_dense_average(architecture: str, trained: bool) -> None:
    model = lora_policy(architecture, trained=trained)
    layers = lora_layers(model)
    teacher, training = make_teacher("ema", model, rate=0.05), Training(model)
    exact = {name: effective(layer) for name, layer in layers.items()}
    apart = {
        name: (layer.lora_A["default"].weight.detach().clone(), layer.lora_B["default"].weight.detach().clone())
        for name, layer in layers.items()
    }
    for _ in range(50):
        training.step()
        teacher.update()
        for name, layer in layers.items():
            exact[name] = 0.95 * exact[name] + 0.05 * effective(layer)
            for average, module in zip(apart[name], (layer.lora_A, layer.lora_B), strict=True):
                average.lerp_(module["default"].weight.detach(), 0.05)
    errors = {name: relative(kept(teacher, name), exact[name]) for name in layers}
    averaged_apart = {
        name: relative(layers[name].scaling["default"] * B.double() @ A.double(), exact[name])
        for name, (A, B) in apart.items()
    }
    logger.info(
        "largest relative error %.1e, bound %.1e, of A and B averaged apart %.1e",
        max(errors.values()),
        teacher.truncation,
        max(averaged_apart.values()),
    )
    assert max(errors.values()) < 1e-3
    assert max(errors.values()) <= teacher.truncation + 1e-6 < 1e-2
    assert max(averaged_apart.values()) > 10 * max(errors.values())

    # The teacher's pass is that of a model whose weights have the dense average added.
    base = {f"{name}.base_layer.weight": layer.base_layer.weight.detach().clone() for name, layer in layers.items()}
    merged = {f"{name}.base_layer.weight": base[f"{name}.base_layer.weight"] + exact[name] for name in layers}
    without = {
        f"{name}.lora_B.default.weight": torch.zeros_like(layer.lora_B["default"].weight)
        for name, layer in layers.items()
    }
    expected = with_parameters(model, {**merged, **without})
    torch.testing.assert_close(logits(teacher), expected, rtol=1e-3, atol=1e-3)
    assert (own_logits(model) - expected).abs().max() > 0.05


@pytest.mark.parametrize(
    "options",
    [
        {"use_rslora": True},
        {"lora_bias": True, "target_modules": ["q_proj", "v_proj"]},
        {"bias": "lora_only"},
        {"modules_to_save": ["lm_head"]},
        {"modules_to_save": ["embed_tokens", "lm_head"]},
        {"trainable_token_indices": list(range(40))},
        {"rank_pattern": {"q_proj": 3}, "target_modules": [*LINEAR, "lm_head"]},
    ],
    ids=lambda options: " ".join(options),
)
def test_one_step_by_hand(options: dict[str, Any]) -> None:
    """Rank-stabilised scaling, and the parameters beside the factors that a PEFT model may train."""
    model = lora_policy(trained=True, **options)
    teacher = make_teacher("ema", model, rate=0.25)
    start = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    first = {name: effective(layer) for name, layer in lora_layers(model).items()}
    training = Training(model, learning_rate=0.1)
    for _ in range(3):
        training.step()
    teacher.update()
    values = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and not name.endswith(("lora_A.default.weight", "lora_B.default.weight")):
            values[name] = 0.75 * start[name] + 0.25 * parameter.detach()
            assert not torch.equal(values[name], start[name])
            torch.testing.assert_close(teacher.state_dict()[name], values[name])
    for name, layer in lora_layers(model).items():
        average = 0.75 * first[name] + 0.25 * effective(layer)
        torch.testing.assert_close(kept(teacher, name), average, rtol=1e-4, atol=1e-6)
        values[f"{name}.base_layer.weight"] = layer.base_layer.weight.detach() + average.float()
        values[f"{name}.lora_B.default.weight"] = torch.zeros_like(layer.lora_B["default"].weight)
    before = own_logits(model)
    expected = with_parameters(model, values)
    # The head that comes with the hidden states is read after the pass: it must be the teacher's.
    torch.testing.assert_close(logits(teacher), expected, rtol=1e-4, atol=1e-4)
    assert (before - expected).abs().max() > 0.02
    assert torch.equal(own_logits(model), before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("autocast", [True, False])
def test_adapters_in_single_precision_over_a_base_in_half(dtype: torch.dtype, autocast: bool) -> None:
    model = lora_policy(trained=True)
    for name, parameter in model.named_parameters():
        parameter.data = parameter.data.to(torch.float32 if "lora_" in name else dtype)
    teacher = make_teacher("ema", model)
    Training(model).step()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        teacher.update()
        states = teacher.hinted_states(hinted_batch(), INDEX)
        expected = own_logits(model)
        live = make_teacher("live", model).hinted_states(hinted_batch(), INDEX)
    assert states.hidden.dtype == live.hidden.dtype
    torch.testing.assert_close(read(states), expected, rtol=0.1, atol=0.1)


def test_a_lora_teacher_costs_no_second_model() -> None:
    base = tiny_model("llama", vocab_size=640, hidden_size=128, seed=0)
    model = get_peft_model(base, LoraConfig(r=1, target_modules=["q_proj", "v_proj"]))
    whole = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    for kind in ("ema", "frozen", "trust_region"):
        gc.collect()
        gc.freeze()  # what is there so far is not looked at again
        try:
            teacher: Any = make_teacher(kind, model)
            logits(teacher)
            teacher.update()
            gc.collect()
            new = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]
        finally:
            gc.unfreeze()
        held = sum(tensor.untyped_storage().nbytes() for tensor in new)
        logger.info("%s: %.2f %% of the model's bytes", kind, 100 * held / whole)
        assert 0 < held < 0.02 * whole


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: lora_policy(use_dora=True), r"layer .* uses the LoRA variant DoraLinearVariant, of which .* 'frozen'"),
        (lambda: lora_policy(target_modules=["embed_tokens", "q_proj"]), r"embed_tokens is a .*layer\.Embedding, not"),
        (lambda: get_peft_model(policy(), IA3Config(target_modules=["k_proj"], feedforward_modules=[])), "method IA3"),
        (
            lambda: get_peft_model(policy(), PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM")),
            "method PROMPT_TUNING",
        ),
        (lambda: lora_policy(lora_alpha=0), r"q_proj scales its adapter by 0"),
    ],
)
def test_adapters_without_an_exact_average_are_refused(build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_teacher("ema", build())


def test_several_adapters_at_once_are_refused() -> None:
    model = lora_policy()
    model.add_adapter("second", model.peft_config["default"])
    assert make_teacher("ema", model).state_dict()
    model.base_model.set_adapter(["default", "second"])
    with pytest.raises(ValueError, match=r"several active adapters \(default, second\)"):
        make_teacher("ema", model)


def test_an_adapter_that_transformers_has_added_itself() -> None:
    model = policy()
    model.add_adapter(LoraConfig(r=2, target_modules=LINEAR))
    teacher, before = make_teacher("ema", model), own_logits(model)
    training = Training(model, learning_rate=0.1)
    for _ in range(3):
        training.step()
    torch.testing.assert_close(logits(teacher), before)
    layers = lora_layers(model)
    teacher.update()
    for name, layer in layers.items():
        torch.testing.assert_close(kept(teacher, name), 0.05 * effective(layer), rtol=1e-4, atol=1e-7)


def test_a_layer_that_blows_up_is_named() -> None:
    model = lora_policy(trained=True)
    teacher = make_teacher("ema", model)
    name, layer = next(iter(lora_layers(model).items()))
    layer.lora_A["default"].weight.data.fill_(float("inf"))
    with pytest.raises(ValueError, match=f"layer {name}: the adapter's weights are not finite"):
        teacher.update()


def test_the_factors_stay_out_of_what_is_saved_and_optimised() -> None:
    model = lora_policy(trained=True)
    keys, parameters = list(model.state_dict()), [id(parameter) for parameter in model.parameters()]
    teacher = make_teacher("ema", model)
    logits(teacher)
    teacher.update()
    assert keys == list(model.state_dict())
    assert parameters == [id(parameter) for parameter in model.parameters()]
    assert model.active_adapters == ["default"]
