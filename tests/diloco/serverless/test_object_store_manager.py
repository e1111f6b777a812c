"""torchft's outer loop over an object store: real processes, kills, restarts; and the manager's surface."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import environment, wait_for
from ranks import at, errors_of, in_threads
from torchft.local_sgd import DiLoCo

from composer_replication.diloco import make_diloco_outer_loop
from composer_replication.diloco.serverless import MockManager, ObjectStoreManager, _ImmediateWork
from composer_replication.diloco.serverless.allreduce import _ImmediateWork as _ImmediateWorkOfTheApi
from composer_replication.diloco.serverless.one_round import Round


class Run:
    """Replicas in processes, all over one folder."""

    def __init__(self, folder: Path, replicas: int, **settings: Any) -> None:
        self.folder, self.replicas = folder, replicas
        self.settings = {"rounds": 0, "sync_every": 4, "manager": {}, **settings}
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, *ranks: int) -> None:
        for rank in ranks or range(self.replicas):
            program = Path(__file__).with_name("store_process.py")
            arguments = [rank, self.replicas, self.folder / "store", self.rounds_file(rank), json.dumps(self.settings)]
            with (self.folder / f"{rank}.log").open("ab") as log:
                self.processes[rank] = subprocess.Popen(
                    [sys.executable, program, *map(str, arguments)], env=environment(), stdout=log, stderr=log
                )

    def rounds_file(self, rank: int) -> Path:
        return self.folder / f"{rank}.jsonl"

    def rounds(self, rank: int) -> list[dict[str, Any]]:
        file = self.rounds_file(rank)
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def reached(self, rank: int, number: int) -> bool:
        process = self.processes[rank]
        assert process.poll() in (None, 0, -signal.SIGKILL), (self.folder / f"{rank}.log").read_text()[-3000:]
        return any(one["round"] >= number and one["committed"] for one in self.rounds(rank))

    def wait_for_round(self, number: int, *ranks: int) -> None:
        for rank in ranks or range(self.replicas):
            wait_for(lambda rank=rank: self.reached(rank, number))  # type: ignore[misc]

    def kill(self, rank: int) -> None:
        self.processes[rank].send_signal(signal.SIGKILL)
        self.processes[rank].wait()

    def digests(self) -> dict[int, set[str]]:
        """The digests of every committed round, over all replicas."""
        found: dict[int, set[str]] = {}
        for rank in range(self.replicas):
            for one in self.rounds(rank):
                if one["committed"]:
                    found.setdefault(one["round"], set()).add(one["digest"])
        return found

    def last_round(self) -> int:
        return max(one["round"] for rank in range(self.replicas) for one in self.rounds(rank))


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    started: list[Run] = []
    yield started
    for run in started:
        for process in run.processes.values():
            process.kill()
            process.wait()


def started(runs: list[Run], folder: Path, replicas: int, **settings: Any) -> Run:
    run = Run(folder, replicas, **settings)
    runs.append(run)
    run.start()
    return run


def finished(run: Run) -> None:
    for rank, process in run.processes.items():
        assert process.wait() == 0, (run.folder / f"{rank}.log").read_text()[-3000:]


def check_identical(run: Run, replicas: int, rounds: int) -> None:
    """Parameters and momentum are the same after every round, and the replicas learn."""
    assert {number: len(found) for number, found in run.digests().items()} == dict.fromkeys(range(rounds), 1)
    assert all(len(run.rounds(rank)) == rounds for rank in range(replicas))
    assert all(run.rounds(rank)[-1]["loss"] < run.rounds(rank)[0]["loss"] for rank in range(replicas))
    assert {one["participants"] for rank in range(replicas) for one in run.rounds(rank)} == {replicas}


def test_two_processes_stay_identical(tmp_path: Path, runs: list[Run]) -> None:
    run = started(runs, tmp_path, 2, rounds=6, manager={"codec": "int4"})
    finished(run)
    check_identical(run, 2, 6)


@pytest.mark.parametrize("replicas", [4, 8])
def test_many_processes_stay_identical(tmp_path: Path, runs: list[Run], replicas: int) -> None:
    settings = {"streaming": True, "fragment_sync_delay": 1, "fragment_update_alpha": 0.5}
    run = started(runs, tmp_path, replicas, rounds=8, manager={"codec": "auto", "averaging": "tokens"}, **settings)
    finished(run)
    check_identical(run, replicas, 8)


def test_a_killed_replica_comes_back_where_all_are_waited_for(tmp_path: Path, runs: list[Run]) -> None:
    run = started(runs, tmp_path, 2)
    run.wait_for_round(2)
    run.kill(1)
    run.start(1)
    run.wait_for_round(run.last_round() + 3)
    assert all(len(found) == 1 for found in run.digests().values())
    assert len({one["pid"] for one in run.rounds(1)}) == 2


def test_killed_replicas_come_back_to_a_quorum(tmp_path: Path, runs: list[Run]) -> None:
    """The others go on; the leader is killed too, and all end up in one round again."""
    run = started(runs, tmp_path, 3, manager={"min_participants": 2, "grace_s": 0.5})
    run.wait_for_round(2)
    for victim in (2, 0):
        run.kill(victim)
        survivors = [rank for rank in range(3) if rank != victim]
        run.wait_for_round(run.last_round() + 3, *survivors)
        assert run.rounds(survivors[0])[-1]["participants"] == 2
        run.start(victim)
        wait_for(lambda victim=victim: len({one["pid"] for one in run.rounds(victim)}) == 2)  # type: ignore[misc]
        wait_for(lambda: run.rounds(1)[-1]["participants"] == 3)
    assert all(len(found) == 1 for found in run.digests().values())


def outer(manager: Any, model: torch.nn.Module, **settings: Any) -> tuple[Any, torch.optim.Optimizer]:
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    return make_diloco_outer_loop(manager, [model], inner, **settings), inner


def test_one_round_moves_the_parameters_to_the_mean_of_the_replicas(tmp_path: Path) -> None:
    """With outer learning rate 1 and no momentum: 8 goes to the mean of 8 - 1 and 8 - 3. No sign is flipped."""

    def rank(number: int) -> float:
        model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.constant_(model.weight, 8.0)
        loop, inner = outer(
            ObjectStoreManager(at(tmp_path, number, 2)), model, outer_lr=1.0, outer_momentum=0.0, sync_every=1
        )
        with loop:
            model.weight.grad = torch.full((1, 1), [1.0, 3.0][number])
            inner.step()
        return model.weight.item()

    assert in_threads(2, rank) == [6.0, 6.0]


def test_the_manager_serves_torchfts_own_outer_loop(tmp_path: Path) -> None:
    def rank(number: int) -> torch.Tensor:
        model = torch.nn.Linear(3, 2)
        for parameter in model.parameters():
            torch.nn.init.constant_(parameter, float(number))
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        manager = MockManager(at(tmp_path, number, 2))
        sgd = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        with DiLoCo(manager, [model], inner, sgd, sync_every=2):
            for _ in range(6):
                inner.zero_grad()
                model(torch.full((4, 3), number + 1.0)).sum().backward()
                inner.step()
        assert manager.current_step() == 3
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    first, second = in_threads(2, rank)
    assert torch.equal(first, second)


def test_the_surface_of_the_api(tmp_path: Path) -> None:
    manager = MockManager(at(tmp_path, 0, 1))
    assert manager.num_participants == 1
    assert manager.num_participants() == 1
    assert manager.is_leader()
    assert manager.wait_quorum() == 1
    assert manager._use_async_quorum is False
    manager.register_state_dict_fn("key", None, None)
    assert manager._state_dict_fns == {"key": (None, None)}
    manager.start_quorum()
    tensor = torch.ones(3)
    work = manager.allreduce(tensor, should_quantize=False)
    assert isinstance(work, _ImmediateWork)
    assert _ImmediateWorkOfTheApi is _ImmediateWork
    assert work.wait() is True
    assert work.get_future().wait() is tensor
    assert torch.equal(tensor, torch.ones(3))
    assert manager.should_commit()
    assert manager.current_step() == manager._step == 1


def test_a_failed_round_is_raised_where_it_is_waited_for(tmp_path: Path) -> None:
    manager = ObjectStoreManager(at(tmp_path, 0, 2, timeout_s=0.1))
    manager._has_joined = True
    work = manager.allreduce(torch.ones(3))
    manager.launch()
    with pytest.raises(TimeoutError, match=r"rank 0 of 2, round 0.*for rank 1"):
        work.wait()


def test_a_learner_of_the_decoupled_kind_never_waits(tmp_path: Path) -> None:
    """Its steps go on while nobody else is there, and it takes the average when there is one."""
    manager = ObjectStoreManager(at(tmp_path, 0, 2, averaging="decoupled", grace_s=0.0))
    manager._has_joined = True
    model = torch.nn.Linear(2, 2)
    loop, inner = outer(manager, model, sync_every=2)

    def step() -> None:
        inner.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        manager.report_progress(1, 1)
        inner.step()

    with loop:
        for _ in range(7):
            step()
        assert manager.current_step() == 0
        other = at(tmp_path, 1, 2, averaging="decoupled", grace_s=0.0)
        other.allreduce_many(
            [torch.zeros_like(one) for one in model.parameters()], names=["weight", "bias"], tokens=1, steps=1
        )
        wait_for(manager.is_done)
        step()
    assert manager.current_step() == 1
    assert manager.last_participants == (0, 1)


def test_a_learner_whose_last_round_is_over_does_not_wait_to_join_others_that_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def store(number: int) -> Any:
        return at(tmp_path, number, 3, averaging="decoupled", grace_s=0.0)

    def rounds(number: int) -> None:
        reduce = store(number)
        for _ in range(6):
            reduce.allreduce_many([torch.zeros(2, 2), torch.zeros(2)], names=["weight", "bias"], tokens=1, steps=1)

    in_threads(2, lambda number: rounds(number + 1))
    manager, model = ObjectStoreManager(store(0)), torch.nn.Linear(2, 2)
    manager._has_joined = True
    before = model.weight.detach().clone()
    loop, inner = outer(manager, model, sync_every=1)
    with loop:
        manager.report_progress(1, 1)
        model.weight.grad = torch.ones(2, 2)
        with monkeypatch.context() as still:  # under way when the last step ends
            still.setattr(manager, "is_done", lambda: False)
            inner.step()
        loop.finish()
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_checkpoint_with_a_round_in_flight_goes_on_alike(tmp_path: Path, replicas: int) -> None:
    def rank(number: int, folder: str, restarts: bool) -> str:
        def build(round_id: int, run: str) -> tuple[Any, Any, torch.nn.Module, torch.optim.Optimizer]:
            manager = ObjectStoreManager(
                at(tmp_path / folder, number, replicas, codec="int4", run_id=run, round_id=round_id)
            )
            model = torch.nn.Linear(16, 16)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter))
            loop, inner = outer(manager, model, sync_every=4, fragment_sync_delay=2)
            return manager, loop, model, inner

        manager, loop, model, inner = build(0, "first")
        loop.__enter__()
        for turn in range(12):
            if restarts and turn == 7:
                tensors, numbers = loop.state_dict()
                local = {name: one.clone() for name, one in model.state_dict().items()}
                assert numbers["in_flight"] is not None
                loop.__exit__(None, None, None)
                manager, loop, model, inner = build(numbers["manager"]["step"], "second")
                model.load_state_dict(local)
                loop.load_state_dict(tensors, numbers)
                loop.__enter__()
            inner.zero_grad()
            (model(torch.full((1, 16), number + 0.1 * turn)) ** 2).mean().backward()
            inner.step()
        loop.__exit__(None, None, None)
        assert manager.current_step() == 3
        return str(loop.digest())

    through = in_threads(replicas, lambda number: rank(number, "through", False))
    resumed = in_threads(replicas, lambda number: rank(number, "resumed", True))
    assert len({*through, *resumed}) == 1


class DeathError(Exception):
    """The end of a replica's first life."""


