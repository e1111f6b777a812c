"""Optional parts: which extra brings what, and the error that names it."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from importlib.util import find_spec
from types import ModuleType


class MissingExtraError(ImportError, RuntimeError):
    """A part of the package needs an extra that is not installed."""

    def __init__(self, extra: str, module: str) -> None:
        super().__init__(
            f"this needs the package behind {module!r}, which is not installed: "
            f"pip install 'composer-replication[{extra}]'",
            name=module,
        )
        self.extra = extra


@dataclass(frozen=True)
class Extra:
    """What an extra is for, the modules that must import for it to work, and what a user should know of it."""

    purpose: str
    modules: tuple[str, ...]
    note: str = ""


EXTRAS: dict[str, Extra] = {
    "replay": Extra("replay traces with teacher models", ("openai", "rapidfuzz", "pyarrow", "starlette", "uvicorn")),
    "replaysim": Extra("normalise preference pairs", ("data_juicer", "ray", "aiohttp")),
    "train": Extra("train with TRL", ("trl", "peft", "accelerate", "datasets")),
    "diloco": Extra("DiLoCo outer loop over torchft", ("torchft",)),
    "serverless": Extra("DiLoCo over an object store", ("fsspec", "s3fs", "huggingface_hub", "modal", "ray")),
    "openenv": Extra("environments behind OpenEnv servers", ("openenv",)),
    "monarch": Extra("Monarch actor mesh", ("monarch",)),
    "verl": Extra(
        "verl recipe", ("verl", "cachetools", "fastapi", "uvicorn"), "needs an environment of its own, without trl"
    ),
    "prime-rl": Extra(
        "PRIME-RL recipe", ("prime_rl",), "not on the package index: install PRIME-RL from its repository"
    ),
    "quickstart": Extra("the demo", ("trl", "gguf", "rapidfuzz", "starlette", "uvicorn")),
    "dev": Extra("lint, types and tests", ("pytest", "hypothesis", "mypy", "ruff", "trl", "torchft", "data_juicer")),
}


def is_available(module: str) -> bool:
    """Whether a module can be found, without importing it."""
    return find_spec(module) is not None


def require(module: str, extra: str) -> ModuleType:
    """Import an optional module, or raise the error that names its extra."""
    if not is_available(module.partition(".")[0]):
        raise MissingExtraError(extra, module)
    return importlib.import_module(module)
