"""Local teachers behind a real port of this machine, in a thread; or for as long as a command runs.

The address is 127.0.0.1 and cannot be another: there is no encryption, and whoever reaches the port may use the model.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from composer_replication._optional import require
from composer_replication.teacher_replay.serving.answering import Answerer
from composer_replication.teacher_replay.serving.app import MAX_BODY_BYTES, TeacherEndpoints
from composer_replication.teacher_replay.serving.callables import as_teacher

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
_IDLE_SECONDS = 120
# For a client that does not read its answer; what is still being answered is given up at once.
_FAREWELL_SECONDS = 5


class LocalTeachers:
    """Teachers that are served while the `with` block lasts.

    Requests that are under way at its end get an error.

    Args:
        teachers: by the name that a request's "model" selects; each a function (see `CallableTeacher`) or anything
            with a method `answer` (see `Answerer`).
        port: the port, 0 for a free one; or a socket from `bind_port`.
        api_key: what requests must bear, if anything.
        max_body_bytes: larger requests are refused.

    Example:
        >>> def careful(messages, tools=None, **parameters):
        ...     return '[TOOL_USE] name=read_file input={"path": "a.py"}'
        >>> with LocalTeachers({"careful": careful}) as server:
        ...     server.base_url
        'http://127.0.0.1:40431/v1'

    Raises:
        MissingExtraError: the extra `replay` is not installed.
        OSError: the port cannot be had.
        ValueError: there is no teacher, or one is neither a function nor an `Answerer`.
    """

    def __init__(
        self,
        teachers: Mapping[str, Answerer | Callable[..., Any]],
        *,
        port: int | socket.socket = 0,
        api_key: str | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        if not teachers:
            raise ValueError("there is no teacher to serve")
        self.models = list(teachers)
        self._ready = threading.Event()
        self._endpoints = TeacherEndpoints(
            {name: as_teacher(teacher) for name, teacher in teachers.items()},
            api_key=api_key,
            max_body_bytes=max_body_bytes,
            on_ready=self._note_loop,
        )
        uvicorn = require("uvicorn", "replay")
        config = uvicorn.Config(
            self._endpoints.app(),
            http="h11",
            ws="none",
            loop="asyncio",
            lifespan="on",
            log_config=None,
            log_level="warning",  # that a server starts and stops is no news to whoever started it
            access_log=False,
            server_header=False,
            timeout_keep_alive=_IDLE_SECONDS,
            timeout_graceful_shutdown=_FAREWELL_SECONDS,
        )
        self._server = uvicorn.Server(config)
        self._wanted = port
        self._loop: asyncio.AbstractEventLoop | None = None
        self.port = 0

    @property
    def base_url(self) -> str:
        """What an OpenAI client takes as `base_url`."""
        return f"http://{HOST}:{self.port}/v1"

    def __enter__(self) -> LocalTeachers:
        held = self._wanted if isinstance(self._wanted, socket.socket) else bind_port(self._wanted)
        self.port = held.getsockname()[1]
        with _port_errors(held, self.port):
            held.listen()
        self._thread = threading.Thread(target=self._serve, args=(held,), name="local-teachers", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._loop is None:
            raise RuntimeError("the server did not start: its log says why")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._endpoints.stop)
        self._thread.join()

    def _note_loop(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ready.set()

    def _serve(self, held: socket.socket) -> None:
        try:
            self._server.run(sockets=[held])
        finally:
            held.close()
            self._ready.set()


def bind_port(port: int) -> socket.socket:
    """A socket that holds a port of 127.0.0.1, 0 for a free one, and refuses connections until it is served.

    Raises:
        OSError: the port is taken, or not ours to take.
    """
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # Without this, a port would be taken for a minute after its last server has ended.
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    with _port_errors(held, port):
        held.bind((HOST, port))
    return held


@contextmanager
def _port_errors(held: socket.socket, port: int) -> Iterator[None]:
    # Two sockets may be bound to one port, so the second one finds out only when it wants to listen.
    try:
        yield
    except OSError as error:
        held.close()
        reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be had ({error.strerror})"
        raise OSError(f"port {port} of {HOST} {reason}: choose another one, or 0 for any that is free") from None


def serve_until_stopped(server: LocalTeachers, on_ready: Callable[[LocalTeachers], None]) -> None:
    """Serve until the process gets SIGINT or SIGTERM; both end it in order. To be called in the main thread.

    Where SIGINT is ignored (`nohup`), it stays so.
    """
    stopped = threading.Event()
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    signals = (signal.SIGTERM,) if ignored else (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *_: stopped.set()) for number in signals}
    try:
        with server:
            on_ready(server)
            stopped.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
