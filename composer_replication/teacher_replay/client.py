"""One call to a teacher over HTTP, and what became of it: an answer, or a failure that says whether it was billed.

This is httpx and not the `openai` SDK, because money depends on what the SDK hides: whether a request had been sent
when it failed, how many times it was tried, how large an answer may grow. And the prompts of a trace are encoded once
(`prompts.py`), not once for every call.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from itertools import groupby
from typing import Any

import httpx2
import msgspec

from composer_replication.ingestion.chat_messages import assistant_turn
from composer_replication.ingestion.loose_json import fields, objects
from composer_replication.ingestion.statistics import IngestionStats
from composer_replication.teacher_replay.ledger import Billed
from composer_replication.teacher_replay.prices import Tokens
from composer_replication.teacher_replay.teachers import Teacher
from composer_replication.traces import Turn, dump_json, render_action

# A gateway that gave up waiting: the model behind it may have answered, and billed.
_UNCERTAIN_STATUSES = frozenset({408, 502, 504, 522, 524})
_RETRIED_STATUSES = _UNCERTAIN_STATUSES | {409, 425, 429, 500, 503, 520, 521, 529}
# The key, the account or the model is wrong: the next call would fail as this one did.
_HOPELESS_STATUSES = frozenset({401, 402, 403, 404})
_CONNECT_SECONDS = 20.0
_LONGEST_ERROR = 300
# So many letters of a key in a row are taken for a piece of it.
_KEY_PIECE = 4


class CallFailedError(Exception):
    """A call without an answer.

    `billed` says whether it cost something, `usage` and `cost_usd` how much, as far as the endpoint says so. `retry`
    says whether another try may help, `after` how many seconds the endpoint wants to be left alone. `hopeless`: the
    next call would fail too.
    """

    def __init__(
        self,
        reason: str,
        *,
        billed: Billed,
        retry: bool,
        after: float | None = None,
        hopeless: bool = False,
        usage: Tokens | None = None,
        cost_usd: float | None = None,
    ) -> None:
        super().__init__(reason)
        self.billed: Billed = billed
        self.retry = retry
        self.after = after
        self.hopeless = hopeless
        self.usage = usage
        self.cost_usd = cost_usd


@dataclass(frozen=True)
class Reply:
    """A teacher's answer as an action (`render_action`, without thinking). `usage` is None if the endpoint gave none
    that can be believed; `cost_usd` is what it says it billed, if it says so."""

    text: str
    finish: str
    usage: Tokens | None
    cost_usd: float | None
    latency: float


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

    async def ask(self, teacher: Teacher, body: bytes) -> Reply:
        """Send one request, once.

        Raises:
            CallFailedError: there was no answer.
        """
        headers = {"Content-Type": "application/json"}
        if teacher.api_key:
            headers["Authorization"] = f"Bearer {teacher.api_key}"
        began = time.monotonic()
        try:
            status, answer_headers, content = await asyncio.wait_for(
                self._exchange(f"{teacher.base_url}/chat/completions", headers, body), self._timeout
            )
        except (httpx2.HTTPError, asyncio.TimeoutError) as error:
            raise _lost(error, teacher, self._timeout) from None
        latency = time.monotonic() - began
        if not 200 <= status < 300:
            raise _refused(status, answer_headers, content, teacher)
        return _reply(content, latency, teacher)

    async def _exchange(self, url: str, headers: dict[str, str], body: bytes) -> tuple[int, httpx2.Headers, bytes]:
        async with self._http.stream("POST", url, headers=headers, content=body) as response:
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


def _lost(error: Exception, teacher: Teacher, timeout: float) -> CallFailedError:
    """No complete response came. Only what failed before there was a connection is surely free: what is written may go
    out after the one who waited for it has given up."""
    never_sent = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)
    if isinstance(error, asyncio.TimeoutError | httpx2.TimeoutException) and not never_sent:
        reason = f"no answer within {timeout:g} seconds"
    else:
        reason = f"{type(error).__name__}: {error}"
    retry = not isinstance(error, httpx2.UnsupportedProtocol)
    return CallFailedError(without_key(reason, teacher), billed="no" if never_sent else "maybe", retry=retry)


def _refused(status: int, headers: httpx2.Headers, content: bytes, teacher: Teacher) -> CallFailedError:
    return _by_status(status, _error_text(_decoded(content)), teacher, after=_retry_after(headers))


def _by_status(status: int, text: str, teacher: Teacher, *, after: float | None = None) -> CallFailedError:
    reason = f"HTTP {status}{f': {text}' if text else ''}"
    return CallFailedError(
        without_key(reason, teacher),
        billed="maybe" if status in _UNCERTAIN_STATUSES else "no",
        retry=status in _RETRIED_STATUSES,
        after=after,
        hopeless=status in _HOPELESS_STATUSES,
    )


def _reply(content: bytes, latency: float, teacher: Teacher) -> Reply:
    reply = _decoded(content)
    if reply is None:
        raise CallFailedError("the endpoint answered with something that is no JSON", billed="yes", retry=False)
    usage, cost = _usage(fields(reply.get("usage")))
    choices = objects(reply.get("choices"))
    problem = fields(reply.get("error")) or (fields(choices[0].get("error")) if choices else {})
    if problem:
        # OpenRouter reports what a provider did in a response that is itself fine.
        status = problem.get("code")
        failure = _by_status(status if isinstance(status, int) else 500, _error_text({"error": problem}), teacher)
        if cost or (usage is not None and usage.completion):
            # It broke off in the middle of an answer: that much was generated, and billed.
            failure.billed, failure.usage, failure.cost_usd = "yes", usage, cost
        raise failure
    message = fields(choices[0].get("message")) if choices else {}
    if not message:
        raise CallFailedError(
            "the endpoint answered without a message", billed="yes", retry=False, usage=usage, cost_usd=cost
        )
    turn = assistant_turn(message, IngestionStats(), step=0)
    text = render_action(Turn("assistant", _without_thoughts(turn.content), tool_calls=turn.tool_calls))
    finish = choices[0].get("finish_reason")
    return Reply(text, finish if isinstance(finish, str) else "", usage, cost, latency)


def _decoded(content: bytes) -> dict[str, Any] | None:
    try:
        try:
            decoded = msgspec.json.decode(content)
        except msgspec.DecodeError:
            # Half of a surrogate pair, as a model that is cut leaves it, is JSON all the same; the answer is paid for.
            decoded = json.loads(dump_json(json.loads(content)).encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return decoded if isinstance(decoded, dict) else None


def _usage(usage: dict[str, Any]) -> tuple[Tokens | None, float | None]:
    """The tokens and the price that an endpoint reports, in the forms of OpenAI, OpenRouter, Anthropic and DeepSeek."""
    details = fields(usage.get("prompt_tokens_details")) or fields(usage.get("input_tokens_details"))
    prompt = _count(usage, ("prompt_tokens", "input_tokens"))
    completion = _count(usage, ("completion_tokens", "output_tokens"))
    cached = _count(details, ("cached_tokens",)) or _count(
        usage, ("cached_tokens", "cache_read_input_tokens", "prompt_cache_hit_tokens")
    )
    written = _count(details, ("cache_write_tokens",)) or _count(usage, ("cache_creation_input_tokens",))
    if prompt is not None and "prompt_tokens" not in usage and "cache_read_input_tokens" in usage:
        prompt += (cached or 0) + (written or 0)  # Anthropic counts what is cached beside its input, not in it
    cost = usage.get("cost")
    is_price = isinstance(cost, int | float) and not isinstance(cost, bool) and math.isfinite(cost) and cost >= 0
    tokens = None if prompt is None or completion is None else Tokens(prompt, completion, cached or 0, written or 0)
    return tokens, float(cost) if is_price and cost is not None else None


def _count(record: dict[str, Any], names: Iterable[str]) -> int | None:
    found = (record[name] for name in names if type(record.get(name)) is int and record[name] >= 0)
    return next(found, None)


def _without_thoughts(text: str) -> str:
    """What reasoning models that think aloud say in the end."""
    thought, end, answer = text.rpartition("</think>")
    return answer.strip() if end and thought.lstrip().startswith("<think>") else text


def _error_text(reply: dict[str, Any] | None) -> str:
    if reply is None:
        return ""
    error = reply.get("error", reply.get("message", reply.get("detail", "")))
    text = fields(error).get("message", "") if isinstance(error, dict) else error
    return " ".join(text.split()) if isinstance(text, str) else ""


def _retry_after(headers: httpx2.Headers) -> float | None:
    """Seconds to wait, as `Retry-After` has them: a number, or a date."""
    given = headers.get("retry-after", "").strip()
    try:
        seconds = float(given)
    except ValueError:
        try:
            date = parsedate_to_datetime(given)
        except (TypeError, ValueError):
            return None
        if date.tzinfo is None:
            date = date.replace(tzinfo=timezone.utc)
        seconds = (date - datetime.now(timezone.utc)).total_seconds()
    return max(0.0, seconds) if math.isfinite(seconds) else None


def without_key(text: str, teacher: Teacher) -> str:
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
