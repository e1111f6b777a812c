"""The averaged self-teacher: parameters, LoRA updates, and the low-rank average of a layer."""

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
    trained_copies,
    with_parameters,
)

from composer_replication._tiny import tiny_model
from composer_replication.trainer.self_teachers import make_teacher
from composer_replication.trainer.self_teachers.averages import LowRankAverage


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_average_is_the_one_taken_by_hand(architecture: str, tied: bool) -> None:
    model = policy(architecture, tie_word_embeddings=tied)
    teacher, training = make_teacher("ema", model, rate=0.2), Training(model)
    by_hand = trained_copies(model)
    for _ in range(4):
        training.step()
        teacher.update()
        for name, parameter in trained_copies(model).items():
            by_hand[name] = 0.8 * by_hand[name] + 0.2 * parameter
    state = teacher.state_dict()
    assert state.keys() == by_hand.keys()
    assert ("lm_head.weight" in state) is not tied
    for name, value in by_hand.items():
        torch.testing.assert_close(state[name], value, rtol=1e-5, atol=1e-7)
    expected = with_parameters(model, by_hand)
    torch.testing.assert_close(logits(teacher), expected, rtol=1e-4, atol=1e-5)
    # The test must be able to tell the average from the policy, from its start and from the average at another rate.
    assert (own_logits(model) - expected).abs().max() > 0.02
    head = teacher.hinted_states(hinted_batch(), INDEX).head.weight
    assert head is not model.lm_head.weight
    torch.testing.assert_close(head, by_hand["model.embed_tokens.weight" if tied else "lm_head.weight"])


def test_the_default_rate_is_a_twentieth() -> None:
    model = policy()
    teacher = make_teacher("ema", model)
    start = model.lm_head.weight.detach().clone()
    model.lm_head.weight.data += 1.0
    teacher.update()
    torch.testing.assert_close(teacher.state_dict()["lm_head.weight"], start + 0.05)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_does_not_swallow_the_steps(dtype: torch.dtype) -> None:
    model = policy().to(dtype)
    weight = model.lm_head.weight
    weight.data.fill_(1.0)
    teacher = make_teacher("ema", model, rate=0.05)
    weight.data.fill_(1.0 + 4 * torch.finfo(dtype).eps)
    naive = torch.ones_like(weight)
    by_hand = torch.ones(weight.shape)
    for _ in range(20):
        teacher.update()
        naive.lerp_(weight.detach(), 0.05)
        by_hand = 0.95 * by_hand + 0.05 * weight.detach().float()
    assert torch.equal(naive, torch.ones_like(weight))  # each step is less than half of what the type can tell apart
    kept = teacher.state_dict()["lm_head.weight"]
    assert kept.dtype == torch.float32
    torch.testing.assert_close(kept, by_hand, rtol=1e-6, atol=0.0)
    states = teacher.hinted_states(hinted_batch(), INDEX)
    assert states.hidden.dtype == dtype
    assert torch.equal(states.head.weight, by_hand.to(dtype))
    assert (states.head.weight > 1).all()


@pytest.mark.parametrize("made", [lambda: policy().to(torch.bfloat16), lambda: lora_policy(trained=True)])
def test_averages_are_cast_once_per_update(made: Any) -> None:
    model = made()
    teacher = make_teacher("ema", model, rate=0.5)
    ran: list[list[torch.Tensor]] = []
    trained = [name.rpartition(".") for name, parameter in model.named_parameters() if parameter.requires_grad]

    def note(*_: Any) -> None:
        ran.append([getattr(model.get_submodule(module), name) for module, _, name in trained])

    model.register_forward_pre_hook(note)

    def passes() -> list[torch.Tensor]:
        """Two calls, of several passes each."""
        return [read(teacher.hinted_states(hinted_batch(), INDEX, 10)) for _ in range(2)]

    first = passes()
    assert len(ran) == 4
    assert all(one is other for tensors in ran for one, other in zip(tensors, ran[0], strict=True))
    state = teacher.state_dict()
    Training(model, learning_rate=0.5).step()
    ran.clear()
    assert torch.equal(passes()[0], first[0])  # the policy has moved, the teacher has not
    teacher.update()
    moved = passes()
    assert not torch.equal(moved[0], first[0])
    torch.testing.assert_close(moved[0], moved[1], rtol=0, atol=0)
    teacher.load_state_dict(state)
    assert torch.equal(passes()[0], first[0])
    model.to(torch.float64)
    assert teacher.hinted_states(hinted_batch(), INDEX).hidden.dtype == torch.float64


def test_buffers_are_the_policys_own() -> None:
    model = policy()
    model.model.register_buffer("shift", torch.zeros(32))
    model.model.register_forward_hook(
        lambda module, _, output: output.__class__(last_hidden_state=output.last_hidden_state + module.shift)
    )
    ema, frozen = make_teacher("ema", model), make_teacher("frozen", model)
    before = own_logits(model)
    model.model.shift += 1.0
    torch.testing.assert_close(logits(ema), own_logits(model))
    # As it was means as it was saved: a buffer that training moves is part of that.
    torch.testing.assert_close(logits(frozen), before)
    assert "model.shift" in frozen.state_dict()


