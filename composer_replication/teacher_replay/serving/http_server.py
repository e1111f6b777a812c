"""The HTTP server of local teachers: OpenAI's chat completions on a port of this machine.

The address is always 127.0.0.1: there is no encryption, and whoever reaches the port may use the model.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import logging
import signal
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from composer_replication._optional import require
from composer_replication.teacher_replay.serving.http_bodies import (
    EventStream,
    completion_body,
    encode,
    error_body,
    event,
    read_request,
)
from composer_replication.teacher_replay.serving.local_teacher import (
    Answerer,
    Completion,
    Question,
    QuestionError,
    StreamingAnswerer,
    as_teacher,
)

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

HOST = "127.0.0.1"
MAX_BODY_BYTES = 64 * 2**20
# A client that sends too much reads the response only when it has sent it all. Beyond this many times the limit, the
# rest is not read.
_READ_BEYOND_LIMIT = 8
# A web page that has its own name point here (DNS rebinding) must not get to use the teachers.
_OWN_NAMES = (HOST, "localhost")
_IDLE_SECONDS = 120
# For a client that does not read its response. Requests under way are answered with an error at once.
_SHUTDOWN_SECONDS = 5
_END = Completion()


class LocalTeachers:
    """Teachers that are served while the `with` block lasts.

    Requests that are under way at its end get an error.

    Args:
        teachers: by the name that a request's "model" selects; each a function (see `CallableTeacher`) or an object
            with a method `answer` (see `Answerer`). A single one answers to any name.
        port: the port, 0 for a free one; or a socket from `bind_port`.
        api_key: the key that requests must carry, if any.
        max_body_bytes: larger requests are refused.

    Example:
        >>> def careful(messages, tools=None, **parameters):
        ...     return '[TOOL_USE] name=read_file input={"path": "a.py"}'
        >>> with LocalTeachers({"careful": careful}) as server:
        ...     server.base_url
        'http://127.0.0.1:40431/v1'

    Raises:
        MissingExtraError: the extra `replay` is not installed.
        OSError: the port is not available.
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
        named = {name: as_teacher(teacher) for name, teacher in teachers.items()}
        self._endpoints = _Endpoints(named, api_key, max_body_bytes, self._note_loop)
        uvicorn = require("uvicorn", "replay")
        config = uvicorn.Config(
            self._endpoints.app(),
            http="h11",
            ws="none",
            loop="asyncio",
            lifespan="on",
            log_config=None,
            log_level="warning",  # not every start and stop
            access_log=False,
            server_header=False,
            timeout_keep_alive=_IDLE_SECONDS,
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        )
        self._server = uvicorn.Server(config)
        self._wanted = port
        self._loop: asyncio.AbstractEventLoop | None = None
        self.port = 0

    @property
    def base_url(self) -> str:
        """The `base_url` for an OpenAI client."""
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

    def __exit__(self, *_: object) -> None:
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
    """Bind a socket to a port of 127.0.0.1 (0: a free one); it refuses connections until it is served.

    Raises:
        OSError: the port is in use, or not allowed.
    """
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # Without this, a port would be in use for a minute after its last server has ended.
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    with _port_errors(held, port):
        held.bind((HOST, port))
    return held


@contextmanager
def _port_errors(held: socket.socket, port: int) -> Iterator[None]:
    # Two sockets may be bound to one port; the second one fails only when it listens.
    try:
        yield
    except OSError as error:
        held.close()
        reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be had ({error.strerror})"
        raise OSError(f"port {port} of {HOST} {reason}: choose another one, or 0 for any that is free") from None


def serve_until_stopped(server: LocalTeachers, on_ready: Callable[[LocalTeachers], None]) -> None:
    """Serve until the process gets SIGINT or SIGTERM, then shut down in order. Call it in the main thread.

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


class _RefusedError(Exception):
    """A request that ends in an error response."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.body = status, error_body(message, status, code)


