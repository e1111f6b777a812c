"""Rollouts as TRL's tool loop makes them, from scripts: sampled turns and tool texts put together as ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from composer_replication.trainer.rollouts import Rollout

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"The tool {name}.",
            "parameters": {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]},
        },
    }
    for name, argument in (("read_file", "path"), ("run_python", "code"))
]
PROMPT = [{"role": "user", "content": "What does a.py print?"}]


def says(text: str, *calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """An assistant's message as TRL parses it."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {"type": "function", "function": {"name": name, "arguments": arguments}} for name, arguments in calls
        ]
    return message


def calls(name: str, **arguments: Any) -> dict[str, Any]:
    return says("", (name, arguments))


def answers(name: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "name": name, "content": content}


def raised(name: str, error: str) -> dict[str, Any]:
    """What TRL's loop makes of a tool's exception."""
    return answers(name, str({"error": error}))


OPENED = calls("open_file", path="a.py")
NOT_FOUND = raised("open_file", "Tool open_file not found.")
READ = calls("read_file", path="a.py")
CONTENT = answers("read_file", "print(1)")
ANSWER = says("It prints 1.")


def play(
    tokenizer: Any,
    messages: Sequence[dict[str, Any]],
    *,
    prompt: Sequence[dict[str, Any]] = PROMPT,
    tools: list[dict[str, Any]] | None = TOOLS,
    keep_last: int | None = None,
) -> Rollout:
    """The rollout in which the model says the assistant's messages; `keep_last` tokens stay of the last turn."""
    prompt_ids = tokenizer.apply_chat_template(list(prompt), tools=tools, add_generation_prompt=True, return_dict=False)
    completion_ids: list[int] = []
    generated: list[int] = []
    results: list[dict[str, Any]] = []
    for place, message in enumerate(messages):
        if message["role"] == "tool":
            results.append(message)
            continue
        if place:
            suffix = tool_suffix(tokenizer, results)
            completion_ids += suffix
            generated += [0] * len(suffix)
            results = []
        turn = spoken_ids(tokenizer, message)
        if place == len(messages) - 1 and keep_last is not None:
            turn = turn[:keep_last]
        completion_ids += turn
        generated += [1] * len(turn)
    return Rollout(list(prompt), list(messages), prompt_ids, completion_ids, generated, tools)


def spoken_ids(tokenizer: Any, message: dict[str, Any]) -> list[int]:
    """The tokens that a model samples to say this, to the end of its turn."""
    before = tokenizer.apply_chat_template(PROMPT, tokenize=False, add_generation_prompt=True)
    text = tokenizer.apply_chat_template([*PROMPT, message], tokenize=False).removeprefix(before)
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids[: ids.index(tokenizer.eos_token_id) + 1]


def tool_suffix(tokenizer: Any, results: list[dict[str, Any]]) -> list[int]:
    """As `GRPOTrainer._get_tool_suffix_ids`: what the template appends to a turn that called tools."""
    dummy = [{"role": "user", "content": "dummy"}, calls(results[0]["name"])]
    prefix = tokenizer.apply_chat_template(dummy, return_dict=False)
    full: list[int] = tokenizer.apply_chat_template([*dummy, *results], add_generation_prompt=True, return_dict=False)
    last_end = max(place for place, token in enumerate(prefix) if token == tokenizer.eos_token_id)
    return full[last_end + 1 :]


def padded(rollouts: Sequence[Rollout], pad_token_id: int, *, extra: int = 0) -> dict[str, torch.Tensor]:
    """The rollouts as TRL's batch: prompts padded on the left, completions on the right."""
    prompts = max(len(one.prompt_ids) for one in rollouts) + extra
    completions = max(len(one.completion_ids) for one in rollouts) + extra
    rows: dict[str, list[list[int]]] = {
        "prompt_ids": [],
        "prompt_mask": [],
        "completion_ids": [],
        "completion_mask": [],
    }
    for one in rollouts:
        left, right = prompts - len(one.prompt_ids), completions - len(one.completion_ids)
        rows["prompt_ids"].append([pad_token_id] * left + one.prompt_ids)
        rows["prompt_mask"].append([0] * left + [1] * len(one.prompt_ids))
        rows["completion_ids"].append(one.completion_ids + [pad_token_id] * right)
        rows["completion_mask"].append([1] * len(one.completion_ids) + [0] * right)
    return {name: torch.tensor(values) for name, values in rows.items()}
