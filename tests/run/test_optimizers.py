"""Which parameters go to which optimiser, and that a checkpoint brings back the very same run."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from composer_replication._tiny import tiny_model
from composer_replication.run.optimizers import MuonAndAdamW, OptimizerFactory, make_optimizer
from composer_replication.run.sections import MuonSection, OptimizerSection

SETTINGS: dict[str, Any] = {"lr": 1e-2, "weight_decay": 0.1}


def small_model(*, tied: bool = False) -> Any:
    return tiny_model("qwen2", vocab_size=64, hidden_size=16, tie_word_embeddings=tied, seed=3)


def optimizer_of(model: nn.Module, name: Any, **settings: Any) -> Any:
    return make_optimizer(model, OptimizerSection(name=name, **settings))


def train(model: nn.Module, optimizer: Any, scheduler: LambdaLR, steps: range) -> list[float]:
    losses = []
    for step in steps:
        ids = torch.randint(0, 64, (2, 8), generator=torch.Generator().manual_seed(step))
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


def warming_up(optimizer: Any) -> LambdaLR:
    return LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 5))


def names_in(model: nn.Module, groups: list[dict[str, Any]]) -> set[str]:
    held = {id(one) for group in groups for one in group["params"]}
    return {name for name, one in model.named_parameters() if id(one) in held}


@pytest.mark.parametrize("tied", [False, True])
def test_muon_gets_the_matrices_of_the_blocks(tied: bool) -> None:
    model = small_model(tied=tied)
    optimizer = optimizer_of(model, "muon", **SETTINGS)
    assert isinstance(optimizer, MuonAndAdamW)
    muon = names_in(model, optimizer.param_groups[:1])
    adamw = names_in(model, optimizer.param_groups[1:])
    assert not muon & adamw
    assert muon | adamw == {name for name, _ in model.named_parameters()}
    assert "model.embed_tokens.weight" in adamw
    assert ("lm_head.weight" in adamw) is not tied
    assert all(".layers." in name and name.endswith("proj.weight") for name in muon)
    assert len(muon) == 2 * 7
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(model.parameters()))


def test_norms_and_biases_are_not_decayed() -> None:
    model = small_model()
    for name in ("adamw", "muon"):
        optimizer = optimizer_of(model, name, **SETTINGS)
        for group in optimizer.param_groups:
            vectors = [one.ndim < 2 for one in group["params"]]
            assert all(vectors) or not any(vectors)
            assert group["weight_decay"] == (0.0 if vectors[0] else 0.1)


def test_a_muon_step_is_torchs_own() -> None:
    model = small_model()
    twin = copy.deepcopy(model)
    optimizer = optimizer_of(
        model,
        "muon",
        **SETTINGS,
        muon=MuonSection(lr=3e-2, weight_decay=0.2, momentum=0.9, ns_steps=3),
    )
    name = "model.layers.0.mlp.up_proj.weight"
    alone = torch.optim.Muon(
        [twin.get_parameter(name)],
        lr=3e-2,
        weight_decay=0.2,
        momentum=0.9,
        ns_steps=3,
        adjust_lr_fn="match_rms_adamw",
    )
    ids = torch.arange(8)[None]
    for one in (model, twin):
        one(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    alone.step()
    assert torch.equal(model.get_parameter(name), twin.get_parameter(name))
    # Its update is as large as AdamW's would be: 0.2 a number, times the learning rate.
    before = twin.get_parameter("model.layers.1.mlp.up_proj.weight")
    update = before * (1 - 3e-2 * 0.2) - model.get_parameter("model.layers.1.mlp.up_proj.weight")
    assert 0.1 < float(update.detach().square().mean().sqrt() / 3e-2) < 0.3


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_resuming_from_a_checkpoint_is_exact(name: Any) -> None:
    whole = small_model()
    optimizer = optimizer_of(whole, name, **SETTINGS)
    scheduler = warming_up(optimizer)
    losses = train(whole, optimizer, scheduler, range(3))
    file = io.BytesIO()
    torch.save({"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}, file)
    weights = {key: value.clone() for key, value in whole.state_dict().items()}
    losses += train(whole, optimizer, scheduler, range(3, 7))

    resumed = small_model()
    resumed.load_state_dict(weights)
    again = optimizer_of(resumed, name, **SETTINGS)
    its_scheduler = warming_up(again)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    again.load_state_dict(saved["optimizer"])
    its_scheduler.load_state_dict(saved["scheduler"])
    assert train(resumed, again, its_scheduler, range(3, 7)) == losses[3:]
    for (key, one), other in zip(whole.state_dict().items(), resumed.state_dict().values(), strict=True):
        assert torch.equal(one, other), key


def test_a_fresh_optimiser_would_not_have_been_exact() -> None:
    model = small_model()
    optimizer = optimizer_of(model, "muon", **SETTINGS)
    train(model, optimizer, warming_up(optimizer), range(3))
    twin = copy.deepcopy(model)
    fresh = optimizer_of(twin, "muon", **SETTINGS)
    scheduler = warming_up(optimizer)
    assert train(model, optimizer, scheduler, range(3, 6)) != train(twin, fresh, warming_up(fresh), range(3, 6))


def test_a_scheduler_reaches_both_before_and_after_loading() -> None:
    model = small_model()
    optimizer = optimizer_of(model, "muon", **SETTINGS)
    train(model, optimizer, warming_up(optimizer), range(1))
    optimizer.load_state_dict(optimizer.state_dict())
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    before = copy.deepcopy(model.state_dict())
    train(model, optimizer, LambdaLR(optimizer, lambda _: 0.0), range(1, 3))
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())


def test_state_covers_every_parameter() -> None:
    model = small_model()
    optimizer = optimizer_of(model, "muon", **SETTINGS)
    train(model, optimizer, warming_up(optimizer), range(1))
    state = optimizer.state_dict()["state"]
    assert len(state) == len(list(model.parameters()))
    assert {frozenset(one) for one in state.values()} == {
        frozenset({"momentum_buffer"}),
        frozenset({"step", "exp_avg", "exp_avg_sq"}),
    }


def test_frozen_parameters_are_left_out_and_nothing_to_train_is_an_error() -> None:
    model = small_model()
    model.model.embed_tokens.requires_grad_(False)
    optimizer = optimizer_of(model, "muon", **SETTINGS)
    assert "model.embed_tokens.weight" not in names_in(model, optimizer.param_groups)
    model.requires_grad_(False)
    with pytest.raises(ValueError, match="nothing to train"):
        optimizer_of(model, "adamw", **SETTINGS)
    model.lm_head.requires_grad_(True)
    with pytest.raises(ValueError, match="no matrix to train"):
        optimizer_of(model, "muon", **SETTINGS)
    with pytest.raises(ValueError, match="name must be one of"):
        optimizer_of(model, "sgd", **SETTINGS)


def test_parameters_cannot_be_added_later() -> None:
    optimizer = optimizer_of(small_model(), "muon", **SETTINGS)
    with pytest.raises(RuntimeError, match="cannot be added later"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2, 2))]})


def test_a_wrapped_models_head_is_still_its_head() -> None:
    class Wrapped(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

    model = Wrapped(small_model())
    optimizer = OptimizerFactory()(model, name="muon", **SETTINGS)
    assert "module.lm_head.weight" in names_in(model, optimizer.param_groups[1:])
