"""Ctrl-C while a command works; where it was ignored from the start (`nohup`), it stays ignored."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rich.console import Console

from composer_replication.cli import replay, train
from composer_replication.teacher_replay.serving.http_server import LocalTeachers, serve_until_stopped

Disposition = Callable[[Any], None]


@pytest.fixture
def ctrl_c() -> Iterator[Disposition]:
    before = signal.getsignal(signal.SIGINT)
    yield lambda handler: signal.signal(signal.SIGINT, handler) and None
    signal.signal(signal.SIGINT, before)


class _Training:
    stops = 0

    def stop(self) -> None:
        self.stops += 1


def test_the_first_ctrl_c_asks_training_to_stop_and_the_second_stops_it_at_once(
    ctrl_c: Disposition, capsys: pytest.CaptureFixture[str]
) -> None:
    ctrl_c(signal.default_int_handler)
    training: Any = _Training()
    with train._gentle_interrupt(training, Console(stderr=True)):
        signal.raise_signal(signal.SIGINT)
        assert training.stops == 1
        assert "stopping after this step, with a checkpoint" in capsys.readouterr().err
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert training.stops == 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_training_leaves_an_ignored_ctrl_c_alone(ctrl_c: Disposition) -> None:
    ctrl_c(signal.SIG_IGN)
    training: Any = _Training()
    with train._gentle_interrupt(training, Console(stderr=True)):
        signal.raise_signal(signal.SIGINT)
    assert training.stops == 0
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_replay_leaves_an_ignored_ctrl_c_alone(ctrl_c: Disposition) -> None:
    async def replaying() -> bool:
        stop = asyncio.Event()
        with replay._gentle_interrupt(stop, Console(stderr=True)):
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(0)
        return stop.is_set()

    ctrl_c(signal.SIG_IGN)
    assert not asyncio.run(replaying())
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_server_leaves_an_ignored_ctrl_c_alone_and_ends_when_it_is_terminated(ctrl_c: Disposition) -> None:
    seen = []

    def ready(server: LocalTeachers) -> None:
        signal.raise_signal(signal.SIGINT)
        seen.append(signal.getsignal(signal.SIGINT))
        signal.raise_signal(signal.SIGTERM)

    ctrl_c(signal.SIG_IGN)
    serve_until_stopped(LocalTeachers({"a": lambda messages: "ok"}), ready)
    assert seen == [signal.SIG_IGN]
