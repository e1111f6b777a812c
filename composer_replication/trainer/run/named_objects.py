"""Environments and reward functions by the names that a configuration gives them."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from composer_replication.trainer.rewards import Effort, EffortPenalty


def load_object(name: str, key: str) -> Any:
    """What `module:name` or `path.py:name` stands for. The module, or the file, is imported: its code runs.

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
    """A call without arguments that makes an environment.

    Raises:
        ValueError: see `load_object`; or the class takes other arguments.
    """
    made_by = load_object(name, "environment.class")
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
        raise ValueError(f"{key}: {path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and type hints look their module up there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ValueError(f"{key}: importing {path} failed: {type(error).__name__}: {error}") from error
    return module
