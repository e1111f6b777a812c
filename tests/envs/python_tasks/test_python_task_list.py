"""The task generator of Python tasks: disjoint splits, repeatable lists, two kinds."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import combinations
from typing import Any

import pytest
from datasets import Dataset

from composer_replication.envs.contract import SPLITS, Split, Task
from composer_replication.envs.python_tasks import make_tasks
from composer_replication.envs.python_tasks.bank import find_function
from composer_replication.envs.python_tasks.driver import plain_text
from composer_replication.envs.python_tasks.mutations import guarded_results


def every_task(split: Split) -> list[Task]:
    with pytest.raises(ValueError, match=f"the number of tasks of {split}, got 100000") as error:
        make_tasks(split, 100_000)
    return make_tasks(split, int(str(error.value).split(" and ")[1].split(",")[0]))


def test_all_tasks_differ_and_splits_share_no_task_and_no_function() -> None:
    tasks = {split: every_task(split) for split in SPLITS}
    for split in SPLITS:
        assert len({task["task_id"] for task in tasks[split]}) == len(tasks[split]) >= 200
    for least, split in ((40, "train"), (15, "dev"), (40, "held_out")):
        for kind in ("write", "repair"):
            assert len({task["function"] for task in tasks[split] if task["kind"] == kind}) >= least
    for column in ("function", "task_id", "solution"):
        for one, other in combinations(SPLITS, 2):
            assert not {task[column] for task in tasks[one]} & {task[column] for task in tasks[other]}


@pytest.mark.parametrize("split", SPLITS)
def test_a_repair_is_needed_and_an_example_shows_it(split: Split) -> None:
    for task in make_tasks(split, 140, kind="repair"):
        function, examples = find_function(task["function"]), task["examples"]
        assert task["kind"] == "repair"
        assert set(examples) <= set(function.tests)
        expected = [plain_text(function.expected(arguments)) for arguments in examples]
        assert guarded_results(task["solution"], function.name, examples) != expected
        # The examples stand in the prompt and in the file.
        for text in (task["prompt"][-1]["content"], task["solution"]):
            assert text.count(">>> ") == len(set(examples)) == len(examples) == 3
            assert all(result in text for result in expected)


def test_what_is_to_be_written_is_not_there() -> None:
    for task in make_tasks("dev", 60, kind="write"):
        assert task["kind"] == "write"
        function = find_function(task["function"])
        assert task["solution"].endswith('"""\n    raise NotImplementedError\n')
        assert function.specification in task["solution"]
        assert guarded_results(task["solution"], function.name, task["examples"]) == ["NotImplementedError"] * 3


def test_lists_are_repeatable_and_grow() -> None:
    assert make_tasks("dev", 30, seed=3) == make_tasks("dev", 60, seed=3)[:30]
    assert make_tasks("dev", 30, seed=3) != make_tasks("dev", 30, seed=4)
    kinds = [task["kind"] for task in make_tasks("train", 60)]
    assert {"write", "repair"} == set(kinds)


def test_another_process_makes_the_same_tasks() -> None:
    """Whatever the seed of its hashes is, and without torch."""
    script = (
        "from composer_replication.envs.python_tasks import make_tasks\n"
        "import sys\n"
        "assert 'torch' not in sys.modules\n"
        "print([task['task_id'] for task in make_tasks('held_out', 500)])"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout == f"{[task['task_id'] for task in make_tasks('held_out', 500)]}\n"


def test_rows_survive_a_data_set() -> None:
    tasks = make_tasks("train", 8)
    assert list(Dataset.from_list(tasks)) == tasks


def test_a_row_is_the_callers() -> None:
    task: dict[str, Any] = make_tasks("train", 1)[0]
    task["examples"].clear()
    task["prompt"][0]["content"] = ""
    assert make_tasks("train", 1)[0]["examples"]
    assert make_tasks("train", 1)[0]["prompt"][0]["content"]


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="split must be one of 'train', 'dev', 'held_out', got 'test'"):
        make_tasks("test", 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="kind must be one of 'write', 'repair', got 'guess'"):
        make_tasks("train", 1, kind="guess")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"count must be between 1 and \d+, the number of tasks of train, got 0"):
        make_tasks("train", 0)
