"""Where optimiser steps begin and end, as a callback tells it to a trainer with channels."""

from __future__ import annotations

from typing import Any, Protocol

from transformers import TrainerCallback

from composer_replication.trainer.channel_engine import ChannelEngine


class HasChannels(Protocol):
    """A trainer that runs a `ChannelEngine`."""

    channels: ChannelEngine

    def end_step(self) -> None: ...

    def go_on_logging(self) -> None: ...


class StepEnds(TrainerCallback):  # type: ignore[misc]
    """Runs after the optimiser and before logging and saving, so that both see the step as a whole."""

    def __init__(self, trainer: HasChannels) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The number of steps is known now."""
        self._trainer.channels.begin(state.max_steps)
        self._trainer.go_on_logging()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Teacher, TAID and metrics follow the optimiser."""
        self._trainer.end_step()
