"""The HTTP face of local teachers: OpenAI's chat completions, the list of models, and a health check."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from composer_replication._optional import require
from composer_replication.teacher_replay.serving.answering import (
    Answer,
    Answerer,
    Question,
    QuestionError,
    StreamingAnswerer,
)
from composer_replication.teacher_replay.serving.request_body import read_request
from composer_replication.teacher_replay.serving.response_body import Completion, EventStream, encode, error_body

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

MAX_BODY_BYTES = 64 * 2**20
# A client that sends too much reads the answer only when it is done with sending; but there is an end to patience.
_PATIENCE = 8
# A web page that has its own name point here (DNS rebinding) must not get to use the teachers.
_OWN_NAMES = ("127.0.0.1", "localhost")
_END = Answer()


class _RefusedError(Exception):
    """A request that ends in an error response."""

    def __init__(self, status: int, message: str, kind: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.kind, self.code = status, kind, code

    def body(self) -> bytes:
        return error_body(str(self), self.kind, self.code)


class TeacherEndpoints:
    """The endpoints in front of some teachers.

    Args:
        teachers: each under the name that requests select it by. A single one answers to any name.
        api_key: what requests must bear, if anything.
        max_body_bytes: larger requests are refused.
        on_ready: called on the event loop when it runs.
    """

    def __init__(
        self,
        teachers: Mapping[str, Answerer],
        *,
        api_key: str | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        self._teachers = dict(teachers)
        self._api_key = api_key
        self._max_body_bytes = max_body_bytes
        self._on_ready = on_ready
        self._stopping = asyncio.Event()

    def app(self) -> Starlette:
        """The ASGI application.

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
        """Give up what is being answered: its clients get an error. To be called on the event loop."""
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
                return _json(refused.body(), refused.status)

        return guarded

    def _check_access(self, request: Request) -> None:
        if request.url.hostname not in _OWN_NAMES:
            raise _RefusedError(
                403, f"this server answers to {_OWN_NAMES[0]} only", "invalid_request_error", "wrong_host"
            )
        if self._api_key is None:
            return
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(key.strip().encode(), self._api_key.encode()):
            raise _RefusedError(401, "the API key is missing or wrong", "invalid_request_error", "invalid_api_key")

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
            raise _RefusedError(400, str(error), "invalid_request_error", error.code) from None
        name = self._name(wanted.question.model)
        question = replace(wanted.question, model=name)
        teacher = self._teachers[name]
        with _refusing(name):
            if not wanted.stream:
                answer = await _unless(_disconnected(request), teacher.answer(question))
                if answer is not None:
                    return _json(Completion.of(question, answer).body())
            else:
                pieces = _pieces(teacher, question)
                # What fails before the first piece still gets a status of its own.
                first = await _unless(_disconnected(request), anext(pieces))
                if first is not None:
                    return self._stream(question, first, pieces, with_usage=wanted.stream_usage)
        return Response(status_code=499)  # the client is gone: nobody reads this

    def _stream(
        self, question: Question, first: Answer, pieces: AsyncIterator[Answer], *, with_usage: bool
    ) -> Response:
        from starlette.responses import StreamingResponse

        events = EventStream(question.model)
        begun = events.piece(first)

        async def rest() -> AsyncIterator[bytes]:
            yield begun
            total = first
            try:
                with _refusing(question.model):
                    while (piece := await _unless(self._stopping.wait(), anext(pieces, _END))) is not _END:
                        if piece is None:
                            raise _shutting_down()
                        total += piece
                        yield events.piece(piece)
                    yield events.end(Completion.of(question, total), with_usage=with_usage)
            except _RefusedError as refused:
                yield events.error(refused.body())

        return StreamingResponse(rest(), media_type="text/event-stream")

    async def _body(self, request: Request) -> bytes:
        from starlette.requests import ClientDisconnect

        size, chunks = 0, []
        try:
            async for chunk in request.stream():
                size += len(chunk)
                if size <= self._max_body_bytes:
                    chunks.append(chunk)
                elif size > self._max_body_bytes * _PATIENCE:
                    break
        except ClientDisconnect:
            raise _RefusedError(400, "the body is incomplete", "invalid_request_error") from None
        if size > self._max_body_bytes:
            raise _RefusedError(
                413, f"the body is larger than {self._max_body_bytes} bytes", "invalid_request_error", "too_large"
            )
        return b"".join(chunks)

    def _name(self, wanted: str) -> str:
        if wanted in self._teachers:
            return wanted
        if len(self._teachers) == 1:
            return next(iter(self._teachers))
        known = f"the models are {', '.join(self._teachers)}"
        if not wanted:
            raise _RefusedError(400, f"the request names no model: {known}", "invalid_request_error", "missing_model")
        raise _RefusedError(
            404, f"there is no model {wanted[:200]!r}: {known}", "invalid_request_error", "model_not_found"
        )


def _shutting_down() -> _RefusedError:
    return _RefusedError(503, "the server is shutting down", "server_error", "shutting_down")


@contextmanager
def _refusing(name: str) -> Iterator[None]:
    """Turn what a teacher raises into what its client is told: its own refusals in full, a failure in one line."""
    try:
        yield
    except _RefusedError:
        raise
    except QuestionError as error:
        raise _RefusedError(400, str(error), "invalid_request_error", error.code) from None
    except Exception as error:
        logger.exception("the teacher %s failed", name)
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise _RefusedError(500, f"the teacher {name!r} failed: {reason}", "server_error", "teacher_failed") from error


async def _pieces(teacher: Answerer, question: Question) -> AsyncIterator[Answer]:
    """The answer as its teacher can give it: in pieces, or in one."""
    if isinstance(teacher, StreamingAnswerer):
        async for piece in teacher.stream(question):
            yield piece
    else:
        yield await teacher.answer(question)


async def _unless(event: Awaitable[Any], work: Awaitable[Result]) -> Result | None:
    """The work's result; None, and no more work on it, if the event comes first."""
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
    response = _json(error_body(message, "invalid_request_error", "not_found"), status)
    response.headers.update(headers or {})
    return response


def _json(body: bytes, status: int = 200) -> Response:
    from starlette.responses import Response

    return Response(body, status_code=status, media_type="application/json")
