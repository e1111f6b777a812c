"""Environments as OpenEnv servers: real sockets, OpenEnv's own client, many sessions, and sessions that misbehave."""

from __future__ import annotations

import asyncio
import doctest
import importlib
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from processes import ROOT, environment, wait_for
from run.training_material import model_folder
from transformers.utils import get_json_schema

from composer_replication.config import parse_config
from composer_replication.envs.contract import Task, call_tool, tools_of
from composer_replication.envs.house_style import HouseStyle, make_tasks, right_calls
from composer_replication.envs.python_tasks.bank import find_function
from composer_replication.envs.registry import built_in
from composer_replication.run.data import load_training_data

HOST = "127.0.0.1"
Calls = list[tuple[str, dict[str, Any]]]


def house_calls(task: Task) -> Calls:
    return [(call.tool, call.arguments) for call in right_calls(task["steps"])]


def python_calls(task: Task) -> Calls:
    """Look at the file once or more, then write the solution."""
    looks = 1 + int(task["task_id"], 16) % 3
    source = find_function(task["function"]).source
    return [("read_file", {"path": "solution.py"})] * looks + [("write_file", {"path": "solution.py", "text": source})]


def house_secrets(task: Task) -> list[str]:
    return [json.dumps(task["steps"]), json.dumps(task["files"])]


def python_secrets(task: Task) -> list[str]:
    function = find_function(task["function"])
    tests = [test for test in function.tests if test not in task["examples"] and len(test) > 12]
    return [json.dumps(text)[1:-1] for text in (function.body, task["solution"], *tests)]


SOLUTIONS = {"house_style": house_calls, "python_tasks": python_calls}
SECRETS = {"house_style": house_secrets, "python_tasks": python_secrets}
SESSIONS = 64


