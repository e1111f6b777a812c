"""The views of a training run: a line for a logged step with the time left, and at the end a row for each channel."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table


class ChannelSummary(NamedTuple):
    """A channel over the logged steps: in how many it was active, its first and last loss, its tokens per step."""

    channel: str
    active: int
    logged: int
    first_loss: float | None
    last_loss: float | None
    tokens: float


def step_line(step: int, steps: int, metrics: Mapping[str, Any], left: str) -> str:
    """A logged step as one line."""
    parts = [f"step {step:,}/{steps:,}", f"loss {metrics['loss']:.4f}"]
    for channel in _channels(metrics):
        loss, tokens = _number(metrics, channel, "loss"), _number(metrics, channel, "active_tokens")
        parts.append(f"{channel} inactive" if loss is None else f"{channel} {loss:.4f} ({tokens or 0:,.0f} tokens)")
    if (reward := _finite(metrics.get("reward"))) is not None:
        parts.append(f"reward {reward:.3f}")
    return " | ".join([*parts, *([left] if left else [])])


def channel_summaries(logged: Iterable[Mapping[str, Any]]) -> list[ChannelSummary]:
    """The channels of a run, from what it logged."""
    steps = [metrics for metrics in logged if "loss" in metrics]
    summaries = []
    for channel in dict.fromkeys(channel for metrics in steps for channel in _channels(metrics)):
        losses = [loss for metrics in steps if (loss := _number(metrics, channel, "loss")) is not None]
        tokens = sum(_number(metrics, channel, "active_tokens") or 0.0 for metrics in steps) / len(steps)
        first, last = (losses[0], losses[-1]) if losses else (None, None)
        summaries.append(ChannelSummary(channel, len(losses), len(steps), first, last, tokens))
    return summaries


def show_channels(console: Console, logged: Sequence[Mapping[str, Any]]) -> None:
    """Print a row for each channel, and how the reward has changed."""
    if summaries := channel_summaries(logged):
        table = Table("channel")
        for heading in ("logged steps active", "first loss", "last loss", "tokens per step"):
            table.add_column(heading, justify="right")
        for one in summaries:
            losses = ("" if loss is None else f"{loss:.4f}" for loss in (one.first_loss, one.last_loss))
            table.add_row(one.channel, f"{one.active:,} of {one.logged:,}", *losses, f"{one.tokens:,.0f}")
        console.print(table)
    rewards = [reward for metrics in logged if (reward := _finite(metrics.get("reward"))) is not None]
    if rewards:
        console.print(f"reward: {rewards[0]:.3f} at first, {rewards[-1]:.3f} at last")


def logged_steps(file: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl; a line that was cut by a crash is left out."""
    found = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def already_finished(step: int, steps: int) -> str:
    """Why a run that is at `step` has nothing to do."""
    if step == steps:
        return f"already finished at step {step:,}: nothing was trained; raise training.steps to go on"
    return (
        f"already at step {step:,}, and training.steps is {steps:,}: nothing was trained; raise training.steps above "
        f"{step:,} to go on"
    )


def _channels(metrics: Mapping[str, Any]) -> list[str]:
    return [name.split("/")[1] for name in metrics if name.startswith("channels/") and name.endswith("/active_tokens")]


def _number(metrics: Mapping[str, Any], channel: str, name: str) -> float | None:
    return _finite(metrics.get(f"channels/{channel}/{name}"))


def _finite(value: Any) -> float | None:
    """A number; None for one that was not measured, which a trainer logs as NaN or leaves out."""
    return float(value) if value is not None and math.isfinite(float(value)) else None


class StepProgress(Progress):
    """The steps of a run: a bar on a terminal; elsewhere a line for every step that logs a loss."""

    def __init__(self, console: Console, steps: int, *, is_shown: bool) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        super().__init__(*columns, console=console, transient=True, disable=not (is_shown and console.is_terminal))
        self._steps, self._prints_lines = steps, is_shown and not console.is_terminal
        self._bar, self._pace = self.add_task("Loading", total=steps), Pace()

    def begin(self, done: int = 0) -> None:
        """Say that everything is loaded, and that this many steps were done before."""
        self._pace = Pace(done)
        self.update(self._bar, description="Training")

    def came(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Show a step that is done."""
        if self._prints_lines and "loss" in metrics:
            line = step_line(step, self._steps, metrics, self._pace.left(step, self._steps))
            self.console.print(line, markup=False, soft_wrap=True)
        shown = f"Training, loss {float(metrics['loss']):.4f}" if "loss" in metrics else None
        self.update(self._bar, completed=step, description=shown or self.tasks[self._bar].description)


class Pace:
    """The time left, and the interval of progress lines, for commands that print progress without a terminal.

    It measures from its construction on.

    Args:
        done: the amount that was done before.
        clock: returns seconds.
        every: seconds between two lines.
    """

    def __init__(self, done: int = 0, *, clock: Callable[[], float] = time.monotonic, every: float = 10.0) -> None:
        self._done, self._clock, self._every = done, clock, every
        self._start = self._last_line = clock()

    def left(self, done: int, total: int) -> str:
        """Return the time left as "4:10 left"; "" if it is unknown, or nothing is left."""
        since = done - self._done
        if since <= 0 or done >= total:
            return ""
        seconds = (self._clock() - self._start) / since * (total - done)
        return f"{timedelta(seconds=round(seconds))} left".removeprefix("0:").removeprefix("0")

    def is_due(self) -> bool:
        """Whether it is time for the next line; if so, the next one is due `every` seconds later."""
        now = self._clock()
        if now - self._last_line < self._every:
            return False
        self._last_line = now
        return True
