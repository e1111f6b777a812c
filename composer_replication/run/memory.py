"""An estimate of the memory that a run needs, before anything is loaded.

Weights, gradients and optimiser states are counted from the model's shapes. Activations are estimated from the usual 34
bytes per token, layer and hidden unit at two bytes a number (attention scores are never kept, logits are projected in
chunks); they depend on kernels and sequence lengths, and are the least certain part. Those of channel 2's teacher count
too: the states that it leaves for the loss, and its passes where they are larger than the student's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from composer_replication._optional import require
from composer_replication.run.arguments import uses_bf16
from composer_replication.run.configuration import Config
from composer_replication.run.model_loading import lora_config
from composer_replication.run.optimizers import _kinds_of_parameters
from composer_replication.trainer.self_teachers.averages import KEPT_RANK

_ACTIVATION_BYTES = 34
_PROMPT_TOKENS = 512  # of a prompt in front of a rollout; nobody knows before they are rendered


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes, by what they are for, on one device."""

    parameters: int
    trainable_parameters: int
    weights: int
    gradients: int
    optimizer: int
    teacher: int
    reference: int
    activations: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.gradients + self.optimizer + self.teacher + self.reference + self.activations

    def as_dict(self) -> dict[str, int]:
        """For JSON."""
        return {**asdict(self), "total": self.total}


def estimate_memory(config: Config, empty_model: Any) -> MemoryEstimate:
    """The estimate for a model on the meta device (see `empty_model`), which gets its adapters here."""
    whole = _bytes(empty_model.parameters())
    model = empty_model
    if config.model.lora is not None:
        peft = require("peft", "train")
        model = peft.get_peft_model(empty_model, lora_config(config.model))
    matrices, *others = _kinds_of_parameters(model)
    trainable = [*matrices, *(one for kind in others for one in kind)]
    states = 2 * _bytes(trainable)
    if config.optimizer.name == "muon":
        states -= _bytes(matrices)  # one momentum instead of AdamW's two averages
    return MemoryEstimate(
        parameters=sum(one.numel() for one in model.parameters()),
        trainable_parameters=sum(one.numel() for one in trainable),
        weights=_bytes(model.parameters()),
        gradients=_bytes(trainable),
        optimizer=states,
        teacher=_teacher(config, trainable),
        reference=_reference(config, whole),
        activations=_activations(config, empty_model.config.get_text_config()),
    )


def _teacher(config: Config, trainable: Sequence[torch.Tensor]) -> int:
    sdpo = config.channels.sdpo
    if not sdpo.alpha or sdpo.teacher == "live":
        return 0
    if sdpo.teacher == "ema":
        # Averages are kept in float32: in bfloat16, small steps would be lost. Those of adapters have a higher rank.
        ranks = KEPT_RANK if config.model.lora is not None else 1
        return sum(ranks * one.numel() * max(4, one.element_size()) for one in trainable)
    return _bytes(trainable)


def _reference(config: Config, whole: int) -> int:
    grpo = config.channels.grpo
    copies = bool(grpo.beta) + bool(grpo.kl_in_advantage)
    return 0 if config.model.lora is not None else copies * whole


def _activations(config: Config, shape: Any) -> int:
    training, grpo = config.training, config.channels.grpo
    width = 2 if uses_bf16(config) or config.model.dtype != "float32" else 4
    length = config.data.max_length
    if config.environment is not None:
        length = _PROMPT_TOKENS + grpo.max_completion_length
    of_the_policy = tokens = training.batch_size * length
    if config.channels.replay.beta:
        # Pairs are in memory together with the rest; their prompts mostly once.
        pairs = config.channels.replay.batch_size or max(1, training.batch_size // 2)
        tokens += pairs * config.channels.replay.max_length
    hidden, layers = int(shape.hidden_size), int(shape.num_hidden_layers)
    of_a_layer = tokens * hidden * _ACTIVATION_BYTES * width // 2
    student = layers * of_a_layer
    if training.gradient_checkpointing:
        # The input of every layer is kept, and one layer at a time is computed again.
        student = layers * tokens * hidden * width + of_a_layer
    if not config.channels.sdpo.alpha:
        return student
    # A teacher's pass has no gradient and no more tokens than one of the policy, so one layer of it is in memory at a
    # time; it comes before the student's. Of the step's tokens, those of hinted turns (at most all) keep a state.
    teacher = of_the_policy * hidden * (_ACTIVATION_BYTES * width // 2 + width)
    states = training.gradient_accumulation * of_the_policy * hidden * width
    return max(student, teacher) + states


def _bytes(parameters: Any) -> int:
    seen: dict[int, torch.Tensor] = {id(one): one for one in parameters}
    return sum(one.numel() * one.element_size() for one in seen.values())