class Served(NamedTuple):
    """A server of an environment, its tasks, and the calls that solve one."""

    name: str
    url: str
    factory: Callable[[], Any]
    tasks: list[Task]
    solution: Callable[[Task], Calls]

    def client(self) -> Any:
        """A client that waits as long as it takes."""
        from openenv import GenericEnvClient

        return GenericEnvClient(self.url, connect_timeout_s=600, message_timeout_s=600, websocket_ping_interval_s=None)

    def get(self, path: str, body: Any = None) -> str:
        """The text of an HTTP endpoint, errors included."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as response:
                return str(response.read().decode())
        except urllib.error.HTTPError as error:
            return error.read().decode()


@pytest.fixture(scope="module")
def ours() -> Any:
    """The module that is tested. OpenEnv takes seconds to import, which workers without these tests need not do."""
    return importlib.import_module("composer_replication.envs.openenv")


@contextmanager
def running(app: Any) -> Iterator[str]:
    """A server on a free port; its address."""
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws_ping_interval=None))
    with socket.create_server((HOST, 0)) as held:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [held]})
        thread.start()
        try:
            wait_for(lambda: server.started or not thread.is_alive())
            yield f"http://{HOST}:{held.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="module", params=SOLUTIONS)
def served(request: pytest.FixtureRequest, ours: Any) -> Iterator[Served]:
    served = built_in(request.param)
    tasks = served.make_tasks("dev", SESSIONS)
    with running(ours.create_app(served.environment, tasks, name=request.param)) as url:
        yield Served(request.param, url, served.environment, tasks, SOLUTIONS[request.param])


def played(factory: Callable[[], Any], task: Task, calls: Calls) -> list[Any]:
    """What a plain object says: a text and a failure for each call."""
    made = factory()
    made.reset(**task)
    answers = [call_tool(tools_of(made), tool, arguments) for tool, arguments in calls]
    return [(str(text), failed) for text, failed in answers]


def test_a_session_is_what_the_plain_object_is(served: Served) -> None:
    task = served.tasks[3]
    calls = served.solution(task)
    with served.client().sync() as client:
        first = client.reset(seed=3, episode_id="one")
        assert first.observation["prompt"] == task["prompt"]
        assert first.observation["task_id"] == task["task_id"]
        assert first.observation["tools"] == [get_json_schema(tool) for tool in tools_of(served.factory()).values()]
        assert (first.reward, first.done) == (None, False)
        said: list[Any] = []
        for number, (tool, arguments) in enumerate(calls, start=1):
            step = client.step({"tool": tool, "arguments": arguments})
            assert (step.reward, step.done) == (None, False)
            said.append((step.observation["text"], step.observation["failed"]))
            assert client.state() == {"episode_id": "one", "step_count": number}
        assert said == played(served.factory, task, calls)
        last = client.step({"tool": None})
        assert (last.reward, last.done, last.observation["feedback"]) == (1.0, True, None)
        # The next episode of the same session begins anew.
        client.reset(**task)
        assert client.state()["step_count"] == 0
        plain = served.factory()
        plain.reset(**task)
        last = client.step({"tool": None})
        assert (last.reward, last.observation["feedback"]) == (0.0, plain._feedback())
        assert last.observation["feedback"]


def test_sessions_at_once_do_not_mix(served: Served) -> None:
    scripts: list[Calls] = []
    for number, task in enumerate(served.tasks):
        solution = served.solution(task)
        scripts.append([solution, [("no_such_tool", {}), *solution], solution[:-1]][number % 3])
    expected = [
        [*played(served.factory, task, script), float(number % 3 < 2)]
        for number, (task, script) in enumerate(zip(served.tasks, scripts, strict=True))
    ]
    assert len({len(script) for script in scripts}) > 2

    async def play() -> list[list[Any]]:
        said: list[list[Any]] = [[] for _ in scripts]
        async with AsyncExitStack() as stack:
            clients = await together(stack.enter_async_context(served.client()) for _ in scripts)

            async def turn(number: int, step: int) -> None:
                tool, arguments = [*scripts[number], (None, {})][step]
                result = await clients[number].step({"tool": tool, "arguments": arguments})
                seen = result.observation
                said[number].append(result.reward if result.done else (seen["text"], seen["failed"]))

            # Half of them bring their task, half have the server draw it. All take their turns at the same time.
            await together(
                client.reset(seed=number) if number % 2 else client.reset(**served.tasks[number])
                for number, client in enumerate(clients)
            )
            for step in range(max(map(len, scripts)) + 1):
                await together(turn(number, step) for number in range(SESSIONS) if step <= len(scripts[number]))
            states = await together(client.state() for client in clients)
            assert [state["step_count"] for state in states] == list(map(len, scripts))
            assert len({state["episode_id"] for state in states}) == SESSIONS
        return said

    assert asyncio.run(play()) == expected


async def together(waiting: Iterator[Awaitable[Any]]) -> Sequence[Any]:
    return await asyncio.gather(*waiting)


def test_what_is_wanted_stays_on_the_server(served: Served) -> None:
    name = json.loads(served.get("/list_environments"))[0]
    assert json.loads(served.get("/metadata"))["name"] == served.factory.__name__
    with served.client().sync() as client:
        first = client.reset(seed=5)
        assert set(first.observation) == {"text", "failed", "prompt", "tools", "task_id", "feedback", "metadata"}
        seen = [json.dumps(first.observation), json.dumps(client.state())]
    for path in ("/schema", "/metadata", "/state", "/openapi.json", f"/{name}/splits"):
        seen.append(served.get(path))
    seen.append(served.get("/reset", {"seed": 5}))
    for path in ("tasks", "task", "task_range"):
        seen.append(served.get(f"/{name}/{path}", {"split": "dev", "index": 5}))
    seen.append(served.get("/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}))
    assert served.tasks[5]["task_id"] in seen[0]
    secrets = SECRETS[served.name](served.tasks[5])
    assert [(secret, text) for secret in secrets for text in seen if secret in text] == []


def test_a_session_that_misbehaves_gets_errors_and_leaves_the_others_alone(served: Served) -> None:
    task = served.tasks[0]
    calls = served.solution(task)

    from websockets.asyncio.client import connect

    async def misbehave(step: Callable[[], Awaitable[None]]) -> None:
        address = served.url.replace("http", "ws") + "/ws"
        async with connect(address, proxy=None, ping_interval=None) as rude:

            async def answer(message: Any) -> str:
                await rude.send(message if isinstance(message, str) else json.dumps(message))
                said = json.loads(await rude.recv())
                await step()
                assert said["type"] == "error"
                return f"{said['data']['code']}: {said['data']['message']}"

            call = {"tool": calls[0][0], "arguments": calls[0][1]}
            assert "call reset first" in await answer({"type": "step", "data": call})
            assert (await answer("{broken")).startswith("INVALID_JSON")
            assert (await answer({"type": "dance"})).startswith("UNKNOWN_TYPE")
            assert (await answer({"type": "step", "data": {"arguments": {}}})).startswith("VALIDATION_ERROR")
            assert (await answer({"type": "step", "data": {"tool": "a", "arguments": 7}})).startswith(
                "VALIDATION_ERROR"
            )
            for again in range(2):
                await rude.send(json.dumps({"type": "reset", "data": task}))
                assert json.loads(await rude.recv())["type"] == "observation"
                if not again:  # an episode that could not begin is none
                    assert (await answer({"type": "reset", "data": {"nonsense": 1}})).startswith("EXECUTION_ERROR")
                    assert "call reset first" in await answer({"type": "step", "data": call})
            for wrong in ({"tool": "reset", "arguments": task}, {"tool": calls[0][0], "arguments": {"nonsense": "1"}}):
                await rude.send(json.dumps({"type": "step", "data": wrong}))
                seen = json.loads(await rude.recv())["data"]
                assert seen["observation"]["failed"], seen
                assert "error" in seen["observation"]["text"]
            await rude.send(json.dumps({"type": "step", "data": {"tool": None}}))
            assert json.loads(await rude.recv())["data"]["done"]
            assert "call reset first" in await answer({"type": "step", "data": call})
            await answer([])  # this ends the session, and only this one

    async def play() -> float | None:
        async with served.client() as good:
            await good.reset(**task)

            async def alive() -> None:
                assert (await good.state())["step_count"] == 0

            await misbehave(alive)
            for tool, arguments in calls:
                await good.step({"tool": tool, "arguments": arguments})
            return (await good.step({"tool": None})).reward

    assert asyncio.run(play()) == 1.0


def test_an_episode_ends_with_the_last_call_that_it_has(ours: Any) -> None:
    task = make_tasks("train", 1, calls=2)[0]
    environment = ours.ToolEnvironment(HouseStyle, [task], max_calls=2)
    environment.reset()
    first, second = (
        environment.step(ours.ToolAction(tool=call.tool, arguments=call.arguments))
        for call in right_calls(task["steps"])
    )
    assert (first.done, first.reward) == (False, None)
    assert (second.done, second.reward) == (True, 1.0)
    assert second.text
    with pytest.raises(RuntimeError, match="call reset first"):
        environment.step(ours.ToolAction(tool=None))
    assert {environment.reset(seed=seed).task_id for seed in range(3)} == {task["task_id"]}
    with pytest.raises(ValueError, match="this server has no tasks: give the columns"):
        ours.ToolEnvironment(HouseStyle).reset(seed=1)
    for wrong in ({"max_calls": 0}, {"max_sessions": 0}):
        with pytest.raises(ValueError, match="must be a positive whole number, got 0"):
            ours.create_app(HouseStyle, [task], **wrong)


def test_the_end_of_a_session_frees_what_the_environment_holds(ours: Any) -> None:
    freed: list[Any] = []

    class Holding(HouseStyle):
        def _close(self) -> None:
            freed.append(self)

    environment = ours.ToolEnvironment(Holding, make_tasks("train", 1))
    environment.reset()
    environment.close()
    assert freed == [environment._environment]
    with pytest.raises(RuntimeError, match="call reset first"):
        environment.step(ours.ToolAction(tool=None))
    ours.ToolEnvironment(HouseStyle).close()


def test_what_an_environment_does_to_its_row_stays_in_its_session(ours: Any) -> None:
    class Greedy(HouseStyle):
        def reset(self, files: Any, steps: Any, **row: Any) -> None:
            super().reset(files=files, steps=steps)
            steps.clear()

    task = make_tasks("train", 1)[0]
    steps = list(task["steps"])
    ours.ToolEnvironment(Greedy, [task]).reset()
    assert task["steps"] == steps


def test_the_page_of_environments_runs(ours: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")
    blocks = re.findall(r"(?s)```(python|pycon|yaml)\n(.*?)```", page)
    assert len(blocks) == 9
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    addresses: list[str] = []
    with ExitStack() as stack:
        monkeypatch.setattr("uvicorn.run", lambda app, **_: addresses.append(stack.enter_context(running(app))))
        for kind, code in blocks:
            if kind == "yaml":
                run = {"model": {"name": "a/b"}, "training": {"output_dir": "runs"}, **yaml.safe_load(code)}
                config = parse_config(run)
                assert load_training_data(config.data, config.environment).prompts
            elif kind == "pycon":
                session = doctest.DocTestParser().get_doctest(code, names, "the page", None, 0)
                doctest.DebugRunner().run(session, clear_globs=False)
                names |= session.globs
            else:
                code = code.replace("Qwen/Qwen2.5-0.5B-Instruct", str(model_folder(tmp_path / "model")))
                exec(code.replace("http://127.0.0.1:8000", "".join(addresses)), names)
    assert len(addresses) == 1
    assert [tool.__name__ for tool in names["trainer"]._env_tools[None]] == ["deliver", "look_up"]


@pytest.mark.parametrize("wrong", [["--count", "0"], ["--port", "-1"], ["--split", "test"]])
def test_the_command_refuses(wrong: list[str], ours: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        ours.main(["house_style", *wrong])
    assert wrong[0][2:] in capsys.readouterr().err


def test_the_command_serves_until_it_is_stopped() -> None:
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from composer_replication.envs.openenv import main; main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, "house_style", "--count", "3"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment(),
    )
    with process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        tasks = make_tasks("train", 3)
        there = Served("house_style", url, HouseStyle, tasks, house_calls)
        with there.client().sync() as client:
            assert client.reset(seed=4).observation["task_id"] == tasks[1]["task_id"]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
