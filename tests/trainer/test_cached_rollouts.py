"""Rollouts with kept caches are those of TRL's loop on the same tokens: ids, masks, messages, hints and metrics."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from trainer.live_run import arguments, trainer
from trainer.scripted_model import scripted_model

from composer_replication._tiny import tiny_model, tiny_tokenizer
from composer_replication.envs.reset_text import begin_episode
from composer_replication.generation import EpisodeSettings
from composer_replication.laboratory import laboratory_tokenizer
from composer_replication.trainer import cached_rollouts
from composer_replication.trainer.composer_trainer import ComposerReplicationTrainer
from composer_replication.trainer.on_policy_hints import SITES

LONG = 330
ENDLESS = None


class Files:
    """An environment with a tool that may fail, one that is asynchronous, and feedback."""

    def reset(self, **row: Any) -> str:
        """Begin."""
        self._read = 0
        return f"There are {len(row['prompt'])} files."

    def get_reward(self) -> float:
        """Score."""
        return float(self._read)

    def _feedback(self) -> str | None:
        return None if self._read else "Read a.py."

    def read_file(self, path: str) -> str:
        """Read a file.

        Args:
            path: the file.
        """
        if path != "a.py":
            raise FileNotFoundError(f"File does not exist: {path}")
        self._read += 1
        return "print(1)"

    async def wait_for(self, seconds: int) -> dict[str, int]:
        """Wait.

        Args:
            seconds: how long.
        """
        if seconds < 0:
            raise ValueError("Time goes on.")
        return {"waited": seconds}


def written(tokenizer: Any, name: str, **values: Any) -> str:
    """A call in the words of the model's family."""
    if "<tool_call>" in tokenizer.chat_template:
        return f"<tool_call>\n{json.dumps({'name': name, 'arguments': values})}\n</tool_call>"
    return json.dumps({"name": name, "parameters": values})


def scripts(tokenizer: Any) -> list[list[str | None]]:
    """What each row says, turn by turn."""
    right, wrong = (written(tokenizer, "read_file", path=path) for path in ("a.py", "b.py"))
    unknown, misnamed = written(tokenizer, "open_file", path="a.py"), written(tokenizer, "read_file", file="a.py")
    soon, never = (written(tokenizer, "wait_for", seconds=seconds) for seconds in (1, -1))
    return [
        [unknown, misnamed, wrong, "I give up."],
        [right, right.replace('"a.py"', "")],
        [right, "It prints 1."],
        [f"{right}\n{wrong}", "It prints 1."],
        ["I know it: 1."],
        [wrong, ENDLESS],
        [ENDLESS],
        [f"{soon}\n{right}\n{never}", right, right, "1."],
    ]


class Speaker:
    """Knows what follows the ids of a conversation that ends where the assistant begins."""

    def __init__(self, tokenizer: Any, prompts: Sequence[Sequence[int]], lines: Sequence[Sequence[str | None]]) -> None:
        talk = [{"role": "user", "content": "x"}]
        whole, bare = (
            tokenizer.apply_chat_template(talk, add_generation_prompt=flag, return_dict=False) for flag in (True, False)
        )
        self._header: list[int] = whole[len(bare) :]
        self._said = {
            tuple(prompt): [self._ids(tokenizer, line) for line in its]
            for prompt, its in zip(prompts, lines, strict=True)
        }

    @staticmethod
    def _ids(tokenizer: Any, line: str | None) -> list[int]:
        if line is ENDLESS:
            return tokenizer("again and ", add_special_tokens=False)["input_ids"] * LONG
        return tokenizer(line + tokenizer.eos_token, add_special_tokens=False)["input_ids"]

    def _starts(self, ids: list[int]) -> list[int]:
        """Where the assistant begins."""
        size = len(self._header)
        places = (place for place, token in enumerate(ids) if token == self._header[0])
        return [place + size for place in places if ids[place : place + size] == self._header]

    def turn(self, ids: list[int]) -> list[int]:
        starts = self._starts(ids)
        assert starts[-1] == len(ids)
        return self._said[tuple(ids[: starts[0]])][len(starts) - 1]

    def next_token(self, ids: list[int]) -> int:
        """Anything in the middle of a prompt, or after the end of a turn."""
        starts = self._starts(ids)
        rest = self.turn(ids[: starts[-1]])[len(ids) - starts[-1] :] if starts else []
        return rest[0] if rest else 0


