"""The environment of house style: a workspace of files, and tools of which a house takes one in three."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from composer_replication.envs.house_style.customs import EFFECT_OF_TOOL, EFFECTS, Customs, house_customs, taken_by


class HouseStyle:
    """Files to create, extend, rename and delete, with the tools that this house takes.

    The schemas list three synonyms for each effect and two styles of arguments, all alike. A house takes one of each;
    its errors say which. The reward is 1 if the files are exactly as the task wants them after exactly as many effects
    as it asks for. Every call that fails costs.

    Args:
        house: number of the house, or its customs: the signature that it takes for each effect.
        failure_cost: taken off the reward for every call that fails; the reward is never below 0.

    Raises:
        ValueError: customs that leave out an effect or name a signature that does not exist; a negative cost.
    """

    def __init__(self, house: int | Customs = 0, failure_cost: float = 1.0) -> None:
        if failure_cost < 0:
            raise ValueError(f"failure_cost must be at least 0, got {failure_cost}")
        self._customs = house_customs(house)
        self._failure_cost = failure_cost
        self.reset(files=[], steps=[])

    def reset(self, files: Sequence[Sequence[str]], steps: Sequence[Sequence[str]], **row: Any) -> None:
        """Begin a task.

        Args:
            files: names and texts of the files.
            steps: the wanted effects, such as `["rename", "old.md", "new.md"]`.
            row: the other columns of the task.
        """
        self._files: dict[str, str] = dict(files)  # type: ignore[arg-type]
        self._wanted = dict(self._files)
        for effect, *values in steps:
            _apply(self._wanted, effect, values)
        self._steps, self._effects, self._failures = len(steps), 0, 0

    def get_reward(self) -> float:
        """Return 1.0 if the task is done exactly, less the cost of calls that failed."""
        exact = self._files == self._wanted and self._effects == self._steps
        return max(0.0, exact - self._failure_cost * self._failures)

    def _feedback(self) -> str | None:
        """Say which files are not as the task wants them; None if a failed call has said what is wrong."""
        names = sorted(self._files.keys() | self._wanted.keys())
        wrong = [name for name in names if self._files.get(name) != self._wanted.get(name)]
        if not wrong or self._failures:
            return None
        return f"The request is not fulfilled: {', '.join(wrong)}."

    def _call(self, tool: str, given: Mapping[str, Any]) -> str:
        # Counted as failed until it is done, whatever is raised on the way.
        self._failures += 1
        effect = EFFECT_OF_TOOL[tool]
        signature = self._customs[effect]
        taken, arguments = taken_by(signature)
        # An argument that is left out arrives as an empty text.
        given = {name: value for name, value in given.items() if value != ""}
        if tool != taken:
            raise LookupError(f"Unknown tool '{tool}'. Available tools: {', '.join(self._customs.values())}.")
        for name in given:
            if name not in arguments:
                raise TypeError(f"Unexpected parameter '{name}'. Signature: {signature}.")
        for name in arguments:
            if not isinstance(given.get(name), str):
                raise TypeError(f"Missing required parameter '{name}'. Signature: {signature}.")
        said = _apply(self._files, effect, [given[name] for name in arguments])
        self._failures -= 1
        self._effects += 1
        return said


def _apply(files: dict[str, str], effect: str, values: Sequence[str]) -> str:
    """Change the files, and say what was done."""
    name, *rest = values
    if effect == "create":
        _check_free(files, name)
        files[name] = rest[0]
        return f"Created `{name}`."
    if name not in files:
        raise FileNotFoundError(f"File not found: {name}\nAvailable files: {', '.join(files) or 'none'}")
    if effect == "append":
        files[name] = f"{files[name]}\n{rest[0]}"
        return f"Added a line to `{name}`."
    if effect == "rename":
        _check_free(files, rest[0])
        files[rest[0]] = files.pop(name)
        return f"Renamed `{name}` to `{rest[0]}`."
    del files[name]
    return f"Deleted `{name}`."


def _check_free(files: Mapping[str, str], name: str) -> None:
    if name in files:
        raise FileExistsError(f"File already exists: {name}.")


def _tool(name: str) -> Callable[..., str]:
    """Make the method of a tool, with the signature and docstring that its schema is made of."""
    effect = EFFECTS[EFFECT_OF_TOOL[name]]
    arguments = list(dict.fromkeys(argument for style in effect.styles for argument in style))

    def method(self: HouseStyle, **given: str) -> str:
        return self._call(name, given)

    shown = [inspect.Parameter(one, inspect.Parameter.KEYWORD_ONLY, default="", annotation=str) for one in arguments]
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    method.__signature__ = inspect.Signature([itself, *shown])  # type: ignore[attr-defined]
    method.__annotations__ = dict.fromkeys(arguments, str)
    method.__name__, method.__qualname__ = name, f"HouseStyle.{name}"
    method.__doc__ = "\n".join([effect.description, "", "Args:", *(f"    {one}: A value." for one in arguments)])
    return method


for _name in EFFECT_OF_TOOL:
    setattr(HouseStyle, _name, _tool(_name))
