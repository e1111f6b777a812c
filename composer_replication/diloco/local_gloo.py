"""torchft's gloo process group, on one interface and quick to notice that somebody is missing."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import ProcessGroup, ProcessGroupGloo, Store, Work
from torchft.process_group import ProcessGroupGloo as ReconfigurableGloo

# To meet takes a few messages. One that died on the way to the meeting should not cost the others a long timeout.
MEET_S = 10.0
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.0005, 0.01
# How long gloo may take to report a connection that has ended.
_GRACE_S = 0.3
_ESTABLISHED = 1


class LocalGloo(ReconfigurableGloo):  # type: ignore[misc]
    """Gloo on one interface, with a shorter time-out for meeting than for averaging.

    It knows its own connections. In a ring only two notice that somebody died: they close theirs, so that the others
    notice, too. Gloo's `abort` closes nothing, and a connection that ends while a message is half read or half sent
    leaves gloo waiting for the rest of it.
    """

    _pg: Any

    def __init__(self, hostname: str, timeout: timedelta) -> None:
        super().__init__(timeout=min(timeout, timedelta(seconds=MEET_S)))
        self._hostname, self._average_timeout = hostname, timeout
        self._connections = _Connections([])

    def allreduce(self, *arguments: Any, **keywords: Any) -> Work:
        """As gloo's, and fails when a connection of the group ends."""
        return _WatchedWork(super().allreduce(*arguments, **keywords), self._connections)

    def allgather(self, *arguments: Any, **keywords: Any) -> Work:
        """As gloo's, and fails when a connection of the group ends."""
        return _WatchedWork(super().allgather(*arguments, **keywords), self._connections)

    def abort(self, errored: bool = True) -> None:
        """Leave the group."""
        super().abort(errored)
        self.close_connections()

    def close_connections(self) -> None:
        """Close the connections, which fails what the others wait for."""
        self._connections.close()
        # Work that is stuck keeps gloo from ending before its time-out. A process that ends before gloo is aborted.
        last = [self._pg]
        self._pg = None
        threading.Thread(target=last.clear, name="end_of_gloo", daemon=False).start()

    def _create_pg(self, store: Store, rank: int, world_size: int) -> ProcessGroup:
        before = _listening()
        group = ProcessGroup(store, rank, world_size)
        options: Any = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [ProcessGroupGloo.create_device(hostname=self._hostname)]
        options._timeout = self._timeout
        backend = ProcessGroupGloo(store, rank, world_size, options)
        backend._set_default_timeout(self._average_timeout)
        group._set_default_backend(ProcessGroup.BackendType.GLOO)
        group._register_backend(torch.device("cpu"), ProcessGroup.BackendType.GLOO, backend)
        self._connections = _Connections(_connections_of(store, rank, world_size, before) if world_size > 1 else [])
        return group


class _Connections:
    """The connections of one group."""

    def __init__(self, sockets: list[socket.socket]) -> None:
        self._sockets, self._is_closed = sockets, False

    def have_ended(self) -> bool:
        """Return whether one of them has ended, where the system tells; and whether they were closed."""
        info = getattr(socket, "TCP_INFO", None)
        return self._is_closed or (
            info is not None
            and any(one.getsockopt(socket.IPPROTO_TCP, info, 1)[0] != _ESTABLISHED for one in self._sockets)
        )

    def close(self) -> None:
        """Close them at both ends."""
        self._is_closed = True
        for one in self._sockets:
            with contextlib.suppress(OSError):  # it may have ended
                one.shutdown(socket.SHUT_RDWR)
            one.close()


class _WatchedWork(Work):
    """Work that ends with an error soon after a connection of its group has ended."""

    def __init__(self, work: Work, connections: _Connections) -> None:
        super().__init__()
        self._work, self._connections = work, connections

    def wait(self, timeout: timedelta | None = None) -> bool:
        pause, ended_since = _SHORTEST_PAUSE_S, 0.0
        while not self._work.is_completed():
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
            if pause == _LONGEST_PAUSE_S and self._connections.have_ended():
                ended_since = ended_since or time.monotonic()
                if time.monotonic() > ended_since + _GRACE_S:
                    raise ConnectionError("a connection to another replica ended")
        return bool(self._work.wait())

    def get_future(self) -> Any:
        return self._work.get_future()


def _connections_of(store: Store, rank: int, world_size: int, before: set[Any]) -> list[socket.socket]:
    """Return second handles of the group's connections: those to our new listening port, and to the others' ports."""
    (own,) = _listening() - before
    store.set(f"listens/{rank}", json.dumps(own))
    others = {tuple(json.loads(store.get(f"listens/{other}"))) for other in range(world_size) if other != rank}
    found = _sockets(lambda one: not _is_listening(one) and (one.getsockname() == own or _peer(one) in others))
    if len(found) != world_size - 1:
        raise RuntimeError(f"gloo has {len(found)} connections to {world_size - 1} replicas")
    return found


def _listening() -> set[Any]:
    """Addresses that this process listens on."""
    found = _sockets(_is_listening)
    addresses = {one.getsockname() for one in found}
    for one in found:
        one.close()
    return addresses


def _sockets(wanted: Callable[[socket.socket], bool]) -> list[socket.socket]:
    """Second handles of the process's TCP sockets."""
    # Before the first handle is made, or it would be listed, too.
    numbers = [int(name) for name in os.listdir("/dev/fd") if _is_socket(int(name))]  # noqa: PTH208
    found = []
    for number in numbers:
        try:
            one = socket.socket(fileno=os.dup(number))
        except OSError:  # closed since it was listed
            continue
        is_tcp = one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM
        if is_tcp and wanted(one):
            found.append(one)
        else:
            one.close()
    return found


def _is_socket(number: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(number).st_mode)
    except OSError:  # the list itself was one
        return False


def _is_listening(one: socket.socket) -> bool:
    return bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _peer(one: socket.socket) -> Any:
    try:
        return one.getpeername()
    except OSError:  # it has ended
        return None
