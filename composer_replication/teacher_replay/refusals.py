"""Reads refusals: the prompt is too long for this teacher, or the endpoint asks to wait.

`Retry-After` says how long. `X-RateLimit-*` says it where nothing is left of a limit: OpenRouter's reset is a moment in
milliseconds, OpenAI has a limit of requests and one of tokens, with durations such as `6m0s`.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any

from composer_replication.ingestion.loose_json import fields

_LIMITS = ("", "-requests", "-tokens")
_PART = re.compile(r"([\d.]+)(ms|s|m|h|d)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
# Larger numbers are times, not durations: seconds since 1970, or milliseconds.
_MOMENT, _MOMENT_IN_MS = 10**8, 10**11


def seconds_to_wait(headers: Mapping[str, Any], *, refused: bool = False) -> float | None:
    """Return the seconds to wait before the next request, None if unknown. `refused`: this request was one too many."""
    given = {str(name).lower(): str(value).strip() for name, value in headers.items()}
    if (asked := _retry_after(given.get("retry-after", ""))) is not None:
        return asked
    waits = []
    for limit in _LIMITS:
        left, reset = given.get(f"x-ratelimit-remaining{limit}"), given.get(f"x-ratelimit-reset{limit}", "")
        if left == "0" or (refused and left is None):
            waits.append(_until(reset))
    return max((wait for wait in waits if wait is not None), default=None)


def _retry_after(given: str) -> float | None:
    """A number, or a date."""
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


def _until(reset: str) -> float | None:
    """Return the seconds until a reset that is given as a time or as a duration."""
    try:
        number = float(reset)
    except ValueError:
        parts = _PART.findall(reset)
        if not parts or "".join(map("".join, parts)) != reset:
            return None
        return sum(float(count) * _UNITS[unit] for count, unit in parts)
    if not math.isfinite(number):
        return None
    if number >= _MOMENT:
        number = number / (1000 if number >= _MOMENT_IN_MS else 1) - time.time()
    return max(0.0, number)


# OpenAI and most others, llama.cpp, Anthropic (its HTTP 413), Copilot, Zhipu.
_CODES = frozenset(
    {
        "context_length_exceeded",
        "exceed_context_size_error",
        "request_too_large",
        "model_max_prompt_tokens_exceeded",
        "1261",
    }
)
# A local server may say it with a 500.
_STATUSES = frozenset({400, 422, 500})
# OpenAI's answer (429) to a request that is larger than a minute's tokens.
_TOO_LARGE = re.compile(r"request too large", re.IGNORECASE)
_CERTAIN = re.compile(r"maximum (?:context|prompt|model|input) length", re.IGNORECASE)
_TEXTS = re.compile(
    r"\b(?:prompt|inputs?|messages?|conversation|request)\b[^.]{0,60}?\b(?:too (?:long|large)|exceed|less than \d+ tok)"
    r"|exceed\w*[^.]{0,40}(?:\b(?:message|input|prompt)\b[^.]{0,20}tokens|\bcontext)|\bcontext\b[^.]{0,40}exceed"
    r"|too many (?:input )?tokens|tokens? \+ `?max_new_tokens|range of input length|max_seq_len|model token limit"
    r"|reduce the length of (?:the|your) (?:messages|prompt|input)",
    re.IGNORECASE,
)
# A wrong setting or an account limit: a shorter prompt would not help.
_OTHER = re.compile(
    r"output tokens|number of tools|tool name|(?:un\w+|invalid) parameter"
    r"|quota|monthly|per (?:day|month)|credit|balance",
    re.IGNORECASE,
)
_DEEPEST = 4


def is_too_long(status: int, reply: dict[str, Any]) -> bool:
    """Return whether a refusal says that the prompt does not fit, in the wording of any endpoint. A router's refusal
    contains that of its provider."""
    error = fields(reply.get("error")) or reply
    if status == 413 or not _CODES.isdisjoint(str(error.get(name)) for name in ("code", "type", "error")):
        return True
    said = " ".join(_texts(reply))
    if status == 429:
        return _TOO_LARGE.search(said) is not None
    if status not in _STATUSES:
        return False
    return bool(_CERTAIN.search(said) or (_TEXTS.search(said) and not _OTHER.search(said)))


def _texts(value: Any, depth: int = 0) -> Iterator[str]:
    """Yield all texts in an error, messages first."""
    if isinstance(value, str):
        yield value
    elif depth < _DEEPEST and isinstance(value, dict):
        for name in sorted(value, key=lambda name: name != "message"):
            yield from _texts(value[name], depth + 1)
    elif depth < _DEEPEST and isinstance(value, list):
        for one in value:
            yield from _texts(one, depth + 1)
