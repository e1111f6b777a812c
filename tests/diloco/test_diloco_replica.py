"""One replica: the outer loop around an optimiser and around the trainers, its record, its checkpoints."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from run.training_material import json_lines, logs_config, pair
from safetensors.torch import load_file
from torch import nn

from composer_replication.config import Config
from composer_replication.diloco.replica import Replica
from composer_replication.diloco.settings import DilocoSection
from composer_replication.run.launch import TrainingRun


def small_settings(folder: Path, **more: Any) -> DilocoSection:
    given: dict[str, Any] = {"sync_every": 2, "codec": "float32", "poll_interval_s": 0.05, **more}
    return DilocoSection(backend="store", store=str(folder / "store"), run_id="run", **given)


def small_model() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def train_small(replica: Replica, steps: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for step in range(steps):
        loss = model(torch.full((1, 3), float(replica.rank + step))).square().sum()
        optimizer.zero_grad()
        loss.backward()
        replica.saw(loss)
        replica.saw_tokens(10 * (replica.rank + 1))
        optimizer.step()


def in_threads(*work: Callable[[], None]) -> None:
    failures: list[BaseException] = []

    def guarded(one: Callable[[], None]) -> None:
        try:
            one()
        except BaseException as error:  # noqa: BLE001, raised below
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(one,)) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def rounds(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def test_two_replicas_have_the_same_parameters_after_every_round(tmp_path: Path) -> None:
    models = [small_model(), small_model()]

    def train(rank: int) -> None:
        settings = small_settings(tmp_path, replicas=2, averaging="tokens")
        replica = Replica(settings, rank, tmp_path / str(rank))
        optimizer = torch.optim.SGD(models[rank].parameters(), lr=0.01)
        replica.wrap(models[rank], optimizer)
        replica.start()
        train_small(replica, 7, models[rank], optimizer)
        replica.finish()
        replica.close()

    in_threads(lambda: train(0), lambda: train(1))
    first, second = rounds(tmp_path / "0"), rounds(tmp_path / "1")
    assert [line["round"] for line in first] == [0, 1, 2]
    assert [line["digest"] for line in first] == [line["digest"] for line in second]
    assert len({line["digest"] for line in first}) == 3
    assert [line["step"] for line in second] == [2, 4, 6]
    assert all(line["participants"] == 2 and line["committed"] and not line["healed"] for line in first + second)
    assert [line["loss"] for line in first] != [line["loss"] for line in second]
    # The step after the last sync is dropped.
    assert torch.equal(models[0].weight, models[1].weight)
    assert not torch.equal(models[0].weight, small_model().weight)


def test_the_recorded_loss_is_the_mean_of_the_steps_since_the_last_round(tmp_path: Path) -> None:
    replica = Replica(small_settings(tmp_path, replicas=1), 0, tmp_path)
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    replica.wrap(model, optimizer)
    replica.start()
    for losses in ((1.0, 2.0), (4.0,), (8.0,), (0.0,)):
        for loss in losses:  # micro-batches
            replica.saw(torch.tensor(loss))
        optimizer.step()
    assert [line["loss"] for line in rounds(tmp_path)] == [3.5, 4.0]


def test_the_average_is_weighted_by_the_tokens_that_were_reported(tmp_path: Path) -> None:
    """Two replicas that move by -1 and -2 with 10 and 20 tokens: the outer gradient is 5/3."""
    models = [small_model(), small_model()]

    def train(rank: int) -> None:
        settings = small_settings(
            tmp_path, replicas=2, sync_every=1, averaging="tokens", outer_lr=1.0, outer_momentum=0.0, nesterov=False
        )
        replica = Replica(settings, rank, tmp_path / str(rank))
        optimizer = torch.optim.SGD(models[rank].parameters(), lr=1.0)
        replica.wrap(models[rank], optimizer)
        replica.start()
        for one in models[rank].parameters():
            one.grad = torch.full_like(one, rank + 1.0)
        replica.saw_tokens(torch.tensor(10 * (rank + 1)))
        optimizer.step()
        replica.close()

    in_threads(lambda: train(0), lambda: train(1))
    for model in models:
        torch.testing.assert_close(model.weight, small_model().weight - 5 / 3)


def test_a_healed_replica_goes_on_at_the_step_of_the_others(tmp_path: Path) -> None:
    """The state that one replica hands over, taken over by another: between steps, and within one."""
    taken: list[tuple[int, Any]] = []
    made = []
    for rank in (0, 1):
        replica = Replica(small_settings(tmp_path, replicas=1), 0, tmp_path / str(rank))
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        replica.wrap(model, optimizer, take_over=lambda *args: taken.append(args), hand_over=lambda: {"teacher": 7})
        replica.start()
        made.append((replica, model, optimizer))
    ahead, behind = made
    train_small(ahead[0], 6, *ahead[1:])
    state = ahead[0].outer._save()
    behind[0].outer._heal(state)
    # This manager repeats a round from the shared parameters: three rounds of two steps are done.
    assert taken == [(6, {"teacher": 7})]
    assert behind[0].steps == 6
    behind[0].steps, behind[0]._is_in_step = 0, True
    behind[0].outer._state.load_shared({**ahead[0].outer._state.shared(), "shared/0/bias": torch.zeros(2)})
    behind[0].outer._heal(state)
    assert taken[1:] == [(5, {"teacher": 7})]  # the trainer counts the step under way itself


def run_config(folder: Path, **changes: Any) -> Config:
    given = logs_config(folder, steps=6, save_every=3, **changes.pop("training", {}))
    json_lines(folder / "pairs.jsonl", *(pair(number) for number in range(3)))
    given["model"]["lora"] = {"r": 2}
    given["diloco"] = {"replicas": 1, "backend": "store", "store": str(folder / "store"), "sync_every": 2, **changes}
    return Config(**given)


def outer_tensors(checkpoint: Path) -> dict[str, torch.Tensor]:
    tensors = load_file(checkpoint / "channels-0.safetensors")
    return {name: tensor for name, tensor in tensors.items() if name.startswith("diloco/")}


@pytest.fixture
def first_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICA_RANK", "0")


@pytest.mark.usefixtures("first_replica")
def test_a_resumed_replica_ends_bit_for_bit_as_one_that_was_not_stopped(tmp_path: Path) -> None:
    """The checkpoint is between two syncs: shared and local parameters differ, and there is momentum."""
    config = run_config(tmp_path, run_id="whole")
    whole = TrainingRun(config).run()
    assert whole.output_dir == tmp_path / "run" / "replica-0"
    middle = whole.output_dir / "checkpoint-3"
    elsewhere = config.training.model_copy(update={"output_dir": tmp_path / "resumed", "resume": str(middle)})
    resumed = TrainingRun(config.model_copy(update={"training": elsewhere})).run()
    assert (resumed.resumed_from, resumed.steps) == (3, 6)
    for file in ("adapter_model.safetensors", "channels-0.safetensors"):
        before, after = load_file(whole.checkpoint / file), load_file(resumed.checkpoint / file)
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)
    assert [line["digest"] for line in rounds(whole.output_dir)][1:] == [
        line["digest"] for line in rounds(resumed.output_dir)
    ]
    # Only adapters travel, and the model that is saved is the shared one.
    shared = {name: one for name, one in outer_tensors(whole.checkpoint).items() if "/shared/" in name}
    assert shared
    assert all("lora_" in name for name in shared)
    saved = load_file(whole.checkpoint / "adapter_model.safetensors")
    assert {one.numel() for one in shared.values()} == {one.numel() for one in saved.values()}
    for name, tensor in saved.items():
        matching = f"diloco/shared/0/{name.replace('.weight', '.default.weight').replace('.', '/')}"
        assert torch.equal(shared[matching], tensor)
    local = load_file(middle / "adapter_model.safetensors")
    assert any(not torch.equal(local[name], saved[name]) for name in saved)


@pytest.mark.usefixtures("first_replica")
def test_a_finished_replica_still_meets_the_others_and_leaves_its_files_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = run_config(tmp_path)
    ended = TrainingRun(config).run()
    files = {file: file.stat().st_mtime_ns for file in ended.output_dir.rglob("*") if file.is_file()}
    met = []
    start = Replica.start
    monkeypatch.setattr(
        Replica, "start", lambda self, steps: (start(self, steps), met.append((steps, self.outer.digest())))
    )
    again = TrainingRun(config).run()
    assert (again.checkpoint, again.steps) == (ended.checkpoint, 6)
    assert met == [(6, rounds(ended.output_dir)[-1]["digest"])]
    assert {file: file.stat().st_mtime_ns for file in ended.output_dir.rglob("*") if file.is_file()} == files


@pytest.mark.usefixtures("first_replica")
def test_a_finished_replica_can_take_over_the_state_of_one_that_is_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, start = run_config(tmp_path), Replica.start
    ended = TrainingRun(config).run()
    steps = []

    def heals(self: Replica, done: int) -> None:
        start(self, done)
        state = self.outer._save()
        state["shared"] = {name: tensor + 1 for name, tensor in state["shared"].items()}
        state["more"]["replica"]["round"] += 1
        self.outer._heal(state)
        steps.append(self.steps)

    monkeypatch.setattr(Replica, "start", heals)
    assert TrainingRun(config).run().steps == ended.steps
    assert steps == [8]


@pytest.mark.usefixtures("first_replica")
def test_with_fragments_the_final_model_is_the_shared_one(tmp_path: Path) -> None:
    config = run_config(tmp_path, fragments=2, update_alpha=0.25)
    result = TrainingRun(config).run()
    shared = {name: one for name, one in outer_tensors(result.checkpoint).items() if "/shared/" in name}
    saved = load_file(result.checkpoint / "adapter_model.safetensors")
    assert len(shared) == len(saved)
    by_name = {name.partition("/shared/")[2].partition("/")[2]: one for name, one in shared.items()}
    for name, tensor in saved.items():
        assert torch.equal(by_name[name.replace(".weight", ".default.weight").replace(".", "/")], tensor)


@pytest.mark.usefixtures("first_replica")
def test_replicas_begin_equal_and_draw_differently(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = run_config(tmp_path, replicas=2)
    runs = []
    for rank in ("0", "1"):
        monkeypatch.setenv("REPLICA_RANK", rank)
        runs.append(TrainingRun(given))
    first, second = ([one for one in run.trainer.model.parameters() if one.requires_grad] for run in runs)
    assert all(torch.equal(mine, its) for mine, its in zip(first, second, strict=True))
    assert [run.trainer.args.seed for run in runs] == [0, 1]
    assert runs[0].trainer._rows_digest != runs[1].trainer._rows_digest


def test_a_run_with_replicas_says_how_to_start_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REPLICA_RANK", raising=False)
    with pytest.raises(ValueError, match="REPLICA_RANK is not set"):
        TrainingRun(run_config(tmp_path))


def test_the_last_round_of_learners_that_never_wait_is_waited_for(tmp_path: Path) -> None:
    models = [small_model(), small_model()]

    def train(rank: int) -> None:
        settings = small_settings(tmp_path, replicas=2, averaging="decoupled")
        replica = Replica(settings, rank, tmp_path / str(rank))
        optimizer = torch.optim.SGD(models[rank].parameters(), lr=0.01)
        replica.wrap(models[rank], optimizer)
        replica.start()
        train_small(replica, 2, models[rank], optimizer)
        replica.finish()
        replica.close()

    in_threads(lambda: train(0), lambda: train(1))
    for rank in (0, 1):
        assert [line["participants"] for line in rounds(tmp_path / str(rank))] == [2]
    assert torch.equal(models[0].weight, models[1].weight)
    assert not torch.equal(models[0].weight, small_model().weight)


def test_learners_that_never_wait_may_end_at_different_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The last round of the slower one has nobody else: it is dropped, and its model is the shared one."""
    monkeypatch.setattr("composer_replication.diloco.rounds._LAST_ROUND_S", 0.1)
    models = [small_model(), small_model()]

    def train(rank: int) -> None:
        settings = small_settings(tmp_path, replicas=2, averaging="decoupled", timeout_s=120.0, grace_s=0.05)
        replica = Replica(settings, rank, tmp_path / str(rank))
        optimizer = torch.optim.SGD(models[rank].parameters(), lr=0.01)
        replica.wrap(models[rank], optimizer)
        replica.start()
        while replica._manager.current_step() < 2 or (rank and not (tmp_path / "over").exists()):
            train_small(replica, 1, models[rank], optimizer)
        if rank:
            train_small(replica, 3, models[rank], optimizer)
            assert replica.outer._in_flight is not None
            _, numbers = replica.state_dict()
            assert numbers["in_flight"] is None
        replica.finish()
        if not rank:
            (tmp_path / "over").touch()
        assert torch.equal(models[rank].weight, replica.outer._state.shared()["shared/0/weight"])
        replica.close()

    in_threads(lambda: train(0), lambda: train(1))
    assert "was not averaged, and its steps are lost" in caplog.text


