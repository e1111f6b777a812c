"""The environment and the reward functions of a run: imported, made once, and checked as TRL will use them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from transformers.utils import get_json_schema

from composer_replication.trainer.run.named_objects import environment_factory, reward_function

if TYPE_CHECKING:
    from composer_replication.config.sections import EnvironmentSection

_NOT_TOOLS = ("reset", "get_reward")


class RolloutParts:
    """What scores and surrounds the rollouts; without settings, nothing.

    `tools` are the definitions that the environment shows. `factory` gives the environment that was made for the checks
    before it makes another one.

    Raises:
        ValueError: something cannot be imported or made, or is not what TRL takes; the message names the setting.
    """

    def __init__(self, settings: EnvironmentSection | None) -> None:
        self.factory: Callable[[], Any] | None = None
        self.rewards: list[Callable[..., Any]] = []
        self.weights: list[float] = []
        self.tools: list[dict[str, Any]] = []
        self._reset: Callable[..., Any] | None = None
        if settings is None:
            return
        for index, reward in enumerate(settings.rewards):
            self.rewards.append(reward_function(reward.function, reward.arguments, f"environment.rewards[{index}]"))
            self.weights.append(reward.weight)
        if settings.class_ is not None:
            self._name = settings.class_
            self._make(environment_factory(self._name, settings.arguments))

    def check_columns(self, columns: Iterable[str]) -> None:
        """Require that `reset` takes the columns of the prompts, which TRL gives it as keyword arguments.

        Raises:
            ValueError: otherwise.
        """
        if self._reset is None:
            return
        named = dict.fromkeys(columns)
        try:
            inspect.signature(self._reset).bind(**named)
        except TypeError as error:
            raise ValueError(
                f"environment.class: {self._name}: reset does not take the columns of data.prompts "
                f"({', '.join(named)}): {error}; give it **row for those that it does not use"
            ) from None

    def _make(self, factory: Callable[[], Any]) -> None:
        try:
            environment = factory()
        except Exception as error:
            reason = f"{type(error).__name__}: {_said(error)}"
            raise ValueError(f"environment.class: {self._name} cannot be made: {reason}") from error
        # As TRL looks for them: on the class.
        methods = [name for name, _ in inspect.getmembers(type(environment), inspect.isfunction)]
        if "reset" not in methods:
            raise ValueError(f"environment.class: {self._name} has no method reset, with which an episode begins")
        if "get_reward" not in methods and not self.rewards:
            raise ValueError(
                f"environment.rewards: {self._name} has no get_reward, and there are no rewards: "
                "nothing scores the rollouts"
            )
        if "get_reward" in methods:
            try:
                inspect.signature(environment.get_reward).bind()
            except TypeError as error:
                raise ValueError(
                    f"environment.class: {self._name}: get_reward is called without arguments: {error}"
                ) from None
        self.tools = [
            self._definition(getattr(environment, name))
            for name in methods
            if not name.startswith("_") and name not in _NOT_TOOLS
        ]
        unused = [environment]
        self.factory = lambda: unused.pop() if unused else factory()
        self._reset = environment.reset

    def _definition(self, tool: Callable[..., Any]) -> dict[str, Any]:
        try:
            definition: dict[str, Any] = get_json_schema(tool)
            return definition
        except Exception as error:
            raise ValueError(
                f"environment.class: {self._name}: {tool.__name__} cannot be made a tool: {_said(error)} "
                "(a tool has type hints and a Google docstring with Args:; a method that is none begins with _)"
            ) from error


def _said(error: Exception) -> str:
    return " ".join(" ".join(map(str, error.args)).split())
