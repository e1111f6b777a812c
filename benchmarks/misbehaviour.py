"""What a teacher may do instead of answering: refuse, break off, babble, lie about its usage, or keep one waiting.

A script is any callable that is given a question and how often it was asked before, and says what goes wrong this
time (None: nothing). `Chances` is one that draws from the question's digest, so that a run can be repeated.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping
from email.utils import formatdate
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

HUGE = 50_000_000


class Asked(Protocol):
    """What a script is told of a question."""

    model: str
    digest: str


class Misbehaviour(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of `KINDS`. `bills` overrides what the kind says; what the other fields mean, the kind says.

    A billed one happens after the teacher's latency, one that is not billed happens at once.
    """

    kind: str
    seconds: float = 0.0
    size: int = HUGE
    status: int = 500
    location: str = ""
    text: str = ""
    message: dict[str, Any] | None = None
    bills: bool | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"unknown misbehaviour {self.kind!r}; known are {', '.join(KINDS)}")

    @property
    def billed(self) -> bool:
        return KINDS[self.kind].bills if self.bills is None else self.bills

    def reply(self, answered: dict[str, Any], now: float) -> Reply:
        """What goes out instead of the body that would have answered; `now` is of time.time()."""
        return KINDS[self.kind].reply(self, answered, now)

    @property
    def answers(self) -> bool:
        """Whether a patient client can read the right answer out of it."""
        return KINDS[self.kind].answers


class Reply(msgspec.Struct):
    """A response as it goes out. `cut` is the byte of the body at which the connection ends (0: before the headers),
    `drip` the seconds that the body takes, `late` those before the headers."""

    status: int
    body: bytes
    headers: dict[str, str] = {}
    cut: int | None = None
    drip: float = 0.0
    late: float = 0.0
    hang: Literal["no", "before billing", "after billing"] = "no"
    retry_at: float | None = None  # by time.time()


class Kind(NamedTuple):
    """Whether it costs, whether it carries the right answer, and how it makes a reply of the answer's body."""

    bills: bool
    answers: bool
    reply: Callable[[Misbehaviour, dict[str, Any], float], Reply]


def encode(body: Any, status: int = 200, **more: Any) -> Reply:
    """An ordinary JSON response."""
    # Not msgspec: it takes no numbers of more than 64 bits, and an absurd usage has some.
    data = json.dumps(body, ensure_ascii=False).encode()
    return Reply(status, data, {"Content-Type": "application/json"}, **more)


def failure(status: int, text: str, **more: Any) -> Reply:
    """An error as OpenAI-compatible endpoints put it."""
    return encode({"error": {"message": text, "type": "error", "code": status}}, status, **more)


def _rate_limit(how: Misbehaviour, _body: dict[str, Any], now: float) -> Reply:
    reply = failure(429, "too many requests", retry_at=now + how.seconds)
    reply.headers["Retry-After"] = f"{how.seconds:g}"
    return reply


def _rate_limit_until(how: Misbehaviour, _body: dict[str, Any], now: float) -> Reply:
    moment = math.ceil(now + how.seconds)  # such a date has no fractions
    reply = failure(429, "too many requests", retry_at=float(moment))
    reply.headers["Retry-After"] = formatdate(moment, usegmt=True)
    return reply


def _status(how: Misbehaviour, _body: dict[str, Any], _now: float) -> Reply:
    return failure(how.status, how.text or f"status {how.status}", late=how.seconds)


def _of_status(status: int) -> Callable[[Misbehaviour, dict[str, Any], float], Reply]:
    return lambda how, body, now: failure(status, f"status {status}", late=how.seconds)


def _slow_headers(how: Misbehaviour, body: dict[str, Any], _now: float) -> Reply:
    return encode(body, late=how.seconds)


def _slow_body(how: Misbehaviour, body: dict[str, Any], _now: float) -> Reply:
    return encode(body, drip=how.seconds)


def _hang(_how: Misbehaviour, body: dict[str, Any], _now: float) -> Reply:
    return encode(body, hang="before billing")


def _hang_after_billing(_how: Misbehaviour, body: dict[str, Any], _now: float) -> Reply:
    return encode(body, hang="after billing")


def _swallowed(_how: Misbehaviour, body: dict[str, Any], _now: float) -> Reply:
    return encode(body, hang="before billing", cut=0)


def _cut_before_headers(_how: Misbehaviour, body: dict[str, Any], _now: float) -> Reply:
    return encode(body, cut=0)


def _cut_in_body(_how: Misbehaviour, body: dict[str, Any], _now: float) -> Reply:
    reply = encode(body)
    reply.cut = len(reply.body) // 2
    return reply


