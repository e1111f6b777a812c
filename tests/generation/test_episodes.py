"""Whole episodes without a trainer: real environments, ragged rows, and the probabilities of what was drawn."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from packable_models import build

from composer_replication._tiny import tiny_model, tiny_tokenizer
from composer_replication.envs.house_style import HouseStyle, make_tasks
from composer_replication.envs.reset_text import begin_episode
from composer_replication.generation import Episode, EpisodeSettings, run_episodes
from composer_replication.generation import episodes as episodes_module
from composer_replication.generation.sampling import Part, Said
from composer_replication.laboratory import laboratory_model, laboratory_tokenizer


def played(model: Any, *, rows: int = 12, **settings: Any) -> tuple[list[Episode], list[HouseStyle]]:
    tasks = [task for task in make_tasks("train", rows // 3, calls=1) for _ in range(3)]
    environments = [HouseStyle() for _ in tasks]
    prompts = [begin_episode(environment, task) for environment, task in zip(environments, tasks, strict=True)]
    limits = EpisodeSettings(**{"max_completion_length": 96, **settings})
    return run_episodes(model, laboratory_tokenizer(), prompts, environments, limits), environments


def test_tokens_are_drawn_from_what_a_pass_over_the_whole_episode_gives() -> None:
    model = laboratory_model()
    episodes, environments = played(model)
    assert len({len(episode.completion_ids) for episode in episodes}) > 1
    assert any(0 in episode.generated for episode in episodes)
    for episode in episodes:
        ids, first = episode.prompt_ids + episode.completion_ids, len(episode.prompt_ids)
        with torch.no_grad():
            logprobs = model(torch.tensor([ids])).logits[0, first - 1 : -1].log_softmax(-1)
        expected = logprobs.gather(1, torch.tensor(episode.completion_ids)[:, None])[:, 0]
        own = torch.tensor(episode.generated, dtype=torch.bool)
        torch.testing.assert_close(torch.tensor(episode.logprobs)[own], expected[own], rtol=1e-3, atol=1e-4)
        assert not torch.tensor(episode.logprobs)[~own].any()
    # What an environment has seen is what its episode says.
    for episode, environment in zip(episodes, environments, strict=True):
        assert environment._effects + environment._failures == episode.calls
        assert environment._failures == episode.failures
        results = [message for message in episode.messages if message["role"] == "tool"]
        assert sum("error" in message["content"] for message in results) in (episode.failures, episode.failures - 1)
    assert sum(episode.calls for episode in episodes) > sum(episode.failures for episode in episodes) > 0


def test_the_likeliest_tokens_are_those_of_generate() -> None:
    model = laboratory_model()
    (first, *others), _ = played(model, rows=3, temperature=0.0, max_tool_iterations=1)
    assert [other.completion_ids for other in others] == [first.completion_ids] * 2
    said = first.completion_ids[: first.generated.index(0)]
    generated = model.generate(
        torch.tensor([first.prompt_ids]), do_sample=False, max_new_tokens=96, eos_token_id=said[-1], pad_token_id=0
    )
    assert generated[0, len(first.prompt_ids) :].tolist() == said


def test_without_tools_an_episode_is_one_turn(tokenizer: Any) -> None:
    prompt = [{"role": "user", "content": "Say something."}]
    settings = EpisodeSettings(max_completion_length=6)
    (episode,) = run_episodes(tiny_model(vocab_size=640), tokenizer, [prompt], [None], settings)
    content = tokenizer.decode(episode.completion_ids, skip_special_tokens=True)
    assert episode.messages == [{"role": "assistant", "content": content}]
    assert episode.generated == [1] * len(episode.completion_ids)
    assert len(episode.completion_ids) == 6 or episode.completion_ids[-1] == tokenizer.eos_token_id


def test_functions_are_tools_and_coroutines_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = tiny_tokenizer("qwen2_5")

    async def wait(seconds: int) -> str:
        """Wait.

        Args:
            seconds: how long.
        """
        await asyncio.sleep(0)
        return f"{seconds} seconds later"

    call = '<tool_call>\n{"name": "wait", "arguments": {"seconds": 2}}\n</tool_call><|im_end|>'
    turns = iter([tokenizer(text)["input_ids"] for text in (call, "Done.<|im_end|>")])

    def scripted(kept: Any, *_: Any) -> Any:
        ids = next(turns)
        return [Said(ids, [0.0] * len(ids))], [Part(kept, [0])]

    monkeypatch.setattr(episodes_module, "sample_turn", scripted)
    prompt = [{"role": "user", "content": "Wait."}]
    model = tiny_model(vocab_size=640)
    (episode,) = run_episodes(model, tokenizer, [prompt], [None], EpisodeSettings(), tools=[wait])
    assert [message["content"] for message in episode.messages] == ["", "2 seconds later", "Done."]
    assert (episode.calls, episode.failures) == (1, 0)
    assert '"name": "wait"' in tokenizer.decode(episode.prompt_ids)


def test_what_cannot_be_played_is_refused(qwen_tokenizer: Any) -> None:
    prompt = [{"role": "user", "content": "Go."}]
    with pytest.raises(ValueError, match=r"DynamicSlidingWindowLayer.*cache that can be kept"):
        run_episodes(build("mistral", sliding_window=8), qwen_tokenizer, [prompt], [None], EpisodeSettings())
    with pytest.raises(ValueError, match="max_completion_length must be at least 1, got 0"):
        EpisodeSettings(max_completion_length=0)
    tokenizer = tiny_tokenizer("qwen2_5")
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    with pytest.raises(ValueError, match="chat template"):
        run_episodes(tiny_model(vocab_size=640), tokenizer, [prompt], [HouseStyle()], EpisodeSettings())
