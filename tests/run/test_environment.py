"""The environment and the rewards of a run; what is refused is in `tests/cli/test_train.py`."""

from __future__ import annotations

from pathlib import Path

import pytest
from run.training_material import ENVIRONMENT

from composer_replication.run.environment import RolloutParts
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


def test_reset_takes_the_columns_of_the_prompts(tmp_path: Path) -> None:
    (tmp_path / "doors.py").write_text(ENVIRONMENT)
    parts = RolloutParts(EnvironmentSection(class_=f"{tmp_path / 'doors.py'}:PromptOnly"))
    parts.check_columns(["prompt"])
    with pytest.raises(
        ValueError, match=r"\(prompt, door\): got an unexpected keyword argument 'door'; give it \*\*row"
    ):
        parts.check_columns(["prompt", "door", "prompt"])
    RolloutParts(None).check_columns(["prompt"])
