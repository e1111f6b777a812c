"""Quorums of a torchft manager that survive the lighthouse.

torchft's manager server does not answer a request whose lighthouse failed: it would be waited for until the time-out,
which is longer than a round.
"""

from __future__ import annotations

import selectors
import socket
import threading
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import xxhash

_CONNECT_S = 5.0


class Quorums:
    """The manager's client, with a quorum id for every meeting and an error when the lighthouse is gone.

    A lighthouse that was restarted counts from 1 again. An id that was used before stands for other members, or leads
    to addresses in a store that are out of date.
    """

    def __init__(self, client: Any, lighthouse: str) -> None:
        self._client = client
        address = urlsplit(lighthouse)
        self._lighthouse = (address.hostname, address.port or 80)
        self._members: tuple[Any, ...] = ()
        self._id = -1

    def _quorum(self, **request: Any) -> SimpleNamespace:
        """Ask for a quorum. Raises a ConnectionError if the lighthouse is away, or goes away before it answers."""
        quorum = self._watched(request)
        members = (quorum.quorum_id, *quorum.replica_ids)
        if members != self._members:
            self._members = members
            self._id = xxhash.xxh32_intdigest(repr((quorum.max_step, members)).encode())
        names = [name for name in dir(quorum) if not name.startswith("_")]
        return SimpleNamespace(**{name: getattr(quorum, name) for name in names} | {"quorum_id": self._id})

    def _watched(self, request: dict[str, Any]) -> Any:
        """Ask in a thread, which is left alone if the connection to the lighthouse ends first."""
        outcome: list[Any] = []
        answered, notify = socket.socketpair()

        def ask() -> None:
            try:
                outcome.append(self._client._quorum(**request))
            except Exception as error:  # noqa: BLE001, raised by whoever waits
                outcome.append(error)
            notify.close()

        with answered, self._connect() as watched:
            threading.Thread(target=ask, name="quorum", daemon=True).start()
            ready = {key.fileobj for key, _ in _readable(answered, watched)}
        if answered not in ready:
            raise ConnectionError("the connection ended")
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return outcome[0]

    def _connect(self) -> socket.socket:
        try:
            watched = socket.create_connection(self._lighthouse, _CONNECT_S)
        except TimeoutError as error:  # which would be a quorum's that nobody came to
            raise ConnectionError(str(error)) from error
        # A machine that is gone without a word is noticed as well.
        watched.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):
            for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3)):
                watched.setsockopt(socket.IPPROTO_TCP, option, value)
        return watched

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def _readable(*sockets: socket.socket) -> list[Any]:
    """Wait until one of them can be read; `select.select` is for the first 1,024 files of a process."""
    with selectors.DefaultSelector() as selector:
        for one in sockets:
            selector.register(one, selectors.EVENT_READ)
        return selector.select()
