"""What our trainers add to a Hugging Face checkpoint, and how a checkpoint is known to be complete.

    checkpoint-N/channels-R.safetensors   tensors of process R: the teacher (process 0 only), rollouts still to be used
    checkpoint-N/channels-R.json          the numbers, and the checksum of the tensors
    checkpoint-N/trainer_state.json       Hugging Face's; the last file that is written

A run that is killed while it saves leaves a checkpoint without the last file, and resuming passes over it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from composer_replication._whole_file import whole_file

logger = logging.getLogger(__name__)

_LAST_FILE = "trainer_state.json"
_CHECKPOINT = re.compile(r"checkpoint-(\d+)$")


def save_state(
    folder: str | Path, tensors: Mapping[str, torch.Tensor], numbers: Mapping[str, Any], *, process: int = 0
) -> None:
    """Write a process's part of a checkpoint."""
    tensor_file, number_file = _files(folder, process)
    with whole_file(tensor_file, "the checkpoint") as temporary:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, temporary)
    with whole_file(number_file, "the checkpoint") as temporary:
        temporary.write_text(json.dumps({**numbers, "tensors_sha256": _checksum(tensor_file)}), encoding="utf-8")


def load_state(folder: str | Path, *, process: int = 0) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """What `save_state` wrote.

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
        if numbers.pop("tensors_sha256") != _checksum(tensor_file):
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
    """The newest checkpoint that was saved to its end; a half-written one is named in the log and passed over."""
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
        logger.warning("%s was not saved to its end and is passed over", path)
    return None


def _is_complete(folder: Path, processes: int) -> bool:
    try:
        json.loads((folder / _LAST_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return all(_files(folder, process)[1].is_file() for process in range(processes))


def _files(folder: str | Path, process: int) -> tuple[Path, Path]:
    return Path(folder, f"channels-{process}.safetensors"), Path(folder, f"channels-{process}.json")


def _checksum(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
