"""What our trainers do around a Hugging Face checkpoint: channels go in, old ones go late, half-written ones are passed
over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers.trainer_utils import rotate_checkpoints

from composer_replication.trainer.channel_engine import ChannelEngine
from composer_replication.trainer.checkpoint import last_complete_checkpoint, load_state, save_state


class ChannelCheckpoints:
    """A mixin that stands before a `Trainer`: the state of `self.channels`, and what `own_state` adds, is saved and
    restored with every checkpoint."""

    channels: ChannelEngine
    # The trainer's own.
    args: Any
    state: Any
    accelerator: Any
    _get_output_dir: Any

    def own_state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """What this process has to keep beside the channels: tensors, and numbers as JSON takes them."""
        return {}, {}

    def load_own_state(self, tensors: dict[str, torch.Tensor], numbers: dict[str, Any]) -> None:
        """Restore what `own_state` gave."""

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As the trainer's own; `True` resumes from the newest checkpoint that was saved to its end.

        Raises:
            ValueError: there is none, or it is of a run with other settings.
        """
        if resume_from_checkpoint is True:
            found = last_complete_checkpoint(self.args.output_dir, processes=self.accelerator.num_processes)
            if found is None:
                raise ValueError(f"there is no complete checkpoint in {self.args.output_dir} to resume from")
            resume_from_checkpoint = str(found)
        return super().train(resume_from_checkpoint, *args, **kwargs)  # type: ignore[misc]

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        # Old checkpoints go only when the new one is complete.
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            super()._save_checkpoint(model, trial)  # type: ignore[misc]
        finally:
            self.args.save_total_limit = limit
        run_dir = self._get_output_dir(trial=trial)
        process = self.accelerator.process_index
        tensors, numbers = self.own_state()
        if process == 0:
            tensors |= self.channels.tensors()
        save_state(
            Path(run_dir, f"checkpoint-{self.state.global_step}"),
            tensors,
            {"channels": self.channels.numbers(), "own": numbers},
            process=process,
        )
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            rotate_checkpoints(
                output_dir=run_dir,
                save_total_limit=limit,
                best_model_checkpoint=self.state.best_model_checkpoint,
                use_mtime=True,
            )

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)  # type: ignore[misc]
        if checkpoint is None:
            return
        process = self.accelerator.process_index
        tensors, numbers = load_state(checkpoint, process=process)
        self.channels.load(tensors if process == 0 else load_state(checkpoint)[0], numbers["channels"])
        self.load_own_state(tensors, numbers["own"])