def test_a_replica_that_joins_at_the_last_sync_makes_no_more_rounds() -> None:
    from types import SimpleNamespace

    from composer_replication.trainer.outer_steps import OuterSteps, _Start

    trainer, rested = OuterSteps(), []
    trainer.state, trainer.lr_scheduler = SimpleNamespace(global_step=4, max_steps=12), None
    trainer._globalstep_last_logged = 4
    replica: Any = SimpleNamespace(
        start=lambda _: trainer._take_over_position(12, {}), rest=lambda: rested.append(True)
    )
    trainer.replica = replica
    _Start(trainer).on_train_begin(None, trainer.state, None)
    # The trainer makes one step in any case, and logs the mean loss of the steps that it made.
    assert (trainer.state.global_step, trainer._globalstep_last_logged, rested) == (11, 11, [True])


def test_a_trainer_that_trains_twice_starts_its_replica_once_each_time(tmp_path: Path) -> None:
    from types import SimpleNamespace

    from transformers import Trainer, TrainingArguments

    from composer_replication.trainer.outer_steps import OuterSteps

    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": (self.weight * x).sum()}

    class Replicated(OuterSteps, Trainer):  # type: ignore[misc]
        pass

    arguments = TrainingArguments(str(tmp_path), max_steps=1, report_to=[], save_strategy="no", use_cpu=True)
    trainer = Replicated(Small(), arguments, train_dataset=[{"x": torch.ones(1)}])
    seen: list[str] = []
    replica: Any = SimpleNamespace(
        wrap=lambda *_, **__: seen.append("wrap"),
        start=lambda _: seen.append("start"),
        saw=lambda _: None,
        close=lambda: seen.append("close"),
    )
    trainer.replica = replica
    trainer.train()
    trainer.train()
    assert seen == ["wrap", "start", "close"] * 2