def _bytes(make: Callable[[bytes], bytes], content_type: str = "application/json", status: int = 200) -> Any:
    return lambda how, body, now: Reply(status, make(encode(body).body), {"Content-Type": content_type})


def _changed(change: Callable[[dict[str, Any], Misbehaviour], dict[str, Any]]) -> Any:
    return lambda how, body, now: encode({**body, **change(body, how)})


def _usage(**tokens: Any) -> Any:
    return _changed(lambda body, how: {"usage": {**body["usage"], **tokens}})


def _with_message(body: dict[str, Any], message: Mapping[str, Any] | None) -> dict[str, Any]:
    return {"choices": [{**body["choices"][0], "message": message}]}


def _redirect(how: Misbehaviour, _body: dict[str, Any], _now: float) -> Reply:
    reply = Reply(307, b"")
    reply.headers["Location"] = how.location or "/v1/elsewhere"
    return reply


def _too_long(status: int, text: str, **fields: Any) -> Callable[[int, int], Reply]:
    def refusal(tokens: int, window: int) -> Reply:
        error = {"message": text.format(tokens=tokens, window=window), "type": "invalid_request_error", **fields}
        return encode({"error": error}, status)

    return refusal


def _too_long_behind_a_router(tokens: int, window: int) -> Reply:
    raw = json.dumps({"error": {"message": f"prompt is too long: {tokens} tokens > {window} maximum"}})
    error = {"message": "Provider returned error", "code": 400, "metadata": {"raw": raw, "provider_name": "x"}}
    return encode({"error": error}, 400)


# How endpoints refuse a prompt that does not fit.
TOO_LONG: Mapping[str, Callable[[int, int], Reply]] = {
    "openai": _too_long(
        400,
        "This model's maximum context length is {window} tokens. However, your messages resulted in {tokens} tokens.",
        code="context_length_exceeded",
    ),
    "anthropic": _too_long(400, "prompt is too long: {tokens} tokens > {window} maximum"),
    "anthropic_with_answer": _too_long(
        400, "input length and `max_tokens` exceed context limit: {tokens} + 64 > {window}, decrease input length"
    ),
    "gemini": _too_long(
        400, "The input token count ({tokens}) exceeds the maximum number of tokens allowed ({window}).", code=400
    ),
    "vllm": _too_long(400, "The decoder prompt (length {tokens}) is longer than the maximum model length of {window}."),
    "xai": _too_long(
        400, "This model's maximum prompt length is {window} but the request contains {tokens} tokens.", code="400"
    ),
    "mistral": _too_long(
        400, "Prompt contains {tokens} tokens, too large for model with {window} maximum context length", code="3051"
    ),
    "moonshot": _too_long(400, "Invalid request: Your request exceeded model token limit: {window}"),
    "zai": _too_long(400, "Prompt exceeds max length", code="1261"),
    "dashscope": _too_long(400, "Range of input length should be [1, {window}]", code="invalid_parameter_error"),
    "llama_cpp": _too_long(400, "the request exceeds the available context size", code=400),
    "bedrock": _too_long(400, "Input is too long for requested model."),
    "together": _too_long(422, "Input validation error: `inputs` tokens + `max_new_tokens` must be <= {window}."),
    "cohere": _too_long(400, "too many tokens: size limit exceeded by {tokens} tokens"),
    "groq": _too_long(
        413, "Request too large for model on tokens per minute (TPM): Limit {window}, Requested {tokens}"
    ),
    "openai_minute": _too_long(
        429, "Request too large for a on tokens per min (TPM): Limit {window}, Requested {tokens}."
    ),
    "router": _too_long_behind_a_router,
}

_PAGE = b"<!doctype html><html><head><title>502 Bad Gateway</title></head><body><h1>Bad Gateway</h1></body></html>"

