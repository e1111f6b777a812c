"""A YAML file and `a.b=c` overrides to a checked configuration; its JSON schema, for editors."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from composer_replication.config.configuration import Config
from composer_replication.config.problems import ConfigError, problem_lines


class _Loader(yaml.SafeLoader):
    """YAML as people write it: 1e-6 is a number, and a key that is given twice is an error."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in seen and key != "<<":
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} is given twice", key_node.start_mark)
            seen.add(key if isinstance(key, str) else id(key_node))
        return super().construct_mapping(node, deep=deep)


# YAML 1.1 wants a dot and a sign in 1.0e+6; JSON and everybody else do not.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def load_config(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Config:
    """Read a configuration.

    Args:
        overrides: `a.b=c`, each in place of what the file says; `c` is read as YAML.

    Raises:
        FileNotFoundError: there is no such file.
        ConfigError: it is no configuration; every problem is listed, with the dotted path of its key.
    """
    source = Path(path)
    if not source.is_file():
        raise FileNotFoundError(f"{source}: there is no such configuration")
    try:
        text = source.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(str(source), ["it is no text in UTF-8"]) from None
    given = _parsed(text, str(source), "it is no YAML")
    if not isinstance(given, dict):
        raise ConfigError(str(source), ["it has no sections; begin with model: {name: ...}"])
    for override in overrides:
        _override(given, override)
    return parse_config(given, source=str(source))


def parse_config(given: Any, *, source: str = "configuration") -> Config:
    """A configuration of plain values.

    Raises:
        ConfigError: see `load_config`.
    """
    try:
        return Config.model_validate(given)
    except ValidationError as error:
        raise ConfigError(source, problem_lines(error, Config)) from None


def config_schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of what a configuration file may hold."""
    schema = Config.model_json_schema(by_alias=True)
    for part in (schema, schema["$defs"]["ChannelsSection"]):
        for name, described in part["properties"].items():
            # A section whose keys are all commented out is read as an empty one.
            if "$ref" in described and "default" in described:
                about = schema["$defs"][described["$ref"].rpartition("/")[2]]["description"]
                rest = {"description": about} | {key: value for key, value in described.items() if key != "$ref"}
                part["properties"][name] = {"anyOf": [{"$ref": described["$ref"]}, {"type": "null"}], **rest}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _override(given: dict[str, Any], override: str) -> None:
    path, equals, text = override.partition("=")
    names = path.strip().split(".")
    if not equals or not all(names):
        raise ConfigError(f"--set {override}", ["it must look like training.steps=200"])
    value = _parsed(text, f"--set {override}", "its value is no YAML")
    section = given
    for depth, name in enumerate(names[:-1]):
        if section.get(name) is None:
            section[name] = {}
        section = section[name]
        if not isinstance(section, dict):
            raise ConfigError(f"--set {override}", [f"{'.'.join(names[: depth + 1])} is no section"])
    section[names[-1]] = value


def _parsed(text: str, source: str, complaint: str) -> Any:
    try:
        return _without_aliases(yaml.load(text, Loader=_Loader))
    except RecursionError:
        raise ConfigError(source, [f"{complaint}: an alias stands within what it stands for"]) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" in line {mark.line + 1}" if mark is not None else ""
        reason = getattr(error, "problem", None) or " ".join(str(error).split())
        raise ConfigError(source, [f"{complaint}{place}: {reason}"]) from None


def _without_aliases(value: Any) -> Any:
    """A copy in which nothing is shared: setting one key must not set another."""
    if isinstance(value, dict):
        return {key: _without_aliases(inner) for key, inner in value.items()}
    return [_without_aliases(inner) for inner in value] if isinstance(value, list) else value