class _Endpoints:
    """The endpoints in front of some teachers; `on_ready` is called on the event loop once it runs."""

    def __init__(
        self, teachers: dict[str, Answerer], api_key: str | None, max_body_bytes: int, on_ready: Callable[[], None]
    ) -> None:
        self._teachers, self._api_key = teachers, api_key
        self._max_body_bytes, self._on_ready = max_body_bytes, on_ready
        self._stopping = asyncio.Event()

    def app(self) -> Starlette:
        """Build the ASGI application.

        Raises:
            MissingExtraError: starlette is not installed.
        """
        require("starlette", "replay")
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.routing import Route

        routes = [
            Route("/v1/chat/completions", self._guarded(self._complete), methods=["POST"]),
            Route("/v1/models", self._guarded(self._list_models), methods=["GET"]),
            Route("/health", self._health, methods=["GET"]),
        ]
        return Starlette(routes=routes, exception_handlers={HTTPException: _wrong_address}, lifespan=self._lifespan)

    def stop(self) -> None:
        """Answer all requests under way with an error. Call it on the event loop."""
        self._stopping.set()

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self._on_ready()
        yield

    def _guarded(self, endpoint: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            try:
                self._check_access(request)
                response = await _unless(self._stopping.wait(), endpoint(request))
                if response is None:
                    raise _shutting_down()
                return response
            except _RefusedError as refused:
                return _json(refused.body, refused.status)

        return guarded

    def _check_access(self, request: Request) -> None:
        if request.url.hostname not in _OWN_NAMES:
            raise _RefusedError(403, f"this server answers to {_OWN_NAMES[0]} only", "wrong_host")
        if self._api_key is None:
            return
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(key.strip().encode(), self._api_key.encode()):
            raise _RefusedError(401, "the API key is missing or wrong", "invalid_api_key")

    async def _health(self, _: Request) -> Response:
        return _json(encode({"status": "ok"}))

    async def _list_models(self, _: Request) -> Response:
        rows = [{"id": name, "object": "model", "created": 0, "owned_by": "local"} for name in self._teachers]
        return _json(encode({"object": "list", "data": rows}))

    async def _complete(self, request: Request) -> Response:
        from starlette.responses import Response

        body = await self._body(request)
        try:
            wanted = read_request(body)
        except QuestionError as error:
            raise _RefusedError(400, str(error), error.code) from None
        name = self._name(wanted.question.model)
        question = replace(wanted.question, model=name)
        teacher = self._teachers[name]
        with _refusing(name):
            if not wanted.stream:
                completion = await _unless(_disconnected(request), teacher.answer(question))
                if completion is not None:
                    return _json(completion_body(question, completion))
            else:
                pieces = _pieces(teacher, question)
                # A failure before the first piece still gets its own status.
                first = await _unless(_disconnected(request), anext(pieces))
                if first is not None:
                    return self._stream(question, first, pieces, with_usage=wanted.stream_usage)
        return Response(status_code=499)  # the client has disconnected

    def _stream(
        self, question: Question, first: Completion, pieces: AsyncIterator[Completion], *, with_usage: bool
    ) -> Response:
        from starlette.responses import StreamingResponse

        events = EventStream(question)
        begun = events.piece(first)

        async def rest() -> AsyncIterator[bytes]:
            yield begun
            try:
                with _refusing(question.model):
                    while (piece := await _unless(self._stopping.wait(), anext(pieces, _END))) is not _END:
                        if piece is None:
                            raise _shutting_down()
                        yield events.piece(piece)
                    yield events.end(with_usage=with_usage)
            except _RefusedError as refused:
                yield event(refused.body)

        return StreamingResponse(rest(), media_type="text/event-stream")

    async def _body(self, request: Request) -> bytes:
        from starlette.requests import ClientDisconnect

        size, chunks = 0, []
        try:
            async for chunk in request.stream():
                size += len(chunk)
                if size <= self._max_body_bytes:
                    chunks.append(chunk)
                elif size > self._max_body_bytes * _READ_BEYOND_LIMIT:
                    break
        except ClientDisconnect:
            raise _RefusedError(400, "the body is incomplete") from None
        if size > self._max_body_bytes:
            raise _RefusedError(413, f"the body is larger than {self._max_body_bytes} bytes", "too_large")
        return b"".join(chunks)

    def _name(self, wanted: str) -> str:
        if wanted in self._teachers:
            return wanted
        if len(self._teachers) == 1:
            return next(iter(self._teachers))
        known = f"the models are {', '.join(self._teachers)}"
        if not wanted:
            raise _RefusedError(400, f"the request names no model: {known}", "missing_model")
        raise _RefusedError(404, f"there is no model {wanted[:200]!r}: {known}", "model_not_found")


def _shutting_down() -> _RefusedError:
    return _RefusedError(503, "the server is shutting down", "shutting_down")


@contextmanager
def _refusing(name: str) -> Iterator[None]:
    """Turn what a teacher raises into an error response: a `QuestionError` in full, a failure in one line."""
    try:
        yield
    except _RefusedError:
        raise
    except QuestionError as error:
        raise _RefusedError(400, str(error), error.code) from None
    except Exception as error:
        logger.exception("the teacher %s failed", name)
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise _RefusedError(500, f"the teacher {name!r} failed: {reason}", "teacher_failed") from error


async def _pieces(teacher: Answerer, question: Question) -> AsyncIterator[Completion]:
    """Yield the completion in pieces, or in one if its teacher cannot stream."""
    if isinstance(teacher, StreamingAnswerer):
        async for piece in teacher.stream(question):
            yield piece
    else:
        yield await teacher.answer(question)


async def _unless(event: Awaitable[Any], work: Awaitable[Result]) -> Result | None:
    """Return the work's result; cancel it and return None if the event comes first."""
    working, waiting = asyncio.ensure_future(work), asyncio.ensure_future(event)
    try:
        await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
        if working.cancelled():
            raise RuntimeError("it was cancelled")
        return working.result() if working.done() else None
    finally:
        working.cancel()
        waiting.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _wrong_address(request: Request, error: Exception) -> Response:
    status, headers = getattr(error, "status_code", 404), getattr(error, "headers", None)
    message = f"{request.method} {request.url.path[:200]} is not served here: POST /v1/chat/completions is"
    response = _json(error_body(message, status, "not_found"), status)
    response.headers.update(headers or {})
    return response


def _json(body: bytes, status: int = 200) -> Response:
    from starlette.responses import Response

    return Response(body, status_code=status, media_type="application/json")
