"""The parts that a channel's settings are made of: value types with their ranges, markers, and the check.

A channel's settings are a frozen dataclass that extends `Settings`. One field says everything about a setting: its
type and range, the keyword of the trainers, its default, and (as the string below it) its documentation. The
configuration uses the dataclass itself as a section, so pydantic reads the same field; the trainers' keywords and their
reference text are read from it too.

Nothing here imports torch: a configuration is checked without it.
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, Field, GetCoreSchemaHandler, TypeAdapter
from pydantic.fields import FieldInfo
from typing_extensions import Self

Weight = Annotated[float, Field(ge=0, strict=True)]
Positive = Annotated[float, Field(gt=0, strict=True)]
Fraction = Annotated[float, Field(ge=0, le=1, strict=True)]
PositiveFraction = Annotated[float, Field(gt=0, le=1, strict=True)]
BelowOne = Annotated[float, Field(ge=0, lt=1, strict=True)]
Number = Annotated[float, Field(strict=True)]
Count = Annotated[int, Field(ge=1, strict=True)]
CountOrZero = Annotated[int, Field(ge=0, strict=True)]
Flag = Annotated[bool, Field(strict=True)]

TrainerKind = Literal["rollouts", "traces"]

LOSS_SUMS = ("loss", "active_tokens", "active_rows")
"""The sums that every channel reports for an optimiser step."""


@dataclass(frozen=True)
class Keyword:
    """Marks a setting as a keyword argument of the trainers, or of one of them."""

    name: str
    only: TrainerKind | None = None


@dataclass(frozen=True, init=False)
class OnlyWith:
    """Marks a setting that has an effect only if the setting `choice` is one of `values`.

    In a configuration it is null with any other choice, and nothing reads it then.
    """

    choice: str
    values: tuple[str, ...]

    def __init__(self, choice: str, *values: str) -> None:
        object.__setattr__(self, "choice", choice)
        object.__setattr__(self, "values", values)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        """Accept null in a configuration."""
        return {"type": "nullable", "schema": handler(source)}


@dataclass(frozen=True)
class Described:
    """One setting of a dataclass, as its annotation describes it."""

    name: str
    default: Any
    keyword: Keyword | None
    only_with: OnlyWith | None
    section: type[Settings] | None
    choices: tuple[str, ...]
    bounds: Mapping[str, float]
    is_whole: bool
    is_optional: bool

    def problem(self, value: Any) -> str | None:
        """The requirement that a value does not meet, in words; None if it meets all."""
        if value is None and self.is_optional:
            return None
        if self.choices:
            return None if value in self.choices else f"one of {', '.join(map(repr, self.choices))}"
        if value is None:
            return "given"
        low, high = self.bounds.get("ge", self.bounds.get("gt")), self.bounds.get("le", self.bounds.get("lt"))
        holds = not self.bounds or (
            math.isfinite(value)
            and (low is None or value > low or ("ge" in self.bounds and value == low))
            and (high is None or value < high or ("le" in self.bounds and value == high))
        )
        if holds and not (self.is_whole and not isinstance(value, int)):
            return None
        if high is not None:
            return f"in {'[' if 'ge' in self.bounds else '('}{low:g}, {high:g}{']' if 'le' in self.bounds else ')'}"
        number = "whole number" if self.is_whole else "finite number"
        if "gt" in self.bounds or (self.is_whole and low == 1):
            return f"a positive {number}"
        return f"a {number} >= {low:g}"


@dataclass(frozen=True)
class Settings:
    """The base of all settings: values are checked when an object is made.

    Raises:
        ValueError: a value out of its range; the message has the trainers' keyword for it, or else its name.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )

    def __post_init__(self) -> None:
        for one in described(type(self)):
            value, belongs = getattr(self, one.name), one.only_with
            if value is None and belongs is not None and getattr(self, belongs.choice) in belongs.values:
                object.__setattr__(self, one.name, one.default)
            elif (value is not None or belongs is None) and (wanted := one.problem(value)) is not None:
                name = one.keyword.name if one.keyword is not None else one.name
                raise ValueError(f"{name} must be {wanted}, got {value!r}")

    def updated(self, keywords: Mapping[str, Any]) -> Self:
        """A copy with the values of those trainer keywords that belong to these settings."""
        changes: dict[str, Any] = {}
        for one in described(type(self)):
            if one.keyword is not None and one.keyword.name in keywords:
                changes[one.name] = keywords[one.keyword.name]
            elif one.section is not None and one.keyword is None:
                changes[one.name] = (getattr(self, one.name) or one.section()).updated(keywords)
        return dataclasses.replace(self, **changes)


_DESCRIBED: dict[type[Settings], tuple[Described, ...]] = {}


def described(settings: type[Settings]) -> tuple[Described, ...]:
    """The settings of a dataclass, in order."""
    if settings not in _DESCRIBED:
        hints = get_type_hints(settings, include_extras=True)
        _DESCRIBED[settings] = tuple(_described(field, hints[field.name]) for field in dataclasses.fields(settings))
    return _DESCRIBED[settings]


def keyword_reference(settings: type[Settings], trainer: TrainerKind) -> dict[str, str]:
    """The keywords that a trainer takes for these settings, each with its documentation and default."""
    texts = _texts(settings)
    found = {}
    for one in described(settings):
        if one.section is not None and one.keyword is None:
            found.update(keyword_reference(one.section, trainer))
        elif one.keyword is not None and one.keyword.only in (None, trainer):
            found[one.keyword.name] = f"{texts[one.name]} Default: {one.default!r}."
    return found


def described_field(settings: type[Settings], name: str) -> Any:
    """The default and the documentation of a setting, for a section that has it as a field of its own."""
    default = next(one.default for one in described(settings) if one.name == name)
    return Field(default, description=_texts(settings)[name])


def _texts(settings: type[Settings]) -> dict[str, str]:
    properties = TypeAdapter(settings).json_schema()["properties"]
    return {name: one.get("description", "") for name, one in properties.items()}


def _described(field: dataclasses.Field[Any], hint: Any) -> Described:
    marks, types_ = _taken_apart(hint)
    default = field.default if field.default_factory is MISSING else field.default_factory()
    bounds = {
        name: getattr(bound, name)
        for mark in marks
        if isinstance(mark, FieldInfo)
        for bound in mark.metadata
        for name in ("ge", "gt", "le", "lt")
        if hasattr(bound, name)
    }
    return Described(
        name=field.name,
        default=default,
        keyword=next((mark for mark in marks if isinstance(mark, Keyword)), None),
        only_with=next((mark for mark in marks if isinstance(mark, OnlyWith)), None),
        section=next((one for one in types_ if isinstance(one, type) and issubclass(one, Settings)), None),
        choices=next((get_args(one) for one in types_ if get_origin(one) is Literal), ()),
        bounds=bounds,
        is_whole=int in types_,
        is_optional=type(None) in types_,
    )


def _taken_apart(hint: Any) -> tuple[list[Any], list[Any]]:
    """The markers in a type hint, and the types in it."""
    if get_origin(hint) is Annotated:
        marks, types_ = _taken_apart(get_args(hint)[0])
        return [*marks, *hint.__metadata__], types_
    if get_origin(hint) in (Union, types.UnionType):
        parts = [_taken_apart(one) for one in get_args(hint)]
        return [mark for marks, _ in parts for mark in marks], [one for _, types_ in parts for one in types_]
    return [], [hint]
