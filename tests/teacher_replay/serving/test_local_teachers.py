"""The server as an object: a free port of the loopback address, an end in order, and nothing left behind."""

from __future__ import annotations

import json
import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from teacher_replay.serving.loopback import USER, client, post, request_bytes

from composer_replication.teacher_replay.serving import LocalTeachers
from composer_replication.teacher_replay.serving.http_server import bind_port


def ok(messages: Any) -> str:
    return "ok"


def own_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("local-teacher")]


def test_it_serves_within_the_block_and_not_after() -> None:
    with LocalTeachers({"ok": ok}) as server:
        assert server.base_url == f"http://127.0.0.1:{server.port}/v1"
        assert server.models == ["ok"]
        assert client(server).chat.completions.create(model="ok", messages=USER).choices[0].message.content == "ok"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port))
    assert own_threads() == []


def test_it_listens_on_the_loopback_address_alone() -> None:
    held = bind_port(0)
    assert held.getsockname()[0] == "127.0.0.1"
    with LocalTeachers({"ok": ok}, port=held) as server:
        assert server.port == held.getsockname()[1]
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", server.port))


def test_several_servers_at_once_and_a_port_twice_in_a_row() -> None:
    with LocalTeachers({"ok": ok}) as one, LocalTeachers({"ok": ok}) as other:
        assert one.port != other.port
        assert post(one, {"messages": USER})[0] == post(other, {"messages": USER})[0] == 200
    with LocalTeachers({"ok": ok}, port=one.port) as again:
        assert again.port == one.port


def test_a_port_in_use_is_named() -> None:
    with LocalTeachers({"ok": ok}) as server:
        message = f"port {server.port} of 127.0.0.1 is in use: choose another one, or 0 for any that is free"
        with pytest.raises(OSError, match=message), LocalTeachers({"ok": ok}, port=server.port):
            pass
        assert post(server, {"messages": USER})[0] == 200
    # Held, but not yet served: found out when the second one wants to listen.
    held = bind_port(0)
    late = bind_port(held.getsockname()[1])
    with (
        LocalTeachers({"ok": ok}, port=held),
        pytest.raises(OSError, match="is in use"),
        LocalTeachers({"ok": ok}, port=late),
    ):
        pass


def test_nothing_to_serve_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no teacher"):
        LocalTeachers({})
    with pytest.raises(ValueError, match="a teacher is a function"):
        LocalTeachers({"a": 5})  # type: ignore[dict-item]


def test_its_end_waits_for_nobody() -> None:
    started, go_on = threading.Event(), threading.Event()

    def slow(messages: Any) -> str:
        started.set()
        go_on.wait()
        return "late"

    body = json.dumps({"messages": USER}).encode()
    with ThreadPoolExecutor(1) as pool, socket.socket() as half, socket.socket() as idle:
        with LocalTeachers({"slow": slow}) as server:
            late = pool.submit(post, server, {"messages": USER})
            half.connect(("127.0.0.1", server.port))
            half.sendall(request_bytes(body)[:-5])
            idle.connect(("127.0.0.1", server.port))
            started.wait()
        status, reply = late.result()
        assert (status, reply["error"]["code"]) == (503, "shutting_down")
        go_on.set()


def test_an_error_in_the_block_ends_it_too() -> None:
    with pytest.raises(KeyError), LocalTeachers({"ok": ok}):
        raise KeyError
    assert own_threads() == []


def test_a_server_that_works_has_nothing_to_say(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with LocalTeachers({"ok": ok}) as server:
        post(server, {"messages": USER})
    assert caplog.records == []
