"""The estimate against what is really held, where that can be counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from run.training_material import model_folder

from composer_replication.config import Config, parse_config
from composer_replication.run.memory import MemoryEstimate, estimate_memory
from composer_replication.run.model_loading import empty_model, load_model, lora_config
from composer_replication.run.optimizers import make_optimizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("model"))


def config(folder: Path, **sections: Any) -> Config:
    given: dict[str, Any] = {"data": {"traces": "t"}, "training": {"output_dir": "o"}, **sections}
    return parse_config({**given, "model": {"name": str(folder), **sections.get("model", {})}})


def estimate(folder: Path, **sections: Any) -> MemoryEstimate:
    given = config(folder, **sections)
    return estimate_memory(given, empty_model(given.model))


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"optimizer": {"name": "muon"}},
        {"model": {"lora": {"r": 4}}},
        {"model": {"dtype": "bfloat16", "lora": {"r": 2, "target_modules": "q_proj"}}},
    ],
)
def test_weights_gradients_and_states_are_those_of_a_step(folder: Path, sections: dict[str, Any]) -> None:
    import peft

    given = config(folder, **sections)
    model: Any = load_model(given.model)
    if given.model.lora is not None:
        model = peft.get_peft_model(model, lora_config(given.model))
    optimizer = make_optimizer(model, given.optimizer)
    ids = torch.arange(6)[None]
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    held = [one for state in optimizer.state.values() for name, one in state.items() if name != "step"]
    expected = estimate_memory(given, empty_model(given.model))
    assert expected.weights == sum(one.nbytes for one in model.parameters())
    assert expected.gradients == sum(one.grad.nbytes for one in model.parameters() if one.grad is not None)
    assert expected.optimizer == sum(one.nbytes for one in held)
    assert expected.parameters == sum(one.numel() for one in model.parameters())
    assert expected.trainable_parameters == sum(one.numel() for one in model.parameters() if one.requires_grad)


def test_teachers_cost_a_model_an_adapter_or_nothing(folder: Path) -> None:
    whole = estimate(folder).weights
    for teacher, expected in {"ema": whole, "frozen": whole, "trust_region": whole, "live": 0}.items():
        assert estimate(folder, channels={"sdpo": {"teacher": teacher}}).teacher == expected
    lora = estimate(folder, model={"lora": {"r": 4}})
    assert lora.teacher == 4 * lora.gradients  # an average of products has a higher rank than they
    frozen = estimate(folder, model={"lora": {"r": 4}}, channels={"sdpo": {"teacher": "frozen"}})
    assert frozen.teacher == lora.gradients
    off = {"channels": {"sdpo": {"alpha": 0.0}, "replay": {"beta": 0.1}}, "data": {"traces": "t", "pairs": "p"}}
    assert estimate(folder, **off).teacher == 0


def test_a_reference_costs_a_model_unless_there_is_an_adapter(folder: Path) -> None:
    rollouts = {"data": {"prompts": "p.jsonl"}, "environment": {"class": "m:C"}, "channels": {"grpo": {"beta": 0.1}}}
    in_advantage = {**rollouts, "channels": {"grpo": {"kl_in_advantage": 0.1}}}
    assert estimate(folder, **in_advantage).reference == estimate(folder).weights
    assert estimate(folder, **rollouts).reference == estimate(folder).weights
    assert estimate(folder, **rollouts, model={"lora": {}}).reference == 0
    assert estimate(folder).reference == 0


def test_activations_grow_with_the_batch_and_shrink_with_checkpointing(folder: Path) -> None:
    def activations(**training: Any) -> int:
        return estimate(folder, training={"output_dir": "o", **training}).activations

    assert activations(batch_size=16) == 2 * activations(batch_size=8)
    assert activations(gradient_checkpointing=False) > activations()
    assert activations(bf16=True) * 2 == activations(bf16=False)


def test_the_total_is_the_sum(folder: Path) -> None:
    figures = estimate(folder).as_dict()
    parts = ("weights", "gradients", "optimizer", "teacher", "reference", "activations")
    assert figures["total"] == sum(figures[name] for name in parts)


def test_a_teacher_leaves_states_and_its_passes_are_no_larger_than_the_students(folder: Path) -> None:
    def activations(alpha: float, **training: Any) -> int:
        rollouts = {"data": {"prompts": "p.jsonl"}, "environment": {"class": "m:C"}}
        channels = {"sdpo": {"alpha": alpha}, "grpo": {"max_completion_length": 256}}
        return estimate(
            folder, **rollouts, channels=channels, training={"output_dir": "o", "bf16": False, **training}
        ).activations

    hidden = empty_model(config(folder).model).config.hidden_size
    states = 8 * (512 + 256) * hidden * 4
    for checkpointing in (True, False):
        student = activations(0.0, gradient_checkpointing=checkpointing)
        for accumulation in (1, 3):
            given = {"gradient_checkpointing": checkpointing, "gradient_accumulation": accumulation, "batch_size": 8}
            assert activations(0.1, **given) == student + accumulation * states
