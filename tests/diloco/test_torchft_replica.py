"""A real manager and a real lighthouse in this process: what a replica says when rounds or meetings keep failing."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch

from composer_replication.diloco import OuterRound, make_diloco_outer_loop
from composer_replication.diloco.local_gloo import LocalGloo
from composer_replication.diloco.quorums import Quorums
from composer_replication.diloco.torchft_replica import Lighthouse, ReplicaManager, close, torchft_manager


@pytest.fixture
def manager() -> Iterator[ReplicaManager]:
    """Of a replica that is alone."""
    with Lighthouse(1) as lighthouse:
        made = torchft_manager(0, lighthouse=lighthouse.address, min_replicas=1, quorum_timeout_s=1234.0)
        yield made
        close(made)


def test_a_run_whose_rounds_all_fail_ends_with_an_error(
    manager: ReplicaManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("no route to host\nand a traceback")

    monkeypatch.setattr(LocalGloo, "allreduce", fails)
    model = torch.nn.Linear(1, 1, bias=False)
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    rounds: list[OuterRound] = []
    with make_diloco_outer_loop(manager, [model], inner, sync_every=1, on_round=rounds.append):
        inner.step()
        inner.step()
        with pytest.raises(RuntimeError) as failed:
            inner.step()
    assert [one.committed for one in rounds] == [False] * 3
    said = str(failed.value)
    assert said.startswith("round 0 failed 12 times in a row and its steps are lost (no route to host): check the logs")
    assert "diloco.hostname" in said
    assert "\n" not in said


def test_replicas_that_meet_and_do_not_connect_end_with_an_error(
    manager: ReplicaManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("connect timed out\nand a traceback")

    monkeypatch.setattr(LocalGloo, "_create_pg", fails)
    model = torch.nn.Linear(1, 1, bias=False)
    loop = make_diloco_outer_loop(manager, [model], torch.optim.SGD(model.parameters(), lr=1.0))
    assert manager.meeting_timeout_s == 1234.0
    manager.meeting_timeout_s = 0.0
    monkeypatch.setattr(manager, "should_commit", lambda: pytest.fail("it tries again"))
    with pytest.raises(RuntimeError) as failed:
        loop.__enter__()
    said = str(failed.value)
    assert said.startswith("attempt 1 to connect to the other replicas failed (connect timed out): check the logs")
    assert "diloco.hostname" in said
    assert "ports" in said
    assert "\n" not in said


def test_a_lighthouse_whose_machine_does_not_answer_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is waited for, as one that refuses; a time-out would be that of a quorum with too few replicas."""
    monkeypatch.setattr("composer_replication.diloco.quorums._CONNECT_S", 0.2)
    with ExitStack() as stack:
        silent = stack.enter_context(socket.socket())
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        for _ in range(8):  # its queue is full
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(silent.getsockname())
        quorums = Quorums(None, f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(ConnectionError, match="timed out"):
            quorums._quorum()


def test_addresses_that_cannot_be_right_are_named() -> None:
    with pytest.raises(ValueError, match=r"lighthouse must be of the form http://host:port, not 'localhost:1234': set"):
        torchft_manager(0, lighthouse="localhost:1234", min_replicas=1)
    # The sockets are of IPv4, so no machine can listen there.
    with pytest.raises(
        OSError, match=r"replica 3 cannot listen on hostname '::1': .*; set diloco.hostname to an address"
    ):
        torchft_manager(3, lighthouse="http://127.0.0.1:1", min_replicas=1, hostname="::1")
