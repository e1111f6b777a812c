"""`composer-replication serve-teacher` in processes of its own: ready, asked, stopped, and wrongly used."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest
from processes import start as start_command

from composer_replication._tiny import tiny_model, tiny_tokenizer
from composer_replication.cli import app as cli

USER = [{"role": "user", "content": "Hello?"}]
TEACHERS = """\
import time

def careful(messages, tools=None, **parameters):
    return '[TOOL_USE] name=read_file input={"path": "a.py"}'

def modules(messages):
    import sys
    return " ".join(sorted({"torch", "transformers"} & set(sys.modules)))

def stuck(messages):
    while True:
        time.sleep(60)

def failing(messages):
    raise ValueError("no such luck")
"""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    (tmp_path / "my_teachers.py").write_text(TEACHERS)
    processes: list[subprocess.Popen[str]] = []

    def start(*arguments: str | Path, **more: str) -> subprocess.Popen[str]:
        process = start_command("serve-teacher", *arguments, cwd=tmp_path, **more)
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ready(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()
    return line


def ask(base_url: str, model: str, key: str = "none") -> openai.types.chat.ChatCompletionMessage:
    sdk = openai.OpenAI(base_url=base_url, api_key=key, max_retries=0)
    return sdk.chat.completions.create(model=model, messages=USER, temperature=0).choices[0].message


def group_members(group: int) -> list[str]:
    rows = subprocess.run(["ps", "-e", "-o", "pgid=,pid="], capture_output=True, text=True, check=True).stdout
    return [line.split()[1] for line in rows.splitlines() if line.split()[0] == str(group)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_is_answers_and_ends_in_order(start: Start, number: signal.Signals) -> None:
    process = start("--callable", "my_teachers:careful", "--callable", "loaded=my_teachers:modules")
    line = ready(process)
    assert line.startswith("serving careful, loaded at http://127.0.0.1:")
    base_url = line.split()[-1]
    assert ask(base_url, "careful").tool_calls[0].function.name == "read_file"
    assert ask(base_url, "loaded").content == ""  # a function needs no torch
    process.send_signal(number)
    assert process.communicate() == ("", "")
    assert process.returncode == 0
    assert group_members(process.pid) == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(base_url.split(":")[2].removesuffix("/v1"))))


def test_json_says_the_same_to_machines_and_a_port_may_be_chosen(start: Start) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = start("--callable", "my_teachers:careful", "--port", str(port), "--json")
    assert json.loads(ready(process)) == {
        "base_url": f"http://127.0.0.1:{port}/v1",
        "models": ["careful"],
        "pid": process.pid,
    }
    second = start("--callable", "my_teachers:careful", "--port", str(port))
    out, err = second.communicate()
    assert (second.returncode, out) == (1, "")
    assert err == f"error: port {port} of 127.0.0.1 is in use: choose another one, or 0 for any that is free\n"
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait() == 0


def test_models_by_path_beside_functions(start: Start, tmp_path: Path) -> None:
    for name in ("small", "lr=3"):
        tiny_model("qwen2", vocab_size=640).save_pretrained(tmp_path / name)
        tiny_tokenizer("qwen2_5").save_pretrained(tmp_path / name)
    # A folder may have an equals sign in its name.
    models = ["--model", "./small", "--model", "lr=3", "--model", "third=./lr=3"]
    limits = ["--max-new-tokens", "4", "--batch-size", "2", "--device", "cpu", "--dtype", "bfloat16"]
    process = start(*models, "--callable", "my_teachers:careful", *limits, "--json")
    told = json.loads(ready(process))
    assert told["models"] == ["small", "lr=3", "third", "careful"]
    sdk = openai.OpenAI(base_url=told["base_url"], api_key="none", max_retries=0)
    replies = {name: sdk.chat.completions.create(model=name, messages=USER, temperature=0) for name in told["models"]}
    assert {reply.usage.completion_tokens for name, reply in replies.items() if name != "careful"} == {4}
    assert replies["careful"].choices[0].message.tool_calls
    process.send_signal(signal.SIGTERM)
    assert process.communicate() == ("", "")
    assert process.returncode == 0


def test_a_function_that_never_returns_does_not_keep_it_alive(start: Start) -> None:
    process = start("--callable", "my_teachers:stuck", "--callable", "my_teachers:careful")
    base_url = ready(process).split()[-1]
    address = ("127.0.0.1", int(base_url.split(":")[2].removesuffix("/v1")))
    body = json.dumps({"model": "stuck", "messages": USER}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(address) as connection:
        connection.sendall(head.encode() + body)
        ask(base_url, "careful")
        process.send_signal(signal.SIGTERM)
        assert process.communicate() == ("", "")
    assert process.returncode == 0


def test_a_failing_function_is_told_in_the_log_and_does_not_end_it(start: Start) -> None:
    process = start("--callable", "my_teachers:failing")
    base_url = ready(process).split()[-1]
    for _ in range(2):
        with pytest.raises(openai.InternalServerError, match="ValueError: no such luck"):
            ask(base_url, "failing")
    process.send_signal(signal.SIGTERM)
    assert "the teacher failing failed" in process.communicate()[1]
    assert process.returncode == 0


def test_the_key_comes_from_the_environment(start: Start) -> None:
    process = start("--callable", "my_teachers:careful", "--api-key-variable", "MY_KEY", MY_KEY="open-sesame")
    base_url = ready(process).split()[-1]
    assert ask(base_url, "careful", "open-sesame").tool_calls
    with pytest.raises(openai.AuthenticationError, match="the API key is missing or wrong"):
        ask(base_url, "careful")
    process.send_signal(signal.SIGTERM)
    assert "sesame" not in "".join(process.communicate())


def test_there_is_no_way_to_another_address() -> None:
    for host in ("--host", "--bind", "--address"):
        assert cli.run(["serve-teacher", "--callable", "json:dumps", host, "0.0.0.0"]) == 2


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "give at least one --model or --callable"),
        (["--callable", "careful"], 2, "--callable: 'careful' does not name a function: write MODULE:FUNCTION"),
        (["--callable", "no_such_module:f"], 2, "--callable: there is no module 'no_such_module'"),
        (["--callable", "json:nothing"], 2, "--callable: 'json:nothing': json has no 'nothing'"),
        (["--callable", "a="], 2, "'a='"),
        (["--callable", "a=json:dumps", "--callable", "a=json:loads"], 2, "two teachers are called 'a'"),
        (["--model", "./nowhere"], 2, "--model: ./nowhere: there is no such directory"),
        (["--model", "a=/no/where"], 2, "--model: /no/where: there is no such directory"),
        (["--model", "file"], 2, "--model: file: there is no such directory"),
        (["--model", "./empty"], 1, "cannot load the model './empty': the folder has no config.json"),
        (["--model", "./empty", "--device", "gpu"], 2, "--device: device 'gpu' cannot be used"),
        (["--model", "./empty", "--dtype", "int4"], 2, "'int4' is not one of"),
        (["--callable", "json:dumps", "--port", "65536"], 2, "--port"),
        (["--callable", "json:dumps", "--port", "x"], 2, "--port"),
        (["--callable", "json:dumps", "--max-new-tokens", "0"], 2, "--max-new-tokens"),
        (["--callable", "json:dumps", "--batch-size", "0"], 2, "--batch-size"),
        (["--callable", "json:dumps", "--api-key-variable", "NOT_SET_HERE"], 2, "variable 'NOT_SET_HERE' is not set"),
    ],
)
def test_bad_usage_is_one_line(
    arguments: list[str],
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    assert cli.run(["serve-teacher", *arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert message in captured.err


def test_a_key_given_in_place_of_its_variable_is_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["serve-teacher", "--callable", "json:dumps", "--api-key-variable", "made-up-key-0123"]) == 2
    assert "made-up" not in capsys.readouterr().err
