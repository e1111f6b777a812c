"""What it means that two actions are the same: the interface of every comparer."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Comparison(NamedTuple):
    """Whether two actions are the same in meaning, and how alike they are (0 to 1)."""

    same: bool
    similarity: float


class Comparer(Protocol):
    """Compares two actions in the form of `render_action`."""

    def __call__(self, first: str, second: str, /) -> Comparison: ...