def lived(folder: Path, number: int, gradient: Any, rounds: int) -> torch.Tensor:
    """Train as one of two ranks for some rounds of one step, from weights of 8; begin again after a DeathError."""
    model = torch.nn.Linear(64, 2, bias=False)
    torch.nn.init.constant_(model.weight, 8.0)
    manager = ObjectStoreManager(at(folder, number, 2))
    loop, inner = outer(manager, model, outer_lr=1.0, outer_momentum=0.0, sync_every=1)
    try:
        with loop:
            while manager.current_step() < rounds:
                model.weight.grad = torch.full((2, 64), gradient(number))
                inner.step()
    except DeathError:
        return lived(folder, number, gradient, rounds)
    return model.weight.detach()


def test_a_rank_that_dies_before_it_has_reduced_its_shard_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others have its gradient and wait for its shard: they let it in."""
    whole, has_died = Round._reduce, threading.Event()

    def reduce(self: Any, shard: int, members: Any) -> Any:
        if self._place.rank == 1 and not has_died.is_set():
            has_died.set()
            raise DeathError
        return whole(self, shard, members)

    monkeypatch.setattr(Round, "_reduce", reduce)

    got = in_threads(2, lambda number: lived(tmp_path, number, [1.0, 3.0].__getitem__, 1))
    assert all(torch.equal(weight, torch.full((2, 64), 6.0)) for weight in got)
    assert has_died.is_set()


def test_a_rank_that_dies_after_it_has_reduced_its_shard_does_not_make_the_round_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others use its shard already, and have not finished the round when it asks to be let in."""
    others_reduced, decoded, waiting = Round._others_reduced, Round._decoded, ObjectStoreManager._waiting_for_join
    deaths: list[Any] = []
    looks: list[Any] = []

    def dies(self: Any, *arguments: Any) -> Any:
        if self._place.rank == 1 and not deaths:
            deaths.append(self)
            raise DeathError
        return others_reduced(self, *arguments)

    def look(self: Any) -> Any:
        if self.rank == 0 and (looks or (tmp_path / "run/join_0001").exists()):
            looks.append(self)
        return waiting(self)

    def takes_long(self: Any, kind: str, *arguments: Any) -> Any:
        if (kind, self._place.rank, self._round_id) == ("reduced", 0, 0):
            wait_for(lambda: len(looks) > 2)
        return decoded(self, kind, *arguments)

    monkeypatch.setattr(Round, "_others_reduced", dies)
    monkeypatch.setattr(Round, "_decoded", takes_long)
    monkeypatch.setattr(ObjectStoreManager, "_waiting_for_join", look)

    # 8 less the means of 1 and 3, and of 1 and 5: the second life's gradient counts from the second round on.
    got = in_threads(2, lambda number: lived(tmp_path, number, lambda _: 1.0 + number * (2 + 2 * bool(deaths)), 2))
    assert all(torch.equal(weight, torch.full((2, 64), 3.0)) for weight in got)
    assert deaths


