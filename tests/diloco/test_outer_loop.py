"""The outer loop's arithmetic on real torchft, with a manager that averages over one replica."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch

from composer_replication.diloco import _TORCHFT_AVAILABLE, OuterLoop, OuterRound, _DummyWork, make_diloco_outer_loop
from composer_replication.diloco.state_file import dump_state, load_state


class LocalManager:
    """The part of torchft's Manager that DiLoCo uses, for a replica that is alone: the average is its own value."""

    _use_async_quorum = False

    def __init__(self) -> None:
        self.step = 0

    def register_state_dict_fn(self, *_: Any) -> None: ...

    def allow_state_dict_read(self) -> None: ...

    def disallow_state_dict_read(self) -> None: ...

    def start_quorum(self, *_: Any, **__: Any) -> None: ...

    def current_step(self) -> int:
        return self.step

    def allreduce(self, tensor: torch.Tensor, **_: Any) -> Any:
        return _DummyWork(tensor)

    def should_commit(self) -> bool:
        self.step += 1
        return True


def train(steps: int, **settings: Any) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Inner SGD with a constant gradient of -1: each step adds the learning rate to every weight."""
    model = torch.nn.Linear(3, 2, bias=False)
    start = model.weight.detach().clone()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    with make_diloco_outer_loop(LocalManager(), [model], inner, **settings):
        for _ in range(steps):
            inner.zero_grad()
            (-model.weight).sum().backward()
            inner.step()
            seen.append(model.weight.detach().clone())
    return start, model.weight.detach(), seen


def test_torchft_is_there() -> None:
    assert _TORCHFT_AVAILABLE


def test_plain_averaging_lands_on_the_local_parameters() -> None:
    """lr 1, no momentum: θ - (θ - θ_local) = θ_local. A flipped sign would land on the other side of the start."""
    start, end, _ = train(4, sync_every=4, outer_lr=1.0, outer_momentum=0.0, nesterov=False)
    torch.testing.assert_close(end, start + 0.4)


def test_default_outer_optimiser_is_nesterov_with_the_papers_numbers() -> None:
    start, _, seen = train(4, sync_every=2)
    # Δ = -0.2 each round; buf ← 0.9·buf + Δ; θ ← θ - 0.7·(Δ + 0.9·buf).
    first = start + 0.7 * (0.2 + 0.9 * 0.2)
    second = first + 0.7 * (0.2 + 0.9 * (0.9 * 0.2 + 0.2))
    torch.testing.assert_close(seen[1], first)
    torch.testing.assert_close(seen[3], second)


def test_between_syncs_the_inner_optimiser_is_alone() -> None:
    start, _, seen = train(3, sync_every=4)
    torch.testing.assert_close(seen[2], start + 0.3)


def test_bad_settings_are_named() -> None:
    model = torch.nn.Linear(2, 2)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="model_fragments is empty"):
        make_diloco_outer_loop(LocalManager(), [], inner)
    with pytest.raises(ValueError, match="outer_lr must be a positive finite number, got 0"):
        make_diloco_outer_loop(LocalManager(), [model], inner, outer_lr=0)
    with pytest.raises(ValueError, match="sync_every must be a positive whole number, got 0"):
        make_diloco_outer_loop(LocalManager(), [model], inner, sync_every=0)
    with pytest.raises(ValueError, match=r"fragment_update_alpha must be in \[0, 1\], got 2"):
        make_diloco_outer_loop(LocalManager(), [model], inner, fragment_update_alpha=2)


class PeerManager(LocalManager):
    """A manager whose other replicas have deltas that the test chooses; it notes what it was asked for."""

    def __init__(self, *others: float, participants: int = 2) -> None:
        super().__init__()
        self.others, self.participants = others, participants

    def num_participants(self) -> int:
        return self.participants

    def allreduce(self, tensor: torch.Tensor, **_: Any) -> Any:
        tensor += sum(self.others)
        tensor /= 1 + len(self.others)
        return _DummyWork(tensor)

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step = state["step"]


def test_the_outer_gradient_is_start_minus_local_exactly() -> None:
    """θ = 8, locals 8 + 2 and 8 - 4: deltas -2 and 4, their mean 1; lr 1 without momentum gives 7, the locals' mean."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, 8.0)
    inner = torch.optim.SGD(model.parameters(), lr=2.0)
    with make_diloco_outer_loop(PeerManager(4.0), [model], inner, sync_every=1, outer_lr=1.0, outer_momentum=0.0):
        model.weight.grad = torch.full((1, 1), -1.0)
        inner.step()
    assert model.weight.item() == 7.0


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_parameters_that_are_not_finite_are_kept_out_of_the_average(value: float) -> None:
    class Nobody(PeerManager):
        def start_quorum(self, *_: Any, **__: Any) -> None:
            raise AssertionError("the others are not bothered")

    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1))
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    with make_diloco_outer_loop(Nobody(), list(model), inner, sync_every=2), torch.no_grad():
        model[1].weight.fill_(value)
        with pytest.raises(RuntimeError, match=r"round 0: '1/weight' is not finite on this replica, .* a checkpoint$"):
            inner.step()


