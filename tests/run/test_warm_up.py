"""The warm-up: which tokens it learns, what it writes, and that a model makes calls that can be read after it."""

from __future__ import annotations

import json
import random
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from run.training_material import model_folder

from composer_replication.cli.app import run
from composer_replication.envs.contract import Lesson, schemas_of
from composer_replication.envs.house_style import HouseStyle, make_lessons
from composer_replication.envs.registry import BuiltIn
from composer_replication.pretrained import load_checkpoint
from composer_replication.rendering import render_conversation
from composer_replication.run import warm_up as warm_up_module
from composer_replication.run.sections import LoraSection, ModelSection
from composer_replication.run.warm_up import _examples, warm_up
from composer_replication.teacher_replay.serving.tool_call_text import read_reply
from composer_replication.trainer.data_collator import CollatorConfig, ComposerDataCollator

DOORS = [f"the {colour} {what}" for colour, what in product(("red", "tall", "new"), ("door", "gate", "lid"))]


class Doors:
    """An environment with one tool: what a random model can learn in seconds."""

    def reset(self, **row: Any) -> None: ...

    def get_reward(self) -> float:
        return 0.0

    def open(self, name: str) -> str:
        """Open something.

        Args:
            name: A name.
        """
        return "Open."


def door_lessons(count: int, *, seed: int = 0) -> list[Lesson]:
    drawn = random.Random(seed).choices(DOORS, k=count)
    calls = [{"type": "function", "function": {"name": "open", "arguments": {"name": name}}} for name in drawn]
    return [
        Lesson([*asked(name), {"role": "assistant", "content": "", "tool_calls": [call]}], [1])
        for name, call in zip(drawn, calls, strict=True)
    ]


def asked(name: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"Open {name}."}]


@pytest.fixture
def doors(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The tools of an environment `doors`, which the warm-up then finds."""
    monkeypatch.setattr(warm_up_module, "built_in", lambda _: BuiltIn(Doors, lambda *_: [], door_lessons))
    return schemas_of(Doors())


def readable(model: Any, tokenizer: Any, tools: list[dict[str, Any]]) -> float:
    """The share of answers that are calls of a tool with its argument."""
    good = 0
    for name in DOORS:
        prompt = tokenizer.apply_chat_template(
            asked(name), tools=tools, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        answer = model.generate(**prompt, max_new_tokens=50, do_sample=False)[0, prompt["input_ids"].shape[1] :]
        calls = read_reply(tokenizer.decode(answer).removesuffix(tokenizer.eos_token), tools=tools).tool_calls
        good += [(call.name, list(call.arguments)) for call in calls] == [("open", ["name"])]
    return good / len(DOORS)


def test_a_model_that_makes_no_calls_makes_them_afterwards(tmp_path: Path, doors: list[dict[str, Any]]) -> None:
    name = str(model_folder(tmp_path / "model"))
    model, tokenizer = load_checkpoint(name, "float32")
    assert readable(model, tokenizer, doors) == 0.0
    told: list[int] = []
    losses = warm_up(
        ModelSection(name=name),
        "doors",
        tmp_path / "warm",
        steps=60,
        batch_size=4,
        learning_rate=2e-2,
        on_log=lambda step, metrics: told.append(step) if "loss" in metrics else None,
    )
    assert told == list(range(1, 61))
    assert losses[-1] < 0.1 * losses[0]
    warmed, own = load_checkpoint(str(tmp_path / "warm"), "auto")
    assert own.chat_template == tokenizer.chat_template
    assert readable(warmed, own, doors) > 0.5


def test_the_loss_is_on_the_tokens_of_learned_turns_alone(qwen_tokenizer: Any) -> None:
    tools = schemas_of(HouseStyle())
    collator = ComposerDataCollator(qwen_tokenizer, CollatorConfig(enable_sdpo=False))
    lessons = make_lessons(12)
    unlearned = 0
    for lesson, example in zip(lessons, _examples(lessons, tools), strict=True):
        rendered = render_conversation(qwen_tokenizer, lesson.messages, tools=tools)
        (row,) = collator.rows(example)
        assert list(row.ids) == rendered.ids
        learned = [turn for turn in rendered.turns if turn.message in lesson.learned]
        wanted = {place for turn in learned for place in range(turn.start, turn.stop)}
        assert {place for place, carries in enumerate(row.response_mask) if carries} == wanted
        unlearned += len(rendered.turns) - len(learned)
    assert unlearned > 0


@pytest.mark.usefixtures("doors")
def test_adapters_are_merged_and_a_seed_repeats_the_run(tmp_path: Path) -> None:
    settings = ModelSection(name=str(model_folder(tmp_path / "model")), lora=LoraSection(r=2, alpha=4))
    names = {"one": 0, "same": 0, "other": 1}
    one, same, other = (warm_up(settings, "doors", tmp_path / name, steps=2, seed=seed) for name, seed in names.items())
    assert one == same != other
    weights = [load_checkpoint(str(tmp_path / name), "auto")[0].state_dict() for name in names]
    base = load_checkpoint(settings.name, "auto")[0].state_dict()
    assert weights[0].keys() == base.keys()
    moved = {name for name in base if not torch.equal(weights[0][name], base[name])}
    assert {name.rpartition(".")[0].rpartition(".")[2] for name in moved} >= {"q_proj", "down_proj"}
    assert not any("embed" in name for name in moved)
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in base)


def test_the_command_says_how_it_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = model_folder(tmp_path / "model")
    command = ["warm-up", str(name), "--env", "house_style", "--steps", "1", "--lora-r", "0"]
    assert run([*command, "-o", str(tmp_path / "one")]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("1 steps, loss ")
    assert said.out.endswith(f"from_pretrained: {tmp_path / 'one'}\n")
    assert "step 1/1 | loss " in said.err
    assert run([*command, "-o", str(tmp_path / "two"), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures.pop("losses")[0] > 0
    assert figures == {"output_dir": str(tmp_path / "two"), "steps": 1}


def test_what_cannot_be_warmed_up_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, plain = model_folder(tmp_path / "model"), model_folder(tmp_path / "plain")
    (plain / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    output = tmp_path / "out"

    def refused(*arguments: object, environment: str = "house_style") -> str:
        assert run(["warm-up", *map(str, arguments), "--env", environment, "-o", str(output)]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        return line

    assert "environment must be one of 'house_style', 'python_tasks', got 'doors'" in refused(
        folder, environment="doors"
    )
    assert "model.name: nowhere/at/all: there is no such directory" in refused("nowhere/at/all")
    assert "the template renders no tool calls, and house_style needs them; set it to qwen2_5" in refused(plain)
    assert "learning_rate must be a positive finite number, got -1.0" in refused(folder, "--lr", "-1")
    assert not output.exists()
    output.mkdir()
    (output / "notes.md").touch()
    assert f"{output} is not an empty folder: give another one" in refused(folder)
    monkeypatch.delattr("composer_replication.envs.house_style.make_lessons")
    assert "the environment house_style has no lessons: train in it without a warm-up" in refused(folder)


def test_smollm2_learns_the_form(tmp_path: Path, doors: list[dict[str, Any]]) -> None:
    settings = ModelSection(name="smollm2", lora=LoraSection(r=8, alpha=16))
    losses = warm_up(settings, "doors", tmp_path / "warm", steps=6)
    assert losses[-1] < 0.5 * losses[0]
    model, tokenizer = load_checkpoint(str(tmp_path / "warm"), "auto")
    assert sum(one.numel() for one in model.parameters()) == 134_515_008
    assert "<tool_call>" in tokenizer.apply_chat_template(asked("it"), tools=doors, tokenize=False)
