"""Failures counted by project, tool and model."""

from __future__ import annotations

from ingestion.failing_traces import calling, failing_trace, result

from composer_replication.ingestion.error_views import ErrorTable
from composer_replication.traces import Source, Trace


def test_the_cross_table_and_its_margins() -> None:
    table = ErrorTable()
    table.add(failing_trace())
    fine = [calling("a", "Bash"), result("a", "yes")]
    table.add(Trace("s2", fine, Source("/logs/by_hand/s2.jsonl", "x"), cwd="C:\\work\\depot\\"))
    table.add(Trace("s3", [calling("b", "Bash")], Source("/logs/by_hand/s3.jsonl", "x")))
    assert {(row["project"], row["tool"], row["model"]): row["calls"] for row in table.rows()} == {
        ("shop", "Edit", "model-a"): 2,
        ("shop", "Bash", "model-a"): 2,
        ("shop", "Grep", "model-a"): 1,
        ("depot", "Bash", "model-a"): 1,
        ("by_hand", "Bash", "model-a"): 1,
    }
    bash, edit, grep = table.by("tool")
    assert bash == {
        "tool": "Bash",
        "calls": 4,
        "failed": 2,
        "outcomes": 1,
        "charged": 1,
        "masked": 1,
        "hints": 0,
        "kinds": {"test_failure": 1, "user_rejected": 1},
    }
    assert (edit["failed"], edit["hints"], edit["kinds"]) == (1, 2, {"edit_before_read": 1})
    assert (grep["tool"], grep["failed"], grep["outcomes"], grep["charged"]) == ("Grep", 1, 1, 0)
    assert [(row["project"], row["failed"]) for row in table.by("project")] == [
        ("shop", 4),
        ("by_hand", 0),
        ("depot", 0),
    ]
    (model,) = table.by("model")
    assert (model["model"], model["calls"], model["failed"]) == ("model-a", 7, 4)


def test_a_failure_nobody_asked_for_is_no_call() -> None:
    lost = result("lost", "no", failed=True)
    lost.error_kind = "runtime_error"
    table = ErrorTable()
    table.add(Trace("s", [lost], Source("s.jsonl", "x"), model="model-c"))
    assert table.rows() == [
        {
            "project": "?",
            "tool": "?",
            "model": "model-c",
            "calls": 0,
            "failed": 1,
            "outcomes": 0,
            "charged": 0,
            "masked": 0,
            "hints": 0,
            "kinds": {"runtime_error": 1},
        }
    ]