def test_frozen_parameters_do_not_travel() -> None:
    class Counting(PeerManager):
        sent = 0

        def allreduce(self, tensor: torch.Tensor, **more: Any) -> Any:
            self.sent += tensor.numel()
            return super().allreduce(tensor, **more)

    model = torch.nn.Sequential(torch.nn.Linear(100, 7).requires_grad_(False), torch.nn.Linear(7, 3))
    inner, manager = torch.optim.SGD(model[1].parameters(), lr=1.0), Counting()
    with make_diloco_outer_loop(manager, [model], inner, sync_every=1):
        inner.step()
    assert manager.sent == 7 * 3 + 3
    with pytest.raises(ValueError, match=r"model_fragments\[0\] has no trainable parameters: use fewer fragments"):
        make_diloco_outer_loop(manager, [model[0]], inner)


@pytest.mark.parametrize("settings", [{}, {"fragment_sync_delay": 2, "fragment_update_alpha": 0.25}])
@pytest.mark.parametrize("stop", range(1, 9))
def test_a_run_from_a_checkpoint_continues_bit_for_bit(stop: int, settings: dict[str, Any]) -> None:
    """Also with a round in flight: at steps 2 and 3 of 4, and 6 and 7 of 8, with a delay."""

    def build() -> tuple[torch.nn.Sequential, torch.optim.Optimizer, OuterLoop, torch.Generator]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
        inner = torch.optim.AdamW(model.parameters(), lr=0.05)
        loop = make_diloco_outer_loop(PeerManager(0.01), list(model), inner, sync_every=8, **settings)
        return model, inner, loop, torch.Generator().manual_seed(1)

    def steps(made: tuple[Any, Any, Any, torch.Generator], count: int) -> None:
        model, inner, loop, generator = made
        with loop:
            for _ in range(count):
                inner.zero_grad()
                model(torch.randn(5, 3, generator=generator)).square().sum().backward()
                inner.step()

    whole = build()
    steps(whole, 30)
    first = build()
    steps(first, stop)
    tensors, numbers = first[2].state_dict()
    assert (numbers["in_flight"] is not None) == (bool(settings) and stop % 4 in (2, 3))
    numbers = json.loads(json.dumps(numbers))
    resumed = build()
    resumed[0].load_state_dict(first[0].state_dict())
    resumed[1].load_state_dict(first[1].state_dict())
    resumed[3].set_state(first[3].get_state())
    resumed[2].load_state_dict(load_state(dump_state(tensors)), numbers)
    assert resumed[2].digest() == first[2].digest()
    steps(resumed, 30 - stop)
    assert resumed[2].digest() == whole[2].digest()
    for left, right in zip(resumed[0].parameters(), whole[0].parameters(), strict=True):
        assert torch.equal(left, right)


def test_a_checkpoint_of_other_fragments_is_refused() -> None:
    layers = [torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)]
    inner = torch.optim.SGD([one for layer in layers for one in layer.parameters()], lr=0.1)
    tensors, numbers = make_diloco_outer_loop(LocalManager(), layers[:1], inner).state_dict()
    with pytest.raises(ValueError, match=r"'shared/1/weight' has no such tensor there and shape \(3, 3\) here"):
        make_diloco_outer_loop(LocalManager(), layers, inner).load_state_dict(tensors, numbers)


def test_too_few_participants_are_an_error_and_nothing_is_averaged() -> None:
    model = torch.nn.Linear(2, 2)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    manager = PeerManager(participants=2)
    too_few = "round 0 has 2 participants and min_participants is 3: start the lighthouse with min_replicas=3"
    loop = make_diloco_outer_loop(manager, [model], inner, sync_every=1, min_participants=3)
    with loop, pytest.raises(RuntimeError, match=too_few):
        inner.step()
    assert manager.step == 0
    manager.participants = 3
    with make_diloco_outer_loop(manager, [model], inner, sync_every=1, min_participants=3):
        inner.step()
    assert manager.step == 1


