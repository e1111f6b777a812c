"""The recipe: which data-juicer operators run over the pairs, in which order, on which field, with which arguments."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

RECIPES = Path(__file__).parent.parent / "recipes" / "replaysim"
TEXT_FIELDS = ("chosen", "rejected")
# For a deduplicator: the state with both actions; and what is one lesson, however often a student repeats its mistake.
PAIR_FIELDS = ("pair", "lesson")
_KEYS = ("project_name", "process")


@dataclass(frozen=True)
class Step:
    """One operator of a recipe. `field` is the text it looks at: one of `TEXT_FIELDS` or `PAIR_FIELDS`."""

    position: int
    op: str
    field: str
    arguments: Mapping[str, Any]

    @property
    def label(self) -> str:
        """The operator and its field, as the reports write it."""
        return f"{self.op} on {self.field}"


@dataclass(frozen=True)
class Recipe:
    """A recipe file, read. `sha256` is the digest of the file."""

    path: Path
    name: str
    sha256: str
    steps: tuple[Step, ...]


def find_recipe(name: str | os.PathLike[str]) -> Path:
    """The path of a recipe: a file, or the name of one that comes with the package ("default", "prose").

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
        raise ValueError(f"recipe {path} is no YAML: {' '.join(str(error).split())}") from None
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
