"""The provider that other tests trust: its bills, its caches and its misbehaviour, checked by hand over raw sockets."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from metered_billing import Teacher, Usage, cost, messages_digest
from metered_server import MeteredServer, Question, answers_from
from misbehaviour import KINDS, Chances, Misbehaviour

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
# One byte is one token and messages cost nothing extra, so that tokens are the letters of the text.
LETTERS = Teacher(input_per_mtok=3, output_per_mtok=15, bytes_per_token=1, message_tokens=0)
CACHED = {"cached_per_mtok": 0.3, "cache_write_per_mtok": 3.75, "cache_minimum": 100, "cache_unit": 10}


# Until they are released.
WAITING = {"hang", "hang_after_billing", "swallowed"}


def letters(**fields: Any) -> Teacher:
    return Teacher(input_per_mtok=3, output_per_mtok=15, bytes_per_token=1, message_tokens=0, **fields)


def two_letters(_question: Question) -> dict[str, Any]:
    return {"role": "assistant", "content": "ok"}


class Client:
    """One raw keep-alive connection."""

    def __init__(self, url: str, **headers: str) -> None:
        address = urlsplit(url)
        self._socket = socket.create_connection((address.hostname, address.port))
        self._file = self._socket.makefile("rb")
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in headers.items())

    def send(self, body: Any, path: str = "/v1/chat/completions", method: str = "POST") -> None:
        data = json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\n{self._headers}Content-Length: {len(data)}\r\n\r\n"
        self._socket.sendall(head.encode() + data)

    def read(self) -> tuple[int, dict[str, str], bytes]:
        status = int(self._file.readline().split()[1])
        headers = {}
        while (line := self._file.readline().decode().strip()) != "":
            name, _, value = line.partition(": ")
            headers[name.lower()] = value
        return status, headers, self._file.read(int(headers["content-length"]))

    def ask(self, *messages: Mapping[str, Any], model: str = "a", **more: Any) -> dict[str, Any]:
        self.send({"model": model, "messages": messages, **more})
        status, _headers, body = self.read()
        assert status == 200, body
        answer: dict[str, Any] = json.loads(body)
        return answer

    def close(self) -> None:
        self._file.close()
        self._socket.close()


def user(text: str, *, marked: bool = False) -> dict[str, Any]:
    if not marked:
        return {"role": "user", "content": text}
    part = {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}
    return {"role": "user", "content": [part]}


def usage_of(answer: dict[str, Any]) -> tuple[int, int, int, int]:
    usage = answer["usage"]
    details = usage["prompt_tokens_details"]
    return usage["prompt_tokens"], details["cached_tokens"], details["cache_write_tokens"], usage["completion_tokens"]


def holds_the_answer(body: bytes) -> bool:
    try:
        answer = json.loads(body.decode())
        return bool(answer["choices"][0]["message"]["content"] == "ok")
    except (ValueError, KeyError, TypeError, IndexError):
        return False


def test_a_bill_is_exact_and_rounded_up_once() -> None:
    teacher = Teacher(input_per_mtok=0.0675, output_per_mtok=1.1, cached_per_mtok=0.0001, cache_write_per_mtok=0)
    # 67.5 nano-dollars per token in, 1100 per token out, a tenth of one per cached token.
    assert cost(teacher, Usage(fresh=2, cached=0, written=0, output=1)) == 135 + 1100
    assert cost(teacher, Usage(fresh=1, cached=1, written=9, output=0)) == 68  # 67.5 + 0.1
    assert cost(Teacher(input_per_mtok=3), Usage(fresh=0, cached=5, written=7, output=9)) == 36_000


def test_a_question_is_counted_billed_and_answered_on_one_connection() -> None:
    with MeteredServer({"a": LETTERS}, answer=two_letters) as server:
        client = Client(server.url, Authorization="Bearer secret")
        first = client.ask(user("x" * 7), tools=[])
        again = client.ask(user("x" * 7), tools=[])
        client.close()
        # Seven letters and the two of "[]" at 3000 nano-dollars, two letters at 15000.
        assert usage_of(first) == usage_of(again) == (9, 0, 0, 2)
        assert server.meter.spent == 2 * (9 * 3000 + 2 * 15_000)
        assert [(count.asked, count.answered, count.billed) for count in server.meter.counts.values()] == [(2, 2, 2)]
        assert server.meter.authorizations == {"a": {"Bearer secret"}}
        assert server.meter.broken == []
        assert "secret" not in json.dumps(server.meter.figures())


def test_an_answer_ends_at_the_limit_and_thinking_counts() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "Bash", "arguments": '{"command": "ls"}'}}
    message = {"role": "assistant", "content": "Look.", "tool_calls": [call]}
    with MeteredServer({"a": letters(thinking_tokens=10)}, answer=lambda question: message) as server:
        client = Client(server.url)
        whole = client.ask(user("x"))
        assert whole["usage"]["completion_tokens"] == 10 + 5 + 4 + 17
        assert whole["choices"][0]["finish_reason"] == "tool_calls"
        cut = client.ask(user("x"), max_completion_tokens=22)
        assert cut["usage"]["completion_tokens"] == 22
        assert cut["choices"][0]["finish_reason"] == "length"
        assert cut["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == '{"c'
        nothing = client.ask(user("x"), max_tokens=3)
        assert (nothing["usage"]["completion_tokens"], nothing["choices"][0]["message"]["content"]) == (3, "")
        client.close()


def test_symbols_may_be_tokens_of_their_own() -> None:
    teacher = Teacher(input_per_mtok=1, bytes_per_token=4, bytes_per_symbol=0.5, message_tokens=3)
    with MeteredServer({"a": teacher}) as server:
        client = Client(server.url)
        assert client.ask(user("abc def g 12;"))["usage"]["prompt_tokens"] == 3 + 9  # ten quarters, and three times two
        client.close()


def test_automatic_cache_counts_whole_units_of_an_answered_prefix() -> None:
    with MeteredServer({"a": letters(cache="automatic", **CACHED)}, answer=two_letters) as server:
        client = Client(server.url)
        assert usage_of(client.ask(user("s" * 99))) == (99, 0, 0, 2)
        assert usage_of(client.ask(user("s" * 99), user("t"))) == (100, 0, 0, 2)  # 99 is too short to be kept
        assert usage_of(client.ask(user("s" * 99), user("t"), user("u" * 29))) == (129, 100, 0, 2)
        assert usage_of(client.ask(user("s" * 99), user("t"), user("u" * 29), user("v"))) == (130, 120, 0, 2)
        assert usage_of(client.ask(user("s" * 99), user("other"), user("u" * 29))) == (133, 0, 0, 2)
        assert server.meter.spent == (99 + 100 + 29 + 10 + 133) * 3000 + (100 + 120) * 300 + 5 * 2 * 15_000
        # Tools stand before everything else.
        assert usage_of(client.ask(user("s" * 99), user("t"), user("u"), tools=[1])) == (104, 0, 0, 2)
        # And another role is another beginning.
        assert usage_of(client.ask({"role": "system", "content": "s" * 99}, user("t"))) == (100, 0, 0, 2)
        client.close()


def test_a_prefix_is_cached_only_when_its_answer_is_complete() -> None:
    with MeteredServer({"a": letters(cache="automatic", **CACHED)}, answer=two_letters) as server:
        server.plan(Misbehaviour("hang"))
        hanging, client = Client(server.url), Client(server.url)
        hanging.send({"model": "a", "messages": [user("s" * 100)]})
        server.wait_until(lambda meter: meter.in_flight == 1)
        assert usage_of(client.ask(user("s" * 100), user("t"))) == (101, 0, 0, 2)
        server.plan(Misbehaviour("503"))
        client.send({"model": "a", "messages": [user("z" * 100)]})
        assert client.read()[0] == 503
        assert usage_of(client.ask(user("z" * 100), user("t"))) == (101, 0, 0, 2)
        server.release()
        assert hanging.read()[0] == 200
        assert server.meter.peak == 2
        hanging.close()
        client.close()


def test_explicit_cache_keeps_what_is_marked_and_looks_back_twenty_blocks() -> None:
    with MeteredServer({"a": letters(cache="explicit", **CACHED)}, answer=two_letters) as server:
        client = Client(server.url)
        assert usage_of(client.ask(user("s" * 150), user("t"))) == (151, 0, 0, 2)
        assert usage_of(client.ask(user("s" * 150), user("t"))) == (151, 0, 0, 2)  # without a marker nothing is kept
        assert usage_of(client.ask(user("s" * 150, marked=True), user("t"))) == (151, 0, 150, 2)
        assert usage_of(client.ask(user("s" * 150), user("t"))) == (151, 0, 0, 2)  # nor read
        assert usage_of(client.ask(user("s" * 150, marked=True), user("t"))) == (151, 150, 0, 2)
        later = [user("s" * 150), *(user("t") for _ in range(19))]
        assert usage_of(client.ask(*later[:-1], user("t", marked=True))) == (169, 150, 19, 2)
        far = [user("q" * 150, marked=True), *(user("t") for _ in range(20))]
        assert usage_of(client.ask(*far)) == (170, 0, 150, 2)
        # One block more than is looked back over, and no marker at the entry itself.
        assert usage_of(client.ask(user("q" * 150), *far[1:-1], user("t", marked=True))) == (170, 0, 170, 2)
        assert usage_of(client.ask(user("short", marked=True))) == (5, 0, 0, 2)
        spent = server.meter.spent
        client.ask(user("s" * 150, marked=True), user("t" * 3, marked=True), user("u"))
        assert server.meter.spent - spent == 150 * 300 + 3 * 3750 + 1 * 3000 + 2 * 15_000
        client.send({"model": "a", "messages": [user("s", marked=True)] * 5})
        assert client.read()[0] == 400
        client.close()


def test_cache_entries_expire() -> None:
    with MeteredServer({"a": letters(cache="automatic", cache_seconds=0.0, **CACHED)}, answer=two_letters) as server:
        client = Client(server.url)
        client.ask(user("s" * 200))
        assert usage_of(client.ask(user("s" * 200)))[1] == 0
        client.close()


def test_markers_and_parts_change_no_question() -> None:
    plain = [user("a"), {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": ""}}]}]
    dressed = [user("a", marked=True), {"content": None, **plain[1]}]
    assert messages_digest(plain) == messages_digest(dressed)
    others = [[user("b"), plain[1]], [{"role": "system", "content": "a"}, plain[1]], plain[:1], [*plain, user("a")]]
    assert len({messages_digest(messages) for messages in [plain, *others]}) == 5
    table = {messages_digest(plain): {"role": "assistant", "content": "from the table"}}
    with MeteredServer({"a": LETTERS}, answer=answers_from(table)) as server:
        client = Client(server.url)
        answers = [client.ask(*messages)["choices"][0]["message"]["content"] for messages in (plain, dressed)]
        assert answers == ["from the table"] * 2
        assert len(server.meter.counts) == 1
        assert "from the table" not in client.ask(*others[0])["choices"][0]["message"]["content"]
        client.close()


@pytest.mark.parametrize("kind", [*sorted(WAITING), None])
def test_who_leaves_pays_all_the_same(kind: str | None) -> None:
    with MeteredServer({"a": letters(latency=0.0 if kind else 0.05)}, answer=two_letters) as server:
        server.plan(*([Misbehaviour(kind)] if kind else []))
        client = Client(server.url)
        client.send({"model": "a", "messages": [user("xyz")]})
        server.wait_until(lambda meter: meter.in_flight == 1)
        client.close()
        server.release()
        server.wait_until_idle()
        assert server.meter.spent == (0 if kind == "swallowed" else 3 * 3000 + 2 * 15_000)
        assert server.meter.broken == []


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in WAITING])
def test_every_misbehaviour_bills_as_it_says_and_the_next_question_is_answered(kind: str) -> None:
    with MeteredServer({"a": LETTERS}, answer=two_letters) as server:
        server.plan(Misbehaviour(kind, size=1000, seconds=0.01))
        client = Client(server.url)
        client.send({"model": "a", "messages": [user("xyz")]})
        try:
            status, headers, body = client.read()
        except (IndexError, KeyError, OSError):  # cut before the headers
            status, headers, body = 0, {}, b""
        client.close()
        server.wait_until_idle()
        assert server.meter.spent == (KINDS[kind].bills and 39_000)
        assert [count.answered for count in server.meter.counts.values()] == [KINDS[kind].answers]
        complete = len(body) == int(headers.get("content-length", "1"))
        assert (complete and holds_the_answer(body)) is KINDS[kind].answers
        assert server.meter.records[0].status == status or kind.startswith("cut")
        client = Client(server.url)
        assert usage_of(client.ask(user("xyz"))) == (3, 0, 0, 2)
        client.close()
        assert server.meter.broken == []


def test_retry_after_as_a_number_and_as_a_date() -> None:
    with MeteredServer({"a": LETTERS}) as server:
        server.plan(Misbehaviour("rate_limit", seconds=7), Misbehaviour("rate_limit_until", seconds=7))
        client = Client(server.url)
        before = time.time()
        told = []
        for _ in range(2):
            client.send({"model": "a", "messages": [user("x")]})
            status, headers, _ = client.read()
            assert status == 429
            told.append(headers["retry-after"])
        client.close()
        assert told[0] == "7"
        assert before + 7 <= parsedate_to_datetime(told[1]).timestamp() == server.meter.records[1].retry_at


def test_chances_are_the_same_for_the_same_seed() -> None:
    def drawn(seed: int) -> list[str | None]:
        chances = Chances({"500": 0.3, "503": 0.3}, seed=seed, at_most=30)
        with MeteredServer({"a": LETTERS}, script=chances) as server:
            client = Client(server.url)
            for _ in range(40):
                client.send({"model": "a", "messages": [user("x")]})
                client.read()
            client.close()
            return [record.misbehaviour for record in server.meter.records]

    assert drawn(1) == drawn(1) != drawn(2)
    assert {"500", "503", None} == set(drawn(1)[:30])
    assert {answer for seed in range(8) for answer in drawn(seed)[30:]} == {None}


def test_questions_at_the_same_time_are_counted() -> None:
    with MeteredServer({"a": LETTERS, "b": LETTERS}, answer=two_letters) as server:
        server.plan(*[Misbehaviour("hang")] * 7)
        clients = [Client(server.url) for _ in range(7)]
        for number, client in enumerate(clients):
            client.send({"model": "ab"[number % 2], "messages": [user("x" * 100_000)]})
        server.wait_until(lambda meter: meter.in_flight == 7)
        server.release()
        threads = [threading.Thread(target=client.read) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for client in clients:
            client.close()
        # The last bytes of an answer may arrive before the server has counted it as done.
        server.wait_until_idle()
        assert (server.meter.peak, server.meter.peak_of) == (7, {"a": 4, "b": 3})
        assert (server.meter.in_flight, server.meter.in_flight_of) == (0, {"a": 0, "b": 0})


def test_as_a_process_with_a_meter_and_a_script(tmp_path: Path) -> None:
    configuration = {"teachers": {"a": {"input_per_mtok": 3, "bytes_per_token": 1, "message_tokens": 0}}}
    (tmp_path / "config.json").write_text(json.dumps(configuration))
    command = [sys.executable, str(BENCHMARKS / "metered_server.py"), "--config", str(tmp_path / "config.json")]
    process = subprocess.Popen([*command, "--with-stdin"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    client = Client(json.loads(process.stdout.readline())["url"])
    client.send({"next": [{"kind": "status", "status": 418}]}, "/script")
    assert client.read()[0] == 200
    client.send({"model": "a", "messages": [user("x")]})
    assert client.read()[0] == 418
    client.ask(user("x"))
    client.send(None, "/meter", "GET")
    figures = json.loads(client.read()[2])
    assert figures["spent_nano_usd"] == 3000
    assert [(row["asked"], row["answered"], row["billed"]) for row in figures["questions"]] == [(2, 1, 1)]
    client.send({"next": [{"kind": "no such"}]}, "/script")
    assert client.read()[0] == 400
    client.close()
    process.communicate()
    assert process.returncode == 0
