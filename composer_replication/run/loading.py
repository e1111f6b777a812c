"""From a YAML file and `a.b=c` overrides to a checked configuration; its problems in words; its JSON schema."""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args, get_type_hints

import yaml
from pydantic import BaseModel, ValidationError

from composer_replication.channels.fields import Settings
from composer_replication.run.configuration import Config

SectionType = type[BaseModel] | type[Settings]

_LONGEST_VALUE = 60


class ConfigError(ValueError):
    """A configuration that cannot be used; `problems` has a line for each thing that is wrong."""

    def __init__(self, source: str, problems: Sequence[str]) -> None:
        super().__init__(f"{source}: " + "; ".join(problems))
        self.source = source
        self.problems = tuple(problems)


class _Loader(yaml.SafeLoader):
    """YAML as people write it: 1e-6 is a number, and a duplicate key is an error."""

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
        ConfigError: it is not a valid configuration; every problem is listed, with the dotted path of its key.
    """
    source = Path(path)
    if not source.is_file():
        raise FileNotFoundError(f"{source}: there is no such file")
    try:
        text = source.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(str(source), ["it is not text in UTF-8"]) from None
    given = _parsed(text, str(source), "it is not YAML")
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
    value = _parsed(text, f"--set {override}", "its value is not YAML")
    section = given
    for depth, name in enumerate(names[:-1]):
        if section.get(name) is None:
            section[name] = {}
        section = section[name]
        if not isinstance(section, dict):
            raise ConfigError(f"--set {override}", [f"{'.'.join(names[: depth + 1])} is not a section"])
    section[names[-1]] = value


def _parsed(text: str, source: str, complaint: str) -> Any:
    try:
        return _without_aliases(yaml.load(text, Loader=_Loader))
    except RecursionError:
        raise ConfigError(source, [f"{complaint}: an alias refers to a value that contains it"]) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" in line {mark.line + 1}" if mark is not None else ""
        reason = getattr(error, "problem", None) or " ".join(str(error).split())
        raise ConfigError(source, [f"{complaint}{place}: {reason}"]) from None


def _without_aliases(value: Any) -> Any:
    """A deep copy: setting one key must not set another."""
    if isinstance(value, dict):
        return {key: _without_aliases(inner) for key, inner in value.items()}
    return [_without_aliases(inner) for inner in value] if isinstance(value, list) else value


def problem_lines(error: ValidationError, model: SectionType) -> list[str]:
    """The errors that pydantic found, in our words and without repetition."""
    return list(dict.fromkeys(line for one in error.errors() for line in _lines(dict(one), model)))


def _lines(error: dict[str, Any], model: SectionType) -> Iterator[str]:
    kind, location, given = error["type"], error["loc"], error["input"]
    path, context = dotted(location), error.get("ctx", {})
    if kind == "value_error":
        # The combinations of sections have a path in each line, those in one section have it here.
        yield from (f"{path}: {line}" if location else line for line in str(context["error"]).splitlines())
    elif kind in ("extra_forbidden", "unexpected_keyword_argument"):
        yield f"{path}: there is no such key{_suggestion(str(location[-1]), location[:-1], model)}"
    elif kind == "missing":
        yield f"{path}: it is missing"
    elif kind == "literal_error":
        choices = context["expected"]
        names = [one.strip("' ") for one in choices.replace(" or ", ",").split(",")]
        near = difflib.get_close_matches(str(given), names, 1)
        yield f"{path}: it must be {choices}, not {_shown(given)}" + (f"; did you mean {near[0]!r}?" if near else "")
    else:
        yield f"{path}: {_requirement(kind, context, error['msg'])}, not {_shown(given)}"


def _requirement(kind: str, context: dict[str, Any], message: str) -> str:
    wanted = {
        "float_type": "it must be a number",
        "int_type": "it must be a whole number",
        "int_from_float": "it must be a whole number",
        "bool_type": "it must be true or false",
        "string_type": "it must be text",
        "string_too_short": "it must not be empty",
        "path_type": "it must be a path",
        "tuple_type": "it must be a list",
        "dict_type": "it must be a mapping of names to values",
        "model_type": "it must be a section with keys of its own",
        "model_attributes_type": "it must be a section with keys of its own",
        "dataclass_type": "it must be a section with keys of its own",
        "finite_number": "it must be a finite number",
        "greater_than": "it must be greater than {gt:g}",
        "greater_than_equal": "it must be at least {ge:g}",
        "less_than": "it must be less than {lt:g}",
        "less_than_equal": "it must be at most {le:g}",
    }.get(kind)
    return wanted.format(**context) if wanted is not None else message[:1].lower() + message[1:]


def _suggestion(name: str, location: tuple[str | int, ...], model: SectionType) -> str:
    section = _section_at(location, model)
    if section is None:
        return ""
    known = list(_keys(section))
    near = difflib.get_close_matches(name, known, 1, cutoff=0.5)
    if near:
        return f"; did you mean {near[0]}?"
    elsewhere = [path for path in key_paths(model) if path.rpartition(".")[2] == name]
    return f"; did you mean {' or '.join(elsewhere)}?" if elsewhere else f"; there are {', '.join(known)}"


def key_paths(model: SectionType, prefix: str = "") -> Iterator[str]:
    """The dotted path of every key."""
    for name, annotation in _keys(model).items():
        yield f"{prefix}{name}"
        if (inner := _section_in(annotation)) is not None:
            yield from key_paths(inner, f"{prefix}{name}.")


def _keys(section: SectionType) -> dict[str, Any]:
    """The keys of a section, with their types."""
    if issubclass(section, BaseModel):
        return {field.alias or name: field.annotation for name, field in section.model_fields.items()}
    hints = get_type_hints(section)
    return {field.name: hints[field.name] for field in dataclasses.fields(section)}


def _section_at(location: tuple[str | int, ...], model: SectionType) -> SectionType | None:
    section: SectionType | None = model
    for name in location:
        if isinstance(name, int):  # an entry of a list: the list's own section
            continue
        if section is None:
            return None
        section = _section_in(_keys(section).get(name))
    return section


def _section_in(annotation: Any) -> SectionType | None:
    """The section in a key's type: `X`, `X | None`, `tuple[X, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel | Settings):
        return annotation
    return next((found for one in get_args(annotation) if (found := _section_in(one)) is not None), None)


def dotted(location: Sequence[str | int]) -> str:
    """A path as users write it: a.b[0].c"""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path or "the configuration"


def _shown(value: Any) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."
