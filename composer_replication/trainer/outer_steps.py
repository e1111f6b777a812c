"""A trainer as one replica of a DiLoCo run: its optimiser gets an outer loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback

if TYPE_CHECKING:
    from composer_replication.diloco.replica import Replica


class OuterSteps:
    """A mixin for a `Trainer`: with a `replica` (set it before `train`), it synchronises with the others.

    A replica that was healed goes on at the step of the others, with their teacher, on its own data.
    """

    replica: Replica | None = None
    # The trainer's own.
    args: Any
    model: Any
    state: Any
    lr_scheduler: Any
    channels: Any
    add_callback: Any
    remove_callback: Any
    create_optimizer_and_scheduler: Any
    _load_from_checkpoint: Any
    _load_optimizer_and_scheduler: Any
    _globalstep_last_logged: int = 0  # which the trainer sets when it trains

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        """As the trainer's own, with the outer loop around it."""
        optimizer: torch.optim.Optimizer = super().create_optimizer(*args, **kwargs)  # type: ignore[misc]
        if self.replica is not None:
            self.replica.wrap(
                self.model, optimizer, take_over=self._take_over_position, hand_over=self._state_for_healing
            )
            # A second `train` comes here again.
            self.remove_callback(_Start)
            self.add_callback(_Start(self))
        return optimizer

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """As the trainer's own; the replica hears of the loss."""
        loss: torch.Tensor = super().training_step(*args, **kwargs)  # type: ignore[misc]
        if self.replica is not None:
            self.replica.saw(loss)
        return loss

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """As the trainer's own; the replica leaves the run at the end."""
        try:
            return super().train(*args, **kwargs)  # type: ignore[misc]
        finally:
            if self.replica is not None:
                self.replica.close()

    def meet_at_the_end(self, checkpoint: str, step: int) -> None:
        """Meet the other replicas with the checkpoint of the last step: those that are behind take over its state."""
        assert self.replica is not None
        try:
            self.create_optimizer_and_scheduler(self.args.max_steps)
            self._load_from_checkpoint(checkpoint)
            self._load_optimizer_and_scheduler(checkpoint)
            self.replica.start(step)
        finally:
            self.replica.close()

    def saw_tokens(self, tokens: Any) -> None:
        """Count the tokens of a micro-batch for the replica."""
        if self.replica is not None:
            self.replica.saw_tokens(tokens)

    def _state_for_healing(self) -> dict[str, Any]:
        teacher = self.channels.teacher
        return {} if teacher is None else {"teacher": dict(teacher.state_dict())}

    def _take_over_position(self, step: int, state: dict[str, Any]) -> None:
        # The mean of a logged loss is over the steps since the last one.
        self._globalstep_last_logged += step - self.state.global_step
        self.state.global_step = step
        if "teacher" in state:
            self.channels.teacher.load_state_dict(state["teacher"])
        scheduler = self.lr_scheduler
        if hasattr(scheduler, "lr_lambdas"):
            scheduler.last_epoch = step
            rates = [base * rate(step) for base, rate in zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)]
            for group, lr in zip(scheduler.optimizer.param_groups, rates, strict=True):
                group["lr"] = lr


class _Start(TrainerCallback):  # type: ignore[misc]
    """Lets a replica meet the others when everything is loaded."""

    def __init__(self, trainer: OuterSteps) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Called by the trainer after a checkpoint was loaded."""
        replica = self._trainer.replica
        assert replica is not None
        replica.start(state.global_step)
        if state.global_step >= state.max_steps:
            # The others were at their last sync. The trainer makes a step in any case, which is dropped.
            self._trainer._take_over_position(state.max_steps - 1, {})
            replica.rest()
