"""From a configuration to a run and back to it: both trainers, what is left on the disk, and resuming."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from run.training_material import json_lines, logs_config, pair, rollout_config, trace_folder
from safetensors.torch import load_file

from composer_replication.config import Config, parse_config
from composer_replication.envs.house_style import make_tasks
from composer_replication.run.arguments import (
    channel_settings,
    grpo_arguments,
    training_arguments,
)
from composer_replication.run.dry_run import dry_run
from composer_replication.run.launch import TrainingRun
from composer_replication.run.optimizers import MuonAndAdamW


def with_settings(given: dict[str, Any], **settings: Any) -> Config:
    """A configuration with `section__key=value` put in place."""
    config = copy.deepcopy(given)
    for path, value in settings.items():
        *sections, key = path.split("__")
        section = config
        for name in sections:
            section = section.setdefault(name, {})
        section[key] = value
    return parse_config(config)


def metrics(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "loss" in line]


def weights(folder: Path, step: int, name: str = "model.safetensors") -> dict[str, torch.Tensor]:
    return dict(load_file(folder / f"checkpoint-{step}" / name))


def same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return set(one) == set(other) and all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_logs_and_pairs_train_three_channels(tmp_path: Path) -> None:
    config = with_settings(logs_config(tmp_path))
    seen: list[tuple[int, bool]] = []
    run = TrainingRun(config, on_log=lambda step, logged: seen.append((step, "loss" in logged)))
    result = run.run()
    assert (result.steps, result.resumed_from) == (2, 0)
    folder = tmp_path / "run"
    assert {"config.yaml", "environment.json", "metrics.jsonl", "checkpoint-2"} <= {
        one.name for one in folder.iterdir()
    }
    assert not (folder / "samples.jsonl").exists()
    for line in metrics(folder):
        assert math.isfinite(line["loss"])
        for channel in ("lm", "sdpo", "replay"):
            assert line[f"channels/{channel}/active_tokens"] > 0
    assert (1, True) in seen
    assert (2, False) in seen
    assert (folder / "config.yaml").read_text() == config.to_yaml()
    again = TrainingRun(config)
    assert again.checkpoint == folder / "checkpoint-2"
    assert again.run().steps == 2
    assert len(metrics(folder)) == 2


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"optimizer__name": "muon", "optimizer__schedule": "cosine", "optimizer__warmup": 2},
        {"model__lora": {"r": 4}, "optimizer__lr": 1e-2, "channels__sdpo__wrapper": "taid"},
        {"channels__replay__variant": "simpo", "channels__sdpo__teacher": "frozen", "training__batch_size": 1},
    ],
)
def test_a_resumed_run_is_the_run_that_was_not_stopped(settings: dict[str, Any], tmp_path: Path) -> None:
    given = logs_config(tmp_path, steps=4, save_every=2, keep_checkpoints=None)
    whole = with_settings(given, **settings, training__output_dir=str(tmp_path / "whole"))
    TrainingRun(whole).run()
    parts = with_settings(given, **settings, training__output_dir=str(tmp_path / "parts"))
    first = TrainingRun(parts)
    first.trainer.add_callback(_stop_behind(first, 2))
    stopped = first.run()
    assert (stopped.steps, first.stopped) == (2, True)
    second = TrainingRun(parts)
    result = second.run()
    assert (result.resumed_from, result.steps) == (2, 4)
    name = "adapter_model.safetensors" if parts.model.lora is not None else "model.safetensors"
    assert same(weights(tmp_path / "whole", 4, name), weights(tmp_path / "parts", 4, name))
    assert not same(weights(tmp_path / "whole", 2, name), weights(tmp_path / "whole", 4, name))
    assert [line["loss"] for line in metrics(tmp_path / "whole")] == [
        line["loss"] for line in metrics(tmp_path / "parts")
    ]


def _stop_behind(run: TrainingRun, step: int) -> Any:
    from transformers import TrainerCallback

    class Stop(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == step - 1:
                run.stop()

    return Stop()


def test_rollouts_train_and_leave_samples(tmp_path: Path) -> None:
    given = rollout_config(tmp_path)
    given["data"]["traces"] = str(trace_folder(tmp_path))
    read = {"type": "function", "function": {"name": "Read", "parameters": {"type": "object", "properties": {}}}}
    shown = (pair(number, tools=[read]) for number in range(3))
    given["data"]["pairs"] = str(json_lines(tmp_path / "pairs.jsonl", *shown))
    given["environment"]["arguments"] = {"word": "open"}
    config = with_settings(given, model__lora={"r": 4}, training__samples_per_log=1, channels__sdpo__gate=None)
    run = TrainingRun(config)
    assert run.trainer.environment_factories[None]()._word == "open"
    assert run.trainer.reward_weights.tolist() == [0.5, 1.0]
    assert run.run().steps == 2
    folder = tmp_path / "run"
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert [sample["step"] for sample in samples] == [1, 2]
    assert samples[0]["prompt"][0]["role"] == "user"
    assert set(samples[0]["rewards"]) == {"length_reward", "Doors"}
    assert samples[0]["completion"]
    assert isinstance(samples[0]["advantage"], float)
    assert (folder / "checkpoint-2" / "adapter_model.safetensors").exists()
    line = metrics(folder)[-1]
    assert line["channels/traces/active_tokens"] > 0
    assert line["channels/replay/active_tokens"] > 0


def test_generated_tasks_take_the_place_of_prompts(tmp_path: Path) -> None:
    given = rollout_config(tmp_path, steps=1)
    given["environment"] = {"class": "house_style", "tasks": {"count": 6, "arguments": {"calls": 1}}}
    del given["data"]
    plan = dry_run(with_settings(given))
    assert plan.counts == {"prompts": {"prompts": 6}}
    run = TrainingRun(with_settings(given))
    assert run.trainer.train_dataset["task_id"] == [task["task_id"] for task in make_tasks("train", 6, calls=1)]
    assert run.trainer.described_data["prompts"] == "6 generated tasks (split train, seed 0)"


def test_rewards_alone_need_no_environment(tmp_path: Path) -> None:
    given = rollout_config(tmp_path, steps=1)
    del given["environment"]["class"]
    run = TrainingRun(with_settings(given, channels__sdpo__alpha=0.0))
    assert run.run().steps == 1
    assert "rewards/length_reward/mean" in metrics(tmp_path / "run")[0]


def test_the_optimiser_is_the_one_that_was_asked_for(tmp_path: Path) -> None:
    run = TrainingRun(with_settings(logs_config(tmp_path), optimizer__name="muon", optimizer__muon={"lr": 0.01}))
    optimizer = run.trainer.create_optimizer()
    assert isinstance(optimizer, MuonAndAdamW)
    assert [group["lr"] for group in optimizer.param_groups] == [0.01, 1e-3, 1e-3]


def test_settings_arrive_under_the_trainers_names(tmp_path: Path) -> None:
    config = with_settings(
        rollout_config(tmp_path),
        channels__sdpo={"alpha": 0.3, "wrapper": "taid", "taid": {"t_start": 0.2}, "gate": {"min_gap": 0.5}},
        channels__grpo__trl={"top_entropy_quantile": 0.4},
        optimizer={"lr": 2e-4, "betas": [0.8, 0.9], "warmup": 3, "schedule": "constant"},
        training__gradient_share_every=0,
    )
    settings = channel_settings(config)
    assert settings.sdpo == config.channels.sdpo
    assert (settings.sdpo.alpha, settings.sdpo.taid.t_start, settings.sdpo.taid.t_end) == (0.3, 0.2, 1.0)
    assert settings.sdpo.gate is not None
    assert (settings.sdpo.gate.min_gap, settings.watch.gradient_share_every) == (0.5, 0)
    assert config.optimizer.betas == (0.8, 0.9)
    arguments = grpo_arguments(config, [0.5])
    assert (arguments["loss_type"], arguments["scale_rewards"], arguments["reward_weights"]) == (
        "dr_grpo",
        "none",
        [0.5],
    )
    assert (arguments["top_entropy_quantile"], arguments["num_generations"]) == (0.4, 2)
    shared = training_arguments(config)
    assert (shared["lr_scheduler_type"], shared["warmup_steps"]) == ("constant_with_warmup", 3)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("beta", r"channels\.grpo\.trl\.beta: this has a key of its own"),
        ("hub_token", r"channels\.grpo\.trl\.hub_token: a configuration is written to disk"),
        ("optim", r"channels\.grpo\.trl\.optim: the section optimizer decides this"),
        ("use_vlm", r"channels\.grpo\.trl\.use_vlm: trl\.GRPOConfig has no such setting"),
    ],
)
def test_other_trl_settings_are_checked(name: str, message: str, tmp_path: Path) -> None:
    config = with_settings(rollout_config(tmp_path), channels__grpo__trl={name: True})
    with pytest.raises(ValueError, match=message):
        grpo_arguments(config, [])


def test_traces_without_errors_are_of_no_use_beside_an_environment(tmp_path: Path) -> None:
    given = rollout_config(tmp_path)
    given["data"]["traces"] = str(trace_folder(tmp_path, errors=False))
    with pytest.raises(ValueError, match=r"data\.traces: no turn in .* went wrong"):
        TrainingRun(with_settings(given))


def test_a_run_of_another_configuration_is_not_touched(tmp_path: Path) -> None:
    given = logs_config(tmp_path, steps=1)
    TrainingRun(with_settings(given)).run()
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=r"another configuration: optimizer\.lr was 0\.001 and is 0\.1"):
        TrainingRun(with_settings(given, optimizer={"lr": 0.1}))
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before
    longer = TrainingRun(with_settings(given, training={**given["training"], "steps": 2}, optimizer={"lr": 1e-3}))
    assert longer.run().resumed_from == 1


def test_other_traces_are_not_taken_for_those_of_the_checkpoint(tmp_path: Path) -> None:
    given = logs_config(tmp_path, steps=1)
    TrainingRun(with_settings(given)).run()
    for file in (tmp_path / "traces" / "traces").glob("*.jsonl"):
        traces = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        for trace in traces:
            trace["turns"][0]["content"] += " And hurry."
        json_lines(file, *traces)
    longer = TrainingRun(with_settings(given, training={**given["training"], "steps": 2}))
    with pytest.raises(ValueError, match="made with other traces"):
        longer.run()


def test_a_checkpoint_by_name_must_be_of_such_a_run(tmp_path: Path) -> None:
    given = logs_config(tmp_path, steps=2)
    given["training"]["save_every"] = 1
    TrainingRun(with_settings(given)).run()
    first = str(tmp_path / "run" / "checkpoint-1")
    with pytest.raises(ValueError, match="already has checkpoint-2; to branch off"):
        TrainingRun(with_settings(given, training={**given["training"], "resume": first}))
    branch = {**given["training"], "resume": first, "output_dir": str(tmp_path / "branch")}
    with pytest.raises(ValueError, match=r"training\.resume: .* optimizer\.lr was 0\.001 and is 0\.1"):
        TrainingRun(with_settings(given, training=branch, optimizer={"lr": 0.1}))
    assert TrainingRun(with_settings(given, training=branch)).run().resumed_from == 1
