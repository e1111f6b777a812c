"""Checks of the arguments that users pass. Each error names the argument and its value."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    """Raise if a loss is NaN, naming the source tensor that has the NaN.

    Only the small tensor of losses is always scanned; the sources are scanned if a loss is NaN.
    """
    if not bool(losses.isnan().any()):
        return
    for name, source in sources.items():
        count = int(source.isnan().sum())
        if count:
            raise ValueError(f"{name} has {count} NaN values of {source.numel()}")
    names = " and ".join(sources)
    raise ValueError(f"the loss is NaN although {names} hold none: infinite values that cancel?")


def check_token_ids(name: str, ids: torch.Tensor) -> None:
    """Require (rows, columns) of integers."""
    import torch

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
    """Return the batch's entry of that name, or raise a `ValueError` that lists the names there are."""
    if name not in inputs:
        raise ValueError(f"inputs lacks {name!r}; it has {sorted(inputs)}")
    return inputs[name]


def check_keywords(owner: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise a `TypeError` for the first keyword that `owner` does not take."""
    names = list(known)
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            advice = f": did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"{owner} has no argument {name!r}{advice}")


def keywords_of(*callables: Callable[..., Any]) -> list[str]:
    """Return the names of the arguments that these take by keyword."""
    named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [
        name
        for one in callables
        for name, parameter in inspect.signature(one).parameters.items()
        if parameter.kind in named and name != "self"
    ]
