"""The tool house: a small environment for live runs on small models, with naming customs of its own.

Its tools list three names for their one argument and accept only one of them. The schema does not say which; the error
does. So the model is like one in a new harness: it can act and it follows hints, but it does not know the names.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

ARGUMENT_NAMES = ("path", "file", "name")
"""The possible names of a tool's argument; a house accepts one of them per tool."""

CUSTOMS: Mapping[str, str] = MappingProxyType({"count_lines": "name", "read_file": "path"})
"""The argument name that each tool accepts by default."""

FILES: Mapping[str, int] = MappingProxyType(
    {"notes.md": 12, "parser.py": 80, "models.py": 41, "config.py": 7, "server.py": 95, "client.py": 63, "plan.md": 28}
)
"""The files of the house and their numbers of lines."""

SYSTEM = "You are a coding agent."
_REQUESTS = {"count_lines": "Count the lines of {file}.", "read_file": "Read {file}."}


class ToolHouse:
    """An environment in the form that `trl.GRPOTrainer(environment_factory=ToolHouse)` takes.

    The reward is 1 if the calls that reached the house are those of the task, in order, and all of them worked; else 0.
    A call to a tool that does not exist never reaches it.

    Args:
        customs: the argument name that each tool takes; for other houses, `partial(ToolHouse, customs)` is a factory.

    Raises:
        ValueError: customs that leave out a tool, or name one or an argument that does not exist.
    """

    def __init__(self, customs: Mapping[str, str] = CUSTOMS) -> None:
        if set(customs) != set(CUSTOMS) or not set(customs.values()) <= set(ARGUMENT_NAMES):
            tools, names = ", ".join(CUSTOMS), ", ".join(ARGUMENT_NAMES)
            raise ValueError(f"customs must give each of {tools} one of {names}, not {dict(customs)}")
        self._customs = dict(customs)
        self._wanted: list[str] = []
        self._made: list[str] = []

    def reset(self, wanted: list[str], **row: Any) -> None:
        """Begin a task: `wanted` are its calls, such as "read_file notes.md". The rest of the row is ignored."""
        self._wanted, self._made = list(wanted), []

    def get_reward(self) -> float:
        """Return 1.0 if the calls are the wanted ones and all of them worked; else 0.0."""
        return float(self._made == self._wanted)

    def read_file(self, path: str = "", file: str = "", name: str = "") -> str:
        """Read a file.

        Args:
            path: The file.
            file: The file.
            name: The file.
        """
        wanted = self._accepted("read_file", {"path": path, "file": file, "name": name})
        return f"The text of {wanted}."

    def count_lines(self, path: str = "", file: str = "", name: str = "") -> str:
        """Count lines.

        Args:
            path: The file.
            file: The file.
            name: The file.
        """
        wanted = self._accepted("count_lines", {"path": path, "file": file, "name": name})
        return f"{FILES[wanted]} lines."

    def _accepted(self, tool: str, arguments: Mapping[str, str]) -> str:
        """Return the file that the call names, if it follows the customs."""
        # A failed call counts too, and costs the reward whatever comes after it.
        self._made.append(f"{tool} failed")
        custom = self._customs[tool]
        for given, value in arguments.items():
            if value and given != custom:
                raise TypeError(f"Unexpected parameter '{given}'. Signature: {tool}({custom}) in this house.")
        wanted = arguments[custom]
        if not wanted:
            raise TypeError(f"Missing required parameter '{custom}'. Signature: {tool}({custom}) in this house.")
        if wanted not in FILES:
            raise FileNotFoundError(f"File not found: {wanted}. Available files: {', '.join(FILES)}.")
        self._made[-1] = f"{tool} {wanted}"
        return wanted


def house_tasks(count: int, *, seed: int = 0) -> list[dict[str, Any]]:
    """Make rows of a prompt data set: a `prompt` of two messages, and the calls that it asks for as `wanted`.

    `datasets.Dataset.from_list` makes what a trainer takes.
    """
    numbers = random.Random(seed)
    kinds = [(tool, file) for tool in _REQUESTS for file in FILES]
    rows = []
    for index in range(count):
        if index % len(kinds) == 0:
            numbers.shuffle(kinds)
        tool, file = kinds[index % len(kinds)]
        request = {"role": "user", "content": _REQUESTS[tool].format(file=file)}
        rows.append({"prompt": [{"role": "system", "content": SYSTEM}, request], "wanted": [f"{tool} {file}"]})
    return rows


def house_tools() -> list[dict[str, Any]]:
    """Return the tools' schemas, in the order in which TRL finds them."""
    from transformers.utils import get_json_schema

    house = ToolHouse()
    return [get_json_schema(house.count_lines), get_json_schema(house.read_file)]


def house_pairs(count: int, *, seed: int = 5) -> list[dict[str, Any]]:
    """Make preference pairs: the house's own call against the one that the model is used to."""
    rows = []
    for task in house_tasks(count, seed=seed):
        tool, file = task["wanted"][0].split()
        wrong = "path" if tool == "count_lines" else "file"
        rows.append(
            {
                "prompt": task["prompt"],
                "chosen": [tool_call(tool, CUSTOMS[tool], file)],
                "rejected": [tool_call(tool, wrong, file)],
                "tools": house_tools(),
            }
        )
    return rows


def tool_call(tool: str, argument: str, file: str) -> dict[str, Any]:
    """Return the assistant's message that makes a call."""
    function = {"name": tool, "arguments": {argument: file}}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


def tool_result(house: ToolHouse, tool: str, arguments: Mapping[str, str]) -> dict[str, Any]:
    """Return the message that the model reads after a call, in TRL's form."""
    if tool not in CUSTOMS:
        answer: Any = {"error": f"Tool {tool} not found."}
    else:
        try:
            answer = getattr(house, tool)(**arguments)
        except (TypeError, FileNotFoundError) as error:
            answer = {"error": str(error)}
    return {"role": "tool", "name": tool, "content": str(answer)}
