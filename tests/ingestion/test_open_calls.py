"""Results and the calls they answer."""

from __future__ import annotations

from composer_replication.ingestion.chat_conversation import OpenCalls, distinct_id
from composer_replication.traces import ToolCall, Turn


def test_an_id_that_is_taken_gets_a_number() -> None:
    assert distinct_id("c", ()) == "c"
    assert distinct_id("c", ("c", "c#2")) == "c#3"


def test_a_result_goes_to_the_latest_call_of_its_id() -> None:
    calls = OpenCalls()
    for expected in ("c", "c#2"):
        turn = Turn(role="assistant", tool_calls=[ToolCall(id="c", name="f")])
        calls.made(turn)
        assert turn.tool_calls[0].id == expected
        assert calls.answered("c") == expected
    assert calls.waiting == []
    assert calls.answered("c") == "c#2"
    assert calls.answered("unknown") == "unknown"
    assert calls.answered(None) is None
