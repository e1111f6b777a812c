"""The server over real HTTP: what ordinary clients get, what bad requests get, and how it starts and ends."""

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
from teacher_replay.serving.loopback import TOOL, USER, client, complete, get, open_request, post, request_bytes, send

from composer_replication.teacher_replay.serving import Completion, LocalTeachers, Question
from composer_replication.teacher_replay.serving.http_server import bind_port
from composer_replication.traces import ToolCall

CALL = '[THINKING]\nHm.\n[/THINKING]\nSo.\n[TOOL_USE] name=read input={"path": "ä b"}\n[TOOL_USE] name=list input={}'


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


def echoed(server: LocalTeachers, **request: Any) -> Any:
    """What a teacher is given of a request."""
    _, body = post(server, {"model": "echo", "messages": USER, **request})
    return json.loads(body["choices"][0]["message"]["content"])


def test_a_text_is_an_ordinary_completion(server: LocalTeachers) -> None:
    given = {"temperature": 0.5, "max_tokens": 9, "seed": 4, "top_p": 0.9, "model": "echo"}
    reply = complete(server, tools=[TOOL], stop="x", **given)
    content = reply.choices[0].message.content
    assert json.loads(content) == {"messages": USER, "tools": [TOOL], "stop": ["x"], **given}
    assert (reply.model, reply.object, reply.choices[0].finish_reason) == ("echo", "chat.completion", "stop")
    assert reply.choices[0].message.tool_calls is None
    # Without a tokenizer, a token is taken for four bytes of text.
    assert reply.usage.prompt_tokens == -(-len("Hello?") // 4) + -(-len(json.dumps(TOOL)) // 4)
    assert reply.usage.completion_tokens == -(-len(content) // 4)
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


def test_calls_are_real_tool_calls(server: LocalTeachers) -> None:
    choice = complete(server, model="acting").choices[0]
    assert choice.finish_reason == "tool_calls"
    assert (choice.message.content, choice.message.reasoning_content) == ("So.", "Hm.")
    calls = [(call.type, call.function.name, call.function.arguments) for call in choice.message.tool_calls]
    assert calls == [("function", "read", '{"path": "ä b"}'), ("function", "list", "{}")]
    assert len({call.id for call in choice.message.tool_calls}) == 2


@pytest.mark.parametrize("model", ["echo", "acting"])
def test_a_stream_says_the_same(server: LocalTeachers, model: str) -> None:
    whole = complete(server, model=model)
    chunks = list(complete(server, model=model, stream=True, stream_options={"include_usage": True}))
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


@pytest.mark.parametrize(
    ("completion", "message", "reason"),
    [
        (Completion(), {"role": "assistant", "content": ""}, "stop"),
        (Completion(tool_calls=[ToolCall("c", "f")]), {"content": None}, "tool_calls"),
        (Completion("x", prompt_tokens=11, completion_tokens=0, finish_reason="length"), {"content": "x"}, "length"),
    ],
)
def test_a_completion_is_what_the_client_reads(completion: Completion, message: dict[str, Any], reason: str) -> None:
    class Answers:
        async def answer(self, question: Question, /) -> Completion:
            return completion

    with LocalTeachers({"only": Answers()}) as server:
        _, reply = post(server, {"model": "whatever", "messages": USER})
    choice, usage = reply["choices"][0], reply["usage"]
    assert message.items() <= choice["message"].items()
    assert ("tool_calls" in choice["message"], choice["finish_reason"]) == (bool(completion.tool_calls), reason)
    assert reply["model"] == "only"
    if completion.prompt_tokens is not None:
        assert usage == {"prompt_tokens": 11, "completion_tokens": 0, "total_tokens": 11}


def test_models_are_listed_and_health_needs_nothing(server: LocalTeachers) -> None:
    assert [model.id for model in client(server).models.list()] == ["echo", "acting", "broken"]
    assert get(server, "/health") == (200, {"status": "ok"})


def test_messages_reach_the_teacher_as_plain_texts(server: LocalTeachers) -> None:
    parts = [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "b"}]
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    given = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "done"},
        {"role": "assistant", "content": "x", "tool_calls": []},
    ]
    assert echoed(server, messages=given)["messages"] == [
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


def test_some_parameters_have_two_forms(server: LocalTeachers) -> None:
    for choice, shown in (("none", None), ("auto", [TOOL]), (None, [TOOL])):
        assert echoed(server, tools=[TOOL], tool_choice=choice)["tools"] == shown
    assert echoed(server, max_completion_tokens=3, max_tokens=9)["max_tokens"] == 3


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
    "refused",
    [
        {"n": 2, "logprobs": True, "top_logprobs": 1, "logit_bias": {"5": 1}, "parallel_tool_calls": False},
        {
            "n": True,
            "frequency_penalty": 0.2,
            "presence_penalty": -1,
            "repetition_penalty": 1.1,
            "top_k": 5,
            "min_p": 0.1,
        },
        {"tool_choice": "required", "response_format": {"type": "json_object"}, "modalities": ["text", "audio"]},
        {"tool_choice": {"type": "function", "function": {"name": "read"}}, "functions": [{"name": "read"}]},
        {"response_format": {"type": "json_schema", "json_schema": {}}, "audio": {"voice": "x"}, "guided_json": {}},
        {"reasoning": {"effort": "high"}, "reasoning_effort": "low", "never_heard_of": 0},
    ],
)
def test_what_would_change_the_answer_is_refused_by_its_name(server: LocalTeachers, refused: dict[str, Any]) -> None:
    for name, value in refused.items():
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
        complete(server, model="other")


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
        assert (get(server, "/v1/models")[0], get(server, "/health")[0]) == (401, 200)


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
        replies = list(pool.map(lambda _: post(server, {"messages": USER}), range(8)))
    assert [reply["choices"][0]["message"]["content"] for _, reply in replies] == ["together"] * 8


