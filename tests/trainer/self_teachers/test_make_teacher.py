"""What all teachers have in common, and what they refuse."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import IA3Config, get_peft_model
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.tensor import DTensor
from trainer.self_teachers.small_policies import (
    ARCHITECTURES,
    INDEX,
    Training,
    hinted_batch,
    logits,
    lora_policy,
    own_logits,
    policy,
    read,
    trained_copies,
)

from composer_replication.causal_lm import HiddenStates, run_causal_lm
from composer_replication.channels import sdpo_channel
from composer_replication.distillation import LogitHead
from composer_replication.opsd import GeneralizedJSD
from composer_replication.trainer.self_teachers import make_teacher

KINDS = ("ema", "frozen", "live", "trust_region")
POLICIES = {
    "full": policy,
    "tied": lambda architecture: policy(architecture, tie_word_embeddings=True),
    "lora": lambda architecture: lora_policy(architecture, trained=True),
    "lora and head": lambda architecture: lora_policy(architecture, trained=True, modules_to_save=["lm_head"]),
}

every_kind = pytest.mark.parametrize("kind", KINDS)
every_policy = pytest.mark.parametrize("build", POLICIES.values(), ids=POLICIES.keys())
every_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)


@every_kind
@every_policy
@every_architecture
def test_a_new_teacher_is_the_policy_and_leaves_it_as_it_was(kind: Any, build: Any, architecture: str) -> None:
    model = build(architecture)
    Training(model).step()  # leaves gradients behind
    model.get_submodule(next(name for name, _ in model.named_modules() if name.endswith("layers.0"))).eval()
    before = {name: (id(p), p.requires_grad, p.detach().clone(), p.grad) for name, p in model.named_parameters()}
    modes = [module.training for module in model.modules()]
    keys, hooks = list(model.state_dict()), [len(module._forward_hooks) for module in model.modules()]
    expected = own_logits(model)
    teacher = make_teacher(kind, model)
    states = teacher.hinted_states(hinted_batch(), INDEX)
    teacher.update()
    assert teacher.kind == kind
    assert not states.hidden.requires_grad
    torch.testing.assert_close(read(states), expected, rtol=1e-4, atol=1e-5)
    assert modes == [module.training for module in model.modules()]
    assert keys == list(model.state_dict())
    assert hooks == [len(module._forward_hooks) for module in model.modules()]
    for name, parameter in model.named_parameters():
        identity, requires_grad, value, grad = before[name]
        assert (id(parameter), parameter.requires_grad) == (identity, requires_grad)
        assert torch.equal(parameter, value)
        assert parameter.grad is grad
    assert torch.equal(own_logits(model), expected)


@every_policy
def test_a_frozen_teacher_stays_and_a_live_one_follows(build: Any) -> None:
    model = build("qwen2")
    frozen, live, ema = (make_teacher(kind, model) for kind in ("frozen", "live", "ema"))
    before = own_logits(model)
    training = Training(model)
    for _ in range(6):
        training.step()
        frozen.update()
        live.update()
    now = own_logits(model)
    assert (now - before).abs().max() > 0.05
    torch.testing.assert_close(logits(frozen), before)
    torch.testing.assert_close(logits(live), now)
    # Nobody called its update.
    torch.testing.assert_close(logits(ema), before, rtol=1e-4, atol=1e-5)


@every_kind
@every_policy
def test_gradients_reach_the_student_only(kind: Any, build: Any) -> None:
    model = build("qwen2").train()
    teacher = make_teacher(kind, model)
    training = Training(model)
    for _ in range(2):
        training.step()
        teacher.update()
    batch = {**hinted_batch(), "input_ids": hinted_batch()["ctx_teacher_input_ids"].clone()}
    batch["input_ids"][:, 0] = 5  # the student's context lacks something
    batch["sdpo_student_index"] = batch["sdpo_teacher_index"] = INDEX
    student_alone = copy.deepcopy(model)
    given = read(teacher.hinted_states(batch, INDEX))

    def gradients(student: Any, teach: Any) -> dict[str, torch.Tensor]:
        student.zero_grad()
        torch.manual_seed(0)
        states = run_causal_lm(student, batch["input_ids"])
        sdpo_channel(states, teach, batch, GeneralizedJSD(beta=0.5)).loss.backward()
        return {name: p.grad for name, p in student.named_parameters() if p.grad is not None}

    with_teacher = gradients(model, teacher.hinted_states)
    # The same against logits that nothing can flow into.
    alone = gradients(student_alone, lambda *_: HiddenStates(given, LogitHead(None)))
    assert with_teacher.keys() == alone.keys()
    for name, gradient in with_teacher.items():
        torch.testing.assert_close(gradient, alone[name], rtol=1e-3, atol=1e-6)


@every_kind
@every_policy
def test_a_saved_state_goes_on_as_if_nothing_had_happened(kind: Any, build: Any, tmp_path: Path) -> None:
    model = build("llama")
    resumed_model = copy.deepcopy(model)
    teacher = make_teacher(kind, model, rate=0.3, mix=0.4)
    training = Training(model)
    for _ in range(3):
        training.step()
        teacher.update()
    save_file(teacher.state_dict(), tmp_path / "teacher.safetensors")
    assert (kind == "live") == (not teacher.state_dict())
    saved = trained_copies(model)
    again = Training(resumed_model)
    for _ in range(2):
        again.step()  # somewhere else than where the teacher was made or saved
    resumed = make_teacher(kind, resumed_model, rate=0.3, mix=0.4)
    for name, parameter in resumed_model.named_parameters():
        if name in saved:
            parameter.data.copy_(saved[name])
    resumed.load_state_dict(load_file(tmp_path / "teacher.safetensors"))
    assert torch.equal(logits(resumed), logits(teacher))
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.data.mul_(1.01)
            dict(resumed_model.named_parameters())[name].data.mul_(1.01)
    teacher.update()
    resumed.update()
    assert torch.equal(logits(resumed), logits(teacher))
    for name, tensor in teacher.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name


@pytest.mark.parametrize("kind", ["ema", "frozen", "trust_region"])
def test_a_saved_state_is_a_copy_and_so_is_a_loaded_one(kind: Any) -> None:
    model = policy()
    teacher = make_teacher(kind, model)
    state = teacher.state_dict()
    before = logits(teacher)
    for tensor in state.values():
        tensor.zero_()
    assert torch.equal(logits(teacher), before)
    state = teacher.state_dict()
    teacher.load_state_dict(state)
    for tensor in state.values():
        tensor.zero_()
    assert torch.equal(logits(teacher), before)


@every_kind
def test_a_state_that_does_not_fit_is_named_and_changes_nothing(kind: Any) -> None:
    teacher = make_teacher(kind, lora_policy(trained=True))
    before, state = logits(teacher), teacher.state_dict()
    with pytest.raises(ValueError, match=r"has, of no use to this policy, nonsense"):
        teacher.load_state_dict({**state, "nonsense": torch.zeros(1)})
    if kind == "live":
        return
    first, second, *_ = sorted(state)
    damaged = {name: torch.zeros_like(tensor) for name, tensor in state.items() if name != first}
    damaged[second] = torch.zeros(7, 7)
    with pytest.raises(ValueError, match=rf"lacks {first}; it has in another shape {second} \(7, 7\) instead of \("):
        teacher.load_state_dict(damaged)
    assert torch.equal(logits(teacher), before)


@pytest.mark.parametrize("kind", ["ema", "frozen", "trust_region"])
@every_architecture
def test_patches_of_a_trainer_do_not_lead_the_pass_to_the_students_weights(kind: Any, architecture: str) -> None:
    """Trainers replace `forward` on the instance, where a deep copy would still find the original model."""
    from trl.trainer.utils import add_fused_lm_head

    model = policy(architecture)
    add_fused_lm_head(model)
    calls = []
    model.model.register_forward_hook(lambda *_: calls.append(1))
    before = own_logits(model)
    teacher = make_teacher(kind, model, mix=0.0)
    training = Training(model)
    for _ in range(3):
        training.step()
    calls.clear()
    torch.testing.assert_close(logits(teacher), before)
    assert calls
    assert (own_logits(model) - before).abs().max() > 0.05


@pytest.mark.parametrize("kind", ["ema", "frozen"])
@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_of_the_policy_and_a_pass_before_its_backward(kind: Any, reentrant: bool) -> None:
    plain = lora_policy(trained=True, lora_dropout=0.0)
    model = copy.deepcopy(plain)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    model.enable_input_require_grads()
    teacher = make_teacher(kind, model)
    batch, gradients = hinted_batch(), []
    for student, pass_between in ((plain, False), (model, True)):
        student.train()
        loss = student(batch["ctx_teacher_input_ids"], attention_mask=batch["ctx_teacher_attention_mask"]).logits
        if pass_between:
            with torch.no_grad():
                before = logits(teacher)
        loss.square().mean().backward()
        gradients.append({name: p.grad for name, p in student.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(before, own_logits(model), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["ema", "frozen", "trust_region"])
@every_policy
def test_an_interrupted_pass_leaves_the_policy_whole(kind: Any, build: Any) -> None:
    model = build("qwen2")
    teacher = make_teacher(kind, model)
    Training(model).step()
    before, flags = own_logits(model), [p.requires_grad for p in model.parameters()]
    training_modes = [module.training for module in model.modules()]

    def fail(*_: Any) -> None:
        raise RuntimeError("out of memory")

    hook = next(m for name, m in model.named_modules() if name.endswith("layers.1")).register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        logits(teacher)
    hook.remove()
    assert torch.equal(own_logits(model), before)
    assert flags == [p.requires_grad for p in model.parameters()]
    assert training_modes == [module.training for module in model.modules()]
    assert all(isinstance(parameter, nn.Parameter) for parameter in model.parameters())


@pytest.mark.parametrize("kind", ["ema", "frozen"])
def test_a_policy_that_moves_to_another_type_takes_its_teacher_along(kind: Any) -> None:
    model = policy()
    teacher = make_teacher(kind, model)
    model.to(torch.bfloat16)
    states = teacher.hinted_states(hinted_batch(), INDEX)
    assert states.hidden.dtype == torch.bfloat16
    teacher.update()
    torch.testing.assert_close(read(states), own_logits(model), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("kind", ["ema", "frozen", "trust_region"])
def test_what_does_not_train_is_shared(kind: Any) -> None:
    model = policy()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("layers.1" in name)
    teacher = make_teacher(kind, model)
    assert set(teacher.state_dict()) == set(trained_copies(model))
    states = teacher.hinted_states(hinted_batch(), INDEX)
    assert states.head.weight is model.lm_head.weight


@pytest.mark.parametrize("kind", ["ema", "frozen", "trust_region"])
def test_policies_that_no_teacher_could_follow_are_refused(kind: Any) -> None:
    model = policy()
    model.requires_grad_(False)
    with pytest.raises(ValueError, match=r"no parameter of the policy .* requires gradient"):
        make_teacher(kind, model)

    model = policy()
    for parameter in model.lm_head.parameters():
        parameter.requires_grad_(False)
    teacher = make_teacher(kind, model)
    model.requires_grad_(True)
    with pytest.raises(ValueError, match=r"1 parameters train that did not .* lm_head.weight: set requires_grad"):
        logits(teacher)

    model = policy()
    teacher = make_teacher(kind, model)
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.to("meta"))
    with pytest.raises(ValueError, match=r"lm_head.weight of the policy is sharded or offloaded"):
        logits(teacher)


def test_a_sharded_policy_is_refused(tmp_path: Path) -> None:
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate

    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        model = policy()
        head = DTensor.from_local(model.lm_head.weight.detach(), mesh, [Replicate()])
        model.lm_head.weight = nn.Parameter(head)
        with pytest.raises(ValueError, match=r"lm_head.weight of the policy is sharded or offloaded: only the live"):
            make_teacher("ema", model)
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize("kind", ["ema", "frozen", "trust_region"])
def test_adapters_that_are_not_in_force_are_refused_at_the_pass(kind: Any) -> None:
    model = lora_policy(trained=True)
    teacher = make_teacher(kind, model)
    before = logits(teacher)
    with model.disable_adapter(), pytest.raises(ValueError, match="are disabled: leave `disable_adapter"):
        logits(teacher)
    model.merge_adapter()
    with pytest.raises(ValueError, match=r"merged into .*: unmerge them"):
        logits(teacher)
    with pytest.raises(ValueError, match=r"merged into .*: unmerge them"):
        make_teacher(kind, model)
    model.unmerge_adapter()
    # As TRL adds and uses its reference adapter.
    model.add_adapter("ref", model.peft_config["default"])
    torch.testing.assert_close(logits(teacher), before, rtol=1e-4, atol=1e-5)
    model.set_adapter("ref")
    with pytest.raises(ValueError, match="active adapters are not those of the time when the teacher was made"):
        logits(teacher)
    model.set_adapter("default")
    torch.testing.assert_close(logits(teacher), before, rtol=1e-4, atol=1e-5)


def test_frozen_takes_any_adapter() -> None:
    ia3 = get_peft_model(policy(), IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]))
    for model in (ia3, lora_policy(use_dora=True, trained=True), lora_policy(target_modules=["embed_tokens"])):
        teacher, before = make_teacher("frozen", model), own_logits(model)
        training = Training(model, learning_rate=0.1)
        for _ in range(3):
            training.step()
        assert (own_logits(model) - before).abs().max() > 1e-3
        torch.testing.assert_close(logits(teacher), before)


def test_wrappers_of_data_parallel_training_are_looked_through() -> None:
    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

    model = policy()
    for kind in KINDS:
        teacher = make_teacher(kind, Wrapper(model))
        assert teacher.state_dict().keys() == make_teacher(kind, model).state_dict().keys()
        torch.testing.assert_close(logits(teacher), own_logits(model))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "past"}, "kind must be one of 'ema', 'frozen', 'live', 'trust_region', got 'past'"),
        ({"kind": "ema", "rate": 0.0}, "rate must be a positive finite number, got 0.0"),
        ({"kind": "ema", "rate": 1.5}, r"rate must be in \[0, 1\], got 1.5"),
        ({"kind": "trust_region", "mix": -0.1}, r"mix must be in \[0, 1\], got -0.1"),
    ],
)
def test_settings_out_of_range_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_teacher(model=policy(), **arguments)
