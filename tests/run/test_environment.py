"""Environments and rewards by name: imported, made, and checked as TRL uses them."""

from __future__ import annotations

from pathlib import Path

import pytest
from run.training_material import ENVIRONMENT

from composer_replication.envs.contract import tools_of
from composer_replication.envs.registry import NAMES, built_in
from composer_replication.run.environment import (
    RolloutParts,
    environment_factory,
    load_object,
    reward_function,
)
from composer_replication.run.sections import EnvironmentSection


def test_the_environment_that_was_checked_is_the_first_that_is_used(tmp_path: Path) -> None:
    (tmp_path / "doors.py").write_text(
        ENVIRONMENT + "\n\nmade = []\n\ndef counted():\n    made.append(Doors())\n    return made[-1]\n"
    )
    parts = RolloutParts(EnvironmentSection(class_=f"{tmp_path / 'doors.py'}:counted"))
    assert parts.factory is not None
    first, second = parts.factory(), parts.factory()
    made = type(first).reset.__globals__["made"]
    assert [one is other for one, other in zip(made, (first, second), strict=True)] == [True, True]


@pytest.mark.parametrize("name", NAMES)
def test_environments_of_the_package_have_names(name: str) -> None:
    parts = RolloutParts(EnvironmentSection(class_=name, arguments={"failure_cost": 0.25}))
    assert parts.factory is not None
    made = parts.factory()
    assert type(made) is built_in(name).environment
    assert made._failure_cost == 0.25
    assert [tool["function"]["name"] for tool in parts.tools] == list(tools_of(made))
    parts.check_columns(built_in(name).make_tasks("dev", 1)[0])


def test_names_that_the_package_does_not_have() -> None:
    with pytest.raises(ValueError, match=r"^environment.arguments: house_style does not take them: .*'hous'"):
        environment_factory("house_style", {"hous": 3})
    with pytest.raises(
        ValueError,
        match=r"^environment.class: 'house' must be one of house_style, python_tasks, or look like",
    ):
        environment_factory("house", {})


def test_reset_takes_the_columns_of_the_prompts(tmp_path: Path) -> None:
    (tmp_path / "doors.py").write_text(ENVIRONMENT)
    parts = RolloutParts(EnvironmentSection(class_=f"{tmp_path / 'doors.py'}:PromptOnly"))
    parts.check_columns(["prompt"])
    with pytest.raises(
        ValueError, match=r"\(prompt, door\): got an unexpected keyword argument 'door'; give it \*\*row"
    ):
        parts.check_columns(["prompt", "door", "prompt"])
    RolloutParts(None).check_columns(["prompt"])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "doors.py"
    path.write_text(ENVIRONMENT, encoding="utf-8")
    return path


def test_names_in_modules_and_files(file: Path) -> None:
    assert load_object("json:loads", "k").__name__ == "loads"
    assert load_object("os:path.join", "k").__name__ == "join"
    assert load_object(f"{file}:Doors", "k") is load_object(f"{file}:Doors", "k")


def test_files_of_one_name_stay_apart(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "doors.py"
    other.parent.mkdir()
    other.write_text("class Doors: pass", encoding="utf-8")
    assert load_object(f"{file}:Doors", "k") is not load_object(f"{other}:Doors", "k")


def test_a_module_beside_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_house_module.py").write_text("def f(): pass", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("/nowhere")  # puts sys.path back afterwards
    assert load_object("my_house_module:f", "k").__name__ == "f"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("json.loads", "key: 'json.loads' must look like module:Name or path.py:Name"),
        (":loads", "must look like"),
        ("json:", "must look like"),
        ("no_such_module_here:f", "key: there is no module no_such_module_here"),
        ("json:no_such", "key: json has no no_such"),
        ("nowhere.py:f", "key: nowhere.py: there is no such file"),
        ("FILE:NoSuch", "has no NoSuch"),
        ("FILE:NOT_CALLABLE", "is a int, which cannot be called"),
        ("BROKEN:f", "failed: ZeroDivisionError: division by zero"),
        ("LACKS:f", "failed: ModuleNotFoundError: No module named 'no_such_package'"),
    ],
)
def test_what_cannot_be_loaded(name: str, message: str, file: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0", encoding="utf-8")
    (tmp_path / "lacks.py").write_text("import no_such_package", encoding="utf-8")
    for short, path in {"FILE": file, "BROKEN": tmp_path / "broken.py", "LACKS": tmp_path / "lacks.py"}.items():
        name = name.replace(short, str(path))
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is compared below
        load_object(name, "key")
    assert message in str(caught.value)


def test_environments_are_made_with_their_arguments(file: Path) -> None:
    factory = environment_factory(f"{file}:Doors", {"word": "open"})
    assert factory()._word == "open"
    with pytest.raises(ValueError, match=r"environment\.arguments: .* unexpected keyword argument 'wort'"):
        environment_factory(f"{file}:Doors", {"wort": "open"})


def test_rewards_are_functions_or_made_of_classes(file: Path) -> None:
    assert reward_function(f"{file}:length_reward", {}, "k")(completion_ids=[[1, 2], [3]]) == [2.0, 1.0]
    assert reward_function(f"{file}:length_reward", {"factor": 3.0}, "k")(completion_ids=[[1, 2]]) == [6.0]
    assert reward_function(f"{file}:Constant", {"value": 4.0}, "k")(completions=["a", "b"]) == [4.0, 4.0]
    with pytest.raises(ValueError, match=r"k arguments: .*missing a required argument: 'value'"):
        reward_function(f"{file}:Constant", {}, "k")
    with pytest.raises(ValueError, match="cannot be called: a reward function can"):
        reward_function(f"{file}:Unscored", {}, "k")
    with pytest.raises(ValueError, match="must look like"):
        reward_function("efort_penalty", {}, "k")


def test_the_effort_penalty_is_at_hand() -> None:
    said = {"prompts": ["?"], "completions": ["four more words here"], "completion_ids": [[1, 2, 3, 4]]}
    (plain,) = reward_function("effort_penalty", {"q": 0}, "k")(**said)
    assert plain == -(4 + 1)  # tokens and a turn, on a straight line
    (free,) = reward_function("effort_penalty", {"q": 0, "counts": {"turns": 0}}, "k")(**said)
    assert free == -4
    for wrong in ({"kk": 1}, {"k": 0}, {"counts": {"tokens": 1}}, {"counts": 3}):
        with pytest.raises(ValueError, match=r"^k arguments: "):
            reward_function("effort_penalty", wrong, "k")
