"""Connections of a gloo group: known, seen to end, and closed at both ends. Whole groups: test_torchft_replicas.py."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from processes import wait_for

from composer_replication.diloco.local_gloo import _Connections, _listening, _sockets, _WatchedWork


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as near:
        far, _ = server.accept()
        with far:
            yield near, far


def files() -> int:
    return len(os.listdir("/dev/fd"))  # noqa: PTH208


def test_the_sockets_of_the_process_are_found_and_nothing_is_left_open(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    before = files()
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        assert address in _listening()
    assert address not in _listening()
    near, far = ends
    (found,) = _sockets(lambda one: one.getsockname() == near.getsockname())
    assert found.getpeername() == far.getsockname()
    assert found.fileno() != near.fileno()
    found.close()
    assert files() == before


def test_an_end_of_the_other_side_is_seen(ends: tuple[socket.socket, socket.socket]) -> None:
    near, far = ends
    connections = _Connections([near])
    assert not connections.have_ended()
    far.close()
    wait_for(connections.have_ended)


def test_closing_ends_the_connection_though_gloo_still_has_it(ends: tuple[socket.socket, socket.socket]) -> None:
    near, far = ends
    connections = _Connections([near.dup()])
    connections.close()
    assert connections.have_ended()
    assert far.recv(1) == b""


class Stuck:
    """Work that gloo has lost."""

    def is_completed(self) -> bool:
        return False


class Done(Stuck):
    def is_completed(self) -> bool:
        return True

    def wait(self) -> bool:
        return True


def test_work_that_is_lost_fails_when_a_connection_has_ended(ends: tuple[socket.socket, socket.socket]) -> None:
    near, far = ends
    lost: Any = Stuck()
    work = _WatchedWork(lost, _Connections([near]))
    far.close()
    with pytest.raises(ConnectionError, match="a connection to another replica ended"):
        work.wait()


def test_work_that_is_done_counts_though_the_connection_has_ended(ends: tuple[socket.socket, socket.socket]) -> None:
    near, far = ends
    done: Any = Done()
    far.close()
    assert _WatchedWork(done, _Connections([near])).wait() is True
