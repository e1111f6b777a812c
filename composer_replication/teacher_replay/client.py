"""One call to a teacher over HTTP, and its outcome: an answer, or a failure that says whether it was billed.

It uses httpx and not the `openai` SDK, because money depends on what the SDK hides: whether a request had been sent
when it failed, how many times it was tried, how large an answer may grow. The prompts of a trace are encoded once
(`prompts.py`), not once per call.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import httpx2
import msgspec

from composer_replication.ingestion.chat_messages import assistant_turn
from composer_replication.ingestion.loose_json import fields, objects
from composer_replication.ingestion.statistics import IngestionStats
from composer_replication.teacher_replay.bills import NO_REPORT, UsageReport, read_usage
from composer_replication.teacher_replay.ledger import Billed
from composer_replication.teacher_replay.refusals import is_too_long, seconds_to_wait
from composer_replication.teacher_replay.teachers import RemoteTeacher
from composer_replication.traces import ToolCall, Turn, dump_json, parse_action, parse_arguments

# A gateway that timed out: the model may have answered, and billed.
_UNCERTAIN_STATUSES = frozenset({408, 502, 504, 522, 524})
_RETRIED_STATUSES = _UNCERTAIN_STATUSES | {409, 425, 429, 500, 503, 520, 521, 529}
# The key, the account or the model is wrong: the next call would fail as this one did.
_HOPELESS_STATUSES = frozenset({401, 402, 403, 404})
_CONNECT_SECONDS = 20.0
_LONGEST_ERROR = 300
# Names of the context window in lists of models: OpenRouter and most others, vLLM, Groq, LM Studio.
_WINDOWS = ("context_length", "max_model_len", "context_window", "max_context_length")
# This many consecutive letters of a key are taken for a piece of it.
_KEY_PIECE = 4


@dataclass(eq=False)
class CallFailedError(Exception):
    """A call without an answer.

    `billed` says whether it cost something, `report` how much, as far as the endpoint says so. `retry` says whether
    another try may help, `after` how many seconds the endpoint asks to wait. `hopeless`: the next call would fail too.
    `too_long`: the prompt does not fit this teacher, which says nothing about another prompt.
    """

    reason: str
    billed: Billed
    retry: bool
    after: float | None = None
    hopeless: bool = False
    too_long: bool = False
    report: UsageReport = NO_REPORT

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True)
class Reply:
    """A teacher's answer as a turn, without reasoning, and the usage that the endpoint reports.
    `after` is how many seconds the endpoint asks to wait before the next call."""

    turn: Turn
    finish: str
    report: UsageReport
    latency: float
    after: float | None = None


class TeacherClient:
    """HTTP connections to teachers. Keys go into headers, nowhere else.

    Args:
        timeout: seconds that one call may take, from sending to the last byte.
        connections: how many may be open at once.
        largest_answer: bytes after which an answer is no longer read.
    """

    def __init__(self, *, timeout: float = 180.0, connections: int = 64, largest_answer: int = 8 * 2**20) -> None:
        self._timeout = timeout
        self._largest = largest_answer
        self._http = httpx2.AsyncClient(
            timeout=httpx2.Timeout(timeout, connect=min(_CONNECT_SECONDS, timeout), pool=None),
            limits=httpx2.Limits(max_connections=connections, max_keepalive_connections=connections),
            follow_redirects=False,  # a key must not follow a redirect to another host
            # A proxy of the environment cannot reach a teacher on this machine.
            mounts={f"all://{host}": None for host in ("127.0.0.1", "localhost", "[::1]")},
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def ask(self, teacher: RemoteTeacher, body: bytes) -> Reply:
        """Send one request, once.

        Raises:
            CallFailedError: there was no answer.
        """
        began = time.monotonic()
        try:
            status, headers, content = await asyncio.wait_for(
                self._exchange("POST", f"{teacher.base_url}/chat/completions", _headers(teacher), body), self._timeout
            )
        except (httpx2.HTTPError, asyncio.TimeoutError) as error:
            raise _lost(error, teacher, self._timeout) from None
        latency = time.monotonic() - began
        if not 200 <= status < 300:
            raise _by_status(status, _decoded(content, bare_error=True) or {}, teacher, headers)
        return _reply(content, latency, teacher, headers)

    async def context_window(self, teacher: RemoteTeacher) -> int | None:
        """Return a teacher's context window from its endpoint's list of models, None if that has none."""
        asked = self._exchange("GET", f"{teacher.base_url}/models", _headers(teacher))
        try:
            status, _, content = await asyncio.wait_for(asked, min(_CONNECT_SECONDS, self._timeout))
        except (httpx2.HTTPError, asyncio.TimeoutError, CallFailedError):
            return None
        listed = objects((_decoded(content) or {}).get("data")) if status == 200 else []
        models = [model for model in listed if model.get("id") == teacher.model]
        windows = [model.get(name) for model in models for name in _WINDOWS]
        return next((window for window in windows if type(window) is int and window > 0), None)

    async def _exchange(
        self, method: str, url: str, headers: dict[str, str], body: bytes | None = None
    ) -> tuple[int, httpx2.Headers, bytes]:
        async with self._http.stream(method, url, headers=headers, content=body) as response:
            content = bytearray()
            async for piece in response.aiter_bytes():
                content += piece
                if len(content) > self._largest:
                    if response.is_success:
                        raise CallFailedError(
                            f"the answer is larger than {self._largest} bytes", billed="yes", retry=False
                        )
                    break
            return response.status_code, response.headers, bytes(content)


def _headers(teacher: RemoteTeacher) -> dict[str, str]:
    headers = {"Content-Type": "application/json"}
    return {**headers, "Authorization": f"Bearer {teacher.api_key}"} if teacher.api_key else headers


def _lost(error: Exception, teacher: RemoteTeacher, timeout: float) -> CallFailedError:
    """No complete response came. Only a failure before there was a connection is certainly free: a written request may
    be sent after the caller has given up."""
    never_sent = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)
    if isinstance(error, asyncio.TimeoutError | httpx2.TimeoutException) and not never_sent:
        reason = f"no answer within {timeout:g} seconds"
    else:
        reason = f"{type(error).__name__}: {error}"
    retry = not isinstance(error, httpx2.UnsupportedProtocol)
    return CallFailedError(without_key(reason, teacher), billed="no" if never_sent else "maybe", retry=retry)


def _by_status(
    status: int,
    reply: dict[str, Any],
    teacher: RemoteTeacher,
    headers: Mapping[str, str],
    *,
    report: UsageReport = NO_REPORT,
) -> CallFailedError:
    text = _error_text(reply)
    too_long = is_too_long(status, reply)
    # OpenRouter repeats a limit's headers in the body, also where the response itself is fine.
    metadata = fields(fields(reply.get("error")).get("metadata"))
    limits = {**fields(metadata.get("headers")), **headers}
    is_billed = bool(report.cost_usd or any(usage.completion for usage in report.readings))
    return CallFailedError(
        without_key(f"HTTP {status}{f': {text}' if text else ''}", teacher),
        billed="yes" if is_billed else "maybe" if status in _UNCERTAIN_STATUSES else "no",
        retry=status in _RETRIED_STATUSES and not too_long,
        after=seconds_to_wait(limits, refused=status == 429),
        hopeless=status in _HOPELESS_STATUSES and not too_long,
        too_long=too_long,
        report=report,
    )


def _reply(content: bytes, latency: float, teacher: RemoteTeacher, headers: Mapping[str, str]) -> Reply:
    reply = _decoded(content)
    if reply is None:
        raise CallFailedError("the endpoint answered with something that is no JSON", billed="yes", retry=False)
    report = read_usage(fields(reply.get("usage")), headers)
    choices = objects(reply.get("choices"))
    problem = fields(reply.get("error")) or (fields(choices[0].get("error")) if choices else {})
    if not choices and (told := fields(reply.get("base_resp"))).get("status_code"):
        problem = {"code": 400, "message": told.get("status_msg")}  # MiniMax
    if problem:
        # OpenRouter reports what a provider did in a response that is itself fine. If it broke off in the middle of an
        # answer, that much was generated, and billed.
        status = problem.get("code")
        raise _by_status(
            status if isinstance(status, int) else 500, {"error": problem}, teacher, headers, report=report
        )
    message = fields(choices[0].get("message")) if choices else {}
    if not message:
        raise CallFailedError("the endpoint answered without a message", billed="yes", retry=False, report=report)
    given = assistant_turn(message, IngestionStats(), step=0)
    # A model may write thinking and calls into its text, in the form of `render_action`.
    turn = parse_action(_without_thoughts(given.content))
    turn.tool_calls = [_numbered(number, call) for number, call in enumerate([*turn.tool_calls, *given.tool_calls])]
    finish = choices[0].get("finish_reason")
    return Reply(turn, finish if isinstance(finish, str) else "", report, latency, seconds_to_wait(headers))


def _numbered(number: int, call: ToolCall) -> ToolCall:
    """A call with its number as its id, and with arguments that JSON can hold: an endpoint's ids are random."""
    given = dump_json(call.arguments) if call.raw_arguments is None else call.raw_arguments
    return ToolCall(f"call_{number}", call.name, *parse_arguments(given))


