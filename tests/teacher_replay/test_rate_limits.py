"""How long an endpoint is left alone, by the headers it sends."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

import pytest
from teacher_replay.loopback_teacher import Asked, LoopbackTeachers, Refusal, Said, Whole, echo, states_of

from composer_replication.teacher_replay import replay_trace
from composer_replication.teacher_replay.refusals import seconds_to_wait

NOTHING_LEFT = {"X-RateLimit-Remaining": "0"}


def moment(seconds: float) -> str:
    """So many seconds from now, as OpenRouter writes it."""
    return str(math.floor((time.time() + seconds) * 1000))


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "7", **NOTHING_LEFT, "X-RateLimit-Reset": "90"}, 7.0),
        ({"X-RateLimit-Remaining": "3", "X-RateLimit-Reset": "90"}, None),
        ({**NOTHING_LEFT, "X-RateLimit-Reset": "90"}, 90.0),
        ({**NOTHING_LEFT, "X-RateLimit-Reset": "soon"}, None),
        (NOTHING_LEFT, None),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0s"}, 360.0),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "250ms"}, 0.25),
        (
            {
                "x-ratelimit-remaining-requests": "0",
                "x-ratelimit-reset-requests": "1s",
                "x-ratelimit-remaining-tokens": "0",
                "x-ratelimit-reset-tokens": "1m30s",
            },
            90.0,
        ),
    ],
)
def test_what_the_headers_say(headers: dict[str, str], seconds: float | None) -> None:
    assert seconds_to_wait(headers) == seconds


def test_a_moment_is_told_from_a_duration() -> None:
    in_milliseconds = seconds_to_wait({**NOTHING_LEFT, "X-RateLimit-Reset": moment(5000)})
    in_seconds = seconds_to_wait({**NOTHING_LEFT, "X-RateLimit-Reset": str(int(time.time()) + 5000)})
    assert in_milliseconds is not None
    assert in_seconds is not None
    assert 4000 < in_milliseconds <= 5000
    assert 4000 < in_seconds <= 5000
    assert seconds_to_wait({**NOTHING_LEFT, "X-RateLimit-Reset": moment(-5000)}) == 0.0


def test_a_refusal_need_not_say_that_nothing_is_left() -> None:
    assert seconds_to_wait({"X-RateLimit-Reset": "90"}, refused=True) == 90.0
    assert seconds_to_wait({"X-RateLimit-Remaining": "3", "X-RateLimit-Reset": "90"}, refused=True) is None


@pytest.mark.parametrize("how", ["refused", "refused in the body", "answered with nothing left"])
def test_the_next_request_waits_for_the_reset(how: str) -> None:
    resets: list[float] = []
    arrivals: list[float] = []

    def answer(asked: Asked) -> Said:
        arrivals.append(time.time())
        if asked.earlier:
            return echo(asked)
        reset = moment(0.4)
        resets.append(int(reset) / 1000)
        limits = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": reset}
        if how == "refused":
            return Refusal(429, headers=limits)
        if how == "refused in the body":
            return Whole({"error": {"code": 429, "message": "later", "metadata": {"headers": limits}}})
        usage: dict[str, Any] = {"prompt_tokens": 100, "completion_tokens": 5}
        return Whole({"choices": [{"message": {"content": "first"}}], "usage": usage}, headers=limits)

    with LoopbackTeachers(answer) as server:
        rows = asyncio.run(replay_trace(states_of("one", "two"), [server.spec("a")], backoff=0.0))
    assert [row["error"] for row in rows] == [None, None]
    # A clock that counts milliseconds may be a little ahead of one that counts parts of them.
    assert all(arrival >= resets[0] - 0.01 for arrival in arrivals[1:])
