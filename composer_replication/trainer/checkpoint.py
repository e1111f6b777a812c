"""The channels' state in a Hugging Face checkpoint, and how a checkpoint is known to be complete.

    checkpoint-N/channels-R.safetensors   tensors of process R: the teacher (process 0 only), rollouts still to be used
    checkpoint-N/channels-R.json          the numbers, and the checksum of the tensors
    checkpoint-N/trainer_state.json       Hugging Face's; the last file that is written

A run that is killed while it saves leaves a checkpoint without the last file; resuming skips it.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from composer_replication._files import sha256_of, whole_file
from composer_replication.trainer.channel_engine import ChannelEngine
from composer_replication.trainer.model_card import card_of, name_base_absolutely
from composer_replication.trainer.outer_steps import OuterSteps

logger = logging.getLogger(__name__)

_LAST_FILE = "trainer_state.json"
_OUTER = "diloco/"
_CHECKPOINT = re.compile(r"checkpoint-(\d+)$")


def save_state(
    folder: str | Path, tensors: Mapping[str, torch.Tensor], numbers: Mapping[str, Any], *, process: int = 0
) -> None:
    """Write a process's part of a checkpoint."""
    tensor_file, number_file = _files(folder, process)
    with whole_file(tensor_file, "the checkpoint") as temporary:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, temporary)
    with whole_file(number_file, "the checkpoint") as temporary:
        temporary.write_text(json.dumps({**numbers, "tensors_sha256": sha256_of(tensor_file)}), encoding="utf-8")


def load_state(folder: str | Path, *, process: int = 0) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Read what `save_state` wrote.

    Raises:
        ValueError: the checkpoint is not one of ours, is not complete, or was changed.
    """
    tensor_file, number_file = _files(folder, process)
    if not number_file.is_file():
        raise ValueError(
            f"{folder} has no {number_file.name}: it was not written by this trainer, or not to its end; resume from "
            "another checkpoint"
        )
    try:
        numbers = json.loads(number_file.read_text(encoding="utf-8"))
        if numbers.pop("tensors_sha256") != sha256_of(tensor_file):
            raise ValueError(f"{tensor_file} is not the file that the checkpoint was saved with: its checksum differs")
        return load_file(tensor_file), numbers
    except (OSError, KeyError, json.JSONDecodeError, SafetensorError) as error:
        raise ValueError(f"{folder} cannot be read: {error}") from error


def has_state(folder: str | Path) -> bool:
    """Whether one of our trainers has written into this checkpoint."""
    return _files(folder, 0)[1].is_file()


def begin_checkpoint(folder: str | Path) -> None:
    """Make a folder of an earlier run with the same name incomplete before anything new is written into it."""
    for name in (_LAST_FILE, "channels-*.json"):
        for file in Path(folder).glob(name):
            file.unlink()


def last_complete_checkpoint(output_dir: str | Path, *, processes: int = 1) -> Path | None:
    """The newest checkpoint that was saved to its end; a half-written one is skipped, with a warning."""
    folder = Path(output_dir)
    found = (
        sorted(
            (int(match[1]), path)
            for path in folder.iterdir()
            if path.is_dir() and (match := _CHECKPOINT.search(path.name))
        )
        if folder.is_dir()
        else []
    )
    for _, path in reversed(found):
        if _is_complete(path, processes):
            return path
        logger.warning("%s was not saved to its end and is skipped", path)
    return None


class ChannelCheckpoints(OuterSteps):
    """A mixin for a `Trainer`: the state of `self.channels`, and what `own_state` adds, is saved and
    restored with every checkpoint, as is that of a replica's outer loop, and every model is saved with a card of ours.

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
        """The state of this process besides the channels: tensors, and numbers as JSON takes them."""
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
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        shared, outer = None, None
        if self.replica is not None:
            if self.state.global_step >= self.state.max_steps:
                self.replica.finish()
            # It may heal, which changes the step.
            shared, outer = self.replica.state_dict()
        folder = Path(self._get_output_dir(trial=trial), f"checkpoint-{self.state.global_step}")
        process = self.accelerator.process_index
        if process == 0:
            begin_checkpoint(folder)
        self.accelerator.wait_for_everyone()
        tensors, numbers = self.own_state()
        tensors |= {f"{_OUTER}{name}": tensor for name, tensor in (shared or {}).items()}
        if process == 0:
            tensors |= self.channels.tensors()
        logged = {"loss": self._tr_loss.item(), "step": self._globalstep_last_logged}
        save_state(
            folder,
            tensors,
            {"channels": self.channels.numbers(), "own": numbers, "logged": logged, "outer": outer},
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
        """Add the loss that a killed run had not logged yet; the training loop has just set it to 0."""
        if self._logged is not None:
            self._tr_loss += self._logged["loss"]
            self._globalstep_last_logged = self._logged["step"]
            self._logged = None

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        process = self.accelerator.process_index
        if self.channels.is_idle and not has_state(checkpoint):
            return  # of a plain trainer, which this one is too
        tensors, numbers = load_state(checkpoint, process=process)
        self._logged = numbers["logged"]
        if self.replica is not None:
            if numbers.get("outer") is None:
                raise ValueError(f"{checkpoint} was not saved by a replica: there is no outer state to go on from")
            shared = {name[len(_OUTER) :]: tensor for name, tensor in tensors.items() if name.startswith(_OUTER)}
            self.replica.load_state_dict(shared, numbers["outer"])
        self.channels.load(tensors if process == 0 else load_state(checkpoint)[0], numbers["channels"])
        self.load_own_state(tensors, numbers["own"])


def _is_complete(folder: Path, processes: int) -> bool:
    try:
        json.loads((folder / _LAST_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return all(_files(folder, process)[1].is_file() for process in range(processes))


def _files(folder: str | Path, process: int) -> tuple[Path, Path]:
    return Path(folder, f"channels-{process}.safetensors"), Path(folder, f"channels-{process}.json")