def test_torchfts_buckets_are_refused_where_they_leave_tensors_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHFT_USE_BUCKETIZATION", "True")
    model = torch.nn.Linear(2, 2)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    make_diloco_outer_loop(LocalManager(), [model], inner)
    mixed = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2).bfloat16())
    with pytest.raises(ValueError, match="TORCHFT_USE_BUCKETIZATION=True with several buckets or dtypes"):
        make_diloco_outer_loop(LocalManager(), [mixed], inner)
    monkeypatch.setattr("torchft.local_sgd._StreamingDiLoCoFragment.bucket_cap_mb", 16)
    with pytest.raises(ValueError, match="TORCHFT_USE_BUCKETIZATION=True with several buckets or dtypes"):
        make_diloco_outer_loop(LocalManager(), [model], inner)


def test_quantisation_that_would_do_nothing_is_refused() -> None:
    model = torch.nn.Linear(2, 2)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="should_quantize=True has no effect without triton and an accelerator"):
        make_diloco_outer_loop(LocalManager(), [model], inner, should_quantize=True)


class FailingManager(PeerManager):
    """A manager whose first rounds fail in the average."""

    retries = 3

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures, self.error = failures, None

    def start_quorum(self, *_: Any, **__: Any) -> None:
        self.error: Exception | None = None

    def errored(self) -> Exception | None:
        return self.error

    def allreduce(self, tensor: torch.Tensor, **_: Any) -> Any:
        if self.failures:
            tensor.zero_()
            self.error = RuntimeError("a connection ended")
        return _DummyWork(tensor)

    def should_commit(self) -> bool:
        if self.error is not None:
            self.failures -= 1
            return False
        return super().should_commit()


@pytest.mark.parametrize(("failures", "kept"), [(1, True), (3, True), (4, False)])
def test_a_failed_round_is_tried_again_with_its_inner_steps(failures: int, kept: bool) -> None:
    model = torch.nn.Linear(1, 1, bias=False)
    start = model.weight.item()
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    rounds: list[OuterRound] = []
    settings: dict[str, Any] = {"sync_every": 2, "outer_lr": 1.0, "outer_momentum": 0.0, "on_round": rounds.append}
    with make_diloco_outer_loop(FailingManager(failures), [model], inner, **settings):
        for _ in range(2):
            model.weight.grad = torch.full((1, 1), -1.0)
            inner.step()
    assert [one.committed for one in rounds] == [kept]
    assert model.weight.item() == pytest.approx(start + 2 if kept else start)


@pytest.mark.parametrize(("failures", "failed"), [(8, 2), (11, 2), (12, 3), (99, 3)])
def test_the_third_failed_round_in_a_row_is_an_error(failures: int, failed: int) -> None:
    """Each is tried four times; one that is committed begins the count anew."""
    model = torch.nn.Linear(1, 1)
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    manager, rounds = FailingManager(failures), list[OuterRound]()
    with make_diloco_outer_loop(manager, [model], inner, sync_every=1, on_round=rounds.append) as loop:
        inner.step()
        inner.step()
        with pytest.raises(RuntimeError, match=r"round 0 failed 8 times in a row .*a connection ended.*hostname"):
            loop.finish()
        if failed < 3:
            inner.step()
            loop.finish()
            manager.failures = 8
            inner.step()
            inner.step()
            inner.step()
            loop.finish()
        else:
            with pytest.raises(RuntimeError, match=r"round 0 failed 12 times in a row .*a connection ended.*hostname"):
                inner.step()
    assert [one.committed for one in rounds] == [False] * failed + ([True, False, False, True] if failed < 3 else [])


def test_a_round_in_which_a_replica_heals_instead_of_averaging_did_not_fail() -> None:
    manager = HealingManager()
    manager.should_commit = lambda: False  # type: ignore[method-assign]
    model, other = torch.nn.Linear(1, 1), HealingManager()
    make_diloco_outer_loop(other, [torch.nn.Linear(1, 1)], torch.optim.SGD(model.parameters(), lr=1.0))
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    with make_diloco_outer_loop(manager, [model], inner, sync_every=1) as loop:
        for _ in range(5):
            with torch.no_grad():
                loop._fragments[0].original_parameters["bias"] += 1
            manager.load(other.save())
            inner.step()
        loop.finish()


