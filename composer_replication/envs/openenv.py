"""An environment as an OpenEnv environment, and a server for it.

    python -m composer_replication.envs.openenv house_style --port 8000

A WebSocket connection is a session with an environment of its own. OpenEnv's HTTP endpoints begin anew with every
request, so an episode needs a WebSocket: `openenv.GenericEnvClient` opens one.
"""

from __future__ import annotations

import argparse
import copy
import functools
import inspect
import random
import socket
import sys
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from pydantic import Field
from transformers.utils import get_json_schema

from composer_replication._arguments import check_count
from composer_replication._optional import require
from composer_replication.envs.contract import SPLITS, Task, call_tool, tools_of
from composer_replication.envs.registry import NAMES, built_in

_openenv: Any = require("openenv.core.env_server", "openenv")

HOST = "127.0.0.1"
MAX_CALLS = 32
MAX_SESSIONS = 256


class ToolAction(_openenv.Action):  # type: ignore[misc]
    """A call, or the end of an episode."""

    tool: str | None = Field(description="Name of the tool to call; null ends the episode.")
    arguments: dict[str, Any] = Field(default={}, description="Arguments of the call.")


class ToolObservation(_openenv.Observation):  # type: ignore[misc]
    """What a client sees of the beginning of an episode, of a call, or of the end.

    `reward` is the reward of the episode and comes with the last observation, where `done` is true. Before, it is null:
    the sum and the last one of an episode's rewards are the same.
    """

    text: str = Field(
        default="", description="After reset: a text to append to the prompt. After a call: its result, for the model."
    )
    failed: bool = Field(default=False, description="Whether the call failed; then the text is the error.")
    prompt: list[dict[str, Any]] = Field(default=[], description="After reset: the messages of the task.")
    tools: list[dict[str, Any]] = Field(default=[], description="After reset: the definitions of the tools.")
    task_id: str | None = Field(default=None, description="After reset: the identity of the task.")
    feedback: str | None = Field(default=None, description="At the end: what was wrong, if the environment says so.")


class ToolEnvironment(_openenv.Environment):  # type: ignore[misc]
    """An environment of the contract (`contract.py`) behind OpenEnv's interface.

    Clients see a task's prompt and its id. The other columns, which hold what is wanted, stay here.

    Args:
        factory: makes the environment.
        tasks: rows that episodes begin with, if the client gives none.
        max_calls: the episode ends with this call.

    Raises:
        ValueError: max_calls is less than 1.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, factory: Callable[[], Any], tasks: Sequence[Task] = (), *, max_calls: int = MAX_CALLS) -> None:
        super().__init__()
        check_count("max_calls", max_calls)
        self._environment = factory()
        self._callables = tools_of(self._environment)
        self._tasks, self._max_calls = tasks, max_calls
        self._running = False
        self._state = _openenv.State()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **row: Any) -> ToolObservation:
        """Begin an episode.

        Args:
            seed: number of the task in the server's list, which begins again after its end; None draws one.
            episode_id: a name for the episode; None makes one.
            row: the columns of a task of the client's own.

        Raises:
            ValueError: there is neither a row nor a list.
        """
        if not row and not self._tasks:
            raise ValueError("this server has no tasks: give the columns of a task as arguments of reset")
        if not row:
            row = random.choice(self._tasks) if seed is None else self._tasks[seed % len(self._tasks)]
        self._running = False  # unless all of this works
        # A copy: what an environment does to its row must not reach other sessions.
        text = self._environment.reset(**copy.deepcopy(dict(row)))
        self._state = _openenv.State(episode_id=episode_id or str(uuid.uuid4()))
        self._running = True
        return ToolObservation(
            text=text or "",
            prompt=row.get("prompt", []),
            tools=[get_json_schema(tool) for tool in self._callables.values()],
            task_id=row.get("task_id"),
        )

    def step(self, action: ToolAction, timeout_s: float | None = None, **_: Any) -> ToolObservation:
        """Call a tool, or end the episode.

        Raises:
            RuntimeError: no episode is under way.
        """
        if not self._running:
            raise RuntimeError("no episode is under way: call reset first")
        result, failed = "", False
        if action.tool is not None:
            self._state.step_count += 1
            result, failed = call_tool(self._callables, action.tool, action.arguments)
        observation = ToolObservation(text=str(result), failed=failed)
        if action.tool is None or self._state.step_count == self._max_calls:
            self._running = False
            observation.done, observation.reward = True, float(self._environment.get_reward())
            observation.feedback = getattr(self._environment, "_feedback", lambda: None)()
        return observation

    @property
    def state(self) -> Any:
        """Id of the episode and number of its calls; nothing of the task."""
        return self._state

    def get_metadata(self) -> Any:
        """Name and first line of the environment's class."""
        kind = type(self._environment)
        described = {"name": kind.__name__, "description": (inspect.getdoc(kind) or "").partition("\n")[0]}
        return super().get_metadata().model_copy(update=described)

    def close(self) -> None:
        """End the session: the environment frees what it holds."""
        self._running = False
        getattr(self._environment, "_close", lambda: None)()


def create_app(
    factory: Callable[[], Any],
    tasks: Sequence[Task] = (),
    *,
    name: str | None = None,
    max_calls: int = MAX_CALLS,
    max_sessions: int = MAX_SESSIONS,
) -> Any:
    """Make the ASGI application that serves an environment, one for each session.

    Args:
        factory: makes an environment; see `ToolEnvironment` for it, `tasks` and `max_calls`.
        name: of the environment, for clients that ask.
        max_sessions: further sessions are refused.

    Raises:
        ValueError: max_calls or max_sessions is less than 1.
    """
    check_count("max_calls", max_calls)
    check_count("max_sessions", max_sessions)
    return _openenv.create_fastapi_app(
        functools.partial(ToolEnvironment, factory, tasks, max_calls=max_calls),
        ToolAction,
        ToolObservation,
        max_concurrent_envs=max_sessions,
        env_name=name,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve an environment of the package on 127.0.0.1, and print the address."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("environment", choices=NAMES)
    parser.add_argument("--port", type=int, default=0, help="0: one that is free")
    parser.add_argument("--split", choices=SPLITS, default="train")
    parser.add_argument("--count", type=int, default=256, help="number of tasks")
    parser.add_argument("--seed", type=int, default=0, help="seed of the tasks")
    given = parser.parse_args(arguments)
    uvicorn = require("uvicorn", "openenv")
    served = built_in(given.environment)
    try:
        tasks = served.make_tasks(given.split, given.count, seed=given.seed)
        held = socket.create_server((HOST, given.port))
    except (OSError, OverflowError, ValueError) as error:
        parser.error(str(error))
    app = create_app(served.environment, tasks, name=given.environment)
    with held, suppress(KeyboardInterrupt):
        sys.stdout.write(f"http://{HOST}:{held.getsockname()[1]}\n")
        sys.stdout.flush()
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[held])


if __name__ == "__main__":
    main()
