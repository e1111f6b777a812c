"""Episodes with environments, in batched turns: the model speaks, its tools answer, and it goes on.

What happens to a row is what TRL's tool loop does: the same parser, the same ids of results, the same limits. What
differs is the cost. A row's cache is kept, so that a turn reads the tools' answers alone; what prompts share is read
once; and rows that are done leave the batch.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from composer_replication.causal_lm import transformers_model
from composer_replication.chat_templates import TemplatedTokenizer
from composer_replication.envs.contract import call_tool, tools_of
from composer_replication.generation.chat import EpisodeChat, ToolCalls, episode_tokenizer
from composer_replication.generation.kept_rows import gathered, generating, read_prompts, why_not_kept
from composer_replication.generation.sampling import Sampling, sample_turn
from composer_replication.traces import Message

RunAsync = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs a coroutine to its end, as `asyncio.run` does."""


@dataclass(frozen=True)
class EpisodeSettings(Sampling):
    """How tokens are drawn, the most tokens of an episode (tools' results included), and the most rounds of calls."""

    max_completion_length: int = 1024
    max_tool_iterations: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_completion_length < 1:
            raise ValueError(f"max_completion_length must be at least 1, got {self.max_completion_length}")


@dataclass
class Episode:
    """One rollout.

    `generated` is 1 on the tokens of `completion_ids` that the model said and 0 on what tools said; `logprobs` are the
    logarithms of the probabilities they were drawn with, 0 on what tools said. `messages` follow the prompt. `calls`
    were made, and `failures` of them raised an error.
    """

    prompt_ids: list[int]
    completion_ids: list[int] = field(default_factory=list)
    generated: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    calls: int = 0
    failures: int = 0

    def add(self, ids: list[int], logprobs: Sequence[float] | None = None) -> None:
        """Add what the model said, or without probabilities what tools said."""
        self.completion_ids += ids
        self.generated += [int(logprobs is not None)] * len(ids)
        self.logprobs += [0.0] * len(ids) if logprobs is None else logprobs


def run_episodes(
    model: nn.Module,
    tokenizer: Any,
    prompts: Sequence[Sequence[Message]],
    environments: Sequence[Any],
    settings: EpisodeSettings,
    *,
    tools: Sequence[Callable[..., Any]] = (),
    run_async: RunAsync = asyncio.run,
) -> list[Episode]:
    """Play an episode for each prompt.

    Args:
        model: a transformers causal LM, also one with LoRA adapters. Its modes are restored.
        tokenizer: the model's, which gets a parser of calls as in TRL; or one that is bound to its template already.
        prompts: messages, with the texts of the environments' resets.
        environments: one for each prompt, reset; None for a prompt without one. They are not scored.
        tools: functions that are tools of every prompt, before those of its environment.
        run_async: runs the tools that are coroutine functions.

    Raises:
        ValueError: the model's cache cannot be kept, or the chat template has no tools that TRL can parse.
    """
    reason = why_not_kept(model)
    if reason is not None:
        raise ValueError(f"{reason}: episodes need a cache that can be kept row by row")
    shared = {tool.__name__: tool for tool in tools}
    by_row: list[ToolCalls] = [{**shared, **tools_of(environment)} for environment in environments]
    if not isinstance(tokenizer, TemplatedTokenizer):
        tokenizer = episode_tokenizer(tokenizer, model, has_tools=any(by_row))
    chat = EpisodeChat(tokenizer)
    episodes = [Episode(chat.prompt_ids(prompt, own)) for prompt, own in zip(prompts, by_row, strict=True)]
    _play(model, chat, episodes, by_row, settings, {tokenizer.eos_token_id, *tokenizer.end_ids}, run_async)
    return episodes


def _play(
    model: nn.Module,
    chat: EpisodeChat,
    episodes: list[Episode],
    tools: list[ToolCalls],
    settings: EpisodeSettings,
    ends: set[int],
    run_async: RunAsync,
) -> None:
    config: Any = transformers_model(model).config
    longest = getattr(config.get_text_config(), "max_position_embeddings", None)
    rows, rounds = list(range(len(episodes))), 0
    with generating(model):
        kept, logits_BV = read_prompts(model, [episode.prompt_ids for episode in episodes])
    while True:
        limits = [settings.max_completion_length - len(episodes[row].completion_ids) for row in rows]
        with generating(model):
            said, parts = sample_turn(kept, logits_BV, limits, settings, ends)
        calling: dict[int, list[dict[str, Any]]] = {}
        for row, turn in zip(rows, said, strict=True):
            episode = episodes[row]
            message = chat.message(turn.ids, episode.prompt_ids + episode.completion_ids, tools[row])
            episode.messages.append(message)
            episode.add(turn.ids, turn.logprobs)
            if calls := message.get("tool_calls"):
                calling[row] = calls
        if rounds == settings.max_tool_iterations:
            return
        rounds += 1
        added: dict[int, list[int]] = {}
        for row, calls in calling.items():
            episode = episodes[row]
            results = _results(episode, calls, tools[row], run_async)
            ids = chat.result_ids(results)
            length = len(episode.completion_ids) + len(ids)
            if length > settings.max_completion_length or (longest and len(episode.prompt_ids) + length >= longest):
                continue  # the results do not fit: the episode ends with its call
            last = episode.completion_ids[-1]
            episode.messages += results
            episode.add(ids)
            if length < settings.max_completion_length:
                added[row] = [last, *ids]
        going = [[place for place, number in enumerate(part.rows) if rows[number] in added] for part in parts]
        order = [rows[part.rows[place]] for part, places in zip(parts, going, strict=True) for place in places]
        if not order:
            return
        kept = gathered([(part.kept, places) for part, places in zip(parts, going, strict=True) if places])
        rows = order
        with generating(model):
            logits_BV = kept.read([added[row] for row in rows])


def _results(episode: Episode, calls: list[dict[str, Any]], tools: ToolCalls, run_async: RunAsync) -> list[Message]:
    """Make the calls of a turn. Returns the messages of their results; those of asynchronous tools come last."""
    results: list[tuple[str, Any]] = []
    waiting: list[tuple[str, Awaitable[Any]]] = []
    for call in calls:
        episode.calls += 1
        if call["type"] != "function":
            episode.failures += 1
            kind = {"error": f"Unsupported tool call type: {call['type']}"}
            results.append((call.get("name", "unknown"), kind))
            continue
        name = call["function"]["name"]
        result, failed = call_tool(tools, name, call["function"]["arguments"])
        episode.failures += failed
        if inspect.iscoroutine(result):
            waiting.append((name, result))
        else:
            results.append((name, result))
    if waiting:
        for (name, _), result in zip(waiting, run_async(_gathered(waiting)), strict=True):
            failed = isinstance(result, Exception)
            episode.failures += failed
            results.append((name, {"error": str(result)} if failed else result))
    return [
        {"role": "tool", "name": name, "content": result if isinstance(result, list) else str(result)}
        for name, result in results
    ]


async def _gathered(waiting: Sequence[tuple[str, Awaitable[Any]]]) -> list[Any]:
    return await asyncio.gather(*(result for _, result in waiting), return_exceptions=True)
