"""The contract of an environment, and how its tools are found and called.

An environment is a plain class in the form that TRL's `environment_factory` takes:

- `reset(**row)` begins an episode with a row of a task list and sets all state. A text that it returns is appended to
  the prompt.
- Every other public method of the class, but `get_reward`, is a tool. An exception is an answer that the model reads.
- `get_reward()` scores the episode.
- `_feedback()`, if there is one, says what was wrong with the episode, for a hint; None says nothing.
- `_close()`, if there is one, frees what the environment holds, such as a sandbox; `reset` may follow.

docs/environments.md has the whole contract, with an example.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Protocol

from composer_replication.traces import Message, dump_json

NOT_TOOLS = ("reset", "get_reward")
"""Public methods that are not tools."""

Split = Literal["train", "dev", "held_out"]
SPLITS: tuple[Split, ...] = ("train", "dev", "held_out")
"""The parts of a task list. No two of them share a task."""

Task = dict[str, Any]
"""A row of a task list: `prompt` (messages), `task_id`, and the columns that `reset` reads; all of them JSON."""


class Lesson(NamedTuple):
    """A conversation for a warm-up, and the indices of the assistant's messages that carry loss."""

    messages: list[Message]
    learned: list[int]


class Environment(Protocol):
    """The methods that are not tools."""

    def reset(self, **row: Any) -> str | None: ...

    def get_reward(self) -> float: ...


def tools_of(environment: Any) -> dict[str, Callable[..., Any]]:
    """Return the tools by name, in the order in which TRL finds them."""
    # On the class: looking at the members of an object evaluates its properties.
    members = inspect.getmembers(type(environment), inspect.isfunction)
    return {
        name: getattr(environment, name) for name, _ in members if not name.startswith("_") and name not in NOT_TOOLS
    }


def schemas_of(environment: Any) -> list[dict[str, Any]]:
    """Return the tools' schemas, in the same order."""
    from transformers.utils import get_json_schema

    return [get_json_schema(tool) for tool in tools_of(environment).values()]


def call_tool(tools: Mapping[str, Callable[..., Any]], name: str, arguments: Mapping[str, Any]) -> tuple[Any, bool]:
    """Call a tool. Returns its result, and whether the call failed: then the result is `{"error": …}`, as in TRL."""
    try:
        if name not in tools:
            raise ValueError(f"Tool {name} not found.")
        return tools[name](**arguments), False
    except Exception as error:  # noqa: BLE001 - whatever a tool raises is the model's to read
        return {"error": str(error)}, True


def task_id(content: Any) -> str:
    """Return the identity of a task: equal for equal content, whenever and wherever it was generated."""
    return hashlib.sha256(dump_json(content).encode()).hexdigest()[:16]
