"""A trainer's rollouts with kept caches, in place of TRL's loop, which reads a conversation again in every turn."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from transformers.generation.configuration_utils import GenerationMode

from composer_replication._optional import require
from composer_replication.causal_lm import transformers_model
from composer_replication.channels.policy import RolloutLoop
from composer_replication.generation.episodes import EpisodeSettings, run_episodes
from composer_replication.generation.kept_rows import why_not_kept
from composer_replication.generation.sampling import WARPERS

logger = logging.getLogger(__name__)


def keeps_caches(trainer: Any, loop: RolloutLoop) -> bool:
    """Whether a trainer's rollouts keep their caches. A warning says why not, where "auto" would have chosen it.

    Raises:
        ValueError: `loop` is "cached", and something does not allow it.
    """
    if loop == "trl":
        return False
    reason = _elsewhere(trainer)
    if loop == "auto" and (reason or not trainer.tools or trainer.accelerator.device.type != "cpu"):
        return False
    reason = reason or _unsupported(trainer)
    if reason is None:
        return True
    if loop == "cached":
        raise ValueError(f"rollout_loop='cached' cannot be used: {reason}; set it to 'trl', or to 'auto'")
    logger.warning("rollouts take TRL's loop, which reads a conversation again in every turn: %s", reason)
    return False


def _elsewhere(trainer: Any) -> str | None:
    """Return what else generates, if something does."""
    if trainer.rollout_func is not None:
        return "there is a rollout_func"
    if trainer.use_vllm or trainer.use_transformers_continuous_batching:
        return "vLLM or continuous batching generates"
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        return "the policy is sharded"
    return None


def _unsupported(trainer: Any) -> str | None:
    """Return what the loop with kept caches does not do, if it is asked for."""
    if trainer._is_vlm:
        return "the model sees images"
    if not trainer._is_conversational():
        return "prompts are texts, not messages"
    inner: Any = transformers_model(trainer.model)
    config, _ = inner._prepare_generation_config(trainer.generation_config)
    inner._prepare_special_tokens(config, kwargs_has_attention_mask=True, device=trainer.accelerator.device)
    if config.get_generation_mode() != GenerationMode.SAMPLE or config.cache_implementation is not None:
        return "generation is not plain sampling with a cache that grows"
    if config.stop_strings or config.max_time:
        return "stop_strings or max_time ends a generation"
    processors = inner._get_logits_processor(config, input_ids_seq_length=1)
    if others := sorted({type(one).__name__ for one in processors if not isinstance(one, WARPERS)}):
        return f"sampling uses {', '.join(others)}"
    return why_not_kept(trainer.model)


def cached_rollouts(prompts: list[Any], trainer: Any) -> dict[str, Any]:
    """A `rollout_func`: play an episode for each prompt with the environments that the trainer has reset.

    Returns:
        TRL's keys, and for each rollout its `messages`, and how many `calls` it made, and `failures` there were.
    """
    config = trainer.generation_config
    settings = EpisodeSettings(
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        min_p=config.min_p,
        max_completion_length=trainer.max_completion_length,
        max_tool_iterations=trainer.max_tool_calling_iterations,
    )

    def run_async(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, trainer.async_loop).result()

    unwrapped = require("trl.models.utils", "train").unwrap_model_for_generation(
        trainer.model_wrapped,
        trainer.accelerator,
        gradient_checkpointing_kwargs=trainer.args.gradient_checkpointing_kwargs,
    )
    with unwrapped as model:
        episodes = run_episodes(
            model,
            trainer._templated,
            prompts,
            trainer.environments or [None] * len(prompts),
            settings,
            tools=trainer._standalone_tools,
            run_async=run_async,
        )
    return {
        "prompt_ids": [episode.prompt_ids for episode in episodes],
        "completion_ids": [episode.completion_ids for episode in episodes],
        # As in TRL's loop: probabilities of the draw would count as those of another engine.
        "logprobs": None,
        "env_mask": [episode.generated for episode in episodes],
        "messages": [episode.messages for episode in episodes],
        "calls": [episode.calls for episode in episodes],
        "failures": [episode.failures for episode in episodes],
    }
