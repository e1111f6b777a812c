"""A trace of every way a call can fail, for tests of what is shown of errors."""

from __future__ import annotations

from composer_replication.hint_generator.marking import mark_errors
from composer_replication.traces import Source, ToolCall, Trace, Turn, Usage

UNREAD = "<tool_use_error>File has not been read yet. Read it first before writing to it.</tool_use_error>"
REJECTED = "The user doesn't want to proceed with this tool use. The tool use was rejected."
TEST_RUN = "collected 3 items\n\ntests/test_a.py ..F\nE   assert 2 == 3\n\n1 failed, 2 passed in 0.1s"


def calling(name: str, tool: str, **arguments: str) -> Turn:
    return Turn("assistant", tool_calls=[ToolCall(f"call_{name}", tool, arguments)], model="model-a", line=10)


def result(name: str, text: str, *, failed: bool = False) -> Turn:
    return Turn("tool", text, tool_call_id=f"call_{name}", is_error=failed)


def failing_trace() -> Trace:
    """Turns 1-2: an edit that works and is charged with a test that fails at 3-4, masked. 5-6: an edit of a file that
    was not read. 7-8: a call that the user rejected. 9-10: a search without a match. 11: an answer."""
    turns = [
        Turn("user", "please", origin="prompt"),
        calling("edit", "Edit", file_path="a.py", new_string="return 2"),
        result("edit", "The file a.py has been updated."),
        calling("test", "Bash", command="pytest | tail -5"),
        result("test", TEST_RUN),
        calling("blind", "Edit", file_path="b.py", new_string="x"),
        result("blind", UNREAD, failed=True),
        calling("reject", "Bash", command="rm -r build"),
        result("reject", REJECTED, failed=True),
        calling("grep", "Grep", command="grep nothing a.py"),
        result("grep", "Exit code 1", failed=True),
        Turn("assistant", "done", model="model-b", usage=Usage(1200, 34, 1000)),
    ]
    trace = Trace("s1", turns, Source("/logs/shop/s1.jsonl", "claude_code"), cwd="/srv/shop")
    mark_errors(trace)
    run, edit = turns[4], turns[1]
    run.error_kind, run.masked, run.outcome, run.charged_to = "test_failure", True, True, [1]
    edit.tool_error = "test_failure"
    edit.error_meta = {
        "error_kind": "test_failure",
        "students_mistake": True,
        "error_message": "assert 2 == 3",
        "reported_by": "call_test",
    }
    return trace
