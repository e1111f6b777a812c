"""How long an endpoint wants to be left alone, by the headers of its response.

`Retry-After` says it. `X-RateLimit-*` says it where nothing is left of a limit: OpenRouter's reset is a moment in
milliseconds, OpenAI has a limit of requests and one of tokens, with durations such as `6m0s`.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any

_LIMITS = ("", "-requests", "-tokens")
_PART = re.compile(r"([\d.]+)(ms|s|m|h|d)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
# Larger numbers are moments and no durations: of seconds since 1970, or of milliseconds.
_MOMENT, _MOMENT_IN_MS = 10**8, 10**11


def seconds_to_wait(headers: Mapping[str, Any], *, refused: bool = False) -> float | None:
    """Seconds before the next request, None if the endpoint does not say. `refused`: this one was one too many."""
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
    """Seconds to a reset that is given as a moment, or as a duration."""
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
