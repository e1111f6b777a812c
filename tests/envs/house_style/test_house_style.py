"""House style: what is rewarded, what errors say, and policies that try to be paid without the effect."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from transformers.utils import get_json_schema

from composer_replication.envs.contract import call_tool, tools_of
from composer_replication.envs.house_style import Call, HouseStyle, house_customs, make_tasks, right_calls
from composer_replication.envs.house_style.customs import EFFECT_OF_TOOL, EFFECTS, call_with
from composer_replication.hint_generator import LayeredHints, as_collator_hint
from composer_replication.hint_generator.classifier import classify

CUSTOMS = {
    "create": "write_file(name, content)",
    "append": "add_line(path, line)",
    "rename": "move_file(old, new)",
    "delete": "erase_file(path)",
}
TASKS = make_tasks("held_out", 40)


def played(task: dict[str, Any], calls: list[Call], **options: Any) -> HouseStyle:
    house = HouseStyle(**{"house": CUSTOMS, **options})
    house.reset(**task)
    for call in calls:
        call_tool(tools_of(house), call.tool, call.arguments)
    return house


@pytest.mark.parametrize("house", [0, 1, 7, CUSTOMS])
def test_the_right_calls_of_any_house_earn_the_reward(house: Any) -> None:
    for task in TASKS:
        played_in = played(task, right_calls(task["steps"], house), house=house)
        assert played_in.get_reward() == 1.0
        assert played_in._feedback() is None


def test_every_other_signature_fails_and_costs_the_reward() -> None:
    task = make_tasks("train", 1, calls=1)[0]
    (effect, *values), customs = task["steps"][0], house_customs(CUSTOMS)
    for signature in EFFECTS[effect].signatures:
        call = call_with(signature, values)
        house = played(task, [call])
        assert house.get_reward() == float(signature == customs[effect])
        # The right call after a failed one has its effect, but no reward; a smaller cost leaves some of it.
        again = [call, *right_calls(task["steps"], CUSTOMS)]
        if signature != customs[effect]:
            assert played(task, again).get_reward() == 0.0
            assert played(task, again, failure_cost=0.25).get_reward() == 0.75


def test_the_schemas_list_all_synonyms_alike() -> None:
    shown = {name: get_json_schema(tool)["function"] for name, tool in tools_of(HouseStyle(CUSTOMS)).items()}
    assert set(shown) == set(EFFECT_OF_TOOL)
    for effect in EFFECTS.values():
        of_effect = [{**shown[tool], "name": ""} for tool in effect.tools]
        assert all(one == of_effect[0] for one in of_effect)
        assert set(of_effect[0]["parameters"]["properties"]) == {name for style in effect.styles for name in style}
    elsewhere = tools_of(HouseStyle(1)).values()
    assert [get_json_schema(tool)["function"] for tool in elsewhere] == list(shown.values())


@pytest.mark.parametrize(
    ("call", "error", "hint"),
    [
        (
            Call("remove_file", {"path": "a.md"}),
            "Unknown tool 'remove_file'. Available tools: write_file(name, content), add_line(path, line), "
            "move_file(old, new), erase_file(path).",
            "There is no tool named `remove_file` here. Available tools: `write_file(name, content)`, "
            "`add_line(path, line)`, `move_file(old, new)`, `erase_file(path)`.",
        ),
        (
            Call("erase_file", {"name": "a.md"}),
            "Unexpected parameter 'name'. Signature: erase_file(path).",
            "When you call `erase_file`, leave out `name`. `erase_file` takes `erase_file(path)`.",
        ),
        (
            Call("erase_file", {}),
            "Missing required parameter 'path'. Signature: erase_file(path).",
            "When you call `erase_file`, always give `path`. `erase_file` takes `erase_file(path)`.",
        ),
        (
            Call("erase_file", {"path": "b.md"}),
            "File not found: b.md\nAvailable files: a.md",
            "There is no file `b.md`.",
        ),
        (Call("write_file", {"name": "a.md", "content": "x"}), "File already exists: a.md.", "file exists already"),
        (Call("open_file", {}), "Tool open_file not found.", None),
    ],
)
def test_errors_say_what_is_available_and_become_hints(call: Call, error: str, hint: str | None) -> None:
    house = HouseStyle(CUSTOMS)
    house.reset(files=[["a.md", "x"]], steps=[["delete", "a.md"]])
    assert call_tool(tools_of(house), call.tool, call.arguments) == ({"error": error}, True)
    if hint is not None:
        kind, details = classify(error, tool_name=call.tool, arguments=call.arguments)
        meta = {**details, "tool_name": call.tool, "error_message": error}
        assert hint in str(as_collator_hint(LayeredHints())(kind, meta))


def test_errors_never_contain_the_answer() -> None:
    """An error is the same whatever the task wants, and says nothing of its texts and new names."""
    for task in TASKS:
        house = HouseStyle(CUSTOMS)
        house.reset(**task)
        wanted = {value for effect, *values in task["steps"] for value in values[effect != "create" :]}
        for tool, arguments in product(tools_of(house), ({}, {"path": "x"}, {"name": "x"}, {"old": "x", "new": "y"})):
            answer, failed = call_tool(tools_of(house), tool, arguments)
            assert not failed or not any(value in str(answer) for value in wanted)


def every_tool(task: dict[str, Any]) -> list[Call]:
    steps = task["steps"]
    return [call_with(one, values) for effect, *values in steps for one in EFFECTS[effect].signatures]


def delete_all(task: dict[str, Any]) -> list[Call]:
    return [Call("erase_file", {"path": name}) for name, _ in task["files"]]


def touch_all(task: dict[str, Any]) -> list[Call]:
    return [Call("add_line", {"path": name, "line": "done"}) for name, _ in task["files"]]


def all_but_one(task: dict[str, Any]) -> list[Call]:
    return right_calls(task["steps"], CUSTOMS)[:-1]


def with_a_detour(task: dict[str, Any]) -> list[Call]:
    detour = [Call("write_file", {"name": "x", "content": "y"}), Call("erase_file", {"path": "x"})]
    return [*right_calls(task["steps"], CUSTOMS), *detour]


def says_it(task: dict[str, Any]) -> list[Call]:
    return [Call("write_file", {"name": "answer.md", "content": str(task["steps"])})]


def wrong_texts(task: dict[str, Any]) -> list[Call]:
    first, *rest = right_calls(task["steps"], CUSTOMS)
    return [first._replace(arguments={name: f"{value} " for name, value in first.arguments.items()}), *rest]


def forbidden(task: dict[str, Any]) -> list[Call]:
    return [Call(name, {}) for name in ("get_reward", "reset", "_apply", "__init__", "_call", "_files")]


@pytest.mark.parametrize("failure_cost", [0.0, 1.0])
@pytest.mark.parametrize(
    "policy", [delete_all, touch_all, all_but_one, with_a_detour, says_it, wrong_texts, forbidden, lambda _: []]
)
def test_the_reward_cannot_be_had_without_the_effect(
    policy: Callable[[dict[str, Any]], list[Call]], failure_cost: float
) -> None:
    for task in TASKS:
        calls = policy(task)
        if calls != right_calls(task["steps"], CUSTOMS):  # deleting everything may be the task
            assert played(task, calls, failure_cost=failure_cost).get_reward() < 1.0


def test_trying_all_tools_costs_more_than_the_effect_is_worth() -> None:
    for task in TASKS:
        assert played(task, every_tool(task)).get_reward() == 0.0
        assert played(task, right_calls(task["steps"], CUSTOMS) * 2).get_reward() == 0.0


def test_feedback_names_files_and_not_what_to_do() -> None:
    house = HouseStyle(CUSTOMS)
    house.reset(files=[["a.md", "x"]], steps=[["append", "a.md", "secret words"]])
    assert house._feedback() == "The request is not fulfilled: a.md."
    call_tool(tools_of(house), "add_line", {"name": "a.md"})
    assert house._feedback() is None  # the error says more


def test_a_reset_leaves_nothing_of_the_episode_before() -> None:
    first, second = TASKS[:2]
    house = played(first, every_tool(first))
    house.reset(**second)
    for call in right_calls(second["steps"], CUSTOMS):
        call_tool(tools_of(house), call.tool, call.arguments)
    assert house.get_reward() == 1.0


def test_customs_that_cannot_be() -> None:
    with pytest.raises(ValueError, match=r"customs of 'delete' must be one of .*erase_file\(name\).*, not None"):
        HouseStyle({name: one for name, one in CUSTOMS.items() if name != "delete"})
    with pytest.raises(ValueError, match=r"not 'delete_file\(file\)'"):
        HouseStyle({**CUSTOMS, "delete": "delete_file(file)"})
    with pytest.raises(ValueError, match="customs have 'open', which is none of create"):
        HouseStyle({**CUSTOMS, "open": "open_file(path)"})
    with pytest.raises(ValueError, match=r"failure_cost must be at least 0, got -0\.5"):
        HouseStyle(failure_cost=-0.5)
    assert house_customs(3) == house_customs(3)
    assert len({str(house_customs(number)) for number in range(50)}) > 40
