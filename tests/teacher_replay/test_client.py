"""What is read from a response: tokens, money, and errors without the key."""

from __future__ import annotations

import json
from typing import Any

import pytest

from composer_replication.teacher_replay.client import CallFailedError, _reply, without_key
from composer_replication.teacher_replay.prices import Tokens
from composer_replication.teacher_replay.teachers import resolve_teachers

KEY = "sk-proj-ABCDEFGHIJKLMNOPQRSTUVWX"


@pytest.fixture
def teacher(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("A_KEY", KEY)
    return resolve_teachers([{"slug": "t", "base_url": "http://127.0.0.1:9/v1", "api_key_variable": "A_KEY"}])[0]


def response(**fields: Any) -> bytes:
    choice = {"message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}
    return json.dumps({"choices": [choice], **fields}).encode()


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"prompt_tokens": 10, "completion_tokens": 2}, Tokens(10, 2)),
        (
            {"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}},
            Tokens(10, 2, cached=4),
        ),
        ({"prompt_tokens": 10, "completion_tokens": 2, "prompt_cache_hit_tokens": 4}, Tokens(10, 2, cached=4)),
        # Anthropic's input is what was neither read from the cache nor written to it.
        (
            {"input_tokens": 6, "output_tokens": 2, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 3},
            Tokens(13, 2, cached=4, cache_write=3),
        ),
        # OpenAI's newer form counts it within.
        (
            {"input_tokens": 10, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 4}},
            Tokens(10, 2, cached=4),
        ),
        ({"prompt_tokens": "10", "completion_tokens": 2}, None),
    ],
)
def test_tokens_in_every_form(usage: dict[str, Any], tokens: Tokens | None, teacher: Any) -> None:
    assert _reply(response(usage=usage), 0.0, teacher).usage == tokens


def test_what_a_failure_was_billed_is_not_lost(teacher: Any) -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "cost": 3.5}
    with pytest.raises(CallFailedError) as raised:
        _reply(json.dumps({"choices": [], "usage": usage}).encode(), 0.0, teacher)
    assert (raised.value.billed, raised.value.cost_usd) == ("yes", 3.5)
    with pytest.raises(CallFailedError) as raised:
        _reply(response(error={"code": 502, "message": "it broke"}, usage=usage), 0.0, teacher)
    assert (raised.value.billed, raised.value.cost_usd, raised.value.retry) == ("yes", 3.5, True)
    with pytest.raises(CallFailedError) as raised:
        _reply(response(error={"code": 429, "message": "later"}), 0.0, teacher)
    assert raised.value.billed == "no"


@pytest.mark.parametrize(
    "shown",
    [
        f"wrong key {KEY}.",
        "wrong key sk-proj-ABCDEF*****STUVWX.",
        f"wrong key {KEY[:18]}\n{KEY[18:]}.",
        f"wrong key {KEY[3:]}{KEY}.",
    ],
)
def test_no_piece_of_the_key_is_shown(shown: str, teacher: Any) -> None:
    line = without_key(shown, teacher)
    assert line.startswith("wrong key [key]")
    assert line.endswith(".")
    assert not any(KEY[start : start + 4] in line for start in range(len(KEY) - 3))


def test_an_error_without_a_key_stays_as_it_is() -> None:
    (teacher,) = resolve_teachers([{"slug": "t", "base_url": "http://127.0.0.1:9/v1"}])
    assert without_key("a\n b", teacher) == "a b"
