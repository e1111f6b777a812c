"""The judge against a real HTTP server that counts, and misbehaves on demand."""

from __future__ import annotations

import json
import logging
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from composer_replication.hint_generator import HintContext, JudgeHints, LayeredHints, template_hints
from composer_replication.hint_generator.judge import at_most_two_sentences

KEY = "a-key-0123456789abcdef"
ERROR: HintContext = {"error_kind": "runtime_error", "tool_name": "Frob", "error_message": "it is stuck"}


class Endpoint:
    """An OpenAI-compatible server; `behave` writes the answer to a request."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.answer = "Turn the handle of `Frob` first."
        self.behave: Callable[[BaseHTTPRequestHandler], None] = self.reply
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                endpoint.requests.append(json.loads(body))
                endpoint.keys.append(self.headers["Authorization"])
                endpoint.behave(self)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def reply(self, handler: BaseHTTPRequestHandler) -> None:
        message = {"role": "assistant", "content": self.answer}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        self.send(
            handler, 200, {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
        )

    def send(self, handler: BaseHTTPRequestHandler, status: int, body: Any) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    yield endpoint
    endpoint.server.shutdown()
    endpoint.server.server_close()


def judge(endpoint: Endpoint, cache: Path | None = None, **options: Any) -> JudgeHints:
    settings = {"api_key": KEY, "max_retries": 0, "timeout": 20.0, **options}
    return JudgeHints("m", base_url=endpoint.url, cache_path=cache, **settings)


def test_the_judge_is_shown_the_error_and_its_answer_is_the_hint(endpoint: Endpoint) -> None:
    assert judge(endpoint, request={"max_tokens": 50})(ERROR) == "Turn the handle of `Frob` first."
    request = endpoint.requests[0]
    assert request["model"] == "m"
    assert request["max_tokens"] == 50
    assert [message["role"] for message in request["messages"]] == ["system", "user"]
    assert request["messages"][1]["content"] == "error_kind: runtime_error\ntool_name: Frob\nerror_message: it is stuck"
    assert endpoint.keys == [f"Bearer {KEY}"]


def test_an_identical_call_is_never_asked_twice_not_even_after_a_restart(endpoint: Endpoint, tmp_path: Path) -> None:
    cache = tmp_path / "deep" / "answers.sqlite"
    first = judge(endpoint, cache)
    assert first(ERROR) == first({**ERROR, "tool_call_id": "another"})
    assert judge(endpoint, cache)(ERROR) == "Turn the handle of `Frob` first."
    assert len(endpoint.requests) == 1
    first({**ERROR, "error_message": "it is loose"})
    JudgeHints("other", base_url=endpoint.url, cache_path=cache)(ERROR)
    assert len(endpoint.requests) == 3


def test_without_a_file_answers_are_kept_in_memory(endpoint: Endpoint) -> None:
    hints = judge(endpoint)
    hints(ERROR)
    hints(ERROR)
    assert len(endpoint.requests) == 1


def test_threads_that_want_the_same_ask_once(endpoint: Endpoint, tmp_path: Path) -> None:
    def slowly(handler: BaseHTTPRequestHandler) -> None:
        time.sleep(0.2)
        endpoint.reply(handler)

    endpoint.behave = slowly
    hints = judge(endpoint, tmp_path / "a.sqlite")
    answers: list[str | None] = []
    threads = [threading.Thread(target=lambda: answers.append(hints(ERROR))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == ["Turn the handle of `Frob` first."] * 8
    assert len(endpoint.requests) == 1


def test_an_answer_of_none_is_kept_as_such(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.answer = "NONE"
    assert judge(endpoint, tmp_path / "a.sqlite")(ERROR) is None
    assert judge(endpoint, tmp_path / "a.sqlite")(ERROR) is None
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        ("One. Two. Three.", "One. Two."),
        ("Use `a.py`. Then stop!\n\nAlso, consider more.", "Use `a.py`. Then stop!"),
        ("Pass --depth 1.5 to v2.0 of it", "Pass --depth 1.5 to v2.0 of it"),
        ('"Read a.py first."', "Read a.py first."),
        ("<think>Hm. Ha. Ho.</think>\nRead it.", "Read it."),
        ("  ", ""),
        ("None.", ""),
    ],
)
def test_answers_are_cut_to_two_sentences(answer: str, hint: str) -> None:
    assert at_most_two_sentences(answer) == hint


def test_very_long_answers_are_cut() -> None:
    assert len(at_most_two_sentences("word " * 1000)) <= 400


def _misbehaviours(endpoint: Endpoint) -> dict[str, Callable[[BaseHTTPRequestHandler], None]]:
    def slow(handler: BaseHTTPRequestHandler) -> None:
        time.sleep(1.5)

    return {
        "500": lambda handler: endpoint.send(handler, 500, {"error": {"message": f"broken, key {KEY}"}}),
        "401": lambda handler: endpoint.send(handler, 401, {"error": {"message": f"Incorrect API key: {KEY}"}}),
        "garbage": lambda handler: endpoint.send(handler, 200, b"\xff\x00 not json"),
        "no choices": lambda handler: endpoint.send(handler, 200, {"choices": []}),
        "no text": lambda handler: endpoint.send(handler, 200, {"choices": [{"message": {"content": None}}]}),
        "slow": slow,
        "hangs up": lambda handler: handler.connection.close(),
    }


@pytest.mark.parametrize("how", ["500", "401", "garbage", "no choices", "no text", "slow", "hangs up"])
def test_a_judge_that_misbehaves_costs_a_warning(
    endpoint: Endpoint, how: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    endpoint.behave = _misbehaviours(endpoint)[how]
    hints = judge(endpoint, tmp_path / "a.sqlite", timeout=0.5)
    with caplog.at_level(logging.WARNING):
        assert hints(ERROR) is None
    warnings = [record for record in caplog.records if record.name.startswith("composer_replication")]
    assert len(warnings) == 1
    assert "the judge m did not answer" in warnings[0].getMessage()
    assert KEY not in caplog.text
    # A failure is not an answer: the same question is asked again, and then answered.
    endpoint.behave = endpoint.reply
    hints.timeout = 20.0
    assert judge(endpoint, tmp_path / "a.sqlite")(ERROR) == "Turn the handle of `Frob` first."


def test_retries(endpoint: Endpoint) -> None:
    def fail_once(handler: BaseHTTPRequestHandler) -> None:
        if len(endpoint.requests) == 1:
            endpoint.send(handler, 500, {})
        else:
            endpoint.reply(handler)

    endpoint.behave = fail_once
    assert judge(endpoint, max_retries=1)(ERROR) == "Turn the handle of `Frob` first."
    assert len(endpoint.requests) == 2


def test_a_dead_judge_is_left_alone(endpoint: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    endpoint.behave = _misbehaviours(endpoint)["500"]
    hints = judge(endpoint, give_up_after=2)
    with caplog.at_level(logging.WARNING):
        assert [hints({**ERROR, "path": str(number)}) for number in range(5)] == [None] * 5
    assert len(endpoint.requests) == 2
    assert "will not be asked again" in caplog.text


def test_an_unusable_cache_costs_a_warning(
    endpoint: Endpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "a.sqlite"
    hints = judge(endpoint, cache)
    for file in tmp_path.iterdir():
        file.unlink()
    cache.mkdir()
    with caplog.at_level(logging.WARNING):
        assert hints(ERROR) is None
    assert "cache" in caplog.text


def test_what_leaves_the_machine_is_redacted(endpoint: Endpoint) -> None:
    secret: HintContext = {**ERROR, "command": "login hunter2"}
    judge(endpoint, redact=lambda text: text.replace("hunter2", "[secret]"))(secret)
    sent = json.dumps(endpoint.requests)
    assert "hunter2" not in sent
    assert "login [secret]" in sent


def test_unless_told_otherwise_secrets_do_not_leave_the_machine(endpoint: Endpoint) -> None:
    made_up = "gh" + "p_" + "".join(chr(97 + number * 7 % 26) for number in range(30)) + "042517"
    # The last one is where a text is cut: half a secret would not be recognised any more.
    secret: HintContext = {
        **ERROR,
        "error_message": f"cannot push with {made_up}",
        "command": "x" * 1980 + f" {made_up} " + "y" * 8000,
        "path": "/home/somebody/a.py",
    }
    assert judge(endpoint)(secret) is not None
    sent = json.dumps(endpoint.requests)
    assert made_up[:12] not in sent
    assert "somebody" not in sent
    assert "cannot push with <" in sent
    judge(endpoint, redact=False)(secret)
    assert made_up in json.dumps(endpoint.requests)
    assert len(json.dumps(endpoint.requests[-1])) < 12_000


def test_the_key_is_not_shown(endpoint: Endpoint) -> None:
    assert KEY not in repr(judge(endpoint))


def test_the_key_comes_from_the_environment(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "from-environment")
    judge(endpoint, api_key=None, api_key_variable="MY_KEY")(ERROR)
    assert endpoint.keys == ["Bearer from-environment"]


def test_bad_settings_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    with pytest.raises(ValueError, match="MY_KEY"):
        JudgeHints("m", api_key_variable="MY_KEY")
    with pytest.raises(ValueError, match="timeout"):
        JudgeHints("m", api_key=KEY, timeout=0)
    with pytest.raises(ValueError, match="max_retries"):
        JudgeHints("m", api_key=KEY, max_retries=-1)


def test_workers_get_a_copy(endpoint: Endpoint, tmp_path: Path) -> None:
    hints = judge(endpoint, tmp_path / "a.sqlite")
    hints(ERROR)
    copy = pickle.loads(pickle.dumps(hints))  # noqa: S301
    assert copy(ERROR) == "Turn the handle of `Frob` first."
    assert copy({**ERROR, "path": "x"}) == "Turn the handle of `Frob` first."
    assert len(endpoint.requests) == 2


def test_as_the_last_layer(endpoint: Endpoint) -> None:
    hints = LayeredHints([template_hints, judge(endpoint)])
    assert hints({"error_kind": "edit_before_read"}) == "Read the file before you edit or overwrite it."
    assert hints({"error_kind": "user_rejected"}) is None
    assert endpoint.requests == []
    assert hints({"error_kind": "something new"}) == "Turn the handle of `Frob` first."
