"""Where optimiser steps begin and end, as a callback tells it to a trainer with channels."""

from __future__ import annotations

import logging
from typing import Any, Protocol

from transformers import TrainerCallback

from composer_replication.trainer.channel_engine import ChannelEngine

logger = logging.getLogger(__name__)


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
        if state.global_step >= state.max_steps:
            logger.warning(
                "the checkpoint is of step %d and max_steps is %d: there is nothing left to train; raise max_steps",
                state.global_step,
                state.max_steps,
            )
        self._trainer.channels.begin(state.max_steps)
        self._trainer.go_on_logging()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Teacher, TAID and metrics follow the optimiser."""
        self._trainer.end_step()