@pytest.mark.parametrize("kind", ["ema", "frozen"])
def test_under_autocast(kind: Any) -> None:
    model = policy()
    teacher = make_teacher(kind, model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        autocast = logits(teacher)
        expected = own_logits(model)
        teacher.update()
    torch.testing.assert_close(autocast, expected)
    torch.testing.assert_close(logits(teacher), own_logits(model))


RANK, SCALING = 2, 1.5


def factors(step: int, outputs: int = 24, inputs: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """Unrelated ones at each step: the worst case for a fixed rank."""
    generator = torch.Generator().manual_seed(step)
    return torch.randn(RANK, inputs, generator=generator), torch.randn(outputs, RANK, generator=generator)


def dense(average: LowRankAverage) -> torch.Tensor:
    return average.left_OR.double() @ average.right_RI.double()


def product(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    return SCALING * B.double() @ A.double()


def test_exact_while_the_rank_allows_it() -> None:
    average = LowRankAverage(*factors(0), SCALING, rank=4 * RANK)
    exact = product(*factors(0))
    for step in (1, 2, 3):
        average.update(*factors(step), SCALING, 0.3)
        exact = 0.7 * exact + 0.3 * product(*factors(step))
        torch.testing.assert_close(dense(average), exact, rtol=1e-5, atol=1e-6)
    assert average.truncation < 1e-6
    assert (average.left_OR.shape, average.right_RI.shape) == ((24, 8), (8, 16))
    assert average.left_OR.dtype == average.right_RI.dtype == torch.float32


def test_what_the_rank_leaves_out_is_bounded_by_what_it_says() -> None:
    average = LowRankAverage(*factors(0), SCALING, rank=4 * RANK)
    exact = product(*factors(0))
    worst = 0.0
    for step in range(1, 12):
        average.update(*factors(step), SCALING, 0.3)
        exact = 0.7 * exact + 0.3 * product(*factors(step))
        difference = float((dense(average) - exact).norm())
        assert difference <= float(average.error) * (1 + 1e-4) + 1e-5
        worst = max(worst, difference / float(exact.norm()))
    assert 0.05 < worst <= float(average.truncation) < 3 * worst

    # What was lost once fades from the average, but the largest loss is what a log should show.
    largest = float(average.truncation)
    for _ in range(30):
        average.update(*factors(0), SCALING, 0.3)
    assert average.error / exact.norm() < 0.01
    assert float(average.truncation) >= largest


def test_one_truncation_drops_the_smallest_singular_values_and_no_more() -> None:
    average = LowRankAverage(*factors(0), SCALING, rank=RANK)
    average.update(*factors(1), SCALING, 0.5)
    exact = 0.5 * product(*factors(0)) + 0.5 * product(*factors(1))
    singular = torch.linalg.svdvals(exact)
    torch.testing.assert_close((dense(average) - exact).norm(), singular[RANK:].norm(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(average.error.double(), singular[RANK:].norm(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(average.truncation.double(), singular[RANK:].norm() / singular.norm(), rtol=1e-4, atol=0)


def test_the_first_value_is_the_layers_own_and_zero_stays_zero() -> None:
    A, B = factors(0)
    torch.testing.assert_close(dense(LowRankAverage(A, B, SCALING, rank=8)), product(A, B), rtol=1e-5, atol=1e-6)
    zero = LowRankAverage(A, torch.zeros_like(B), SCALING, rank=8)
    zero.update(A, torch.zeros_like(B), SCALING, 0.1)
    assert not dense(zero).any()
    assert zero.truncation == 0


@pytest.mark.parametrize(("outputs", "inputs"), [(3, 16), (16, 3), (1, 5), (7, 7)])
def test_a_narrow_layer_needs_no_more_than_its_full_rank(outputs: int, inputs: int) -> None:
    average = LowRankAverage(*factors(0, outputs, inputs), SCALING, rank=4 * RANK)
    exact = product(*factors(0, outputs, inputs))
    for step in range(1, 9):
        average.update(*factors(step, outputs, inputs), SCALING, 0.2)
        exact = 0.8 * exact + 0.2 * product(*factors(step, outputs, inputs))
    assert average.left_OR.shape == (outputs, min(outputs, inputs, 8))
    torch.testing.assert_close(dense(average), exact, rtol=1e-5, atol=1e-6)


def test_half_precision_of_the_caller_stays_outside() -> None:
    A, B = factors(0)
    average = LowRankAverage(A.bfloat16(), B.bfloat16(), SCALING, rank=8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        average.update(A.bfloat16(), B.bfloat16(), SCALING, 0.5)
    torch.testing.assert_close(dense(average), product(A.bfloat16(), B.bfloat16()), rtol=1e-5, atol=1e-6)


def test_weights_that_are_not_finite_are_refused() -> None:
    A, B = factors(0)
    average = LowRankAverage(A, B, SCALING, rank=8)
    with pytest.raises(ValueError, match="weights are not finite"):
        average.update(A * torch.nan, B, SCALING, 0.5)


# The measured numbers: `pytest tests/trainer/self_teachers/test_averages.py --log-cli-level=INFO`
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
