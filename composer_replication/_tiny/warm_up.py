"""A small model that can act in the tool house: it has a habit of its own, and it follows hints.

Its weights come with the package, so that every machine starts from the same ones. This trains them again (half a
minute, and slightly different on every kind of CPU):

    python -m composer_replication._tiny.warm_up

The warm-up is supervised. It teaches the form of a call, the habit (mostly an argument name that the house does not
take, now and then the right one), and to follow hints: after a hint, or after the error itself, the call takes the
argument that is named there. The customs of a lesson are drawn at random, so the model must read them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from composer_replication._tiny.models import tiny_model, tiny_tokenizer
from composer_replication._tiny.tool_house import (
    ARGUMENT_NAMES,
    CUSTOMS,
    ToolHouse,
    house_tasks,
    house_tools,
    tool_call,
    tool_result,
)
from composer_replication.causal_lm import run_causal_lm
from composer_replication.channels.policy import lm_channel
from composer_replication.hint_generator.classifier import classify
from composer_replication.hint_generator.layers import LayeredHints, as_collator_hint
from composer_replication.rendering import render_conversation
from composer_replication.traces import Message

RIGHT_BY_HABIT = 0.25
"""The share of calls without a hint that take the argument of the default house."""

DONE: Message = {"role": "assistant", "content": "Done."}
_WEIGHTS = Path(__file__).with_name("warm_up.safetensors")
_VOCABULARY = 768
_LESSONS = 600
_WHOLE_LESSONS = 300


def house_tokenizer() -> Any:
    """Train a tokenizer on conversations in the house, with Qwen2.5's chat template."""
    template = tiny_tokenizer("qwen2_5")
    tools = house_tools()
    talk = [template.apply_chat_template(lesson, tools=tools, tokenize=False) for lesson in _conversations(0, 40)]
    return tiny_tokenizer("qwen2_5", vocab_size=_VOCABULARY, more_text=talk)


def warmed_up_model() -> Any:
    """Return a new copy of the small Qwen2 after its warm-up, for `house_tokenizer()`."""
    model = _untaught_model()
    model.load_state_dict(load_file(_WEIGHTS))
    return model


def house_hint(error: str, tool: str, arguments: Mapping[str, str]) -> str:
    """Return the hint that the templates make of the house's error message for a call.

    Raises:
        ValueError: no template has a hint for it.
    """
    kind, details = classify(error, tool_name=tool, arguments=arguments)
    hint = as_collator_hint(LayeredHints())(kind, {**details, "tool_name": tool, "error_message": error})
    if hint is None:
        raise ValueError(f"no hint for the answer {error!r} to a call of {tool}: is it an error?")
    return hint


def warm_up(seed: int = 0) -> Any:
    """Train the small Qwen2. The global random state is kept."""
    tokenizer = house_tokenizer()
    model = _untaught_model(seed)
    conversations = _conversations(seed, _LESSONS)
    # First without the tools in the prompt, which would make every lesson three times as long; then with them.
    lessons = [render_conversation(tokenizer, one) for one in conversations]
    _teach(model, lessons, seed=seed, steps=200, rows=24, learning_rate=8e-3)
    tools = house_tools()
    lessons = [render_conversation(tokenizer, one, tools=tools) for one in conversations[:_WHOLE_LESSONS]]
    _teach(model, lessons, seed=seed, steps=50, rows=12, learning_rate=4e-3)
    return model


def _untaught_model(seed: int = 0) -> Any:
    return tiny_model("qwen2", vocab_size=_VOCABULARY, seed=seed).eval()


def _teach(model: Any, lessons: Sequence[Any], *, seed: int, steps: int, rows: int, learning_rate: float) -> None:
    numbers = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, total_steps=steps, pct_start=0.15)
    for _ in range(steps):
        batch = _batch(numbers.sample(lessons, rows))
        optimizer.zero_grad()
        states = run_causal_lm(model, batch["input_ids"], batch["attention_mask"])
        lm_channel(states, batch).loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


def _conversations(seed: int, count: int) -> list[list[Message]]:
    """Make conversations that end with the assistant turn to learn."""
    numbers = random.Random(seed)
    return [_conversation(row["prompt"], row["wanted"][0], numbers) for row in house_tasks(count, seed=seed)]


def _conversation(prompt: list[Message], wanted: str, numbers: random.Random) -> list[Message]:
    tool, file = wanted.split()
    customs = {name: numbers.choice(ARGUMENT_NAMES) for name in CUSTOMS}
    house, right = ToolHouse(customs), customs[tool]
    wrong = numbers.choice([name for name in ARGUMENT_NAMES if name != right])
    error = tool_result(house, tool, {wrong: file})
    wrong_call, right_call = tool_call(tool, wrong, file), tool_call(tool, right, file)
    (lesson,) = numbers.choices(("habit", "hint", "error", "success"), weights=(3, 4, 2, 1))
    if lesson == "habit":
        return [*prompt, tool_call(tool, _habit(numbers, tool), file)]
    if lesson == "hint":
        hint = house_hint(error["content"], tool, {wrong: file})
        return [*prompt, {"role": "system", "content": hint}, right_call]
    if lesson == "error":
        return [*prompt, wrong_call, error, right_call]
    return [*prompt, right_call, tool_result(house, tool, {right: file}), DONE]


def _habit(numbers: random.Random, tool: str) -> str:
    if numbers.random() < RIGHT_BY_HABIT:
        return CUSTOMS[tool]
    return numbers.choice([name for name in ARGUMENT_NAMES if name != CUSTOMS[tool]])


def _batch(lessons: Sequence[Any]) -> dict[str, torch.Tensor]:
    """Pad rendered conversations; the loss is on their last turn."""
    shape = (len(lessons), max(len(lesson.ids) for lesson in lessons))
    batch = {name: torch.zeros(shape, dtype=torch.long) for name in ("input_ids", "attention_mask", "response_mask")}
    for row, lesson in enumerate(lessons):
        batch["input_ids"][row, : len(lesson.ids)] = torch.tensor(lesson.ids)
        batch["attention_mask"][row, : len(lesson.ids)] = 1
        batch["response_mask"][row, lesson.turns[-1].start : lesson.turns[-1].stop] = 1
    return batch


if __name__ == "__main__":
    save_file(warm_up().state_dict(), _WEIGHTS)
