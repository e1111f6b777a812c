"""What `train` says while it runs and at its end, without a trainer."""

from __future__ import annotations

import math
from pathlib import Path

from rich.console import Console

from composer_replication.cli.train_views import (
    ChannelSummary,
    Pace,
    already_finished,
    channel_summaries,
    logged_steps,
    show_channels,
    step_line,
)

STEP = {
    "loss": 6.5874,
    "channels/lm/loss": 6.5526,
    "channels/lm/active_tokens": 1084.0,
    "channels/sdpo/loss": 0.00084,
    "channels/sdpo/active_tokens": 48.0,
    "channels/replay/active_tokens": 0.0,
}


def test_a_step_is_a_line() -> None:
    assert step_line(3, 1200, STEP, "2:10 left") == (
        "step 3/1,200 | loss 6.5874 | lm 6.5526 (1,084 tokens) | sdpo 0.0008 (48 tokens) | replay inactive | 2:10 left"
    )
    assert step_line(1, 2, {"loss": 0.5, "reward": 0.34567}, "") == "step 1/2 | loss 0.5000 | reward 0.346"
    assert step_line(1, 2, {"loss": 0.5, "reward": math.nan}, "") == "step 1/2 | loss 0.5000"


def test_channels_are_summed_up_over_the_logged_steps() -> None:
    later = {
        "loss": 6.0,
        "channels/lm/loss": 6.1,
        "channels/lm/active_tokens": 916.0,
        "channels/sdpo/loss": None,
        "channels/sdpo/active_tokens": 0.0,
        "channels/replay/active_tokens": 0.0,
    }
    end = {"step": 2, "train_runtime": 9.9}
    assert channel_summaries([STEP, later, end]) == [
        ChannelSummary("lm", 2, 2, 6.5526, 6.1, 1000.0),
        ChannelSummary("sdpo", 1, 2, 0.00084, 0.00084, 24.0),
        ChannelSummary("replay", 0, 2, None, None, 0.0),
    ]
    assert channel_summaries([{"loss": 1.0, "reward": 0.5}]) == []


def test_the_summary_as_it_is_printed() -> None:
    console = Console(width=120)
    with console.capture() as shown:
        show_channels(console, [STEP, {**STEP, "reward": 0.25}, {**STEP, "reward": 0.75}])
    text = shown.get()
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "│" in line]
    assert ["lm", "3 of 3", "6.5526", "6.5526", "1,084"] in cells
    assert ["replay", "0 of 3", "", "", "0"] in cells
    assert text.splitlines()[-1] == "reward: 0.250 at first, 0.750 at last"
    with console.capture() as nothing:
        show_channels(console, [])
    assert nothing.get() == ""


def test_the_logged_steps_are_read_back(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    assert logged_steps(file) == []
    file.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "lo', encoding="utf-8")
    assert logged_steps(file) == [{"step": 1, "loss": 2.0}]


def test_a_finished_run_says_so() -> None:
    assert already_finished(4, 4) == "already finished at step 4: nothing was trained; raise training.steps to go on"
    assert already_finished(1200, 2) == (
        "already at step 1,200, and training.steps is 2: nothing was trained; raise training.steps above 1,200 to go on"
    )


def test_time_left_follows_from_what_was_done_since_the_start() -> None:
    now = 100.0
    pace = Pace(10, clock=lambda: now)
    assert pace.left(10, 20) == ""
    now = 130.0
    assert pace.left(12, 20) == "2:00 left"
    assert pace.left(20, 20) == ""
    assert pace.left(11, 1011) == "8:20:00 left"
    assert pace.left(25, 20) == ""


def test_a_line_is_due_once_in_a_while() -> None:
    now = 0.0
    pace = Pace(clock=lambda: now, every=10.0)
    assert not pace.is_due()
    now = 10.0
    assert pace.is_due()
    assert not pace.is_due()
    now = 25.0
    assert pace.is_due()