class Slow:
    """A function that answers when it may."""

    def __init__(self) -> None:
        self.started, self.go_on = threading.Event(), threading.Event()

    def __call__(self, messages: Any) -> str:
        self.started.set()
        self.go_on.wait()
        return "late"


def test_a_busy_teacher_keeps_nobody_else_waiting() -> None:
    slow = Slow()
    with LocalTeachers({"slow": slow, "echo": echo}) as server, ThreadPoolExecutor(1) as pool:
        late = pool.submit(post, server, {"model": "slow", "messages": USER})
        slow.started.wait()
        assert post(server, {"model": "echo", "messages": USER})[0] == 200
        assert get(server, "/health")[0] == 200
        assert not late.done()
        slow.go_on.set()
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
        connection = open_request(server, {"messages": USER})
        started.wait()
        assert not cancelled.is_set()
        connection.close()
        assert cancelled.wait(60)


def own_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("local-teacher")}


def test_it_serves_within_the_block_and_not_after() -> None:
    before = own_threads()
    with LocalTeachers({"echo": echo}) as server:
        assert server.base_url == f"http://127.0.0.1:{server.port}/v1"
        assert server.models == ["echo"]
        assert complete(server).model == "echo"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port))
    assert own_threads() <= before  # one of an earlier test may end meanwhile


def test_it_listens_on_the_loopback_address_alone() -> None:
    held = bind_port(0)
    assert held.getsockname()[0] == "127.0.0.1"
    with LocalTeachers({"echo": echo}, port=held) as server:
        assert server.port == held.getsockname()[1]
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", server.port))


def test_several_servers_at_once_and_a_port_twice_in_a_row() -> None:
    with LocalTeachers({"echo": echo}) as one, LocalTeachers({"echo": echo}) as other:
        assert one.port != other.port
        assert post(one, {"messages": USER})[0] == post(other, {"messages": USER})[0] == 200
    with LocalTeachers({"echo": echo}, port=one.port) as again:
        assert again.port == one.port


def test_a_port_in_use_is_named() -> None:
    with LocalTeachers({"echo": echo}) as server:
        message = f"port {server.port} of 127.0.0.1 is in use: choose another one, or 0 for any that is free"
        with pytest.raises(OSError, match=message), LocalTeachers({"echo": echo}, port=server.port):
            pass
        assert post(server, {"messages": USER})[0] == 200
    # Held, but not yet served: found out when the second one wants to listen.
    held = bind_port(0)
    late = bind_port(held.getsockname()[1])
    with (
        LocalTeachers({"echo": echo}, port=held),
        pytest.raises(OSError, match="is in use"),
        LocalTeachers({"echo": echo}, port=late),
    ):
        pass


def test_nothing_to_serve_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no teacher"):
        LocalTeachers({})
    with pytest.raises(ValueError, match="a teacher is a function"):
        LocalTeachers({"a": 5})  # type: ignore[dict-item]


def test_its_end_waits_for_nobody() -> None:
    slow = Slow()
    body = json.dumps({"messages": USER}).encode()
    with ThreadPoolExecutor(1) as pool, socket.socket() as half, socket.socket() as idle:
        with LocalTeachers({"slow": slow}) as server:
            late = pool.submit(post, server, {"messages": USER})
            for connection in (half, idle):
                connection.connect(("127.0.0.1", server.port))
            half.sendall(request_bytes(body)[:-5])
            slow.started.wait()
        status, reply = late.result()
        assert (status, reply["error"]["code"]) == (503, "shutting_down")
        slow.go_on.set()


def test_an_error_in_the_block_ends_it_too() -> None:
    before = own_threads()
    with pytest.raises(KeyError), LocalTeachers({"echo": echo}):
        raise KeyError
    assert own_threads() <= before  # one of an earlier test may end meanwhile


def test_a_server_that_works_has_nothing_to_say(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with LocalTeachers({"echo": echo}) as server:
        post(server, {"messages": USER})
    assert caplog.records == []