def _decoded(content: bytes, *, bare_error: bool = False) -> dict[str, Any] | None:
    """The object that a body holds. `bare_error`: Gemini puts an error into a list, others write it as plain text."""
    try:
        try:
            decoded = msgspec.json.decode(content)
        except msgspec.DecodeError:
            # Half of a surrogate pair, as a model that is cut leaves it, is JSON all the same; the answer is paid for.
            decoded = json.loads(dump_json(json.loads(content)).encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        is_text = bare_error and not content.lstrip().startswith(b"<")  # a page of a gateway says nothing
        return {"error": content[:_LONGEST_ERROR].decode(errors="replace")} if is_text else None
    if bare_error and isinstance(decoded, list) and len(decoded) == 1:
        (decoded,) = decoded
    return decoded if isinstance(decoded, dict) else None


def _without_thoughts(text: str) -> str:
    """Return the text after a leading `<think>` block."""
    thought, end, answer = text.rpartition("</think>")
    return answer.strip() if end and thought.lstrip().startswith("<think>") else text


def _error_text(reply: dict[str, Any]) -> str:
    error = reply.get("error", reply.get("message", reply.get("detail", "")))
    text = fields(error).get("message", "") if isinstance(error, dict) else error
    return " ".join(text.split()) if isinstance(text, str) else ""


def without_key(text: str, teacher: RemoteTeacher) -> str:
    """An error on one line, without the key or a piece of it: endpoints like to repeat it, or its two ends."""
    line = " ".join(text.split())
    key = teacher.api_key or ""
    pieces = {key[start : start + _KEY_PIECE] for start in range(max(1, len(key) - _KEY_PIECE + 1))} - {""}
    hidden = [False] * len(line)
    for piece in pieces:
        start = line.find(piece)
        while start >= 0:
            hidden[start : start + len(piece)] = [True] * len(piece)
            start = line.find(piece, start + 1)
    shown = (
        "".join(letter for letter, _ in run) if not is_hidden else "[key]"
        for is_hidden, run in groupby(zip(line, hidden, strict=True), key=lambda one: one[1])
    )
    return "".join(shown)[:_LONGEST_ERROR]
