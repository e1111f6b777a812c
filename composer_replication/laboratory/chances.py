"""How likely a model solves tasks of house style at the first attempt, as a probability: nothing is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from composer_replication.envs.contract import Task, call_tool, schemas_of, tools_of
from composer_replication.envs.house_style.customs import EFFECTS, call_with, right_calls
from composer_replication.envs.house_style.environment import HouseStyle
from composer_replication.envs.house_style.lessons import DONE, hint_for, result_of
from composer_replication.rendering import render_conversation
from composer_replication.traces import Message


def pass_chance(model: Any, tokenizer: Any, tasks: Sequence[Task], house: int, *, hinted: bool) -> float:
    """Return the mean probability of the turns that solve a task: the pass rate of sampling at temperature 1.

    Args:
        model: a causal LM in evaluation mode.
        tokenizer: its tokenizer.
        tasks: of house style.
        house: number of the house.
        hinted: whether a hint, made of the error of another tool, stands before each call.
    """
    tools = schemas_of(HouseStyle())
    chances = []
    for task in tasks:
        rendered = render_conversation(tokenizer, solved(task, house, hinted=hinted), tools=tools)
        ids_1T = torch.tensor([rendered.ids])
        with torch.no_grad():
            logprobs_T = model(ids_1T).logits[0, :-1].log_softmax(-1).gather(1, ids_1T[0, 1:, None])[:, 0]
        of_turns = torch.cat([logprobs_T[turn.start - 1 : turn.stop - 1] for turn in rendered.turns])
        chances.append(float(of_turns.sum().exp()))
    return sum(chances) / len(chances)


def solved(task: Task, house: int, *, hinted: bool) -> list[Message]:
    """Return the conversation that solves a task."""
    environment = HouseStyle(house)
    environment.reset(**task)
    tools, messages = tools_of(environment), list(task["prompt"])
    for (effect, *values), right in zip(task["steps"], right_calls(task["steps"], house), strict=True):
        if hinted:
            others = (call_with(signature, values) for signature in EFFECTS[effect].signatures)
            wrong = next(call for call in others if call.tool != right.tool)
            error = call_tool(tools, wrong.tool, wrong.arguments)[0]["error"]
            messages.append({"role": "system", "content": hint_for(wrong, error)})
        messages += [right.message(), result_of(right, call_tool(tools, right.tool, right.arguments)[0])]
    return [*messages, DONE]
