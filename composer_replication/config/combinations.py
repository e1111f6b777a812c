"""Settings that are right one by one and make no sense together."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from composer_replication.config.resolving import BELONGINGS

if TYPE_CHECKING:
    from composer_replication.config.configuration import Config


def combination_problems(config: Config) -> Iterator[str]:
    """One line for each combination that cannot be meant: the key, what is wrong, and the way out."""
    yield from _unused_settings(config)
    yield from _nothing_to_learn(config)
    yield from _channels_without_data(config)
    yield from _rollouts(config)
    yield from _optimizer(config)


def _unused_settings(config: Config) -> Iterator[str]:
    for section_path, setting, choice, value, _ in BELONGINGS:
        section = config
        for name in section_path:
            section = getattr(section, name)
        chosen = getattr(section, choice)
        if getattr(section, setting) is not None and chosen != value:
            path = ".".join(section_path)
            yield (
                f"{path}.{setting}: it has no effect with {choice} {chosen!r}; "
                f"remove it, or set {path}.{choice}: {value}"
            )
    taid = config.channels.sdpo.taid
    if taid is not None and taid.t_start > taid.t_end:
        yield f"channels.sdpo.taid.t_start: {taid.t_start:g} lies behind t_end {taid.t_end:g}"


def _nothing_to_learn(config: Config) -> Iterator[str]:
    data, channels = config.data, config.channels
    if config.environment is None and data.traces is None:
        if data.prompts is not None:
            yield "data.prompts: nothing scores the answers; give an environment (environment.class or .rewards)"
        elif data.pairs:
            yield "data.pairs: pairs ride along with rollouts or traces; give data.traces or an environment as well"
        else:
            yield "data: there is nothing to learn from; give data.traces, or an environment with data.prompts"
    elif config.environment is None and not channels.sdpo.alpha and not channels.replay.beta:
        yield (
            "channels: sdpo.alpha and replay.beta are both 0 and there is no environment, which leaves imitation of "
            "the logs; raise one of them"
        )
    elif config.environment is None and data.prompts is not None:
        yield "data.prompts: nothing scores the answers; give an environment (environment.class or .rewards)"


def _channels_without_data(config: Config) -> Iterator[str]:
    sdpo, replay = config.channels.sdpo, config.channels.replay
    if replay.beta and not config.data.pairs:
        yield f"channels.replay.beta: {replay.beta:g} without data.pairs weighs nothing; give pairs, or leave it out"
    if sdpo.alpha and config.data.traces is None and config.environment is None:
        yield (
            f"channels.sdpo.alpha: {sdpo.alpha:g} without data.traces and without an environment weighs nothing; "
            "give one of them, or leave it out"
        )
    if sdpo.routing == "srpo" and not sdpo.alpha:
        yield "channels.sdpo.routing: srpo leaves failed rollouts to channel 2, which is off; raise channels.sdpo.alpha"
    if sdpo.routing == "srpo" and config.environment is None:
        yield "channels.sdpo.routing: srpo routes rollouts, and without an environment there are none"
    if sdpo.hint_source != "error" and config.environment is None:
        yield f"channels.sdpo.hint_source: {sdpo.hint_source} needs rollouts, and without an environment there are none"


def _rollouts(config: Config) -> Iterator[str]:
    environment, grpo, training = config.environment, config.channels.grpo, config.training
    if environment is None:
        if grpo.beta or grpo.kl_in_advantage:
            key = "beta" if grpo.beta else "kl_in_advantage"
            yield f"channels.grpo.{key}: it weighs rollouts, and without an environment there are none"
        return
    if environment.class_ is None and not environment.rewards:
        yield "environment: it has neither a class nor rewards; give one of them"
    if environment.class_ is None and environment.arguments:
        yield "environment.arguments: they are for the class, and none is given"
    if config.channels.lm is not None:
        yield "channels.lm: with an environment, channel 1 is channels.grpo; remove it"
    if config.data.traces is not None and not config.channels.sdpo.alpha:
        yield "data.traces: with an environment, traces serve channel 2, which is off; raise channels.sdpo.alpha"
    if config.data.prompts is None:
        yield "data.prompts: an environment needs prompts; give a .jsonl or .parquet file with a `prompt` column"
    elif config.data.prompts.suffix not in (".jsonl", ".parquet"):
        yield f"data.prompts: {config.data.prompts} must end in .jsonl or .parquet"
    processes = launched_processes()
    rollouts = training.batch_size * training.gradient_accumulation * processes
    set_otherwise = {"generation_batch_size", "steps_per_generation"} & set(grpo.trl)
    if rollouts % grpo.num_generations and not set_otherwise:
        product = f"{training.batch_size} x {training.gradient_accumulation}"
        product += f" x {processes} processes" if processes > 1 else ""
        yield (
            f"training.batch_size: batch_size x gradient_accumulation is {product} = {rollouts}, which is no "
            f"multiple of channels.grpo.num_generations ({grpo.num_generations})"
        )


def _optimizer(config: Config) -> Iterator[str]:
    optimizer = config.optimizer
    if config.model.dtype != "float32" and config.model.lora is None:
        # A weight of 0.02 in bfloat16 has neighbours 1e-4 away: steps of 1e-6 are rounded off, and nothing is learned.
        yield (
            f"model.dtype: weights in {config.model.dtype} lose the small steps of training; keep float32 "
            "(training.bf16 computes in bfloat16 all the same), or set model.lora"
        )
    if optimizer.name == "muon" and config.model.lora is not None:
        # An adapter's update is a product: two orthogonalised factors are not an orthogonalised product, and the factor
        # whose gradient is all but 0 at first (the other one begins at 0) would move at full length all the same.
        yield (
            "optimizer.name: muon orthogonalises a matrix's update, and LoRA's factors are no such matrices; "
            "use adamw, or train every weight (model.lora: null)"
        )
    if optimizer.warmup >= 1 and optimizer.warmup != int(optimizer.warmup):
        yield f"optimizer.warmup: {optimizer.warmup:g} is neither a share below 1 nor a whole number of steps"


def launched_processes() -> int:
    """How many processes a launcher (torchrun, accelerate) has started; together they make the batch."""
    given = os.environ.get("WORLD_SIZE", "1")
    return int(given) if given.isdigit() and int(given) > 0 else 1


def is_first_process() -> bool:
    """Whether this is the only process, or the first of those that a launcher has started."""
    return os.environ.get("RANK", "0") == "0"
