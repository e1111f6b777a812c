"""Training on logs alone: traces with failing turns, their pairs, and no rollouts."""

from __future__ import annotations

import copy
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from trainer.live_run import metrics
from transformers import TrainingArguments

from composer_replication.channels.hint_distillation import HintDistillation, HintGate
from composer_replication.channels.settings import ChannelSettings
from composer_replication.envs.contract import call_tool, tools_of
from composer_replication.envs.house_style import HouseStyle, make_tasks
from composer_replication.envs.house_style.lessons import DONE, preference_pairs
from composer_replication.hint_generator import LayeredHints, as_collator_hint
from composer_replication.hint_generator.classifier import classify
from composer_replication.laboratory import laboratory_model, laboratory_tokenizer
from composer_replication.traces import TraceExample
from composer_replication.trainer.channel_log import InactiveChannelWarning
from composer_replication.trainer.data_collator import CollatorConfig
from composer_replication.trainer.trace_trainer import TraceTrainer


def house_traces(count: int = 6) -> list[TraceExample]:
    """Sessions in a house: a wrong call and its error, the right call, an answer; and the pair of it."""
    tasks = make_tasks("train", count, seed=3, calls=1)
    examples = []
    for number, (task, pair) in enumerate(zip(tasks, preference_pairs(tasks), strict=True)):
        house = HouseStyle()
        house.reset(**task)
        turns: list[Any] = [dict(message) for message in task["prompt"]]
        for place, side in enumerate(("rejected", "chosen")):
            call = pair[side][0]["tool_calls"][0]["function"]
            said, failed = call_tool(tools_of(house), call["name"], call["arguments"])
            call_id = f"{number}-{place}"
            turn = {"role": "assistant", "content": "", "tool_calls": [{"id": call_id, **call}]}
            if failed:
                kind, details = classify(str(said), tool_name=call["name"], arguments=call["arguments"])
                meta = {"tool_name": call["name"], "error_message": str(said), "students_mistake": True}
                turn |= {"tool_error": kind, "error_meta": {**details, "error_kind": kind, **meta}}
            turns += [turn, {"role": "tool", "content": str(said), "tool_call_id": call_id}]
        turns.append(DONE)
        examples.append(TraceExample(trace_id=str(number), turns=turns, tools=pair["tools"], dpo_pairs=[pair]))
    return examples


def _arguments(folder: Path, **changes: Any) -> TrainingArguments:
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": 3,
        "per_device_train_batch_size": 2,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "seed": 2,
    }
    return TrainingArguments(**{**settings, **changes})


def trace_trainer(folder: Path, *, args: dict[str, Any] | None = None, **options: Any) -> TraceTrainer:
    hints = as_collator_hint(LayeredHints())
    settings: dict[str, Any] = {
        "model": laboratory_model(),
        "args": _arguments(folder, **(args or {})),
        "train_dataset": house_traces(),
        "processing_class": laboratory_tokenizer(),
        "collator": CollatorConfig(hint_generator=hints, train_on_errors=False),
    }
    return TraceTrainer(**{**settings, **options})


def test_three_channels_learn_from_logs(tmp_path: Path) -> None:
    settings = ChannelSettings(alpha_sdpo=1.0, beta_replay=0.5, gradient_share_steps=1)
    run = trace_trainer(tmp_path, settings=settings, args={"max_steps": 6})
    run.train()
    logged = metrics(tmp_path)
    for line in logged:
        for channel in ("lm", "sdpo", "replay"):
            assert line[f"channels/{channel}/active_tokens"] > 0
            assert 0 < line[f"channels/{channel}/gradient_share"] < 1
        assert 0 < line["channels/sdpo/overlap"] <= 1
        assert "channels/sdpo/importance_weight" not in line
        total = line["channels/lm/loss"] + line["channels/sdpo/loss"] + 0.5 * line["channels/replay/loss"]
        assert line["loss"] == pytest.approx(total, rel=1e-4)
    assert logged[0]["channels/replay/loss"] == pytest.approx(math.log(2), abs=1e-5)
    # Each step has other pairs: those after the first step are better than chance on average.
    assert statistics.fmean(line["channels/replay/loss"] for line in logged[1:]) < logged[0]["channels/replay/loss"]
    assert logged[-1]["channels/lm/loss"] < logged[0]["channels/lm/loss"]


