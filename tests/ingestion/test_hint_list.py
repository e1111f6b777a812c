"""Every hint with the turn it is for."""

from __future__ import annotations

from ingestion.failing_traces import failing_trace

from composer_replication.ingestion.error_views import HintList, call_sites


def test_hints_with_their_turn_call_and_failing_line() -> None:
    listed = HintList()
    trace = failing_trace()
    listed.add(trace, call_sites(trace))
    charged, blind = listed.hints
    assert "assert 2 == 3" in charged.pop("hint")
    assert charged == {
        "trace": "s1",
        "file": "/logs/shop/s1.jsonl",
        "turn": 1,
        "line": 10,
        "kind": "test_failure",
        "tool": "Edit",
        "call": 'Edit {"file_path": "a.py", "new_string": "return 2"}',
        "error": "assert 2 == 3",
        "reported_by": 4,
    }
    assert (blind["turn"], blind["kind"], blind["error"]) == (
        5,
        "edit_before_read",
        "File has not been read yet. Read it first before writing to it.",
    )
    assert blind["reported_by"] is None
    assert (listed.without_hint, listed.outcomes_not_charged) == (1, 1)
