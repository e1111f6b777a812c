"""What is wrong with a configuration, a line each: where, what, and which name may have been meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

_LONGEST_VALUE = 60


class ConfigError(ValueError):
    """A configuration that cannot be used; `problems` has a line for each thing that is wrong."""

    def __init__(self, source: str, problems: Sequence[str]) -> None:
        super().__init__(f"{source}: " + "; ".join(problems))
        self.source = source
        self.problems = tuple(problems)


def problem_lines(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """The errors that pydantic found, in words of their own and without repetition."""
    return list(dict.fromkeys(line for one in error.errors() for line in _lines(dict(one), model)))


def _lines(error: dict[str, Any], model: type[BaseModel]) -> Iterator[str]:
    kind, location, given = error["type"], error["loc"], error["input"]
    path, context = dotted(location), error.get("ctx", {})
    if kind == "value_error":
        # The combinations: each line has its own path.
        yield from str(context["error"]).splitlines()
    elif kind == "extra_forbidden":
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
        "finite_number": "it must be a finite number",
        "greater_than": "it must be greater than {gt:g}",
        "greater_than_equal": "it must be at least {ge:g}",
        "less_than": "it must be less than {lt:g}",
        "less_than_equal": "it must be at most {le:g}",
    }.get(kind)
    return wanted.format(**context) if wanted is not None else message[:1].lower() + message[1:]


def _suggestion(name: str, location: tuple[str | int, ...], model: type[BaseModel]) -> str:
    section = _section_at(location, model)
    if section is None:
        return ""
    known = [field.alias or name for name, field in section.model_fields.items()]
    near = difflib.get_close_matches(name, known, 1, cutoff=0.5)
    if near:
        return f"; did you mean {near[0]}?"
    elsewhere = [path for path in key_paths(model) if path.rpartition(".")[2] == name]
    return f"; did you mean {' or '.join(elsewhere)}?" if elsewhere else f"; there are {', '.join(known)}"


def key_paths(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """The dotted path of every key."""
    for name, field in model.model_fields.items():
        path = f"{prefix}{field.alias or name}"
        yield path
        inner = _model_in(field.annotation)
        if inner is not None:
            yield from key_paths(inner, f"{path}.")


def _section_at(location: tuple[str | int, ...], model: type[BaseModel]) -> type[BaseModel] | None:
    section: type[BaseModel] | None = model
    for name in location:
        if isinstance(name, int):  # an entry of a list: the list's own model
            continue
        if section is None:
            return None
        fields = {field.alias or key: field for key, field in section.model_fields.items()}
        section = _model_in(fields[name].annotation) if name in fields else None
    return section


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The section behind a field's type: `X`, `X | None`, `tuple[X, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in get_args(annotation):
        if (found := _model_in(inner)) is not None:
            return found
    return None


def dotted(location: Sequence[str | int]) -> str:
    """A path as users write it: a.b[0].c"""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path or "the configuration"


def _shown(value: Any) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."
