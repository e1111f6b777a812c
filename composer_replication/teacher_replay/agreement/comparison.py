"""What it means that two actions are the same: the interface of every comparer."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from composer_replication.traces import Turn


class Comparison(NamedTuple):
    """Whether two actions are the same in meaning, and how alike they are (0 to 1)."""

    same: bool
    similarity: float


class Comparer(Protocol):
    """Compares what two turns of an assistant do."""

    def __call__(self, first: Turn, second: Turn, /) -> Comparison: ...
