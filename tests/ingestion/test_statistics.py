"""What a reader counts."""

from __future__ import annotations

import json
from collections import Counter

from composer_replication.ingestion import IngestionStats
from composer_replication.traces import Source, ToolCall, Trace, Turn, Usage


def example() -> Trace:
    asked = Turn("assistant", "look", tool_calls=[ToolCall("c1", "Read"), ToolCall("c2", "Read")])
    asked.usage = Usage(input_tokens=10, output_tokens=3, cached_tokens=7)
    copied = Turn("assistant", "copied", repeats=True, usage=Usage(1000, 1000, 1000))
    failed = Turn("tool", "no", tool_call_id="c1", is_error=True, error_kind="command_failed")
    stray = Turn("tool", "whose?", tool_call_id="c9")
    return Trace("t", [Turn("user", "go"), copied, asked, failed, stray, Turn("assistant")], Source("f", "x"))


def test_a_trace_is_counted() -> None:
    stats = IngestionStats()
    stats.count(example())
    assert (stats.n_turns, stats.n_assistant_turns, stats.n_text_blocks) == (6, 2, 1)
    assert (stats.n_tool_use_blocks, stats.n_tool_results) == (2, 2)
    assert (stats.calls_without_result, stats.results_without_call) == (1, 1)
    assert (stats.input_tokens, stats.output_tokens, stats.cached_tokens) == (10, 3, 7)
    assert stats.errors == {"command_failed": 1}


def test_what_is_passed_over_is_counted_with_its_reason() -> None:
    stats = IngestionStats()
    stats.skip("progress", 3)
    stats.skip("progress")
    stats.skip_line("broken line")
    assert (stats.n_records_skipped, stats.skipped_truncated_lines) == (4, 1)
    assert stats.skipped == {"progress": 4, "broken line": 1}


def test_counts_add_up() -> None:
    one, other = IngestionStats(n_records_total=5), IngestionStats(version_warnings=["new", "old"])
    one.count(example())
    one.skip("progress")
    other.count(example())
    other.skip("progress", 2)
    one.version_warnings = ["new"]
    one.merge(other)
    assert (one.n_records_total, one.n_turns, one.calls_without_result) == (5, 12, 2)
    assert one.skipped == {"progress": 3}
    assert one.errors == {"command_failed": 2}
    assert one.version_warnings == ["new", "old"]
    assert other.n_turns == 6


def test_counts_survive_json() -> None:
    stats = IngestionStats(n_records_total=5, version_warnings=["new"])
    stats.count(example())
    stats.skip("progress")
    again = IngestionStats.from_dict(json.loads(json.dumps(stats.as_dict())))
    assert again == stats
    assert isinstance(again.skipped, Counter)
    assert IngestionStats.from_dict({"unknown": 1}) == IngestionStats()
    assert IngestionStats().version_warnings == []
