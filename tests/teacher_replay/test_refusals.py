"""Refusals: how long an endpoint asks to wait, by its headers, and whether the prompt is too long, by its words."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

import pytest
from teacher_replay.loopback_teacher import Asked, LoopbackTeachers, Refusal, Said, Whole, echo, states_of

from composer_replication.teacher_replay import replay_trace
from composer_replication.teacher_replay.refusals import is_too_long, seconds_to_wait

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


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (400, "max_tokens: 100000 > 64000, which is the maximum allowed number of output tokens"),
        (400, "`max_tokens` must be <= 8192: its maximum is less than the `context_window` for this model"),
        (400, "Invalid request: max_tokens exceeds the maximum output tokens of this model"),
        (400, "tools.0.name: String should match pattern"),
        (400, "Number of tools (150) exceeds maximum limit of 128"),
        (400, "Invalid request: tool name exceeds maximum length of 64"),
        (400, "Unrecognized parameter: context_window"),
        (400, "request exceeds your monthly limit"),
        (429, "You exceeded your quota: maximum number of tokens per day"),
        (429, "Rate limit reached for requests"),
        (401, "maximum context length"),
        (503, "the prompt is too long"),
    ],
)
def test_other_refusals_are_no_matter_of_length(status: int, text: str) -> None:
    assert not is_too_long(status, {"error": {"message": text}})


@pytest.mark.parametrize(
    "reply",
    [
        {"error": {"code": "context_length_exceeded", "message": "no"}},
        {"error": {"code": "model_max_prompt_tokens_exceeded", "message": "no"}},
        {"error": {"code": 1261, "message": "\u8d85\u957f"}},
        {"error": "context_length_exceeded"},
        {"object": "error", "message": "This model's maximum context length is 10 tokens", "code": 40303},
        {"detail": "prompt too long"},
        {"detail": [{"msg": "prompt too long"}]},
        {"error": "Input validation error: `inputs` must have less than 4096 tokens"},
        {"error": {"message": "Input token length too long"}},
        {"error": {"message": "Total tokens of image and text exceed max message tokens"}},
        {"message": "length of prompt_tokens (9000) must be less than max_seq_len (8192)"},
        {"error": {"message": "maximum context length is 10 tokens. However, you requested 12 (2 of tool input)"}},
        {"error": {"message": "'max_tokens' is too large: 9. The maximum context length is 9, the input has 4 tokens"}},
    ],
)
def test_errors_of_other_shapes(reply: dict[str, Any]) -> None:
    assert is_too_long(400, reply)
    assert is_too_long(500, reply)
