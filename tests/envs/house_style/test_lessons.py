"""What models learn house style from."""

from __future__ import annotations

from typing import Any

import pytest

from composer_replication.envs.contract import call_tool, schemas_of, tools_of
from composer_replication.envs.house_style import HouseStyle, make_tasks
from composer_replication.envs.house_style.customs import EFFECT_OF_TOOL
from composer_replication.envs.house_style.lessons import preference_pairs

TASKS = make_tasks("train", 40)


def _called(side: list[dict[str, Any]]) -> dict[str, Any]:
    ((call,),) = (message["tool_calls"] for message in side)
    return dict(call["function"])


@pytest.mark.parametrize("house", [0, 3])
def test_a_pair_is_the_call_that_the_house_takes_against_one_that_it_does_not(house: int) -> None:
    pairs = preference_pairs(TASKS, house)
    for task, pair in zip(TASKS, pairs, strict=True):
        chosen, rejected = _called(pair["chosen"]), _called(pair["rejected"])
        assert list(chosen["arguments"].values()) == list(rejected["arguments"].values()) == task["steps"][0][1:]
        assert EFFECT_OF_TOOL[chosen["name"]] == EFFECT_OF_TOOL[rejected["name"]] == task["steps"][0][0]
        for call, fails in ((rejected, True), (chosen, False)):
            environment = HouseStyle(house)
            environment.reset(**task)
            assert call_tool(tools_of(environment), call["name"], call["arguments"])[1] == fails
        assert (pair["prompt"], pair["tools"]) == (task["prompt"], schemas_of(HouseStyle()))
    assert len({(_called(pair["rejected"])["name"], *_called(pair["rejected"])["arguments"]) for pair in pairs}) > 10


def test_pairs_are_repeatable() -> None:
    assert preference_pairs(TASKS, seed=1) == preference_pairs(TASKS, seed=1) != preference_pairs(TASKS, seed=2)