@pytest.mark.parametrize("min_participants", [None, 2])
def test_nobody_is_let_in_while_a_rank_uploads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, min_participants: int | None
) -> None:
    """Who asks then may have published a gradient of this round already."""
    publish, seen = Round._publish, []
    ranks = [at(tmp_path, number, 2, min_participants=min_participants) for number in range(2)]

    def watched(self: Round) -> None:
        publish(self)
        seen.append(ranks[self._place.rank].exchange.waits_for)

    monkeypatch.setattr(Round, "_publish", watched)
    in_threads(2, lambda number: [ranks[number].allreduce(torch.ones(2)) for _ in range(2)])
    assert seen == [frozenset()] * 4


@pytest.mark.parametrize(("step", "has_average"), [(5, False), (3, True)])
def test_an_average_that_only_some_checkpoints_hold_is_made_again(tmp_path: Path, step: int, has_average: bool) -> None:
    """Rank 1 goes on from step 7, with the average of round 1; rank 0 from earlier, with none or that of round 0."""

    def rank(number: int) -> str:
        def build(run: str) -> tuple[Any, Any, torch.nn.Module, torch.optim.Optimizer]:
            manager = ObjectStoreManager(at(tmp_path, number, 2, run_id=run))
            model = torch.nn.Linear(4, 4)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter))
            loop, inner = outer(manager, model, sync_every=4, fragment_sync_delay=2)
            return manager, loop, model, inner

        def steps(made: tuple[Any, Any, torch.nn.Module, torch.optim.Optimizer], until: Any) -> None:
            model, inner = made[2:]
            while not until():
                inner.zero_grad()
                (model(torch.full((1, 4), number + 0.1)) ** 2).mean().backward()
                inner.step()

        first = build("first")
        saved: Any = None
        with first[1]:
            for done in range(7):
                steps(first, iter((False, True)).__next__)
                if done + 1 == (step, 7)[number]:
                    saved = first[1].state_dict(), {name: one.clone() for name, one in first[2].state_dict().items()}
        (tensors, numbers), local = saved
        assert (numbers["in_flight"] is not None) == (number == 1 or has_average)
        second = build("second")
        second[2].load_state_dict(local)
        second[1].load_state_dict(tensors, numbers)
        with second[1]:
            steps(second, lambda: second[0].current_step() == 3)
        return str(second[1].digest())

    assert len(set(in_threads(2, rank))) == 1


