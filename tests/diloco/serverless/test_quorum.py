"""Rounds without the absent: who is in them is agreed by all, silent reducers are stood in for, late ranks follow."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import at, in_threads

from composer_replication.diloco.serverless import ObjectStoreAllReduce
from composer_replication.diloco.serverless.exchange import Exchange
from composer_replication.diloco.serverless.one_round import Round
from composer_replication.diloco.serverless.participants import Members, RoundClosedError

NUMEL = 64 * 4


def quorum(place: Path, rank: int, count: int = 3, **settings: Any) -> ObjectStoreAllReduce:
    return at(place, rank, count, **{"min_participants": 2, "grace_s": 0.05, **settings})


def patient(reduce: ObjectStoreAllReduce, turn: int, turns: int) -> ObjectStoreAllReduce:
    """Let the first `turns` rounds wait for everyone, however slow, and the later ones for nobody."""
    assert reduce.exchange is not None
    assert reduce.quorum is not None
    reduce.quorum.grace_s = 300.0 if turn < turns else 0.05
    return reduce


def filled(value: float) -> torch.Tensor:
    return torch.full((NUMEL,), value)


def test_a_dead_rank_does_not_stop_the_others(tmp_path: Path) -> None:
    def rank(number: int) -> list[float]:
        reduce = quorum(tmp_path, number)
        turns = 1 if number == 2 else 3
        values = [filled(number * (turn + 1.0)) for turn in range(turns)]
        return [patient(reduce, turn, 1).allreduce(value)[0].item() for turn, value in enumerate(values)]

    assert in_threads(3, rank) == [[1.0, 1.0, 1.5], [1.0, 1.0, 1.5], [1.0]]


def test_all_who_are_there_are_waited_for_however_long_the_grace(tmp_path: Path) -> None:
    """Within the grace the third rank is waited for, so it is in every round."""
    slow = threading.Event()

    def rank(number: int) -> list[int]:
        reduce = quorum(tmp_path, number, grace_s=300.0)
        if number == 2:
            slow.wait()
        elif number == 0:
            threading.Timer(0.2, slow.set).start()
        members = []
        for _ in range(2):
            reduce.allreduce(filled(1.0))
            members.append(len(reduce.last_members.ranks))
        return members

    assert in_threads(3, rank) == [[3, 3]] * 3


def test_a_late_rank_follows_and_is_in_the_round_after_next(tmp_path: Path) -> None:
    left_out = threading.Event()
    late_note = tmp_path / "run/join_0002"

    def rank(number: int) -> list[tuple[float, tuple[int, ...]]]:
        reduce = quorum(tmp_path, number, grace_s=0.05)
        seen = []
        for turn in range(3):
            if number == 2 and turn == 0:
                left_out.wait()
            if number != 2 and turn == 1:
                left_out.set()
                while not late_note.exists():  # so the next round is closed when rank 2 has said that it is late
                    threading.Event().wait(0.01)
            if turn == 2:
                assert reduce.quorum is not None
                reduce.quorum.grace_s = 300.0
            seen.append((reduce.allreduce(filled(number + 1.0))[0].item(), reduce.last_members.ranks))
        return seen

    rounds = in_threads(3, rank)
    assert rounds[0] == rounds[1] == rounds[2]
    assert rounds[0][0] == (1.5, (0, 1))
    assert rounds[0][2] == (2.0, (0, 1, 2))


def test_a_silent_reducer_is_stood_in_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 dies after its gradient was published; its shard comes from the next."""
    real = Round._members

    def members(self: Round) -> Members:
        found = real(self)
        if self._place.rank == 1:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(Round, "_members", members)

    def rank(number: int) -> torch.Tensor | None:
        try:
            return quorum(tmp_path, number, min_participants=3).allreduce(filled([1.0, 2.0, 6.0][number]))
        except KeyboardInterrupt:
            return None

    first, dead, third = in_threads(3, rank)
    assert dead is None
    assert first is not None
    assert third is not None
    assert torch.equal(first, filled(3.0))
    assert torch.equal(first, third)


def test_the_first_word_on_the_members_counts_for_all(tmp_path: Path) -> None:
    """Someone closed the round for ranks 0 and 1 although all three came."""
    (tmp_path / "run/r000000").mkdir(parents=True)
    (tmp_path / "run/r000000/members").write_text(json.dumps({"ranks": [0, 1], "joining": []}))
    got = in_threads(3, lambda number: quorum(tmp_path, number).allreduce(filled(number + 1.0))[0].item())
    assert got == [1.5, 1.5, 1.5]


def test_a_rank_that_is_rounds_behind_is_told(tmp_path: Path) -> None:
    def rank(number: int) -> None:
        reduce = quorum(tmp_path, number)
        for _ in range(4):
            reduce.allreduce(filled(1.0))

    in_threads(2, rank)
    with pytest.raises(RoundClosedError, match="the others have finished round 3"):
        quorum(tmp_path, 2, round_id=1).allreduce(filled(1.0))


def test_too_few_wait_and_name_who_is_missing(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match=r"1 more of ranks 1, 2 \(min_participants is 2\)"):
        quorum(tmp_path, 0, timeout_s=0.2).allreduce(filled(1.0))


def test_little_remains_of_rounds_whose_leader_died(tmp_path: Path) -> None:
    def rank(number: int) -> None:
        reduce = quorum(tmp_path, number)
        for turn in range(2 if number == 0 else 9):
            patient(reduce, turn, 2).allreduce(filled(1.0))

    in_threads(3, rank)
    rounds = {path.name for path in (tmp_path / "run").glob("r*")}
    assert rounds <= {"r000005", "r000006", "r000007", "r000008"}


@pytest.mark.parametrize(
    ("shard", "order"), [(0, [0, 2, 5]), (1, [2, 5, 0]), (2, [2, 5, 0]), (5, [5, 0, 2]), (3, [0, 2, 5])]
)
def test_every_shard_has_a_reducer_among_the_members(shard: int, order: list[int]) -> None:
    assert Members((0, 2, 5)).reducers(shard) == order


def test_residuals_are_saved_and_go_on(tmp_path: Path) -> None:
    vector = torch.linspace(-1, 1, NUMEL) ** 3

    def rank(number: int, folder: str, restart_after: int | None) -> torch.Tensor:
        reduce = at(tmp_path / folder, number, 2, codec="int4")
        total = torch.zeros(NUMEL)
        for turn in range(4):
            if turn == restart_after:
                saved = reduce.exchange.state_dict()
                reduce = at(tmp_path / folder, number, 2, codec="int4", round_id=turn)
                reduce.exchange.load_state_dict(saved)
            total += reduce.allreduce(vector * (number + 1))
        return total

    through = in_threads(2, lambda number: rank(number, "through", None))
    resumed = in_threads(2, lambda number: rank(number, "resumed", 2))
    assert torch.equal(through[0], resumed[0])
    assert isinstance(at(tmp_path, 0, 2).exchange, Exchange)
