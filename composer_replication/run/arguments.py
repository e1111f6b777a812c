"""The configuration as arguments of TRL, transformers and our trainers."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch

from composer_replication.channels.settings import ChannelSettings, Watch
from composer_replication.hint_generator import LayeredHints, as_collator_hint
from composer_replication.run.configuration import Config
from composer_replication.trainer.data_collator import CollatorConfig

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
        **grpo.trl_arguments(),
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


def channel_settings(config: Config) -> ChannelSettings:
    """The settings of the channels, which both trainers take."""
    channels, training = config.channels, config.training
    return ChannelSettings(
        lm=channels.lm,
        grpo=channels.grpo,
        sdpo=channels.sdpo,
        replay=channels.replay,
        watch=Watch(training.inactive_patience, training.gradient_share_every),
    )


def collator_config(config: Config) -> CollatorConfig:
    """The collator's settings for traces. Pairs are left out: the trainers have a sampler for them."""
    sdpo, lm = config.channels.sdpo, config.channels.lm
    return CollatorConfig(
        max_seq_len=config.data.max_length,
        max_windows=config.data.max_windows,
        max_dpo_seq_len=config.channels.replay.max_length,
        enable_sdpo=sdpo.alpha > 0,
        enable_replay_dpo=False,
        hint_generator=as_collator_hint(LayeredHints()),
        **sdpo.of_sites(),
        train_on_errors=lm is not None and lm.train_on_errors,
        strip_thinking=config.data.thinking == "drop",
    )


def _schedule(name: str, warmup: float) -> str:
    return "constant_with_warmup" if name == "constant" and warmup else name