def test_a_checkpoint_does_not_wait_for_a_rank_that_left_before_it_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("composer_replication.diloco.rounds._CHECKPOINT_S", 0.1)

    def rank(number: int) -> Any:
        manager = ObjectStoreManager(at(tmp_path, number, 2, codec="int4"))
        loop, inner = outer(manager, torch.nn.Linear(2, 2), sync_every=4, fragment_sync_delay=2)
        with loop:
            for _ in range((3, 1)[number]):
                inner.step()
            _, numbers = loop.state_dict()
            manager.abandon()
        return numbers["in_flight"], numbers["local_step"]

    # Both send after their next step, when they go on from here.
    assert in_threads(2, rank) == [(None, 1), (None, 1)]


def test_where_all_ranks_ask_to_join_nobody_waits(tmp_path: Path) -> None:
    def rank(number: int) -> None:
        ObjectStoreManager(at(tmp_path, number, 2)).join()

    in_threads(2, rank)
    said = errors_of(2, rank)
    assert all("all ranks ask to join, and none is left to answer" in one for one in said)
    assert all("give it another run_id" in one for one in said)


def test_a_run_begins_without_a_rank_that_was_there_and_died(tmp_path: Path) -> None:
    """Rank 0 would open the run, and is gone after its hello."""

    def manager(number: int, **settings: Any) -> ObjectStoreManager:
        return ObjectStoreManager(at(tmp_path, number, 4, grace_s=0.1, **settings))

    place = manager(0)._store.place
    hello = {"round": 0, "digest": "state", "has_average": False, "word": "of the dead"}
    place.write(place.name("hello", 0), hello)
    in_threads(3, lambda number: manager(number + 1, min_participants=3).join())
    opened = place.read(place.name("opened"))
    assert opened["source"] == 1
    assert set(opened["hellos"]) == {"1", "2", "3"}


