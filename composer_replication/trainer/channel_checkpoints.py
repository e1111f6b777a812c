"""The channels' state and a model card in every Hugging Face checkpoint; half-written checkpoints are passed over."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from composer_replication.trainer.channel_engine import ChannelEngine
from composer_replication.trainer.checkpoint import (
    begin_checkpoint,
    has_state,
    last_complete_checkpoint,
    load_state,
    save_state,
)
from composer_replication.trainer.model_card import card_of, name_base_absolutely


class ChannelCheckpoints:
    """A mixin that stands before a `Trainer`: the state of `self.channels`, and what `own_state` adds, is saved and
    restored with every checkpoint, and every model is saved with a card of ours.

    `described_data` is what the card says of the data, by name; None: what the trainer knows of it.
    """

    channels: ChannelEngine
    described_data: Mapping[str, Any] | None = None
    # The trainer's own.
    args: Any
    state: Any
    accelerator: Any
    hub_model_id: str | None
    is_world_process_zero: Any
    model: Any
    _get_output_dir: Any
    _tr_loss: Any
    _globalstep_last_logged: int
    _logged: dict[str, Any] | None = None

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
        if resume_from_checkpoint is True and not self.channels.is_idle:
            found = last_complete_checkpoint(self.args.output_dir, processes=self.accelerator.num_processes)
            if found is None:
                raise ValueError(f"there is no complete checkpoint in {self.args.output_dir} to resume from")
            resume_from_checkpoint = str(found)
        return super().train(resume_from_checkpoint, *args, **kwargs)  # type: ignore[misc]

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = Path(self._get_output_dir(trial=trial), f"checkpoint-{self.state.global_step}")
        process = self.accelerator.process_index
        if process == 0:
            begin_checkpoint(folder)
        self.accelerator.wait_for_everyone()
        tensors, numbers = self.own_state()
        if process == 0:
            tensors |= self.channels.tensors()
        logged = {"loss": self._tr_loss.item(), "step": self._globalstep_last_logged}
        save_state(
            folder,
            tensors,
            {"channels": self.channels.numbers(), "own": numbers, "logged": logged},
            process=process,
        )
        self.accelerator.wait_for_everyone()
        # Ours first: what Hugging Face writes last completes the checkpoint, and then old ones go and new ones are
        # pushed.
        self.create_model_card()
        super()._save_checkpoint(model, trial)  # type: ignore[misc]

    def create_model_card(
        self, model_name: str | None = None, dataset_name: str | None = None, **metadata: Any
    ) -> None:
        """Write the run's card: it says which checkpoint to load, or the id on the hub. `metadata` (tags, license, ...)
        goes into its front matter, as do the names."""
        if not self.is_world_process_zero():
            return
        metadata |= {"model_name": model_name, "datasets": dataset_name}
        card = card_of(self, self.hub_model_id or f"checkpoint-{self.state.global_step}", metadata)
        Path(self.args.output_dir, "README.md").write_text(str(card), encoding="utf-8")

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        name_base_absolutely(self.model)
        super()._save(output_dir, state_dict)  # type: ignore[misc]
        if self.args.should_save:
            folder = Path(output_dir or self.args.output_dir).resolve()
            (folder / "README.md").write_text(str(card_of(self, folder.name)), encoding="utf-8")

    def go_on_logging(self) -> None:
        """Take up the loss that a killed run had not logged yet; the training loop has just set it to 0."""
        if self._logged is not None:
            self._tr_loss += self._logged["loss"]
            self._globalstep_last_logged = self._logged["step"]
            self._logged = None

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)  # type: ignore[misc]
        if checkpoint is None:
            return
        process = self.accelerator.process_index
        if self.channels.is_idle and not has_state(checkpoint):
            return  # of a plain trainer, which this one is too
        tensors, numbers = load_state(checkpoint, process=process)
        self._logged = numbers["logged"]
        self.channels.load(tensors if process == 0 else load_state(checkpoint)[0], numbers["channels"])
        self.load_own_state(tensors, numbers["own"])
