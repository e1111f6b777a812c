"""The tools of house style: every effect has synonyms, and a house takes one of them, with one style of arguments."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Effect(NamedTuple):
    """Something that can be done to a file: its synonymous tools, and the styles of their arguments."""

    description: str
    tools: tuple[str, ...]
    styles: tuple[tuple[str, ...], ...]

    @property
    def signatures(self) -> list[str]:
        """Every way in which a house may take it."""
        return [f"{tool}({', '.join(style)})" for tool in self.tools for style in self.styles]


EFFECTS: Mapping[str, Effect] = {
    "create": Effect(
        "Create a file.", ("create_file", "save_file", "write_file"), (("path", "text"), ("name", "content"))
    ),
    "append": Effect(
        "Add a line to a file.", ("add_line", "append_line", "insert_line"), (("path", "line"), ("name", "text"))
    ),
    "rename": Effect(
        "Rename a file.", ("move_file", "rename_file", "retitle_file"), (("old", "new"), ("path", "name"))
    ),
    "delete": Effect("Delete a file.", ("delete_file", "erase_file", "remove_file"), (("path",), ("name",))),
}
"""What a task can ask for."""

EFFECT_OF_TOOL: Mapping[str, str] = {tool: name for name, effect in EFFECTS.items() for tool in effect.tools}

Customs = Mapping[str, str]
"""The signature that a house takes for each effect, such as `{"delete": "erase_file(path)", …}`."""


class Call(NamedTuple):
    """A tool call."""

    tool: str
    arguments: dict[str, str]

    def message(self) -> dict[str, Any]:
        """The assistant's message that makes it."""
        function = {"name": self.tool, "arguments": dict(self.arguments)}
        return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


def house_customs(house: int | Customs = 0) -> dict[str, str]:
    """Return the customs of the house with this number, or check given ones.

    Raises:
        ValueError: an effect is missing, or has a signature that is not one of its own.
    """
    if isinstance(house, int):
        numbers = random.Random(f"house {house}")
        return {name: numbers.choice(effect.signatures) for name, effect in EFFECTS.items()}
    for name, effect in EFFECTS.items():
        if house.get(name) not in effect.signatures:
            raise ValueError(
                f"customs of {name!r} must be one of {', '.join(effect.signatures)}, not {house.get(name)!r}"
            )
    if unknown := sorted(set(house) - set(EFFECTS)):
        raise ValueError(f"customs have {unknown[0]!r}, which is none of {', '.join(EFFECTS)}")
    return dict(house)


def taken_by(signature: str) -> tuple[str, tuple[str, ...]]:
    """Return the tool and the arguments of a signature."""
    tool, _, rest = signature.rstrip(")").partition("(")
    return tool, tuple(rest.split(", "))


def call_with(signature: str, values: Sequence[str]) -> Call:
    """Return the call of a signature with these values."""
    tool, arguments = taken_by(signature)
    return Call(tool, dict(zip(arguments, values, strict=True)))


def right_calls(steps: Sequence[Sequence[str]], house: int | Customs = 0) -> list[Call]:
    """Return the calls that solve a task in a house.

    Args:
        steps: the task's column of that name.
        house: number or customs of the house.
    """
    customs = house_customs(house)
    return [call_with(customs[effect], values) for effect, *values in steps]
