"""Loading data-juicer's operators: quietly, without what only its engines need, and without installing anything."""

from __future__ import annotations

import importlib
import logging
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

from composer_replication._optional import EXTRAS, require_all
from composer_replication.replaysim.recipe import PAIR_FIELDS, Recipe, Step

# Deduplicators that judge by one hash per record; the others need a whole dataset, and are not the same on Ray.
_DEDUPLICATORS = ("document_deduplicator",)
_MOST_WORDS = 200_000


def require_data_juicer() -> None:
    """Raise the error that names the extra if something is missing: data-juicer itself would install it.

    Raises:
        MissingExtraError: a RuntimeError (and ImportError).
    """
    require_all({"replaysim": EXTRAS["replaysim"].modules})


def load_operators(recipe: Recipe) -> list[Any]:
    """The recipe's operators, fitted to pairs (`PairFilter`, `PairMapper`, `PairDeduplicator`), ready to run.

    Raises:
        MissingExtraError: data-juicer is not installed.
        ValueError: an operator is unknown or not one for pairs, or an argument is wrong; names it and the recipe.
    """
    require_data_juicer()
    with _untouched_process():
        # An operator's constructor wants one function from within `core`, whose `__init__` imports all engines and Ray.
        _leave_unopened("data_juicer.core")
        operators = importlib.import_module("data_juicer.ops")
        preflight = importlib.import_module("data_juicer.core.preflight")
        pair_operators = importlib.import_module("composer_replication.replaysim.pair_operators")
    loaded = []
    for step in recipe.steps:
        try:
            preflight.pre_instantiation_check([{step.op: dict(step.arguments)}])
        except preflight.PipelineConfigError as error:
            raise ValueError(f"recipe {recipe.path}: {_first_error(step, error)}") from None
        wrapper = wrapper_of(step, recipe, operators)
        try:
            with no_installs():
                loaded.append(pair_operators.OPERATORS.modules[wrapper](step=asdict(step)))
        except (TypeError, ValueError, AssertionError, ImportError, OSError, LookupError) as error:
            message = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(f"recipe {recipe.path}: {step.op} cannot be loaded: {message}") from error
    return loaded


def wrapper_of(step: Step, recipe: Recipe, operators: ModuleType) -> str:
    """The name of the class that fits a step's operator to pairs."""
    kind = operators.OPERATORS.modules[step.op]
    if issubclass(kind, operators.Deduplicator) and step.op in _DEDUPLICATORS:
        return "pair_deduplicator"
    if step.field in PAIR_FIELDS:
        raise ValueError(f"recipe {recipe.path}: {step.op} cannot look at {step.field!r}, only a deduplicator can")
    if "default" in kind._supported_exec_modes and issubclass(kind, operators.Filter):
        return "pair_filter"
    if issubclass(kind, operators.Mapper):
        return "pair_mapper"
    raise ValueError(
        f"recipe {recipe.path}: {step.op} is none for pairs: filters, mappers and {', '.join(_DEDUPLICATORS)} are"
    )


def _first_error(step: Step, error: Any) -> str:
    (first, *_) = error.errors
    hint = f" (did you mean {', '.join(first.suggestions)}?)" if first.suggestions else ""
    return f"{step.op}: {first.message}{hint}"


@contextmanager
def no_installs() -> Iterator[None]:
    """Within it, a package that an operator lacks is an ImportError; data-juicer would run pip."""
    loader = importlib.import_module("data_juicer.utils.lazy_loader").LazyLoader
    install = loader.__dict__["_install_package"]

    def refuse(cls: type, package: str, *_: Any, **__: Any) -> None:
        raise ImportError(f"it needs the package {package!r}: pip install {package!r}")

    loader._install_package = classmethod(refuse)
    try:
        yield
    finally:
        loader._install_package = install


@contextmanager
def words_stripped_once() -> Iterator[None]:
    """Within it, data-juicer strips each word of special characters once: sessions say the same words over and over,
    and that loop over letters is most of what the default recipe costs."""
    module: Any = importlib.import_module("data_juicer.ops.common.helper_func")
    strip = module.strip
    # By set of characters, which is kept, so that no other set takes its place.
    known: dict[int, tuple[Any, dict[str, str]]] = {}

    def remembered(word: str, characters: Any) -> str:
        _, stripped = known.setdefault(id(characters), (characters, {}))
        found = stripped.get(word)
        if found is None:
            if len(stripped) >= _MOST_WORDS:
                stripped.clear()
            found = stripped[word] = strip(word, characters)
        return found

    module.strip = remembered
    try:
        yield
    finally:
        module.strip = strip


@contextmanager
def _untouched_process() -> Iterator[None]:
    """Keep data-juicer's hands off what belongs to the process while it is imported.

    It takes away every loguru sink and puts in its own; modules of it set up the root logger, at level INFO, add a
    folder of the working directory to the import path, and draw random numbers. Its own messages are off from here on;
    `loguru.logger.enable("data_juicer")` brings them back.
    """
    from loguru import logger

    logger.disable("data_juicer")
    vars(logger).update(add=lambda *_, **__: 0, remove=lambda *_, **__: None)
    root = logging.getLogger()
    handlers, level, path, numbers = root.handlers[:], root.level, sys.path[:], random.getstate()
    try:
        yield
    finally:
        del vars(logger)["add"], vars(logger)["remove"]
        root.handlers[:] = handlers
        root.setLevel(level)
        sys.path[:] = path
        random.setstate(numbers)


class _UnopenedPackage(ModuleType):
    """A package whose modules can be imported while its own `__init__` waits until somebody asks for its names."""

    def __getattr__(self, name: str) -> Any:
        if self.__spec__ is None or self.__spec__.loader is None or name.startswith("__"):
            raise AttributeError(name)
        self.__class__ = ModuleType  # type: ignore[assignment]
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)


def _leave_unopened(name: str) -> None:
    spec = find_spec(name)
    if name not in sys.modules and spec is not None:
        package = sys.modules[name] = module_from_spec(spec)
        package.__class__ = _UnopenedPackage
        parent, _, child = name.rpartition(".")
        setattr(sys.modules[parent], child, package)
