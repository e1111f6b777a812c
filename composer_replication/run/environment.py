"""The environment and the reward functions of a run: imported by name, made once, and checked as TRL will use them."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from transformers.utils import get_json_schema

from composer_replication.envs.contract import tools_of
from composer_replication.envs.registry import NAMES, built_in
from composer_replication.run.sections import EnvironmentSection
from composer_replication.trainer.rewards import Effort, EffortPenalty


class RolloutParts:
    """The environment and the rewards of the rollouts; empty without settings.

    `tools` are the definitions that the environment shows. `factory` gives the environment that was made for the checks
    before it makes another one.

    Raises:
        ValueError: something cannot be imported or made, or is not what TRL takes; the message names the setting.
    """

    def __init__(self, settings: EnvironmentSection | None) -> None:
        self.factory: Callable[[], Any] | None = None
        self.rewards: list[Callable[..., Any]] = []
        self.weights: list[float] = []
        self.tools: list[dict[str, Any]] = []
        self._reset: Callable[..., Any] | None = None
        if settings is None:
            return
        for index, reward in enumerate(settings.rewards):
            self.rewards.append(reward_function(reward.function, reward.arguments, f"environment.rewards[{index}]"))
            self.weights.append(reward.weight)
        if settings.class_ is not None:
            self._name = settings.class_
            self._make(environment_factory(self._name, settings.arguments))

    def check_columns(self, columns: Iterable[str]) -> None:
        """Require that `reset` takes the columns of the prompts, which TRL gives it as keyword arguments.

        Raises:
            ValueError: otherwise.
        """
        if self._reset is None:
            return
        named = dict.fromkeys(columns)
        try:
            inspect.signature(self._reset).bind(**named)
        except TypeError as error:
            raise ValueError(
                f"environment.class: {self._name}: reset does not take the columns of data.prompts "
                f"({', '.join(named)}): {error}; give it **row for those that it does not use"
            ) from None

    def _make(self, factory: Callable[[], Any]) -> None:
        try:
            environment = factory()
        except Exception as error:
            reason = f"{type(error).__name__}: {_said(error)}"
            raise ValueError(f"environment.class: {self._name} cannot be made: {reason}") from error
        # As TRL looks for them: on the class.
        reset, get_reward = (getattr(type(environment), name, None) for name in ("reset", "get_reward"))
        if not inspect.isfunction(reset):
            raise ValueError(f"environment.class: {self._name} has no method reset, with which an episode begins")
        if not inspect.isfunction(get_reward) and not self.rewards:
            raise ValueError(
                f"environment.rewards: {self._name} has no get_reward, and there are no rewards: "
                "nothing scores the rollouts"
            )
        if inspect.isfunction(get_reward):
            try:
                inspect.signature(environment.get_reward).bind()
            except TypeError as error:
                raise ValueError(
                    f"environment.class: {self._name}: get_reward is called without arguments: {error}"
                ) from None
        self.tools = [self._definition(tool) for tool in tools_of(environment).values()]
        unused = [environment]
        self.factory = lambda: unused.pop() if unused else factory()
        self._reset = environment.reset

    def _definition(self, tool: Callable[..., Any]) -> dict[str, Any]:
        try:
            definition: dict[str, Any] = get_json_schema(tool)
            return definition
        except Exception as error:
            raise ValueError(
                f"environment.class: {self._name}: {tool.__name__} cannot be made a tool: {_said(error)} "
                "(a tool has type hints and a Google docstring with Args:; a method that is none begins with _)"
            ) from error


def _said(error: Exception) -> str:
    return " ".join(" ".join(map(str, error.args)).split())


def load_object(name: str, key: str) -> Any:
    """Import the object that `module:name` or `path.py:name` names. Code of the module or file runs.

    Args:
        key: the dotted path of the setting, for the errors.

    Raises:
        ValueError: there is no such module, file or name; or importing it failed.
    """
    place, colon, attribute = name.rpartition(":")
    if not colon or not place or not attribute:
        raise ValueError(f"{key}: {name!r} must look like module:Name or path.py:Name")
    module = _file_module(Path(place), key) if place.endswith(".py") else _module(place, key)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{key}: {place} has no {attribute}")
        found = getattr(found, part)
    if not callable(found):
        raise ValueError(f"{key}: {name} is a {type(found).__name__}, which cannot be called")
    return found


def environment_factory(name: str, arguments: Mapping[str, Any]) -> Callable[[], Any]:
    """A call without arguments that makes an environment: one of the package, or of the user's.

    Raises:
        ValueError: see `load_object`; or the class takes other arguments.
    """
    if ":" not in name and name not in NAMES:
        known = ", ".join(NAMES)
        raise ValueError(
            f"environment.class: {name!r} must be one of {known}, or look like module:Name or path.py:Name"
        )
    made_by = built_in(name).environment if name in NAMES else load_object(name, "environment.class")
    _check_arguments(made_by, arguments, name, "environment.arguments")
    return functools.partial(made_by, **arguments) if arguments else made_by


def reward_function(name: str, arguments: Mapping[str, Any], key: str) -> Callable[..., Any]:
    """A reward function; a class is made into an object that is one.

    Raises:
        ValueError: see `load_object`; or it takes other arguments.
    """
    found = _effort_penalty if name == "effort_penalty" else load_object(name, key)
    if found is _effort_penalty:
        _check_arguments(found, arguments, name, f"{key} arguments")
        try:
            return _effort_penalty(**arguments)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{key} arguments: {error}") from None
    if inspect.isclass(found):
        _check_arguments(found, arguments, name, f"{key} arguments")
        made = found(**arguments)
        if not callable(made):
            raise ValueError(f"{key}: objects of {name} cannot be called: a reward function can")
        return made
    return functools.partial(found, **arguments) if arguments else found


def _effort_penalty(
    *, k: float = 1e-3, q: float = 0.5, counts: Mapping[str, float] | None = None
) -> Callable[..., list[float]]:
    """Effort costs C(x), times the weight that the configuration gives the reward."""
    return EffortPenalty(1.0, k=k, q=q, counts=None if counts is None else Effort(**counts))


def _check_arguments(callable_: Callable[..., Any], arguments: Mapping[str, Any], name: str, key: str) -> None:
    try:
        inspect.signature(callable_).bind(**arguments)
    except TypeError as error:
        raise ValueError(f"{key}: {name} does not take them: {error}") from None
    except ValueError:  # something built in, which has no signature to look at
        return


def _module(name: str, key: str) -> ModuleType:
    # As for `python -m`: modules beside the configuration's working directory are found.
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ValueError(f"{key}: there is no module {name}; for a file, write path.py:Name") from None
        raise ValueError(f"{key}: importing {name} failed: {error}") from error
    except Exception as error:
        raise ValueError(f"{key}: importing {name} failed: {type(error).__name__}: {error}") from error


def _file_module(path: Path, key: str) -> ModuleType:
    if not path.is_file():
        raise ValueError(f"{key}: {path}: there is no such file")
    # By its place: two files of one name stay apart, and one file is one module, however often it is named.
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    name = f"_composer_replication_{path.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{key}: {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and type hints look their module up there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ValueError(f"{key}: importing {path} failed: {type(error).__name__}: {error}") from error
    return module
