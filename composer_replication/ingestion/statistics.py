"""Counters of a reader: what it read, what it skipped, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from composer_replication.traces import Trace

# What is counted of a finished trace.
_COUNTED = (
    "n_turns",
    "n_assistant_turns",
    "n_text_blocks",
    "n_tool_use_blocks",
    "n_tool_results",
    "results_without_call",
    "calls_without_result",
    "masked_failures",
    "input_tokens",
    "output_tokens",
    "cached_tokens",
    "errors",
)


@dataclass
class IngestionStats:
    """Counters of one read. `skipped` maps each reason for skipping something to its count.

    A record is a JSON value of the log. `n_records_skipped` counts the records that became no part of a trace. Lines
    that are not JSON are not records; they are in `skipped_truncated_lines`. `n_text_blocks` counts the student's turns
    that say something: the text blocks of a turn are one text here.
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
    masked_failures: int = 0
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
        """Count records that were read and skipped."""
        self.n_records_skipped += count
        self.skipped[reason] += count

    def skip_line(self, reason: str) -> None:
        """Count a line, or a part of one, that cannot be read."""
        self.skipped_truncated_lines += 1
        self.skipped[reason] += 1

    def count(self, trace: Trace) -> None:
        """Count a finished trace. Turns that repeat another file's are context: no calls, no errors, no
        tokens."""
        calls: set[str] = set()
        copied: set[str] = set()
        answered: set[str | None] = set()
        for turn in trace.turns:
            if turn.repeats:
                copied.update(call.id for call in turn.tool_calls)
                continue
            if turn.role == "tool":
                if turn.tool_call_id in copied:
                    continue
                self.n_tool_results += 1
                answered.add(turn.tool_call_id)
                self.masked_failures += turn.masked
                if turn.error_kind is not None:
                    self.errors[turn.error_kind] += 1
            elif turn.role == "assistant":
                self.n_assistant_turns += 1
                if turn.content:
                    self.n_text_blocks += 1
                if turn.usage is not None:
                    self.input_tokens += turn.usage.input_tokens
                    self.output_tokens += turn.usage.output_tokens
                    self.cached_tokens += turn.usage.cached_tokens
            for call in turn.tool_calls:
                self.n_tool_use_blocks += 1
                calls.add(call.id)
        self.n_turns += len(trace.turns)
        self.calls_without_result += len(calls - answered)
        self.results_without_call += len(answered - calls)

    def recount(self, traces: Iterable[Trace]) -> None:
        """Replace what `count` added by the counts of these traces."""
        anew = IngestionStats()
        for trace in traces:
            anew.count(trace)
        for name in _COUNTED:
            setattr(self, name, getattr(anew, name))

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

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> IngestionStats:
        """Restore the counts from `as_dict`."""
        stats = cls()
        for one in fields(cls):
            if one.name in values:
                value = values[one.name]
                setattr(stats, one.name, Counter(value) if isinstance(value, dict) else value)
        return stats

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: dict(value) if isinstance(value, Counter) else value for name, value in values.items()}
