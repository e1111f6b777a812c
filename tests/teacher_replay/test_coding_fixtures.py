"""The recorded coding session, its teachers' answers and what should come of them belong together."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from composer_replication.histories import estimate_tokens
from composer_replication.traces import Trace

FIXTURES = Path(__file__).parent / "fixtures"
TEACHERS = {"anthropic/claude-opus-4.7", "openai/gpt-5", "deepseek/deepseek-v4-pro"}


def the_trace() -> Trace:
    return msgspec.json.decode((FIXTURES / "coding_trace.jsonl").read_bytes(), type=Trace)


def the_answers() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FIXTURES / "coding_answers.jsonl").read_text(encoding="utf-8").splitlines()]


def the_outcomes() -> dict[str, dict[str, Any]]:
    outcomes: dict[str, dict[str, Any]] = json.loads((FIXTURES / "coding_outcomes.json").read_text(encoding="utf-8"))
    return outcomes


def state_ids() -> list[str]:
    return [state["state_id"] for state in the_trace().states()]


def test_the_session_has_fifty_states_and_every_call_its_result() -> None:
    trace = the_trace()
    assert len(state_ids()) == sum(turn.role == "assistant" for turn in trace.turns) == 50
    assert all(result is not None for _, _, result in trace.calls())
    assert (FIXTURES / "coding_trace.jsonl").read_bytes() == msgspec.json.encode(trace) + b"\n"


def test_every_teacher_answers_every_state_once() -> None:
    asked = Counter((row["state_id"], row["teacher_slug"]) for row in the_answers())
    assert asked == Counter((state_id, slug) for state_id in state_ids() for slug in TEACHERS)


def test_answers_are_messages_that_call_known_tools() -> None:
    tools = {tool["function"]["name"]: tool["function"]["parameters"] for tool in the_trace().tools}
    for row in the_answers():
        calls = row["message"].get("tool_calls", [])
        assert row["message"]["role"] == "assistant"
        assert row["finish_reason"] == ("tool_calls" if calls else "stop")
        assert calls or row["message"]["content"]
        for call in calls:
            arguments = json.loads(call["function"]["arguments"])
            schema = tools[call["function"]["name"]]
            assert set(schema["required"]) <= arguments.keys() <= schema["properties"].keys()


def test_usage_grows_with_the_history() -> None:
    states = {state["state_id"]: state["messages"] for state in the_trace().states()}
    for slug in TEACHERS:
        prompts = []
        for row in the_answers():
            if row["teacher_slug"] == slug:
                usage = row["usage"]
                text = json.dumps(list(states[row["state_id"]]), ensure_ascii=False)
                assert 0.6 <= usage["prompt_tokens"] / (estimate_tokens(text) + 600) <= 1.4
                assert 0 <= usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"]
                assert usage["completion_tokens"] > 0
                assert row["latency_s"] > 0
                prompts.append(usage["prompt_tokens"])
        assert prompts == sorted(prompts)


def test_outcomes_name_two_teachers_for_a_pair_and_none_otherwise() -> None:
    outcomes = the_outcomes()
    assert list(outcomes) == state_ids()
    for outcome in outcomes.values():
        assert outcome["note"]
        assert set(outcome["teachers"]) <= TEACHERS
        assert len(outcome["teachers"]) >= 2 if outcome["pair"] else not outcome["teachers"]
    assert 14 <= sum(outcome["pair"] for outcome in outcomes.values()) <= 20
