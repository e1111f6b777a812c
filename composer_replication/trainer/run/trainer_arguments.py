"""The configuration's sections under the names that TRL, transformers and our trainers take them by."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch

from composer_replication.config import Config
from composer_replication.hint_generator import LayeredHints, as_collator_hint
from composer_replication.trainer.data_collator import CollatorConfig
from composer_replication.trainer.hint_gate import HintGate

_OPTIMIZER = "the section optimizer decides this"
# Settings of TRL's that would have no effect, or a bad one.
_INSTEAD = {
    "hub_token": "a configuration is written to disk; put the token into the environment (HF_TOKEN)",
    "optim": _OPTIMIZER,
    "optim_args": _OPTIMIZER,
    "adam_beta1": _OPTIMIZER,
    "adam_beta2": _OPTIMIZER,
    "adam_epsilon": _OPTIMIZER,
    "warmup_ratio": _OPTIMIZER,
    "resume_from_checkpoint": "set training.resume",
    "save_only_model": "a run could not be resumed from such checkpoints",
}


def optimizer_settings(config: Config) -> dict[str, Any]:
    """The section `optimizer` as `make_optimizer` takes it."""
    optimizer = config.optimizer
    settings: dict[str, Any] = {
        "name": optimizer.name,
        "lr": optimizer.lr,
        "weight_decay": optimizer.weight_decay,
        "betas": optimizer.betas,
        "eps": optimizer.eps,
    }
    if optimizer.muon is not None:
        settings |= {f"muon_{name}": value for name, value in optimizer.muon.model_dump().items()}
    return settings


def checked_arguments(config: Config, reward_weights: list[float]) -> Any:
    """The `trl.GRPOConfig` of a run with an environment, or else its `transformers.TrainingArguments`.

    Raises:
        ValueError: see `grpo_arguments`; or a setting is refused, or a tracker cannot be used.
    """
    key = "training"
    if config.environment is None:
        from transformers import TrainingArguments as Arguments

        settings = training_arguments(config)
    else:
        from trl import GRPOConfig as Arguments

        settings = grpo_arguments(config, reward_weights)
        key = "channels.grpo.trl" if config.channels.grpo.trl else key
    try:
        made = Arguments(**settings)
    except (ValueError, TypeError, ImportError) as error:
        raise ValueError(f"{key}: {' '.join(str(error).split())}") from error
    for name in made.report_to:
        _check_tracker(name)
    return made


def _check_tracker(name: str) -> None:
    """Require a tracker that the trainer will be able to use, by making its callback as the trainer does."""
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK as CALLBACKS

    if name not in CALLBACKS:
        known = ", ".join(CALLBACKS)
        raise ValueError(f"training.report_to: transformers knows no tracker {name!r}; it knows {known}")
    try:
        CALLBACKS[name]()
    except (ImportError, RuntimeError) as error:
        raise ValueError(f"training.report_to: {name} cannot be used: {' '.join(str(error).split())}") from error


def training_arguments(config: Config) -> dict[str, Any]:
    """The arguments that both trainers share, by the names of `transformers.TrainingArguments`."""
    training, optimizer = config.training, config.optimizer
    return {
        "output_dir": str(training.output_dir),
        "max_steps": training.steps,
        "per_device_train_batch_size": training.batch_size,
        "gradient_accumulation_steps": training.gradient_accumulation,
        "learning_rate": optimizer.lr,
        "weight_decay": optimizer.weight_decay,
        "max_grad_norm": optimizer.max_grad_norm,
        "lr_scheduler_type": _schedule(optimizer.schedule, optimizer.warmup),
        "warmup_steps": int(optimizer.warmup) if optimizer.warmup >= 1 else optimizer.warmup,
        "save_strategy": "steps",
        "save_steps": training.save_every,
        "save_total_limit": training.keep_checkpoints,
        "seed": training.seed,
        "use_cpu": training.device == "cpu",
        "bf16": uses_bf16(config),
        "gradient_checkpointing": training.gradient_checkpointing,
        "logging_steps": training.log_every,
        "logging_first_step": True,
        "report_to": list(training.report_to),
        "disable_tqdm": True,
        "dataloader_pin_memory": torch.cuda.is_available() and training.device != "cpu",
        "remove_unused_columns": False,
    }


def uses_bf16(config: Config) -> bool:
    """Whether to compute in bfloat16: as the configuration says, or where an accelerator can."""
    if config.training.bf16 is not None:
        return config.training.bf16
    return config.training.device != "cpu" and torch.cuda.is_available() and torch.cuda.is_bf16_supported()


def grpo_arguments(config: Config, reward_weights: list[float]) -> dict[str, Any]:
    """The arguments of `trl.GRPOConfig`.

    Raises:
        ValueError: `channels.grpo.trl` names a setting that TRL does not have, that has a key of its own here, or that
            needs a package that is not installed.
    """
    from trl import GRPOConfig
    from trl.import_utils import is_vllm_available

    grpo = config.channels.grpo
    arguments = {
        **training_arguments(config),
        "loss_type": grpo.loss_type,
        "scale_rewards": grpo.scale_rewards,
        "beta": grpo.beta,
        "num_generations": grpo.num_generations,
        "max_completion_length": grpo.max_completion_length,
        "temperature": grpo.temperature,
        "top_p": grpo.top_p,
        "top_k": grpo.top_k,
        "epsilon": grpo.epsilon,
        "epsilon_high": grpo.epsilon_high,
        "num_iterations": grpo.num_iterations,
        "mask_truncated_completions": grpo.mask_truncated_completions,
        "max_tool_calling_iterations": grpo.max_tool_iterations,
        "reward_weights": reward_weights or None,
    }
    known = {one.name for one in fields(GRPOConfig)}
    for name in grpo.trl:
        if name in _INSTEAD:
            raise ValueError(f"channels.grpo.trl.{name}: {_INSTEAD[name]}")
        if name in arguments:
            raise ValueError(f"channels.grpo.trl.{name}: this has a key of its own in the configuration; set that")
        if name not in known:
            raise ValueError(f"channels.grpo.trl.{name}: trl.GRPOConfig has no such setting")
    if grpo.trl.get("use_vllm") and not is_vllm_available():
        raise ValueError(
            "channels.grpo.trl.use_vllm: vllm is not installed: pip install 'trl[vllm]', or set it to false"
        )
    return {**arguments, **grpo.trl}


def channel_options(config: Config) -> dict[str, Any]:
    """The fields of `ChannelSettings`, which both trainers take; what is null stays at their own default."""
    sdpo, replay, training = config.channels.sdpo, config.channels.replay, config.training
    options = {
        "alpha_sdpo": sdpo.alpha,
        "beta_replay": replay.beta,
        "sdpo_jsd_beta": sdpo.jsd_beta,
        "sdpo_temperature": sdpo.temperature,
        "sdpo_token_clip": sdpo.token_clip,
        "sdpo_wrapper": sdpo.wrapper,
        "entropy_opd_h_max": sdpo.entropy_opd_h_max,
        "sdpo_teacher": sdpo.teacher,
        "ema_rate": sdpo.ema_rate,
        "trust_region_mix": sdpo.trust_region_mix,
        "dpo_variant": replay.variant,
        "replay_dpo_beta": replay.dpo_beta,
        "simpo_beta": replay.simpo_beta,
        "simpo_gamma": replay.simpo_gamma,
        "inactive_patience": training.inactive_patience,
        "gradient_share_steps": training.gradient_share_every,
    }
    if sdpo.taid is not None:
        options |= {f"taid_{name}": value for name, value in sdpo.taid.model_dump().items()}
    given = {name: value for name, value in options.items() if value is not None}
    gate = None if sdpo.gate is None else HintGate(min_gap=sdpo.gate.min_gap, drop_conflicts=sdpo.gate.drop_conflicts)
    return {**given, "hint_gate": gate}


def collator_config(config: Config) -> CollatorConfig:
    """How traces are rendered. Pairs do not come with them: the trainers have a sampler for those."""
    sdpo, lm = config.channels.sdpo, config.channels.lm
    return CollatorConfig(
        max_seq_len=config.data.max_length,
        max_windows=config.data.max_windows,
        max_dpo_seq_len=config.channels.replay.max_length,
        enable_sdpo=sdpo.alpha > 0,
        enable_replay_dpo=False,
        hint_generator=as_collator_hint(LayeredHints()),
        hint_role=sdpo.hint_role,
        sdpo_target=sdpo.target,
        train_on_errors=lm is not None and lm.train_on_errors,
    )


def _schedule(name: str, warmup: float) -> str:
    return "constant_with_warmup" if name == "constant" and warmup else name
