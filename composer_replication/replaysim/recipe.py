"""Recipes: the data-juicer operators that run over the pairs, in which order, on which field; read and loaded.

Operators are loaded quietly, without what only data-juicer's engines need, and without installing anything.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import os
import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from composer_replication._optional import EXTRAS, require_all

RECIPES = Path(__file__).parent.parent / "recipes" / "replaysim"
TEXT_FIELDS = ("chosen", "rejected")
# For a deduplicator: the state with both actions; and what is one lesson, however often a student repeats its mistake.
PAIR_FIELDS = ("pair", "lesson")
_KEYS = ("project_name", "process")
# Deduplicators that judge by one hash per record; the others need a whole dataset, and are not the same on Ray.
_DEDUPLICATORS = ("document_deduplicator",)
_MOST_WORDS = 200_000


@dataclass(frozen=True)
class Step:
    """One operator of a recipe. `field` is the text it looks at: one of `TEXT_FIELDS` or `PAIR_FIELDS`."""

    position: int
    op: str
    field: str
    arguments: Mapping[str, Any]

    @property
    def label(self) -> str:
        """The operator and its field, as reports show them."""
        return f"{self.op} on {self.field}"


@dataclass(frozen=True)
class Recipe:
    """The content of a recipe file. `sha256` is the digest of the file."""

    path: Path
    name: str
    sha256: str
    steps: tuple[Step, ...]


def find_recipe(name: str | os.PathLike[str]) -> Path:
    """Return the path of a recipe: a file, or the name of one that comes with the package ("default", "prose").

    Raises:
        FileNotFoundError: there is neither.
    """
    path = Path(name)
    if path.is_file():
        return path
    built_in = RECIPES / f"{path}.yaml"
    if path.name == str(path) and built_in.is_file():
        return built_in
    known = ", ".join(sorted(one.stem for one in RECIPES.glob("*.yaml")))
    raise FileNotFoundError(f"{path}: there is no such recipe; give a data-juicer YAML file, or one of {known}")


def load_recipe(path: str | os.PathLike[str]) -> Recipe:
    """Read a recipe and check its form; whether data-juicer knows the operators is seen when they are loaded.

    Raises:
        FileNotFoundError: the file is missing.
        ValueError: it is no recipe for pairs; the message names the file and what is wrong in it.
    """
    path = find_recipe(path)
    content = path.read_bytes()
    try:
        given = yaml.safe_load(content)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"recipe {path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(given, dict) or not isinstance(given.get("process"), list):
        raise ValueError(f"recipe {path} has no list under 'process': it names the data-juicer operators to run")
    unknown = [str(key) for key in given if key not in _KEYS]
    if unknown:
        raise ValueError(
            f"recipe {path} sets {', '.join(unknown)}: the normaliser sets these itself; keep 'process' alone"
        )
    steps = tuple(_step(path, position, entry) for position, entry in enumerate(given["process"]))
    name = given.get("project_name") or path.stem
    return Recipe(path, str(name), hashlib.sha256(content).hexdigest(), steps)


def _step(path: Path, position: int, entry: Any) -> Step:
    if isinstance(entry, str):
        entry = {entry: None}
    if not isinstance(entry, dict) or len(entry) != 1:
        raise ValueError(f"recipe {path}: entry {position + 1} of 'process' must be one operator with its arguments")
    ((op, arguments),) = entry.items()
    if not isinstance(op, str) or not isinstance(arguments, dict | None):
        raise ValueError(f"recipe {path}: entry {position + 1} of 'process' must be one operator with its arguments")
    arguments = dict(arguments or {})
    field = arguments.get("text_key")
    if field not in (*TEXT_FIELDS, *PAIR_FIELDS):
        raise ValueError(
            f"recipe {path}: {op} has text_key {field!r}; say which text it looks at: "
            f"{', '.join(TEXT_FIELDS)}, or (for a deduplicator) {' or '.join(PAIR_FIELDS)}"
        )
    return Step(position, op, field, arguments)


def require_data_juicer() -> None:
    """Raise the error that names the extra if something is missing: data-juicer itself would install it.

    Raises:
        MissingExtraError: a RuntimeError (and ImportError).
    """
    require_all({"replaysim": EXTRAS["replaysim"].modules})


def load_operators(recipe: Recipe) -> list[Any]:
    """Return the recipe's operators, wrapped for pairs (`PairFilter`, `PairMapper`, `PairDeduplicator`).

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
    """Return the name of the class that wraps a step's operator for pairs."""
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
        f"recipe {recipe.path}: {step.op} does not work on pairs: filters, mappers and {', '.join(_DEDUPLICATORS)} do"
    )


def _first_error(step: Step, error: Any) -> str:
    (first, *_) = error.errors
    hint = f" (did you mean {', '.join(first.suggestions)}?)" if first.suggestions else ""
    return f"{step.op}: {first.message}{hint}"


@contextmanager
def no_installs() -> Iterator[None]:
    """Raise an ImportError for a package that an operator lacks; data-juicer would run pip."""
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
    """Let data-juicer strip each distinct word only once: sessions repeat words, and stripping them is most of the cost
    of the default recipe."""
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
    """Restore the state of the process that importing data-juicer changes.

    It replaces all loguru sinks with its own, sets the root logger to level INFO, adds a folder of the working
    directory to the import path, and draws random numbers. Its own messages are off from here on;
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
    """A package whose modules can be imported before its own `__init__` has run; that runs when a name is needed."""

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
