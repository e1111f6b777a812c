"""What a run tells while it goes on: samples of what the model said, and its steps for whoever shows them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from transformers import TrainerCallback

from composer_replication.trainer.run.directory import RunDirectory

_LONGEST_TEXT = 4000


class SampleCallback(TrainerCallback):  # type: ignore[misc]
    """Writes the first few rollouts of a logging step to samples.jsonl: prompt, completion, rewards, advantage."""

    def __init__(self, trainer: Any, directory: RunDirectory, count: int) -> None:
        self._trainer, self._directory, self._count = trainer, directory, count
        self._last_step = -1

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Called by the trainer; other processes than the first write nothing."""
        logs = self._trainer._logs
        # The summary at the end of a run is logged under its last step once more.
        if not state.is_world_process_zero or not logs["prompt"] or state.global_step == self._last_step:
            return
        self._last_step = state.global_step
        rewards = {name: list(values) for name, values in logs["rewards"].items()}
        prompts, completions, advantages = (list(logs[name]) for name in ("prompt", "completion", "advantages"))
        self._directory.add_samples(
            {
                "step": state.global_step,
                "prompt": _shortened(prompts[index]),
                "completion": _shortened(completions[index]),
                "rewards": {name: _number(values[index]) for name, values in rewards.items()},
                "advantage": _number(advantages[index]),
            }
            for index in range(min(self._count, len(prompts)))
        )


class LogCallback(TrainerCallback):  # type: ignore[misc]
    """Passes steps and metrics on, in the first process."""

    def __init__(self, on_log: Callable[[int, Mapping[str, Any]], None]) -> None:
        self._on_log = on_log

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Called by the trainer after every optimiser step."""
        if state.is_world_process_zero:
            self._on_log(state.global_step, {})

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:
        """Called by the trainer with the metrics."""
        if state.is_world_process_zero:
            self._on_log(state.global_step, logs or {})


class StopCallback(TrainerCallback):  # type: ignore[misc]
    """Ends the run after the step in which `asked` became true, with a checkpoint."""

    def __init__(self) -> None:
        self.asked = False

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Called by the trainer after every optimiser step."""
        if self.asked:
            control.should_save = control.should_training_stop = True


def _shortened(value: Any) -> Any:
    """A text, or messages, with what is long cut: samples are to be looked at."""
    if isinstance(value, str):
        return value if len(value) <= _LONGEST_TEXT else value[:_LONGEST_TEXT] + " [...]"
    if isinstance(value, Mapping):
        return {key: _shortened(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_shortened(one) for one in value]
    return value


def _number(value: Any) -> float | None:
    """A number as JSON has it: a rollout that a reward function left alone has NaN."""
    number = float(value)
    return number if math.isfinite(number) else None
