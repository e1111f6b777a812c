"""Policies to teach, and what the teachers' tests do to them."""

from __future__ import annotations

from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from composer_replication._tiny import tiny_model
from composer_replication.causal_lm import HiddenStates, run_causal_lm
from composer_replication.trainer.self_teachers import SelfTeacher

ARCHITECTURES = ("qwen2", "llama")
LINEAR = ["q_proj", "v_proj", "down_proj"]
VOCABULARY = 96


def policy(architecture: str = "qwen2", **options: Any) -> Any:
    return tiny_model(architecture, vocab_size=VOCABULARY, hidden_size=32, seed=3, **options)


def lora_policy(architecture: str = "qwen2", *, trained: bool = False, **options: Any) -> Any:
    """A policy with an adapter; `trained`: one whose B is no longer zero."""
    settings = {"r": 2, "lora_alpha": 6, "target_modules": LINEAR, "lora_dropout": 0.1, "task_type": "CAUSAL_LM"}
    model = get_peft_model(policy(architecture), LoraConfig(**{**settings, **options}))
    if trained:
        generator = torch.Generator().manual_seed(5)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model


def hinted_batch() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(VOCABULARY, (3, 12), generator=generator)
    attention_mask = torch.ones_like(ids)
    attention_mask[2, 9:] = 0
    return {"ctx_teacher_input_ids": ids, "ctx_teacher_attention_mask": attention_mask}


# The row in the middle is not needed.
INDEX = torch.tensor([[0, 4], [0, 5], [2, 7], [2, 8]])


def logits(teacher: SelfTeacher) -> torch.Tensor:
    """What a teacher says of the hinted batch, (P, V)."""
    states = teacher.hinted_states(hinted_batch(), INDEX)
    return read(states)


def read(states: HiddenStates) -> torch.Tensor:
    return states.head.logits(states.hidden).detach().float()


def own_logits(model: nn.Module) -> torch.Tensor:
    """What a model itself says there, by its own plain forward in eval mode."""
    modes = {module: module.training for module in model.modules()}
    batch = hinted_batch()
    with torch.no_grad():
        all_logits = model.eval()(batch["ctx_teacher_input_ids"], attention_mask=batch["ctx_teacher_attention_mask"])
    for module, training in modes.items():
        module.training = training
    return all_logits.logits[INDEX[:, 0], INDEX[:, 1] - 1].float()


class Training:
    """Steps of an optimiser that move a policy, on data that depend on the step alone."""

    def __init__(self, model: Any, *, learning_rate: float = 1e-2) -> None:
        self.model = model.train()
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.SGD(trained, lr=learning_rate, momentum=0.9)
        self.taken = 0

    def step(self) -> None:
        ids = torch.randint(VOCABULARY, (2, 10), generator=torch.Generator().manual_seed(self.taken))
        with torch.random.fork_rng():
            torch.manual_seed(self.taken)
            states = run_causal_lm(self.model, ids)
            read_logits = states.head.logits(states.hidden)[:, :-1]
            loss = nn.functional.cross_entropy(read_logits.flatten(0, 1).float(), ids[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.taken += 1


def trained_copies(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters() if parameter.requires_grad}


def with_parameters(model: Any, values: dict[str, torch.Tensor]) -> torch.Tensor:
    """A model's own logits with other values in its parameters, put back afterwards."""
    parameters = dict(model.named_parameters())
    before = {name: parameters[name].detach().clone() for name in values}
    for name, value in values.items():
        parameters[name].data.copy_(value)
    result = own_logits(model)
    for name, value in before.items():
        parameters[name].data.copy_(value)
    return result


def tensor_bytes(tensors: dict[str, torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