def test_a_healed_replica_has_all_of_the_others_state() -> None:
    def build(seed: int) -> tuple[torch.nn.Linear, torch.optim.Optimizer, OuterLoop, Any, list[int]]:
        torch.manual_seed(seed)
        model, manager, position = torch.nn.Linear(3, 2), HealingManager(), [seed]
        inner = torch.optim.AdamW(model.parameters(), lr=0.05)
        loop = make_diloco_outer_loop(manager, [model], inner, sync_every=2)
        loop.notice("position", lambda value: position.__setitem__(0, value), lambda: position[0])
        with pytest.raises(ValueError, match="state 'position' is registered already"):
            loop.notice("position", print, print)
        with loop:
            for _ in range(3 + seed):
                inner.zero_grad()
                model(torch.randn(4, 3)).square().sum().backward()
                inner.step()
        return model, inner, loop, manager, position

    healthy, behind = build(1), build(0)
    assert behind[2].digest() != healthy[2].digest()
    behind[3].load(load_state(dump_state(healthy[3].save())))
    assert behind[2].digest() == healthy[2].digest()
    assert torch.equal(behind[0].weight, healthy[0].weight)
    assert torch.equal(behind[1].state[behind[0].weight]["exp_avg"], healthy[1].state[healthy[0].weight]["exp_avg"])
    assert behind[4] == [1]
    # Whoever is in step keeps what it has learned since the last round.
    with torch.no_grad():
        behind[0].weight += 1
    mine = behind[0].weight.clone()
    behind[3].load(healthy[3].save())
    assert torch.equal(behind[0].weight, mine)


class HealingManager(LocalManager):
    """A manager that keeps the state functions it was given."""

    load: Any
    save: Any

    def register_state_dict_fn(self, key: str, load: Any, save: Any) -> None:
        assert key == "outer_loop"
        self.load, self.save = load, save


class UnconnectedManager(FailingManager):
    """A manager that finds others and cannot connect to them at first."""

    meets_first = True
    meeting_timeout_s = 1e9

    def agree(self, digest: str, *, has_round: bool = True) -> bool:
        if self.failures:
            self.error = RuntimeError("connect timed out\nat 0x1")
        return False


def test_failed_attempts_to_connect_are_warned_of_at_growing_distances(caplog: pytest.LogCaptureFixture) -> None:
    model = torch.nn.Linear(1, 1)
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    with make_diloco_outer_loop(UnconnectedManager(9), [model], inner, sync_every=1):
        said = [one.getMessage() for one in caplog.records]
        inner.step()
    assert [line.split()[:2] for line in said] == [["attempt", str(number)] for number in (1, 2, 4, 8)]
    for line in said:
        assert "to connect to the other replicas failed (connect timed out), trying again; if this" in line
        assert "diloco.hostname of each is an address that the others reach, and that no firewall closes ports" in line


class MeetingManager(PeerManager):
    """A manager whose other replicas are at a sync when this one comes."""

    meets_first = True

    def agree(self, digest: str, *, has_round: bool = True) -> bool:
        return True


@pytest.mark.parametrize("done", [0, 1, 3])
def test_who_comes_while_the_others_are_at_a_sync_skips_the_steps_up_to_it(done: int) -> None:
    model = torch.nn.Linear(1, 1)
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    rounds: list[OuterRound] = []
    loop = make_diloco_outer_loop(MeetingManager(), [model], inner, sync_every=4, on_round=rounds.append)
    loop._local_step = done
    skipped: list[int] = []
    loop.on_skipped = skipped.append
    with loop:
        assert skipped == [4 - done]
        assert len(rounds) == 1
        for _ in range(4):
            inner.step()
    assert len(rounds) == 2


@pytest.mark.parametrize(("failures", "has_average"), [(1, True), (9, False)])
def test_a_checkpoint_of_a_round_that_fails_tries_it_again_or_sends_it_later(failures: int, has_average: bool) -> None:
    model = torch.nn.Linear(1, 1)
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    with make_diloco_outer_loop(FailingManager(failures), [model], inner, sync_every=4, fragment_sync_delay=2) as loop:
        inner.step()
        inner.step()
        tensors, numbers = loop.state_dict()
    assert (numbers["in_flight"] is not None) == has_average
    assert numbers["local_step"] == (2 if has_average else 1)
    assert any(name.startswith("average/") for name in tensors) == has_average


def test_a_state_that_does_not_fit_is_not_blamed_on_the_lighthouse(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchft.manager import Manager

    from composer_replication.diloco.torchft_replica import ReplicaManager

    def heals(*_: Any, **__: Any) -> None:
        raise ValueError("'shared/0/weight' has shape (2,) there")

    monkeypatch.setattr(Manager, "start_quorum", heals)
    manager = object.__new__(ReplicaManager)
    manager._replica_id, manager._step = "replica_1", 3
    with pytest.raises(RuntimeError, match="replica_1 cannot take over the others' state at round 3: 'shared"):
        manager.start_quorum()
