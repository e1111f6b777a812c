"""The task generator: functions of a split to write, or to repair after a small mistake."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from functools import cache
from typing import Literal, get_args

from composer_replication._arguments import check_choice
from composer_replication.envs.contract import SPLITS, Split, Task, task_id
from composer_replication.envs.python_tasks.bank import Function, functions
from composer_replication.envs.python_tasks.grader import Call
from composer_replication.envs.python_tasks.mutations import mutants

Kind = Literal["write", "repair"]
KINDS: tuple[Kind, ...] = get_args(Kind)
SYSTEM = "You are a coding agent."
_EXAMPLES = 3
_WRITE_TASKS = 5
_REQUESTS = {
    "write": "Write the function `{}` in solution.py, of which only the head is there.",
    "repair": "The function `{}` in solution.py has a mistake. Repair it.",
}
_RULES = "The tool run_tests tries the examples. In the end solution.py alone is tested, with other inputs too."


def make_tasks(split: Split, count: int, *, seed: int = 0, kind: Kind | None = None) -> list[Task]:
    """Make tasks; the same for the same arguments, and a longer list begins with the shorter one.

    Args:
        split: train, dev or held_out: they share no function.
        count: of tasks, at least 1; all of them differ.
        seed: of the order; every seed has the same tasks.
        kind: write (of a function there is only the head) or repair (its solution has a mistake); None: both.

    Raises:
        ValueError: there is no such split or kind, or not so many tasks.
    """
    check_choice("split", split, SPLITS)
    if kind is not None:
        check_choice("kind", kind, KINDS)
    tasks = [task for task in _tasks(split) if kind in (None, task["kind"])]
    if not 1 <= count <= len(tasks):
        raise ValueError(f"count must be between 1 and {len(tasks)}, the number of tasks of {split}, got {count}")
    random.Random(f"{split} {seed}").shuffle(tasks)
    return copy.deepcopy(tasks[:count])


@cache
def _tasks(split: Split) -> tuple[Task, ...]:
    return tuple(task for function in functions(split).values() for task in _tasks_of(function))


def _tasks_of(function: Function) -> Iterator[Task]:
    numbers = random.Random(function.name)
    for _ in range(_WRITE_TASKS):
        examples = numbers.sample(function.tests, _EXAMPLES)
        yield _task(function, "write", "    raise NotImplementedError", examples)
    for mutant in mutants(function):
        # One of the examples shows the mistake.
        shows = function.tests[numbers.choice(mutant.failed)]
        others = [test for test in function.tests if test != shows]
        examples = [shows, *numbers.sample(others, _EXAMPLES - 1)]
        numbers.shuffle(examples)
        yield _task(function, "repair", mutant.source.split("\n", 1)[1].rstrip(), examples)


def _task(function: Function, kind: Kind, body: str, examples: list[str]) -> Task:
    calls = [Call(function, example) for example in examples]
    shown = "\n".join(f">>> {call.shown}\n{call.expected}" for call in calls)
    docstring = f'"""{function.specification}\n\n{shown}\n"""'.replace("\n", "\n    ").replace("\n    \n", "\n\n")
    solution = f"def {function.signature}:\n    {docstring}\n{body}\n"
    asked = f"{_REQUESTS[kind].format(function.signature)} {function.specification}\n\n{shown}\n\n{_RULES}"
    prompt = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": asked}]
    row = {"prompt": prompt, "function": function.name, "kind": kind, "solution": solution, "examples": examples}
    return {**row, "task_id": task_id([prompt, solution])}
