"""Real replicas in processes of their own, over torchft: one shared state after every round, whatever is killed."""

from __future__ import annotations

import math
import signal
from pathlib import Path
from typing import Any, Literal

import pytest
from torchft_run import TorchftRun

# An average that nobody fails would be waited for so long that the test sees it.
PATIENT = {"timeout_s": 3600.0}
PLAIN: dict[str, Any] = {"sync_every": 4, "manager": PATIENT}
STREAMING: dict[str, Any] = {
    "sync_every": 8,
    "streaming": True,
    "fragment_sync_delay": 2,
    "fragment_update_alpha": 0.25,
    "manager": PATIENT,
}
KINDS = pytest.mark.parametrize("settings", [PLAIN, STREAMING], ids=["plain", "streaming"])


def distances(run: TorchftRun) -> list[float]:
    """The largest distance between local parameters of two replicas before the sync, for each round."""
    by_round = [{one["round"]: one["local"] for one in run.rounds(rank)} for rank in range(len(run.replicas))]
    common = sorted(set.intersection(*map(set, by_round)))
    return [max(math.dist(by_round[0][number], other[number]) for other in by_round[1:]) for number in common]


@KINDS
def test_two_replicas_have_one_state_after_every_round_and_converge(tmp_path: Path, settings: dict[str, Any]) -> None:
    with TorchftRun(tmp_path, 2, **settings) as run:
        run.wait_for_rounds(150)
        assert run.common_rounds() >= 150
        digests = list(run.digests(0).values())
        assert len(set(digests)) == len(digests), "a round changed nothing"
        apart = distances(run)
        assert max(apart[-10:]) < min(apart[1:10])
        run.kill(1, "in sync")
        run.restart(1)
        run.wait_for_healing(1)
        last = run.wait_for_rounds(2)
        assert run.common_rounds() > 150
        # The round in which it was killed is averaged once it is back: nothing is skipped.
        assert set(run.digests(0)) >= set(range(last))


@KINDS
@pytest.mark.parametrize("replicas", [4, 8])
def test_more_replicas_have_one_state_after_every_round(
    tmp_path: Path, replicas: int, settings: dict[str, Any]
) -> None:
    with TorchftRun(tmp_path, replicas, **settings) as run:
        run.wait_for_rounds(30, participants=replicas)
        assert run.common_rounds() >= 30


@KINDS
@pytest.mark.parametrize("when", ["in sync", "between syncs", "now"])
def test_a_killed_replica_heals_while_the_others_go_on(
    tmp_path: Path, when: Literal["in sync", "between syncs", "now"], settings: dict[str, Any]
) -> None:
    with TorchftRun(tmp_path, 3, min_replicas=2, **settings) as run:
        run.wait_for_rounds(5, participants=3)
        for victim in (1, 2):
            run.kill(victim, when)
            others = [rank for rank in range(3) if rank != victim]
            run.wait_for_rounds(3, participants=2, ranks=others)
            run.restart(victim)
            run.wait_for_healing(victim)
            run.wait_for_rounds(3, participants=3)
        run.common_rounds()


@pytest.mark.parametrize("equal", [True, False])
def test_only_replicas_that_differ_fetch_a_state_at_the_start(tmp_path: Path, equal: bool) -> None:
    with TorchftRun(tmp_path, 3, equal_start=equal, **PLAIN) as run:
        run.wait_for_rounds(1)
        assert run.common_rounds() >= 1
        served = [rank for one in range(3) for rank in run.rounds(one)[0]["served"]]
        healed = [run.rounds(rank)[0]["healed"] for rank in range(3)]
    assert (len(served), sum(healed)) == ((0, 0) if equal else (2, 2))


def test_the_lighthouse_may_be_killed_and_started_again(tmp_path: Path) -> None:
    with TorchftRun(tmp_path, 2, **PLAIN) as run:
        run.wait_for_rounds(3)
        run.lighthouse.send_signal(signal.SIGKILL)
        run.lighthouse.wait()
        run.start_lighthouse(run.address.removeprefix("http://"))
        run.wait_for_rounds(5)
        run.common_rounds()
        assert not any(one["healed"] for rank in range(2) for one in run.rounds(rank)[1:])
