"""The endpoints over real HTTP: what ordinary clients get, and what bad requests get."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from teacher_replay.serving.loopback import USER, client, post, request_bytes, send

from composer_replication.teacher_replay.serving import Completion, LocalTeachers, Question
from composer_replication.traces import ToolCall

CALL = '[THINKING]\nHm.\n[/THINKING]\nSo.\n[TOOL_USE] name=read input={"path": "ä b"}\n[TOOL_USE] name=list input={}'
TOOL = {"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}


def echo(messages: list[dict[str, Any]], tools: Any = None, **parameters: Any) -> str:
    return json.dumps({"messages": messages, "tools": tools, **parameters})


def broken(messages: Any) -> str:
    raise RuntimeError("no disk\n  left at all")


def acting(messages: Any) -> str:
    return CALL


@pytest.fixture(scope="module")
def server() -> Iterator[LocalTeachers]:
    with LocalTeachers({"echo": echo, "acting": acting, "broken": broken}, max_body_bytes=100_000) as server:
        yield server


def test_a_text_is_an_ordinary_completion(server: LocalTeachers) -> None:
    reply = client(server).chat.completions.create(
        model="echo", messages=USER, tools=[TOOL], temperature=0.5, max_tokens=9, stop="x", seed=4, top_p=0.9
    )
    given = {"temperature": 0.5, "max_tokens": 9, "stop": ["x"], "seed": 4, "top_p": 0.9, "model": "echo"}
    content = reply.choices[0].message.content
    assert json.loads(content) == {"messages": USER, "tools": [TOOL], **given}
    assert (reply.model, reply.object, reply.choices[0].finish_reason) == ("echo", "chat.completion", "stop")
    assert reply.choices[0].message.tool_calls is None
    # Without a tokenizer, a token is taken for four bytes of text.
    assert reply.usage.prompt_tokens == -(-len("Hello?") // 4) + -(-len(json.dumps(TOOL)) // 4)
    assert reply.usage.completion_tokens == -(-len(content) // 4)
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


def test_calls_are_real_tool_calls(server: LocalTeachers) -> None:
    choice = client(server).chat.completions.create(model="acting", messages=USER).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert (choice.message.content, choice.message.reasoning_content) == ("So.", "Hm.")
    calls = choice.message.tool_calls
    assert [(call.type, call.function.name, json.loads(call.function.arguments)) for call in calls] == [
        ("function", "read", {"path": "ä b"}),
        ("function", "list", {}),
    ]
    assert len({call.id for call in calls}) == 2


@pytest.mark.parametrize("model", ["echo", "acting"])
def test_a_stream_says_the_same(server: LocalTeachers, model: str) -> None:
    whole = client(server).chat.completions.create(model=model, messages=USER)
    chunks = list(
        client(server).chat.completions.create(
            model=model, messages=USER, stream=True, stream_options={"include_usage": True}
        )
    )
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == whole.choices[0].message.content
    pieces = [call for delta in deltas for call in delta.tool_calls or []]
    expected = whole.choices[0].message.tool_calls or []
    assert [(call.index, call.function.name, call.function.arguments) for call in pieces] == [
        (index, call.function.name, call.function.arguments) for index, call in enumerate(expected)
    ]
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices]
    assert reasons == [None, whole.choices[0].finish_reason]
    assert [chunk.usage for chunk in chunks if chunk.usage] == [whole.usage]


def test_a_stream_ends_as_clients_expect_and_counts_only_if_asked(server: LocalTeachers) -> None:
    status, body = post(server, {"model": "echo", "messages": USER, "stream": True})
    assert status == 200
    events = body.decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(event.startswith("data: ") for event in events[:-1])
    assert b"usage" not in body.replace(b"echo", b"")


def test_content_of_an_answer_is_null_only_beside_calls(server: LocalTeachers) -> None:
    answers = {"empty": Completion(), "call": Completion(tool_calls=[ToolCall("c", "f")])}
    with LocalTeachers({name: lambda messages, one=answer: one for name, answer in answers.items()}) as other:
        _, empty = post(other, {"model": "empty", "messages": USER})
        _, call = post(other, {"model": "call", "messages": USER})
    assert empty["choices"][0]["message"] == {"role": "assistant", "content": ""}
    assert call["choices"][0]["message"]["content"] is None


def test_what_an_answerer_counts_is_what_the_client_reads() -> None:
    class Counting:
        async def answer(self, question: Question, /) -> Completion:
            return Completion("x", prompt_tokens=11, completion_tokens=0, finish_reason="length")

    with LocalTeachers({"counting": Counting()}) as server:
        reply = client(server).chat.completions.create(model="whatever", messages=USER)
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens) == (11, 0, 11)
    assert reply.choices[0].finish_reason == "length"
    assert reply.model == "counting"


def test_models_are_listed_and_health_needs_nothing(server: LocalTeachers) -> None:
    assert [model.id for model in client(server).models.list()] == ["echo", "acting", "broken"]
    assert send(server, request_bytes(b"", path="/health", method="GET")) == (200, {"status": "ok"})


def test_messages_reach_the_teacher_as_plain_texts(server: LocalTeachers) -> None:
    parts = [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "b"}]
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    given = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "done"},
        {"role": "assistant", "content": "x", "tool_calls": []},
    ]
    _, body = post(server, {"model": "echo", "messages": given})
    assert json.loads(body["choices"][0]["message"]["content"])["messages"] == [
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "done"},
        {"role": "assistant", "content": "x"},
    ]


def test_half_a_surrogate_pair_goes_through() -> None:
    with LocalTeachers({"parrot": lambda messages: messages[0]["content"]}) as server:
        status, reply = post(server, b'{"messages": [{"role": "user", "content": "a\\ud83d"}]}')
    assert status == 200
    assert reply["choices"][0]["message"]["content"] == "a\ud83d"


def test_tool_choice_none_hides_the_tools(server: LocalTeachers) -> None:
    for choice, shown in (("none", None), ("auto", [TOOL]), (None, [TOOL])):
        request = {"model": "echo", "messages": USER, "tools": [TOOL], "tool_choice": choice}
        _, body = post(server, request)
        assert json.loads(body["choices"][0]["message"]["content"])["tools"] == shown


def test_max_completion_tokens_is_the_newer_name(server: LocalTeachers) -> None:
    _, body = post(server, {"model": "echo", "messages": USER, "max_completion_tokens": 3, "max_tokens": 9})
    assert json.loads(body["choices"][0]["message"]["content"])["max_tokens"] == 3


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the body is not JSON"),
        (b"{", "the body is not JSON"),
        (b"\xff\xfe{}", "the body is not JSON"),
        (b"[" * 90_000, "the body is not JSON"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "the body is not JSON"),
        ([], "the body must be a JSON object, not list"),
        ({}, "messages must be a list of at least one message"),
        ({"messages": []}, "messages must be a list"),
        ({"messages": "Hello"}, "messages must be a list"),
        ({"messages": ["Hello"]}, "messages[0] must be an object whose role is one of"),
        ({"messages": [*USER, {"content": "x"}]}, "messages[1] must be an object whose role is one of"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0] must be"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0] must be"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content must be a text"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content must be a text"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"name": "f"}]}]}, "messages[0].tool_calls must be"),
        ({"messages": USER, "tools": {"name": "f"}}, "tools must be a list"),
        ({"messages": USER, "tools": [{"name": "f"}]}, "tools must be a list"),
        ({"messages": USER, "temperature": "hot"}, 'temperature must be a number from 0 to 2, got "hot"'),
        ({"messages": USER, "temperature": -1}, "temperature must be"),
        ({"messages": USER, "temperature": True}, "temperature must be"),
        (b'{"messages": [{"role": "user", "content": ""}], "temperature": NaN}', "temperature must be"),
        (b'{"messages": [{"role": "user", "content": ""}], "temperature": 1e999}', "temperature must be"),
        ({"messages": USER, "top_p": 0}, "top_p must be"),
        ({"messages": USER, "max_tokens": 0}, "max_tokens must be a whole number above 0, got 0"),
        ({"messages": USER, "max_tokens": 1.5}, "max_tokens must be"),
        ({"messages": USER, "seed": 2**63}, "seed must be"),
        ({"messages": USER, "stop": [""]}, "stop must be"),
        ({"messages": USER, "stop": {}}, "stop must be"),
        ({"messages": USER, "model": 5}, "model must be a text"),
        ({"messages": USER, "stream": "yes"}, "stream must be true or false"),
        ({"messages": USER}, "the request names no model: the models are echo, acting, broken"),
    ],
)
def test_a_bad_request_is_told_what_is_bad(server: LocalTeachers, body: Any, message: str) -> None:
    status, reply = post(server, body)
    assert status == 400
    assert set(reply) == {"error"}
    assert reply["error"]["type"] == "invalid_request_error"
    assert message in reply["error"]["message"]
    assert "\n" not in reply["error"]["message"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 2),
        ("n", True),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function", "function": {"name": "read"}}),
        ("parallel_tool_calls", False),
        ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "json_schema", "json_schema": {}}),
        ("logprobs", True),
        ("top_logprobs", 1),
        ("logit_bias", {"5": 1}),
        ("frequency_penalty", 0.2),
        ("presence_penalty", -1),
        ("repetition_penalty", 1.1),
        ("top_k", 5),
        ("min_p", 0.1),
        ("functions", [{"name": "read"}]),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "x"}),
        ("reasoning", {"effort": "high"}),
        ("reasoning_effort", "low"),
        ("guided_json", {}),
        ("never_heard_of", 0),
    ],
)
def test_what_would_change_the_answer_is_refused_by_its_name(server: LocalTeachers, name: str, value: Any) -> None:
    status, reply = post(server, {"model": "echo", "messages": USER, name: value})
    assert (status, reply["error"]["code"]) == (400, "unsupported_parameter")
    assert reply["error"]["message"].startswith(f"{name} ")
    assert "\n" not in reply["error"]["message"]


@pytest.mark.parametrize(
    "extras",
    [
        {"n": 1, "logprobs": False, "top_logprobs": 0, "logit_bias": {}, "parallel_tool_calls": True},
        {"frequency_penalty": 0, "presence_penalty": 0.0, "repetition_penalty": 1, "top_k": 0, "min_p": 0},
        {"response_format": {"type": "text"}, "modalities": ["text"], "tool_choice": "auto", "stop": None},
        {"user": "me", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "stream_options": None},
        {"provider": {"max_price": {"prompt": 1}}, "usage": {"include": True}, "functions": None, "reasoning": None},
    ],
)
def test_what_changes_no_answer_is_accepted(server: LocalTeachers, extras: dict[str, Any]) -> None:
    assert post(server, {"model": "echo", "messages": USER, **extras})[0] == 200


def test_an_unknown_model_is_told_the_known_ones(server: LocalTeachers) -> None:
    with pytest.raises(openai.NotFoundError, match="there is no model 'other': the models are echo, acting, broken"):
        client(server).chat.completions.create(model="other", messages=USER)


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/v1/chat/completions", 405), ("POST", "/v2", 404)])
def test_other_addresses_are_not_served(server: LocalTeachers, method: str, path: str, status: int) -> None:
    got, reply = send(server, request_bytes(b"{}", path=path, method=method))
    assert got == status
    assert f"{method} {path} is not served here" in reply["error"]["message"]


def test_a_body_that_is_too_large_is_refused_and_the_server_goes_on(server: LocalTeachers) -> None:
    text = "x" * 100_000
    status, reply = post(server, {"model": "echo", "messages": [{"role": "user", "content": text}]})
    assert (status, reply["error"]["code"]) == (413, "too_large")
    assert "larger than 100000 bytes" in reply["error"]["message"]
    chunked = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    chunked += b"Transfer-Encoding: chunked\r\n\r\n"
    chunked += (b"8000\r\n" + b"x" * 0x8000 + b"\r\n") * 4 + b"0\r\n\r\n"
    assert send(server, chunked)[0] == 413
    fits = "x" * 50_000
    assert post(server, {"model": "echo", "messages": [{"role": "user", "content": fits}]})[0] == 200


@pytest.mark.parametrize(
    "data", [b"nonsense\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"POST /v1/chat/completions HTTP/1.1\r\nContent-Le"]
)
def test_bytes_that_are_no_request_hurt_nobody(server: LocalTeachers, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(data)
    half = request_bytes(b"x" * 500)[:-100]
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(half)
    assert post(server, {"model": "echo", "messages": USER})[0] == 200


def test_a_teacher_that_fails_is_one_line_for_the_client_and_a_traceback_in_the_log(
    server: LocalTeachers, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        status, reply = post(server, {"model": "broken", "messages": USER})
    assert status == 500
    assert reply["error"] == {
        "message": "the teacher 'broken' failed: RuntimeError: no disk left at all",
        "type": "server_error",
        "param": None,
        "code": "teacher_failed",
    }
    assert "Traceback" not in json.dumps(reply)
    records = [record for record in caplog.records if record.name.startswith("composer_replication")]
    assert [record.getMessage() for record in records] == ["the teacher broken failed"]
    assert records[0].exc_info is not None
    assert post(server, {"model": "echo", "messages": USER})[0] == 200


def test_an_answer_that_is_not_json_is_the_teachers_failure() -> None:
    with LocalTeachers({"odd": lambda messages: Completion(tool_calls=[ToolCall("c", "f", {"a": {1, 2}})])}) as server:
        status, reply = post(server, {"messages": USER})
    assert status == 500
    assert "the teacher 'odd' failed: TypeError" in reply["error"]["message"]


def test_the_key_is_asked_for_and_not_shown() -> None:
    with LocalTeachers({"echo": echo}, api_key="open-sesame") as server:
        assert client(server, "open-sesame").chat.completions.create(model="echo", messages=USER).choices
        for key in ("wrong", "open-sesam", "open-sesame2", "ünknown"):
            status, reply = post(server, {"messages": USER}, f"Authorization: Bearer {key}")
            assert (status, reply["error"]["code"]) == (401, "invalid_api_key")
            assert "sesame" not in json.dumps(reply)
        for header in ("X-Other: 1", "Authorization: open-sesame", "Authorization: Basic open-sesame"):
            assert post(server, {"messages": USER}, header)[0] == 401
        assert send(server, request_bytes(b"", path="/v1/models", method="GET"))[0] == 401
        assert send(server, request_bytes(b"", path="/health", method="GET"))[0] == 200


def test_a_page_under_another_name_gets_nothing(server: LocalTeachers) -> None:
    body = json.dumps({"model": "echo", "messages": USER}).encode()
    data = request_bytes(body).replace(b"Host: 127.0.0.1", b"Host: evil.example:80")
    assert send(server, data)[0] == 403
    assert send(server, request_bytes(body).replace(b"Host: 127.0.0.1", b"Host: localhost:1"))[0] == 200


@pytest.mark.parametrize("is_async", [False, True])
def test_requests_to_a_function_really_overlap(is_async: bool) -> None:
    barrier = threading.Barrier(8)
    arrived: list[int] = []
    everybody = asyncio.Event()

    def in_threads(messages: Any) -> str:
        barrier.wait(60)  # passes only when all eight are here
        return "together"

    async def on_the_loop(messages: Any) -> str:
        arrived.append(1)
        if len(arrived) == 8:
            everybody.set()
        await asyncio.wait_for(everybody.wait(), 60)
        return "together"

    with LocalTeachers({"t": on_the_loop if is_async else in_threads}) as server, ThreadPoolExecutor(8) as pool:
        sdk = client(server)
        replies = list(
            pool.map(
                lambda _: sdk.chat.completions.create(model="t", messages=USER).choices[0].message.content, range(8)
            )
        )
    assert replies == ["together"] * 8


def test_a_busy_teacher_keeps_nobody_else_waiting() -> None:
    started, go_on = threading.Event(), threading.Event()

    def slow(messages: Any) -> str:
        started.set()
        go_on.wait()
        return "late"

    with LocalTeachers({"slow": slow, "echo": echo}) as server, ThreadPoolExecutor(1) as pool:
        late = pool.submit(post, server, {"model": "slow", "messages": USER})
        started.wait()
        assert post(server, {"model": "echo", "messages": USER})[0] == 200
        assert send(server, request_bytes(b"", path="/health", method="GET"))[0] == 200
        assert not late.done()
        go_on.set()
        assert late.result()[1]["choices"][0]["message"]["content"] == "late"


def test_a_client_that_goes_away_cancels_its_answer() -> None:
    started, cancelled = threading.Event(), threading.Event()

    async def waits(messages: Any) -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return "never"

    with LocalTeachers({"waits": waits}) as server:
        connection = socket.create_connection(("127.0.0.1", server.port))
        connection.sendall(request_bytes(json.dumps({"messages": USER}).encode()))
        started.wait()
        assert not cancelled.is_set()
        connection.close()
        assert cancelled.wait(60)
