"""Checks of the arguments that users pass: each raises a `ValueError` naming the argument and its value."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Require `low <= value <= high`; NaN is refused."""
    if not low <= value <= high:
        raise ValueError(f"{name} must be in [{low:g}, {high:g}], got {value!r}")


def check_positive(name: str, value: float | None) -> None:
    """Require a finite value above zero; `None` means "not used" and passes."""
    if value is not None and not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be a positive finite number, got {value!r}")


def check_count(name: str, value: int | None) -> None:
    """Require a whole number above zero; `None` means "not used" and passes."""
    if value is not None and not (isinstance(value, int) and value > 0):
        raise ValueError(f"{name} must be a positive whole number, got {value!r}")


def check_non_negative(name: str, value: float) -> None:
    """Require a finite value of at least zero."""
    if not (value >= 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be a finite number >= 0, got {value!r}")


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Require one of `choices`."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def check_same_shape(name: str, tensor: torch.Tensor, other_name: str, other: torch.Tensor) -> None:
    """Require two tensors of one shape."""
    if tensor.shape != other.shape:
        raise ValueError(
            f"{name} has shape {tuple(tensor.shape)}, {other_name} has {tuple(other.shape)}: they must be equal"
        )


def check_no_nan(losses: torch.Tensor, **sources: torch.Tensor) -> None:
    """Raise if a loss is NaN, naming the source tensor that brought the NaN in.

    Only the small tensor of losses is scanned; the sources are looked at once something is wrong.
    """
    if not bool(torch.isnan(losses).any()):
        return
    for name, source in sources.items():
        count = int(torch.isnan(source).sum())
        if count:
            raise ValueError(f"{name} has {count} NaN values of {source.numel()}")
    names = " and ".join(sources)
    raise ValueError(f"the loss is NaN although {names} hold none: infinite values that cancel?")


def check_token_ids(name: str, ids: torch.Tensor) -> None:
    """Require (rows, columns) of integers."""
    if ids.dim() != 2 or ids.is_floating_point() or ids.dtype == torch.bool:
        raise ValueError(f"{name} must be (rows, columns) of token ids, got {ids.dtype} of shape {tuple(ids.shape)}")


def check_vocabulary(name: str, ids: torch.Tensor, size: int) -> None:
    """Require token ids below `size`, the number of the model's embeddings."""
    outside = (ids < 0) | (ids >= size)
    if bool(outside.any()):
        row, column = outside.nonzero()[0].tolist()
        raise ValueError(
            f"{name}[{row}, {column}] is {int(ids[row, column])}, and the model has {size} embeddings: use the model's "
            "own tokenizer, and pad with a real token id and an attention mask"
        )


def entry(inputs: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    """The batch's entry of that name, or a `ValueError` that lists what is there."""
    if name not in inputs:
        raise ValueError(f"inputs lacks {name!r}; it has {sorted(inputs)}")
    return inputs[name]
