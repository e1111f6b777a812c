"""Lessons for house style: conversations in random houses, from which a model learns the form of a call.

Every lesson is in a house of its own, so no house's names can be learned: only to call some tool if nothing says which,
and otherwise the one that a hint or an error names.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Any

from composer_replication.envs.contract import Lesson, Task, call_tool, schemas_of, tools_of
from composer_replication.envs.house_style.customs import EFFECTS, Call, Customs, call_with, right_calls
from composer_replication.envs.house_style.environment import HouseStyle
from composer_replication.envs.house_style.tasks import make_task
from composer_replication.envs.house_style.words import WORDS, Words
from composer_replication.hint_generator.classifier import classify
from composer_replication.hint_generator.layers import LayeredHints, as_collator_hint
from composer_replication.traces import Message

DONE: Message = {"role": "assistant", "content": "Done."}
"""The turn after the last call."""


def make_lessons(count: int, *, seed: int = 0) -> list[Lesson]:
    """Make lessons with the words of the train split; a longer list begins with the shorter one."""
    return list(islice(lessons(random.Random(f"lessons {seed}"), WORDS["train"]), count))


def lessons(numbers: random.Random, words: Words, *, calls: Sequence[int] = (1, 2, 3)) -> Iterator[Lesson]:
    """Yield lessons without end: tasks that are solved, with or without help, and closed with a word.

    Before each right call comes nothing, a hint, or a wrong call with its error, each as often. Wrong calls carry no
    loss. Without help, the right call is any of those that a house may take, all equally likely.

    Args:
        numbers: what is drawn from.
        words: names, texts and phrasings of the tasks.
        calls: how many calls a task may take, each number as often.
    """
    while True:
        yield _lesson(numbers, make_task(words, numbers, numbers.choice(calls)))


def preference_pairs(tasks: Iterable[Task], house: int | Customs = 0, *, seed: int = 0) -> list[dict[str, Any]]:
    """Make a preference pair of each task's first step: the call that a house takes, against one of another signature.

    Args:
        tasks: rows of `make_tasks`.
        house: number or customs of the house.
        seed: of the draw of the other signatures.
    """
    numbers, tools = random.Random(seed), schemas_of(HouseStyle())
    pairs = []
    for task in tasks:
        effect, *values = task["steps"][0]
        right = right_calls(task["steps"], house)[0]
        wrong = numbers.choice(_other_calls(effect, values, right))
        chosen, rejected = ([call.message()] for call in (right, wrong))
        pairs.append({"prompt": task["prompt"], "chosen": chosen, "rejected": rejected, "tools": tools})
    return pairs


def hint_for(call: Call, error: str) -> str:
    """Return the hint that is made of a house's error for a call.

    Raises:
        ValueError: no template has a hint for it.
    """
    kind, details = classify(error, tool_name=call.tool, arguments=call.arguments)
    hint = _hints()(kind, {**details, "tool_name": call.tool, "error_message": error})
    if hint is None:
        raise ValueError(f"no hint for the answer {error!r} to a call of {call.tool}: is it an error?")
    return hint


def _lesson(numbers: random.Random, task: Task) -> Lesson:
    customs = {name: numbers.choice(effect.signatures) for name, effect in EFFECTS.items()}
    house = HouseStyle(customs)
    house.reset(**task)
    messages, learned = list(task["prompt"]), []
    for effect, *values in task["steps"]:
        right = call_with(customs[effect], values)
        help_with = numbers.choice(("nothing", "hint", "error"))
        if help_with != "nothing":
            wrong = _wrong_call(numbers, effect, values, right)
            answer, _ = call_tool(tools_of(house), wrong.tool, wrong.arguments)
            if help_with == "hint":
                messages.append({"role": "system", "content": hint_for(wrong, answer["error"])})
            else:
                messages += [wrong.message(), result_of(wrong, answer)]
        learned.append(len(messages))
        messages += [right.message(), result_of(right, call_tool(tools_of(house), right.tool, right.arguments)[0])]
    return Lesson([*messages, DONE], [*learned, len(messages)])


def _wrong_call(numbers: random.Random, effect: str, values: Sequence[str], right: Call) -> Call:
    """Draw a call as another house takes it, or the right one without its last argument."""
    incomplete = right._replace(arguments=dict(list(right.arguments.items())[:-1]))
    return numbers.choice([*_other_calls(effect, values, right), incomplete])


def _other_calls(effect: str, values: Sequence[str], right: Call) -> list[Call]:
    calls = (call_with(signature, values) for signature in EFFECTS[effect].signatures)
    return [call for call in calls if call != right]


def result_of(call: Call, answer: Any) -> Message:
    """The message that the model reads after a call, in TRL's form."""
    return {"role": "tool", "name": call.tool, "content": str(answer)}


@cache
def _hints() -> Callable[[str, dict[str, Any]], str | None]:
    return as_collator_hint(LayeredHints())