KINDS: Mapping[str, Kind] = {
    # Refusals. `seconds` is what Retry-After says, as a number or as a date.
    "rate_limit": Kind(False, False, _rate_limit),
    "rate_limit_until": Kind(False, False, _rate_limit_until),
    "rate_limit_bare": Kind(False, False, _of_status(429)),
    # `status` is the status, `text` what the error says; `seconds` pass before it.
    "status": Kind(False, False, _status),
    "500": Kind(False, False, _of_status(500)),
    "503": Kind(False, False, _of_status(503)),
    "529": Kind(False, False, _of_status(529)),
    "502_after_billing": Kind(True, False, _of_status(502)),
    "504_after_billing": Kind(True, False, _of_status(504)),
    # Waiting: `seconds` before the headers, `seconds` over the whole body, or until `release`.
    "slow_headers": Kind(True, True, _slow_headers),
    "slow_body": Kind(True, True, _slow_body),
    "hang": Kind(True, True, _hang),
    "hang_after_billing": Kind(True, True, _hang_after_billing),
    "swallowed": Kind(False, False, _swallowed),
    # The connection ends: before the question is worked on, before the headers, in the middle of the body.
    "cut_at_once": Kind(False, False, _cut_before_headers),
    "cut_before_headers": Kind(True, False, _cut_before_headers),
    "cut_in_body": Kind(True, False, _cut_in_body),
    # A status of 200 and no answer in it.
    "malformed_json": Kind(True, False, _bytes(lambda body: body[: len(body) // 2])),
    "not_json": Kind(True, False, _bytes(lambda body: b"upstream hiccup")),
    "empty_body": Kind(True, False, _bytes(lambda body: b"")),
    "json_null": Kind(True, False, _bytes(lambda body: b"null")),
    "json_list": Kind(True, False, _bytes(lambda body: b"[" + body + b"]")),
    "not_utf8": Kind(True, False, _bytes(lambda body: body.replace(b'"role"', b'"\xff\xfe\x80":"","role"'))),
    "html_page": Kind(True, False, _bytes(lambda body: _PAGE, "text/html")),
    "empty_choices": Kind(True, False, _changed(lambda body, how: {"choices": []})),
    "empty_choices_for_nothing": Kind(
        True, False, _changed(lambda body, how: {"choices": [], "usage": {"prompt_tokens": 0, "completion_tokens": 0}})
    ),
    "no_choices": Kind(True, False, _changed(lambda body, how: {"choices": None})),
    "null_message": Kind(True, False, _changed(lambda body, how: _with_message(body, None))),
    "content_null": Kind(
        True, False, _changed(lambda body, how: _with_message(body, {"role": "assistant", "content": None}))
    ),
    "error_in_200": Kind(
        False, False, lambda how, body, now: encode({"error": {"message": "upstream overloaded", "code": 502}})
    ),
    # A status of 200 with something else: `message` instead of the answer, a content of `size` bytes.
    "message": Kind(True, False, _changed(lambda body, how: _with_message(body, how.message))),
    "huge": Kind(
        True,
        False,
        _changed(lambda body, how: _with_message(body, {"role": "assistant", "content": "x" * how.size})),
    ),
    # The right answer, dressed wrongly.
    "wrong_content_type": Kind(True, True, _bytes(lambda body: body, "text/plain")),
    "leading_space": Kind(True, True, _bytes(lambda body: b"\n  \n" * 200 + body)),
    # The right answer, and a lie about what it took.
    "usage_missing": Kind(True, True, _changed(lambda body, how: {"usage": None})),
    "usage_zero": Kind(True, True, _usage(prompt_tokens=0, completion_tokens=0, total_tokens=0, cost=0)),
    "usage_negative": Kind(True, True, _usage(prompt_tokens=-1000, completion_tokens=-1000, cost=-5)),
    "usage_strings": Kind(True, True, _usage(prompt_tokens="many", completion_tokens="12", cost="free")),
    "usage_absurd": Kind(True, True, _usage(prompt_tokens=10**30, completion_tokens=10**30, cost=1e300)),
    "usage_fractions": Kind(True, True, _usage(prompt_tokens=10.5, completion_tokens=True, cost=None)),
    "usage_all_cached": Kind(True, True, _usage(prompt_tokens_details={"cached_tokens": 10**9})),
    "usage_tiny": Kind(True, True, _usage(prompt_tokens=1, completion_tokens=1)),
    "usage_cost_tiny": Kind(True, True, _usage(cost=1e-9)),
    "usage_list": Kind(True, True, _changed(lambda body, how: {"usage": [1, 2, 3]})),
    # Errors that do not come from the endpoint itself.
    "html_error": Kind(False, False, _bytes(lambda body: _PAGE, "text/html", 502)),
    # To `location`, or to a place on this server that does not exist.
    "redirect": Kind(False, False, _redirect),
}


class Chances(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A script that misbehaves with given probabilities, and in the same way whenever it is given the same seed.

    `settings` are fields of `Misbehaviour` by kind. From the `at_most`-th time on, a question is answered properly.
    """

    probabilities: dict[str, float]
    seed: int = 0
    settings: dict[str, dict[str, Any]] = {}
    at_most: int | None = None

    def __post_init__(self) -> None:
        if sum(self.probabilities.values()) > 1 + 1e-9:
            raise ValueError(f"probabilities add up to more than 1: {self.probabilities}")

    def __call__(self, question: Asked, before: int) -> Misbehaviour | None:
        if self.at_most is not None and before >= self.at_most:
            return None
        drawn = random.Random(f"{self.seed} {question.model} {question.digest} {before}").random()
        for kind, probability in self.probabilities.items():
            drawn -= probability
            if drawn < 0:
                return msgspec.convert({"kind": kind, **self.settings.get(kind, {})}, Misbehaviour)
        return None
