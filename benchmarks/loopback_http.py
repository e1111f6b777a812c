"""One HTTP/1.1 connection of a loopback server: keep-alive, large bodies, replies that break off or drip."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import NamedTuple

from misbehaviour import Reply, failure

_HEAD_END = b"\r\n\r\n"
_PIECES = 10  # of a body that drips


class Request(NamedTuple):
    """What came in; headers by their names in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Connection(asyncio.Protocol):
    """Hands whole requests to `receive`, one at a time: the next is read when the last has been replied to."""

    def __init__(
        self,
        receive: Callable[[Connection, Request], None],
        opened: Callable[[Connection], None],
        closed: Callable[[Connection], None],
    ) -> None:
        self._receive = receive
        self._opened = opened
        self._closed = closed
        self._buffer = bytearray()
        self._head: tuple[str, str, dict[str, str]] | None = None
        self._busy = False

    @property
    def is_open(self) -> bool:
        return not self._transport.is_closing()

    def abort(self) -> None:
        """Drop the connection and what was to be written."""
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._opened(self)

    def connection_lost(self, _error: Exception | None) -> None:
        self._closed(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._busy:
            self._advance()

    async def write(self, reply: Reply) -> None:
        """Send a reply in the way that it asks for. Nobody being there is no error."""
        await asyncio.sleep(reply.late) if reply.late else None
        if not self.is_open:
            return
        if reply.cut == 0:
            self._transport.abort()
            return
        self._transport.write(_head_of(reply))
        if reply.cut is not None:
            self._transport.write(reply.body[: reply.cut])
            self._transport.close()
            return
        if reply.drip:
            size = -(-len(reply.body) // _PIECES)
            for start in range(0, len(reply.body), size):
                await asyncio.sleep(reply.drip / _PIECES)
                self._transport.write(reply.body[start : start + size])
        else:
            self._transport.write(reply.body)
        self._busy = False
        self._advance()

    def _advance(self) -> None:
        if self._head is None:
            end = self._buffer.find(_HEAD_END)
            if end < 0:
                return
            line, *fields = self._buffer[:end].decode("latin-1").split("\r\n")
            method, path, _version = line.split(" ", 2)
            split = (field.partition(":") for field in fields)
            self._head = method, path, {name.strip().lower(): value.strip() for name, _, value in split}
            del self._buffer[: end + len(_HEAD_END)]
        method, path, headers = self._head
        size = headers.get("content-length", "0")
        if not size.isdigit() or "transfer-encoding" in headers:
            self._transport.write(_head_of(refusal := failure(411, "a body needs a Content-Length")) + refusal.body)
            self._transport.close()
            return
        if len(self._buffer) < int(size):
            return
        body = bytes(memoryview(self._buffer)[: int(size)])
        del self._buffer[: int(size)]
        self._head = None
        self._busy = True
        self._receive(self, Request(method, path, headers, body))


def _head_of(reply: Reply) -> bytes:
    status = reply.status
    phrase = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "Unknown"
    headers = {**reply.headers, "Content-Length": str(len(reply.body))}
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
