"""Sums of a step, warnings when a channel is inactive, and `metrics.jsonl` across a resume."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from composer_replication.trainer.channel_log import (
    ChannelLog,
    InactiveChannelWarning,
    MetricsFile,
    NegativeChosenReward,
)


def test_sums_run_over_micro_batches_and_start_anew() -> None:
    log = ChannelLog({"grpo": 1.0, "sdpo": 0.1, "replay": 0.0}, patience=0)
    for tokens, gap in ((3, 0.5), (4, 1.5)):
        log.add("sdpo", "active_tokens", tokens)
        log.add("sdpo", "loss", torch.tensor(0.25, requires_grad=True))
        log.add("sdpo", "sites", 1)
        log.add("sdpo", "measured", 1)
        log.add("sdpo", "gap", gap)
    metrics = log.close(1)
    assert metrics["channels/sdpo/active_tokens"] == 7
    assert metrics["channels/sdpo/loss"] == pytest.approx(0.5)
    assert metrics["channels/sdpo/gap"] == pytest.approx(1.0)
    assert not any(name.startswith("channels/replay") for name in metrics)
    silent = log.close(2)
    assert silent["channels/sdpo/active_tokens"] == 0
    # What was not measured is no 0.
    assert math.isnan(silent["channels/sdpo/loss"])
    assert math.isnan(silent["channels/sdpo/gap"])


def test_every_process_sends_the_same_sums() -> None:
    sent: list[int] = []

    def reduce(sums: torch.Tensor) -> torch.Tensor:
        sent.append(sums.numel())
        return sums * 2

    quiet, busy = (ChannelLog({"grpo": 1.0, "sdpo": 0.1}, 0, reduce) for _ in range(2))
    busy.add("sdpo", "active_tokens", 5)
    quiet.close(1)
    assert busy.close(1)["channels/sdpo/active_tokens"] == 10
    assert sent[0] == sent[1]


def test_a_channel_reports_its_own_sums_and_no_others() -> None:
    log = ChannelLog({"grpo": 1.0, "sdpo": 0.1, "replay": 0.05}, patience=0)
    for channel, number in (("sdpo", "measured"), ("replay", "measured"), ("replay", "referenced")):
        log.add(channel, number, 2)
    names: dict[str, set[str]] = {}
    for _, channel, name in (metric.split("/") for metric in log.close(1)):
        names.setdefault(channel, set()).add(name)
    losses = {"loss", "active_tokens", "active_rows"}
    rules = {"too_small", "like_foreign", "conflicting"}
    assert names == {
        "grpo": losses,
        "sdpo": {*losses, *rules, "sites", "gap", "signed_gap"},
        "replay": {*losses, "margin", "chosen_reward"},
    }


def test_an_unknown_sum_is_refused() -> None:
    with pytest.raises(ValueError, match="no sum 'tokens'"):
        ChannelLog({"sdpo": 1.0}, 0).add("sdpo", "tokens", 1)


def test_a_silent_channel_is_named_with_its_reasons() -> None:
    log = ChannelLog({"grpo": 1.0, "sdpo": 0.1, "replay": 0.0}, patience=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        log.add("grpo", "active_tokens", 1)
        log.explain("sdpo", {"no_error": 3, "sites": 0})
        log.close(1)
    log.add("grpo", "active_tokens", 1)
    log.explain("sdpo", {"no_error": 2, "too_small": 1})
    with pytest.warns(InactiveChannelWarning, match=r"'sdpo' has weight 0\.1 but was inactive for 2 steps") as caught:
        log.close(2)
    assert len(caught) == 1
    assert "5 rollouts without a failing turn" in str(caught[0].message)
    assert "barely differs" in str(caught[0].message)


def _log_rewards(log: ChannelLog, step: int, *rewards: float) -> dict[str, float]:
    """A step in which every reward is the mean of two pairs in a micro-batch."""
    for reward in rewards:
        log.add("replay", "active_tokens", 8)
        log.add("replay", "measured", 2)
        log.add("replay", "referenced", 2)
        log.add("replay", "chosen_reward", torch.tensor(2 * reward))
        log.add("replay", "margin", torch.tensor(3 * reward))
    return log.close(step)


def test_rewards_are_means_over_the_pairs_of_a_step() -> None:
    log = ChannelLog({"replay": 0.5}, patience=0)
    metrics = _log_rewards(log, 1, 1.0, -2.0)
    assert metrics["channels/replay/chosen_reward"] == -0.5
    assert metrics["channels/replay/margin"] == -0.75
    assert not {"channels/replay/measured", "channels/replay/referenced"} & metrics.keys()
    assert math.isnan(log.close(2)["channels/replay/margin"])
    log.add("replay", "measured", 2)  # without a reference
    assert "channels/replay/chosen_reward" not in log.close(3)


def test_a_chosen_reward_below_zero_is_warned_of() -> None:
    log = ChannelLog({"replay": 0.5}, patience=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step, reward in enumerate((-1.0, -1.0, 0.1, *[-8e-7] * 3, -1.0, -2.0)):  # -8e-7 is rounding
            _log_rewards(log, step, reward)
        log.close(5)  # without pairs: neither better nor worse
    resumed = ChannelLog({"replay": 0.5}, patience=3)
    resumed.load_state_dict(json.loads(json.dumps(log.state_dict())))
    wanted = r"less likely .* for 3 steps \(until step 6, where chosen_reward is -4 nats\); .*replay_nll_weight"
    with pytest.warns(NegativeChosenReward, match=wanted):
        _log_rewards(resumed, 6, -4.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _log_rewards(resumed, 7, -4.0)
        for step in range(9):
            _log_rewards(ChannelLog({"replay": 0.5}, patience=0), step, -1.0)


def test_activity_ends_the_silence() -> None:
    log = ChannelLog({"sdpo": 0.1}, patience=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(6):
            if step % 2:
                log.add("sdpo", "active_tokens", 1)
            log.close(step)


def test_silence_goes_on_after_a_resume() -> None:
    log = ChannelLog({"sdpo": 0.1}, patience=2)
    log.explain("sdpo", {"no_hint": 4})
    log.close(1)
    resumed = ChannelLog({"sdpo": 0.1}, patience=2)
    resumed.load_state_dict(json.loads(json.dumps(log.state_dict())))
    with pytest.warns(InactiveChannelWarning, match="4 errors for which"):
        resumed.close(2)


def _state(step: int) -> Any:
    return SimpleNamespace(global_step=step, is_world_process_zero=True)


def _steps(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_resumed_run_replaces_what_was_logged_beyond_its_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "run" / "metrics.jsonl"
    first = MetricsFile(path)
    first.on_train_begin(None, _state(0), None)
    for step in range(1, 5):
        first.on_log(None, _state(step), None, {"loss": step / 2})
    with path.open("a", encoding="utf-8") as file:
        file.write('{"step": 5, "lo')  # a kill in mid-line
    second = MetricsFile(path)
    second.on_train_begin(None, _state(2), None)
    assert _steps(path) == [1, 2]
    second.on_log(None, _state(3), None, {"loss": 9.0})
    assert _steps(path) == [1, 2, 3]


def test_a_new_run_in_the_same_place_starts_empty(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n', encoding="utf-8")
    MetricsFile(path).on_train_begin(None, _state(0), None)
    assert _steps(path) == []
