"""The plan of a run, made without loading weights: data, memory, and the channels that will be active."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any

from transformers import GenerationConfig

from composer_replication.run.arguments import collator_config
from composer_replication.run.configuration import Config
from composer_replication.run.data import TrainingData
from composer_replication.run.folder import RunDirectory, step_of
from composer_replication.run.launch import RunInputs, check_installed, checked_inputs, rollout_tokenizer
from composer_replication.run.memory import MemoryEstimate, estimate_memory
from composer_replication.run.model_loading import check_lengths, check_model, empty_model
from composer_replication.trainer.cached_rollouts import keeps_caches
from composer_replication.trainer.data_collator import ComposerDataCollator
from composer_replication.trainer.preference_rows import (
    PreferenceStats,
    ShownContext,
    check_shown_context,
    preference_rows,
)
from composer_replication.trainer.trace_rows import BEYOND, TOO_LONG, rendered_traces


@dataclass(frozen=True)
class ChannelPlan:
    """Whether a channel will have something to learn from, and why (not). The first has no weight."""

    channel: str
    weight: float | None
    live: bool
    why: str


@dataclass(frozen=True)
class DryRun:
    """The plan of a run."""

    config: Config
    counts: dict[str, dict[str, int]]
    channels: tuple[ChannelPlan, ...]
    memory: MemoryEstimate
    resumes_from: int

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "config": self.config.as_dict(),
            "data": self.counts,
            "channels": [asdict(plan) for plan in self.channels],
            "memory_estimate_bytes": self.memory.as_dict(),
            "resumes_from_step": self.resumes_from,
        }


def dry_run(config: Config) -> DryRun:
    """Read the data, the tokenizer and the model's shapes, and check all that can be checked before training.

    Raises:
        ValueError: what would stop the run; the message names the setting.
        MissingExtraError: packages that the run needs are not installed; it names all of them.
    """
    check_installed(config)
    checkpoint = RunDirectory(config.training.output_dir).checkpoint(config)
    inputs = checked_inputs(config)
    data, tokenizer = inputs.data, inputs.tokenizer
    if config.environment is not None and config.channels.replay.beta:
        shown = (ShownContext.of(row["prompt"], inputs.rollouts.tools) for row in data.prompts)
        check_shown_context(data.pairs, shown, "data.pairs")
    _count_traces(config, data, tokenizer)
    _count_pairs(config, data, tokenizer)
    model = empty_model(config.model)
    check_model(model, tokenizer, config.model)
    check_lengths(model, config)
    loop = "" if config.environment is None else _rollout_loop(config, inputs, model)
    plans = channel_plans(config, data, loop)
    if not any(plan.live for plan in plans):
        raise ValueError(f"channels: none has anything to learn from ({'; '.join(plan.why for plan in plans)})")
    return DryRun(
        config=config,
        counts=data.counts,
        channels=plans,
        memory=estimate_memory(config, model),
        resumes_from=0 if checkpoint is None else step_of(checkpoint),
    )


def _rollout_loop(config: Config, inputs: RunInputs, model: Any) -> str:
    """Name the loop that will generate, as the trainer chooses it."""
    arguments, prompts = inputs.arguments, inputs.data.prompts
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "cache_implementation")
    given = {name: getattr(arguments, name) for name in names} | (arguments.generation_kwargs or {})
    planned = SimpleNamespace(
        model=model,
        tools=inputs.rollouts.tools,
        accelerator=arguments,  # for its device
        generation_config=GenerationConfig(do_sample=True, **given),
        rollout_func=None,
        use_vllm=arguments.use_vllm,
        use_transformers_continuous_batching=arguments.use_transformers_continuous_batching,
        is_fsdp_enabled=bool(arguments.fsdp),
        is_deepspeed_enabled=bool(arguments.deepspeed),
        _is_vlm=False,
        _is_conversational=lambda: all(not isinstance(row["prompt"], str) for row in prompts[:1]),
    )
    return "with kept caches" if keeps_caches(planned, config.channels.grpo.rollout_loop) else "by TRL's loop"


def _count_traces(config: Config, data: TrainingData, tokenizer: Any) -> None:
    """Render the traces as a run would, to say what length limits and chat template leave of them."""
    if not data.traces:
        return
    collator = ComposerDataCollator(rollout_tokenizer(tokenizer, config), collator_config(config))
    rows = rendered_traces(data.traces, collator)
    stats = collator.stats
    data.counts["traces"] |= {
        "rows": len(rows),
        "tokens_to_imitate": sum(sum(row.response_mask) for row in rows),
        "hinted_turns": stats.sites,
    }
    lost = {
        "hints_lost_to_length": sum(stats.sites_dropped[reason] for reason in (TOO_LONG, BEYOND)),
        "conversations_shortened": stats.truncated_rows,
        "messages_left_out": stats.messages_left_out,
        "tokens_left_out": stats.truncated_tokens,
        "turns_too_long": stats.turns_dropped[TOO_LONG],
        "turns_beyond_max_windows": stats.turns_dropped[BEYOND],
    }
    data.counts["traces"] |= {name: count for name, count in lost.items() if count}
    if config.environment is not None and not stats.sites:
        raise ValueError(f"data.traces: none of the {len(data.traces)} traces has a failing turn with a hint")


def _count_pairs(config: Config, data: TrainingData, tokenizer: Any) -> None:
    """Render the pairs as a run would, to say how many of them can be used."""
    if not data.pairs:
        return
    stats = PreferenceStats()
    preference_rows(tokenizer, data.pairs, max_length=config.channels.replay.max_length, stats=stats)
    data.counts["pairs"] |= {"usable": stats.pairs, **stats.pairs_dropped}
    if not stats.pairs and config.channels.replay.beta:
        raise ValueError(f"data.pairs: no pair can be used: {stats.dropped()}")
    if stats.prompts_truncated:
        data.counts["pairs"]["prompts_shortened"] = stats.prompts_truncated
        data.counts["pairs"]["prompt_messages_left_out"] = stats.prompt_messages_left_out


def channel_plans(config: Config, data: TrainingData, loop: str) -> tuple[ChannelPlan, ...]:
    """The three channels, as far as the data shows; `loop` generates the rollouts."""
    grpo, sdpo, replay = config.channels.grpo, config.channels.sdpo, config.channels.replay
    if config.environment is not None:
        prompts = data.counts["prompts"]["prompts"]
        first = ChannelPlan("grpo", None, True, f"{prompts:,} prompts, {grpo.num_generations} rollouts of each, {loop}")
    else:
        tokens, lm = data.counts["traces"]["tokens_to_imitate"], config.channels.lm
        weight = 1.0 if lm is None else lm.weight
        why = f"no environment: imitates {tokens:,} tokens of the assistant" if weight else "its weight is 0"
        first = ChannelPlan("lm", weight, bool(weight), why)
    return (
        first,
        ChannelPlan("sdpo", sdpo.alpha, *_sdpo(config, data)),
        ChannelPlan("replay", replay.beta, *_replay(config, data)),
    )


def _sdpo(config: Config, data: TrainingData) -> tuple[bool, str]:
    if not config.channels.sdpo.alpha:
        return False, "its weight is 0"
    counts = data.counts.get("traces", {})
    hinted, errors = counts.get("hinted_turns", 0), counts.get("error_turns", 0)
    reasons = []
    if config.environment is not None:
        source = {"error": "errors", "sibling": "successful siblings", "both": "errors and successful siblings"}
        reasons.append(f"{source[config.channels.sdpo.hint_source]} of the rollouts")
    if hinted:
        reasons.append(f"{hinted:,} of {errors:,} error turns in the traces get a hint")
    if reasons:
        return True, "; ".join(reasons)
    return False, f"none of {errors:,} error turns in the traces gets a hint" if errors else "no error in the traces"


def _replay(config: Config, data: TrainingData) -> tuple[bool, str]:
    if not config.data.pairs:
        return False, "there are no pairs (data.pairs)"
    if not config.channels.replay.beta:
        return False, "its weight is 0"
    counts = data.counts["pairs"]
    return counts["usable"] > 0, f"{counts['usable']:,} of {counts['pairs']:,} pairs can be used"