def scripted_trainer(
    template: str,
    folder: Path,
    lines: Callable[[Any], list[Any]] = scripts,
    named: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """A trainer whose model says the lines, a row each; the rows take turns in environments that have names."""
    tokenizer = tiny_tokenizer(template)
    said = lines(tokenizer)
    factories: Mapping[Any, Any] = {None: Files} if named is None else named
    names = [list(factories)[place % len(factories)] for place in range(len(said))]
    tasks = [[{"role": "user", "content": f"Task {number}: what does a.py print?"}] for number in range(len(said))]
    rows = [{"prompt": task, "environment": name} for task, name in zip(tasks, names, strict=True)]
    speaker: list[Speaker] = []
    made: Any = ComposerReplicationTrainer(
        model=scripted_model(lambda ids: speaker[0].next_token(ids)),
        args=arguments(
            folder, per_device_train_batch_size=len(rows), num_generations=2, max_completion_length=LONG, max_steps=1
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        environment_factory=named or Files,
        hint_gate=None,
        rollout_loop="cached",
        **{"beta_replay": 0.0, **options},
    )
    made._batch_environments = names
    prompts = [begin_episode(factories[row["environment"]](), row) for row in rows]
    speaker.append(Speaker(tokenizer, made._tokenize_prompts(prompts)[0], said))
    made.speaker, made.rows = speaker[0], rows
    return made


def rolled_out(made: Any, *, keeps_caches: bool) -> dict[str, Any]:
    """Everything that a loop hands on."""
    made._keeps_caches = keeps_caches
    made._metrics["train"].clear()
    made.state.num_input_tokens_seen = 0
    generate, seen = ComposerReplicationTrainer._generate, {}

    def noted(prompts: list[Any]) -> Any:
        names = ("prompt_ids", "completion_ids", "mask", "messages", "logprobs", "extra", "images")
        result = generate(made, prompts)
        seen.update(copy.deepcopy(dict(zip(names, result[:7], strict=True))))
        return result

    made._generate = noted
    output = made._generate_and_score_completions(copy.deepcopy(made.rows))
    del made._generate
    seen["sites"] = [[(site.kind, site.hint, site.header, site.spans) for site in own] for own in output.get(SITES, ())]
    seen["output"] = {name: value.tolist() for name, value in output.items() if isinstance(value, torch.Tensor)}
    seen["metrics"] = {name: list(values) for name, values in made._metrics["train"].items()}
    return seen


def without_sampling(made: Any) -> None:
    """TRL's loop as it is, but what `generate` would give is known."""

    def generate(prompt_ids: list[list[int]], *_: Any, **__: Any) -> tuple[list[list[int]], None]:
        return [made.speaker.turn(ids)[: made.max_completion_length] for ids in prompt_ids], None

    made._generate_single_turn = generate


@pytest.mark.parametrize("template", ["qwen2_5", "llama3_1"])
def test_both_loops_hand_on_the_same(template: str, tmp_path: Path) -> None:
    made = scripted_trainer(template, tmp_path)
    without_sampling(made)
    expected = rolled_out(made, keeps_caches=False)
    assert rolled_out(made, keeps_caches=True) == expected
    assert made.tools
    assert made.rollout_func is None
    assert {len(messages) for messages in expected["messages"]} >= {1, 3, 7}
    kinds = [[kind for kind, *_ in own] for own in expected["sites"]]
    assert kinds[0] == ["tool_not_found", "type_error", "file_not_found", "feedback"]
    assert kinds[1] == ["json_decode"]
    assert kinds[4] == ["feedback"]
    if template == "qwen2_5":  # Llama makes one call at a time
        assert [message["role"] for message in expected["messages"][3]] == ["assistant", "tool", "tool", "assistant"]
        names = [message.get("name") for message in expected["messages"][7]]
        assert names[:4] == [None, "read_file", "wait_for", "wait_for"]
        assert expected["metrics"]["tools/failure_frequency"] == [pytest.approx(6 / 13)]


def test_generate_in_trls_loop_says_the_same(tmp_path: Path) -> None:
    made = scripted_trainer("qwen2_5", tmp_path, lambda tokenizer: [scripts(tokenizer)[row] for row in (1, 2, 3, 4)])
    made.generation_config.max_new_tokens = 60
    assert rolled_out(made, keeps_caches=True) == rolled_out(made, keeps_caches=False)


@pytest.mark.parametrize("template", ["qwen2_5", "llama3_1"])
def test_both_loops_cut_at_the_same_places(template: str, tmp_path: Path) -> None:
    def lines(tokenizer: Any) -> list[Any]:
        many, _, _, parallel, answer, endless, *_ = scripts(tokenizer)
        return [many[2:], parallel, answer, endless]

    made = scripted_trainer(template, tmp_path, lines, alpha_sdpo=0.0)
    without_sampling(made)
    whole = rolled_out(made, keeps_caches=False)
    ends = list(accumulate(len(list(run)) for _, run in groupby(whole["mask"][0])))
    assert len(ends) == 3
    seen = []
    for length in (end + more for end in ends for more in (-1, 0, 1)):
        # As for a run whose arguments say so.
        made.max_completion_length = length
        seen.append(rolled_out(made, keeps_caches=False))
        assert rolled_out(made, keeps_caches=True) == seen[-1], length
    # A result that does not fit is left out; one that just fits is the end.
    lengths = [len(one["completion_ids"][0]) for one in seen]
    assert lengths == [ends[0] - 1, *[ends[0]] * 3, ends[1], ends[1] + 1, ends[2] - 1, ends[2], ends[2]]
    assert [one["mask"][0][-1] for one in seen] == [1, 1, 1, 1, 0, 1, 1, 1, 1]
    made.max_completion_length = LONG
    # The context's end: a result must leave room for a token.
    for more in (0, 1):
        made.model.config.max_position_embeddings = len(whole["prompt_ids"][0]) + ends[1] + more
        seen.append(rolled_out(made, keeps_caches=False))
        assert rolled_out(made, keeps_caches=True) == seen[-1]
        assert len(seen[-1]["completion_ids"][0]) == (ends[2] if more else ends[0])


def test_both_loops_end_after_the_same_rounds(tmp_path: Path) -> None:
    made = scripted_trainer("qwen2_5", tmp_path, lambda tokenizer: scripts(tokenizer)[:4], alpha_sdpo=0.0)
    without_sampling(made)
    for rounds in (1, 2):
        made.max_tool_calling_iterations = rounds
        expected = rolled_out(made, keeps_caches=False)
        assert rolled_out(made, keeps_caches=True) == expected
        assert sum(message["role"] == "tool" for message in expected["messages"][0]) == rounds
        assert expected["messages"][0][-1]["tool_calls"]


def _windowed() -> Any:
    model = tiny_model("qwen2", vocab_size=len(laboratory_tokenizer()))
    model.config.layer_types = ["sliding_attention"] * 2
    model.config.sliding_window = 8
    return model


class Numbers:
    """An environment with a tool of its own, which is called as one of the other's."""

    def reset(self, **row: Any) -> None:
        """Begin."""

    def get_reward(self) -> float:
        """Score."""
        return 0.0

    def read_file(self, path: str, line: int = 1) -> list[dict[str, str]]:
        """Read a line.

        Args:
            path: the file.
            line: which.
        """
        return [{"type": "text", "text": f"line {line} of {path}"}]


def test_both_loops_keep_environments_apart(tmp_path: Path) -> None:
    made = scripted_trainer(
        "qwen2_5", tmp_path, lambda tokenizer: scripts(tokenizer)[:4], {"files": Files, "numbers": Numbers}
    )
    without_sampling(made)
    expected = rolled_out(made, keeps_caches=False)
    assert rolled_out(made, keeps_caches=True) == expected
    contents = [messages[1]["content"] for messages in expected["messages"]]
    assert contents[2] == "print(1)"
    assert contents[1] == contents[3] == [{"type": "text", "text": "line 1 of a.py"}]


class _Text:
    """An environment without tools."""

    def reset(self, **row: Any) -> None:
        """Begin."""

    def get_reward(self) -> float:
        """Score."""
        return 0.0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"args": {"repetition_penalty": 1.2}}, "RepetitionPenaltyLogitsProcessor"),
        ({"args": {"generation_kwargs": {"num_beams": 2}}}, "not plain sampling"),
        ({"args": {"generation_kwargs": {"min_new_tokens": 3}}}, "MinNewTokensLengthLogitsProcessor"),
        ({"args": {"generation_kwargs": {"stop_strings": ["x"]}}}, "stop_strings"),
        ({"args": {"cache_implementation": "static"}}, "a cache that grows"),
        ({"model": _windowed}, "DynamicSlidingWindowLayer"),
    ],
)
def test_what_kept_caches_cannot_do_is_named(
    options: dict[str, Any], reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    quiet = {"alpha_sdpo": 0.0, "beta_replay": 0.0, **options}
    if callable(quiet.get("model")):
        quiet["model"] = quiet["model"]()
    with pytest.raises(ValueError, match=rf"rollout_loop='cached' cannot be used: .*{reason}.*'trl'"):
        trainer(tmp_path, rollout_loop="cached", **quiet)
    with caplog.at_level(logging.WARNING, "composer_replication"):
        live = trainer(tmp_path, rollout_loop="auto", **quiet)
    assert not live._keeps_caches
    assert reason in caplog.text


def test_who_generates(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """TRL unless it is said; with auto, kept caches for tools on a CPU, and without a word where others generate."""
    quiet = {"alpha_sdpo": 0.0, "beta_replay": 0.0}

    def rollouts(*_: Any) -> None:
        raise NotImplementedError

    with caplog.at_level(logging.WARNING, "composer_replication"):
        assert not trainer(tmp_path, **quiet)._keeps_caches
        assert trainer(tmp_path, rollout_loop="auto", **quiet)._keeps_caches
        assert not trainer(tmp_path, rollout_loop="auto", rollout_func=rollouts, **quiet)._keeps_caches
        assert not trainer(tmp_path, rollout_loop="auto", environment_factory=_Text, **quiet)._keeps_caches
        assert trainer(tmp_path, rollout_loop="cached", environment_factory=_Text, **quiet)._keeps_caches
    assert not caplog.text
    with pytest.raises(ValueError, match="there is a rollout_func"):
        trainer(tmp_path, rollout_loop="cached", rollout_func=rollouts, **quiet)
    texts = Dataset.from_list([{"prompt": "Read.", "wanted": []}] * 4)
    with pytest.raises(ValueError, match="prompts are texts"):
        trainer(tmp_path, rollout_loop="cached", train_dataset=texts, **quiet)


def test_draws_are_as_the_arguments_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1}
    rounds = {"max_tool_calling_iterations": 3, "max_completion_length": 50}
    live = trainer(tmp_path, rollout_loop="cached", alpha_sdpo=0.0, beta_replay=0.0, args={**given, **rounds})
    seen: list[Any] = []
    monkeypatch.setattr(cached_rollouts, "run_episodes", lambda *parts, **_: seen.append(parts[4]) or [])
    cached_rollouts.cached_rollouts([], live)
    assert seen == [EpisodeSettings(**given, max_completion_length=50, max_tool_iterations=3)]


def test_a_step_leaves_the_policy_as_it_was(tmp_path: Path) -> None:
    """Dropout, checkpointing and the attention are back for the loss; a second step is possible."""
    live = trainer(
        tmp_path,
        rollout_loop="cached",
        beta_replay=0.0,
        args={"gradient_checkpointing": True, "max_steps": 2},
        peft_config=LoraConfig(r=2, target_modules="all-linear", lora_dropout=0.1),
    )
    modes: list[bool] = []
    compute = live._compute_loss

    def watched(model: Any, inputs: Any) -> torch.Tensor:
        base = live.model.get_base_model()
        modes.append(all(module.training for module in live.model.modules()) and base.is_gradient_checkpointing)
        assert base.config._attn_implementation == "sdpa"
        return compute(model, inputs)

    live._compute_loss = watched
    live.train()
    assert modes == [True, True]
    logged = [line for line in live.state.log_history if "tools/call_frequency" in line]
    assert len(logged) == 2
    assert all(line["channels/sdpo/sites"] > 0 for line in logged)
