"""The environments that come with the package, by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from composer_replication._arguments import check_choice
from composer_replication.envs.contract import Lesson, Task

_CLASSES: Mapping[str, str] = {"house_style": "HouseStyle", "python_tasks": "PythonTasks"}
NAMES: tuple[str, ...] = tuple(_CLASSES)


class BuiltIn(NamedTuple):
    """An environment of the package: its class, `make_tasks(split, count, *, seed=0, ...)`, and if it has lessons for a
    warm-up, `make_lessons(count, *, seed=0)`."""

    environment: Callable[..., Any]
    make_tasks: Callable[..., list[Task]]
    make_lessons: Callable[..., list[Lesson]] | None = None


def built_in(name: str) -> BuiltIn:
    """Return an environment of the package.

    Raises:
        ValueError: there is none of that name.
    """
    check_choice("environment", name, NAMES)
    package = importlib.import_module(f"composer_replication.envs.{name}")
    return BuiltIn(getattr(package, _CLASSES[name]), package.make_tasks, getattr(package, "make_lessons", None))