def test_accumulation_weighs_the_same(tmp_path: Path) -> None:
    lines = []
    traces = house_traces()
    for example in traces[2:]:  # most micro-batches have no failing turn, and must not dilute those that have
        for turn in example["turns"]:
            turn.pop("tool_error", None)
    for rows, accumulation in ((6, 1), (2, 3)):
        folder = tmp_path / str(rows)
        arguments = {
            "max_steps": 1,
            "per_device_train_batch_size": rows,
            "gradient_accumulation_steps": accumulation,
        }
        trace_trainer(folder, args=arguments, train_dataset=traces, replay_batch_size=rows // 2).train()
        lines.append(metrics(folder)[0])
    for name in ("sdpo/active_tokens", "lm/active_tokens", "replay/active_tokens", "sdpo/sites"):
        assert lines[0][f"channels/{name}"] == lines[1][f"channels/{name}"], name
    for name in ("lm/loss", "sdpo/loss", "replay/loss"):
        assert lines[0][f"channels/{name}"] == pytest.approx(lines[1][f"channels/{name}"], rel=1e-4), name
    assert lines[0]["loss"] == pytest.approx(lines[1]["loss"], rel=1e-4)
    assert lines[0]["grad_norm"] == pytest.approx(lines[1]["grad_norm"], rel=1e-3)


def test_evaluation_has_a_loss_and_leaves_training_alone(tmp_path: Path) -> None:
    # A small step on the very loss that is evaluated: it falls on any machine.
    settings = ChannelSettings(alpha_sdpo=0.0, beta_replay=0.0)
    traces = house_traces(2)
    arguments = {"max_steps": 1, "learning_rate": 1e-5}
    run = trace_trainer(tmp_path, train_dataset=traces, eval_dataset=traces, settings=settings, args=arguments)
    first = run.evaluate()["eval_loss"]
    assert math.isfinite(first)
    run.train()
    assert run.evaluate()["eval_loss"] < first
    assert metrics(tmp_path)[0]["channels/lm/active_rows"] == 2


def test_a_resumed_run_goes_on(tmp_path: Path) -> None:
    settings = ChannelSettings(
        sdpo_wrapper="taid",
        alpha_schedule="linear",
        alpha_end=0.5,
        alpha_steps=3,
        hint_gate=HintGate(calibrate=4, percentile=0.1),
    )
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    saving = {"save_strategy": "steps", "save_steps": 1, "max_steps": 4}
    trace_trainer(whole, args=saving, settings=settings).train()

    run = trace_trainer(broken, args=saving, settings=settings)
    end = run.end_step

    def stop() -> None:
        end()
        if run.state.global_step == 2:
            run.control.should_training_stop = True

    run.end_step = stop  # type: ignore[method-assign]
    run.train()
    resumed = trace_trainer(broken, args=saving, settings=settings)
    resumed.channels.changes = None  # type: ignore[assignment,method-assign]  # nothing is measured again
    resumed.train(resume_from_checkpoint=True)
    logged = metrics(whole)
    assert metrics(broken) == logged
    assert [line["channels/sdpo/alpha"] for line in logged] == pytest.approx([0.1, 0.7 / 3, 1.1 / 3, 0.5])
    assert len({line["channels/sdpo/gate_threshold"] for line in logged}) == 1
    for line in logged:
        parts = {name: line[f"channels/{name}/loss"] for name in ("lm", "sdpo", "replay")}
        total = parts["lm"] + line["channels/sdpo/alpha"] * parts["sdpo"] + 0.05 * parts["replay"]
        assert line["loss"] == pytest.approx(total, rel=1e-4)


def test_channel_settings_are_keywords_too(tmp_path: Path) -> None:
    run = trace_trainer(tmp_path, settings=ChannelSettings(beta_replay=0.3), alpha_sdpo=0.7)
    assert (run.channels.settings.sdpo.alpha, run.channels.settings.replay.beta) == (0.7, 0.3)
    hints = HintDistillation(target="recovery_turn", hint_role="user", max_hinted_turns=3, strip_attempt=True)
    config = trace_trainer(tmp_path, settings=ChannelSettings(sdpo=hints), collator=None).collator.config
    assert (config.sdpo_target, config.hint_role) == ("recovery_turn", "user")
    assert (config.max_hinted_turns, config.strip_attempt) == (3, True)
    with pytest.raises(TypeError, match="TraceTrainer has no argument 'alpha_sdp': did you mean 'alpha_sdpo'"):
        trace_trainer(tmp_path, alpha_sdp=0.7)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="train_dataset is empty"):
        trace_trainer(tmp_path, train_dataset=[])
    clean = copy.deepcopy(house_traces(2))
    for example in clean:
        for turn in example["turns"]:
            turn.pop("tool_error", None)
        example["dpo_pairs"] = None
    run = trace_trainer(
        tmp_path, train_dataset=clean, settings=ChannelSettings(inactive_patience=1), args={"max_steps": 1}
    )
    with pytest.warns(InactiveChannelWarning) as caught:
        run.train()
    messages = " ".join(str(one.message) for one in caught)
    assert "traces without a failing turn" in messages
    assert "replay_dataset" in messages
    with pytest.raises(ValueError, match="calibrate needs different hints of at least two traces, got 0 of 0"):
        trace_trainer(tmp_path, train_dataset=clean, hint_gate=HintGate(calibrate=80))
    with pytest.raises(ValueError, match="lm_weight is 0: there is nothing to learn"):
        trace_trainer(tmp_path, train_dataset=clean, lm_weight=0.0)
    assert torch.isfinite(torch.tensor(metrics(tmp_path)[0]["loss"]))
