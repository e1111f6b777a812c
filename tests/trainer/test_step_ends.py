"""What a trainer is told when training begins."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from composer_replication.trainer.channel_engine import StepEnds


def test_a_checkpoint_beyond_the_last_step_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    trainer: Any = SimpleNamespace(channels=SimpleNamespace(begin=lambda steps: None), go_on_logging=lambda: None)
    with caplog.at_level(logging.WARNING):
        StepEnds(trainer).on_train_begin(None, SimpleNamespace(global_step=1, max_steps=2), None)
    assert caplog.messages == []
    StepEnds(trainer).on_train_begin(None, SimpleNamespace(global_step=4, max_steps=2), None)
    assert caplog.messages == [
        "the checkpoint is of step 4 and max_steps is 2: there is nothing left to train; raise max_steps"
    ]
