"""A peer's state over HTTP: whole or refused, only for who knows the address, and never unpickled."""

from __future__ import annotations

import pickle
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from composer_replication.diloco.state_file import load_state
from composer_replication.diloco.state_transport import SafetensorsTransport

LONG, SHORT = timedelta(minutes=10), timedelta(seconds=0.2)


@pytest.fixture
def transport() -> Iterator[SafetensorsTransport]:
    made = SafetensorsTransport()
    yield made
    made.shutdown()


def test_a_state_arrives_as_it_was_sent(transport: SafetensorsTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # nobody is there
    state = {"user": {"outer_loop": {"shared": torch.arange(5.0)}}, "torchft": {"step": 3}}
    transport.send_checkpoint([1], 3, state, LONG)
    state["user"]["outer_loop"]["shared"] += 1
    received = transport.recv_checkpoint(0, transport.metadata(), 3, LONG)
    assert received["torchft"] == {"step": 3}
    assert torch.equal(received["user"]["outer_loop"]["shared"], torch.arange(5.0))


def test_a_state_that_is_not_there_yet_is_waited_for(
    transport: SafetensorsTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[Any] = []
    refused = threading.Event()
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: refused.set())
    monkeypatch.setattr("composer_replication.diloco.state_transport.time", clock)
    waiting = threading.Thread(
        target=lambda: received.append(transport.recv_checkpoint(0, transport.metadata(), 1, LONG))
    )
    waiting.start()
    refused.wait()
    transport.send_checkpoint([1], 1, {"step": 1}, LONG)
    waiting.join()
    assert received == [{"step": 1}]


def test_a_state_stays_after_a_failed_round_and_goes_after_a_committed_one(transport: SafetensorsTransport) -> None:
    transport.send_checkpoint([1], 1, {"step": 1}, LONG)
    transport.disallow_checkpoint()
    assert transport.recv_checkpoint(0, transport.metadata(), 1, LONG) == {"step": 1}
    transport.forget()
    with pytest.raises(
        TimeoutError, match=r"replica 7 did not serve its state of round 1 within 0.2 s: HTTP Error 404"
    ):
        transport.recv_checkpoint(7, transport.metadata(), 1, SHORT)


def test_a_damaged_state_is_refused(transport: SafetensorsTransport) -> None:
    transport.send_checkpoint([1], 1, {"weights": torch.ones(8)}, LONG)
    (path,) = transport._states
    data = bytearray(transport._states[path])
    data[-3] ^= 1
    transport._states[path] = bytes(data)
    with pytest.raises(TimeoutError, match=r"did not serve its state of round 1 .* is damaged"):
        transport.recv_checkpoint(0, transport.metadata(), 1, SHORT)


class Exploit:
    """A value that runs code when it is unpickled."""

    ran = False

    def __reduce__(self) -> Any:
        return setattr, (Exploit, "ran", True)


def test_a_pickle_is_refused_and_does_not_run(transport: SafetensorsTransport) -> None:
    transport.send_checkpoint([1], 1, {}, LONG)
    (path,) = transport._states
    transport._states[path] = pickle.dumps(Exploit())
    with pytest.raises(TimeoutError, match="is damaged"):
        transport.recv_checkpoint(0, transport.metadata(), 1, SHORT)
    assert not Exploit.ran


def test_nobody_is_served_without_the_secret(transport: SafetensorsTransport) -> None:
    transport.send_checkpoint([1], 1, {"step": 1}, LONG)
    address, _, secret = transport.metadata().rpartition("/")
    for path in ("1", "/1", f"{secret[:-1]}/1", f"{secret}x/1", f"{secret}/2", "checkpoint/1"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{address}/{path}")
    assert load_state(urllib.request.urlopen(f"{address}/{secret}/1").read()) == {"step": 1}
    assert SafetensorsTransport().metadata().rpartition("/")[2] != secret
    assert address.startswith("http://127.0.0.1:")


def test_a_peer_that_is_gone_is_an_error_at_once(transport: SafetensorsTransport) -> None:
    other = SafetensorsTransport()
    other.shutdown()
    with pytest.raises(OSError, match="refused"):
        transport.recv_checkpoint(0, other.metadata(), 1, LONG)