def test_a_rank_that_was_there_and_died_is_named(tmp_path: Path) -> None:
    place = at(tmp_path, 0, 2).place
    place.write(place.name("hello", 0), {"round": 0, "digest": "state", "has_average": False, "word": "of the dead"})
    with pytest.raises(TimeoutError, match=r"waited 0\.2 s for rank 0, which was there, to begin the run"):
        ObjectStoreManager(at(tmp_path, 1, 2, timeout_s=0.2)).join()


def test_weights_of_learners_count_the_steps_that_are_in_the_average(tmp_path: Path) -> None:
    def rank(number: int) -> tuple[float, float]:
        manager = ObjectStoreManager(at(tmp_path, number, 2, averaging="decoupled"))
        manager.report_progress(100, 10)
        manager.start_quorum()
        manager.allreduce(torch.ones(3))
        manager.launch()
        manager.report_progress(50, 5)  # while the round is waited for
        assert manager.should_commit()
        return manager._tokens, manager._steps

    assert in_threads(2, rank) == [(0, 0), (0, 0)]


def test_a_checkpoint_counts_the_tokens_of_a_round_that_is_sent_again(tmp_path: Path) -> None:
    manager = ObjectStoreManager(at(tmp_path, 0, 2, averaging="tokens"))
    manager._has_joined = True
    manager.report_progress(100, 10)
    manager.allreduce(torch.ones(3))
    manager.launch()
    manager.report_progress(20, 2)
    _, numbers = manager.state_dict()
    assert (numbers["tokens"], numbers["steps"]) == (120, 12)
    manager.abandon()
    _, numbers = manager.state_dict()
    assert (numbers["tokens"], numbers["steps"]) == (20, 2)


def test_replicas_are_the_same_before_their_first_step(tmp_path: Path) -> None:
    def rank(number: int) -> float:
        model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.constant_(model.weight, float(number))
        loop, _ = outer(ObjectStoreManager(at(tmp_path, number, 2)), model)
        with loop:
            return model.weight.item()

    assert in_threads(2, rank) == [0.0, 0.0]
