"""What a normalisation did: how many pairs each operator dropped, which ones, and why."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class DroppedPair:
    """A pair that an operator dropped. `reason` has the statistic and the bound that it missed."""

    index: int
    state_id: str
    op: str
    field: str
    reason: str
    tool_call: bool


@dataclass
class OpReport:
    """One operator: how many pairs reached it, how many it dropped, and how many of those were about tool calls."""

    op: str
    field: str
    seen: int
    dropped: int = 0
    dropped_tool_calls: int = 0


@dataclass
class NormalizeReport:
    """The summary of one `normalize`. A pair counts as a tool-call pair if either of its sides makes a call."""

    recipe: str | None
    recipe_sha256: str | None
    executor: str | None
    pairs_in: int = 0
    pairs_out: int = 0
    tool_call_pairs_in: int = 0
    tool_call_pairs_out: int = 0
    ops: list[OpReport] = field(default_factory=list)
    dropped: list[DroppedPair] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)
