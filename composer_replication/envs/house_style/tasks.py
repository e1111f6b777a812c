"""The task generator of house style: seeded, by split, with one to four calls a task."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import count as counting
from itertools import islice

from composer_replication._arguments import check_choice
from composer_replication.envs.contract import SPLITS, Split, Task, task_id
from composer_replication.envs.house_style.customs import EFFECTS
from composer_replication.envs.house_style.words import WORDS, Words

SYSTEM = "You are a coding agent."
CALLS = (1, 2, 3, 4)
"""The numbers of calls that a task may take."""


def make_tasks(split: Split, count: int, *, seed: int = 0, calls: int | Sequence[int] = CALLS) -> list[Task]:
    """Make tasks; the same for the same arguments, and a longer list begins with the shorter one.

    Args:
        split: train, dev or held_out: they share no name, no text and no phrasing.
        count: of tasks, at least 1; all of them differ.
        seed: another seed gives other tasks, some of which may be the same.
        calls: how many calls a task takes; of several numbers, each is drawn as often.

    Raises:
        ValueError: there is no such split, or count or calls are out of range.
    """
    check_choice("split", split, SPLITS)
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    wanted = (calls,) if isinstance(calls, int) else tuple(calls)
    if not wanted or not set(wanted) <= set(CALLS):
        raise ValueError(f"calls must be numbers between {CALLS[0]} and {CALLS[-1]}, got {calls}")
    return list(islice(_distinct(_tasks(WORDS[split], random.Random(f"{split} {seed}"), wanted)), count))


def _distinct(tasks: Iterator[Task]) -> Iterator[Task]:
    seen: set[str] = set()
    for task in tasks:
        if task["task_id"] not in seen:
            seen.add(task["task_id"])
            yield task


def _tasks(words: Words, numbers: random.Random, calls: Sequence[int]) -> Iterator[Task]:
    for number in counting():
        yield make_task(words, numbers, calls[number % len(calls)])


def make_task(words: Words, numbers: random.Random, calls: int) -> Task:
    """Draw one task of so many calls: each of them concerns other files."""
    effects = [numbers.choice(tuple(EFFECTS)) for _ in range(calls)]
    names = [f"{stem}{numbers.choice(words.endings)}" for stem in numbers.sample(words.stems, 2 * calls + 1)]
    steps: list[list[str]] = []
    there = [names.pop()]
    for effect in effects:
        values = [names.pop()]
        if effect != "create":
            there += values
        if effect == "rename":
            values.append(names.pop())
        elif effect != "delete":
            values.append(" ".join(numbers.sample(words.words, 2)))
        steps.append([effect, *values])
    numbers.shuffle(there)
    files = [[name, numbers.choice(words.words)] for name in there]
    requests = [numbers.choice(words.requests[effect]).format(*values) for effect, *values in steps]
    joined = [requests[0], *(f"{numbers.choice(words.joints)} {request}" for request in requests[1:])]
    asked = f"Files: {', '.join(f'`{name}`' for name in there)}. {' '.join(joined)}"
    prompt = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": asked}]
    return {"prompt": prompt, "files": files, "steps": steps, "task_id": task_id([prompt, files])}
