"""An environment to start from: a house whose lamps the model switches on and off.

The trainer makes environments once and calls `reset` for every episode. Every public method but `reset` and
`get_reward` is a tool: its type hints and its Google docstring are what the model is shown, and what it returns, or
the exception it raises, is what the model reads next. Names that begin with an underscore are not tools.
"""

from __future__ import annotations

from typing import Any

EXAMPLE_CALL = """Answer with a tool call and nothing else, like this:
<tool_call>
{"name": "switch_on", "arguments": {"room": "tower"}}
</tool_call>"""


class House:
    """A house with a lamp in every room. The reward is 1 if exactly the wanted lamps are on in the end.

    Args:
        failure_cost: taken off the reward for every call that fails.
        show_call: show the model what a call looks like. Very small models need it; others know it from training.
    """

    # What `environment.arguments` in the configuration gives.
    def __init__(self, failure_cost: float = 0.1, show_call: bool = False) -> None:
        self._failure_cost = failure_cost
        self._show_call = show_call

    def reset(self, rooms: list[str], lit: list[str], wanted: list[str], **row: Any) -> str:
        """Begin an episode with a row of tasks.jsonl: its columns come as keyword arguments.

        Returns:
            Text that is appended to the prompt, after a blank line. None leaves the prompt as it is.
        """
        # All state is set here: an environment is used for many episodes, one after the other.
        self._rooms, self._lit, self._wanted = list(rooms), set(lit), set(wanted)
        self._failures = 0
        text = f"The rooms are: {', '.join(rooms)}. Lamps that are on: {', '.join(lit) or 'none'}."
        return f"{text}\n{EXAMPLE_CALL}" if self._show_call else text

    def get_reward(self) -> float:
        """Score the episode: how well the lamps match the wanted ones, less what failed calls cost."""
        either = self._lit | self._wanted
        match = len(self._lit & self._wanted) / len(either) if either else 1.0
        return match - self._failure_cost * self._failures

    def switch_on(self, room: str) -> str:
        """Switch on the lamp in a room.

        Args:
            room: The name of the room.
        """
        self._check(room, lit=False)
        self._lit.add(room)
        return f"The lamp in the {room} is on."

    def switch_off(self, room: str) -> str:
        """Switch off the lamp in a room.

        Args:
            room: The name of the room.
        """
        self._check(room, lit=True)
        self._lit.remove(room)
        return f"The lamp in the {room} is off."

    def _check(self, room: str, *, lit: bool) -> None:
        """Raise an error that the model can act on: hints are made of it. Say what is wrong, and what would work."""
        if room not in self._rooms:
            self._failures += 1
            raise ValueError(f"There is no room {room!r}. The rooms are: {', '.join(self._rooms)}.")
        if (room in self._lit) != lit:
            self._failures += 1
            raise ValueError(f"The lamp in the {room} is {'off' if lit else 'on'} already.")
