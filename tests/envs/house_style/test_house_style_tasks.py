"""The task generator of house style: disjoint splits, repeatable lists, difficulty by calls."""

from __future__ import annotations

import re
from itertools import combinations
from typing import Any

import pytest
from datasets import Dataset

from composer_replication.envs.contract import SPLITS
from composer_replication.envs.house_style import HouseStyle, make_tasks
from composer_replication.envs.house_style.words import WORDS


def _said(task: dict[str, Any]) -> str:
    return str(task["prompt"][-1]["content"])


def test_ten_thousand_tasks_share_nothing_across_splits() -> None:
    tasks = {split: make_tasks(split, 4000, seed=seed) for seed, split in enumerate(SPLITS)}
    for one, other in combinations(SPLITS, 2):
        for part in (
            lambda task: {task["task_id"]},
            lambda task: {_said(task)},
            lambda task: {name for name, _ in task["files"]},
            lambda task: {value for _, *values in task["steps"] for value in values},
            # A request without its values.
            lambda task: set(re.split(r"(?<=[.:]) ", re.sub(r"`[^`]*`", "``", _said(task).partition(". ")[2]))),
        ):
            ours, theirs = (set().union(*map(part, tasks[split])) for split in (one, other))
            assert len(ours) > 1
            assert not ours & theirs
    for split in SPLITS:
        assert len({task["task_id"] for task in tasks[split]}) == 4000


def test_words_are_apart_one_by_one() -> None:
    for one, other in combinations(WORDS.values(), 2):
        assert not {*one.stems, *one.words} & {*other.stems, *other.words}
        assert not set(one.endings) & set(other.endings)


def test_lists_are_repeatable_and_grow() -> None:
    assert make_tasks("dev", 30, seed=3) == make_tasks("dev", 60, seed=3)[:30]
    assert make_tasks("dev", 30, seed=3) != make_tasks("dev", 30, seed=4)


@pytest.mark.parametrize("calls", [1, 2, 3, 4])
def test_difficulty_is_the_number_of_calls(calls: int) -> None:
    tasks = make_tasks("train", 50, calls=calls)
    assert {len(task["steps"]) for task in tasks} == {calls}
    assert {effect for task in tasks for effect, *_ in task["steps"]} == {"create", "append", "rename", "delete"}
    for task in tasks:  # no step undoes or needs another
        values = [value for effect, *values in task["steps"] for value in values[: 2 if effect == "rename" else 1]]
        assert len(set(values)) == len(values)
        HouseStyle().reset(**task)


def test_rows_survive_a_data_set() -> None:
    tasks = make_tasks("train", 8)
    assert list(Dataset.from_list(tasks)) == tasks


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="split must be one of 'train', 'dev', 'held_out', got 'test'"):
        make_tasks("test", 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        make_tasks("train", 0)
    with pytest.raises(ValueError, match="calls must be numbers between 1 and 4, got 5"):
        make_tasks("train", 1, calls=5)
