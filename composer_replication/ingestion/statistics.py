"""What a reader counts: everything it read, everything it passed over, and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass
class IngestionStats:
    """Counters of one read. `skipped` holds every reason for passing something over, with its count.

    A record is a JSON value of the log. `n_records_skipped` counts the records that became no part of a trace. Lines
    that are not JSON are no records; they are in `skipped_truncated_lines`.
    """

    n_records_total: int = 0
    n_records_skipped: int = 0
    n_states_emitted: int = 0
    n_assistant_turns: int = 0
    n_tool_use_blocks: int = 0
    n_text_blocks: int = 0
    skipped_subagent: int = 0
    skipped_summary: int = 0
    skipped_truncated_lines: int = 0
    version_warnings: list[str] | None = None
    n_turns: int = 0
    n_tool_results: int = 0
    results_without_call: int = 0
    calls_without_result: int = 0
    duplicate_results: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    states_truncated: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    recovered: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    redactions: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        if self.version_warnings is None:
            self.version_warnings = []

    def skip(self, reason: str, count: int = 1) -> None:
        """Count records that were read and passed over."""
        self.n_records_skipped += count
        self.skipped[reason] += count

    def merge(self, other: IngestionStats) -> None:
        """Add another read's counts to these."""
        for one in fields(self):
            theirs: Any = getattr(other, one.name)
            if isinstance(theirs, Counter):
                getattr(self, one.name).update(theirs)
            elif isinstance(theirs, list):
                ours = getattr(self, one.name)
                ours += [warning for warning in theirs if warning not in ours]
            else:
                setattr(self, one.name, getattr(self, one.name) + theirs)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: dict(value) if isinstance(value, Counter) else value for name, value in values.items()}
