"""From a trace to normalised pairs, with teachers behind real HTTP on loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from replaysim.some_pairs import call

import composer_replication.replaysim
from composer_replication.replaysim import (
    DJNormalizer,
    extract_dpo_pairs,
    replay_and_normalize_trace,
    replay_and_normalize_trace_sync,
)
from composer_replication.replaysim import normalize as module
from composer_replication.teacher_replay.serving import LocalTeachers
from composer_replication.traces import ToolCall, Trace, TraceState, Turn, parse_arguments, render_action

CODING = Path(__file__).parents[1] / "teacher_replay" / "fixtures"
RIGHT = {"run the tests": call("pytest -q"), "say so": "Yes.", "look": call("ls -l")}
WRONG = "I would rather not do that now."
TOOLS = [
    {
        "type": "function",
        "function": {"name": "Bash", "description": "", "parameters": {"type": "object", "properties": {}}},
    }
]


def states() -> list[TraceState]:
    return [
        {
            "state_id": f"t::{number:04d}",
            "messages": [{"role": "user", "content": task}],
            "student_action": "Let me think about it.",
        }
        for number, task in enumerate(RIGHT)
    ]


class Server:
    """Two teachers that agree (one of them in other words), and one that does not; `asked` counts the calls."""

    def __init__(self) -> None:
        self.asked = 0

        def agreeing(messages: Any) -> str:
            self.asked += 1
            return RIGHT[messages[-1]["content"]]

        def in_other_words(messages: Any) -> str:
            return agreeing(messages).replace("-q", "--quiet")

        self.teachers = LocalTeachers({"a": agreeing, "b": in_other_words, "c": lambda messages: WRONG})

    def specs(self) -> list[dict[str, Any]]:
        return [{"slug": name, "base_url": self.teachers.base_url, "model": name} for name in ("a", "b", "c")]


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    with made.teachers:
        yield made


def test_replay_extract_normalise(server: Server) -> None:
    normalizer = DJNormalizer()
    answers, kept = asyncio.run(
        replay_and_normalize_trace(
            states=iter(states()), teachers=server.specs(), normalizer=normalizer, agreement="action", tools=TOOLS
        )
    )
    assert len(answers) == 9
    assert all(row["error"] is None for row in answers)
    assert [one.state_id for one in kept] == ["t::0000", "t::0002"]
    assert kept[0].chosen_messages[0]["tool_calls"][0]["function"]["name"] == "Bash"
    assert kept[0].rejected_messages == [{"role": "assistant", "content": "Let me think about it."}]
    assert kept[0].state_messages == [{"role": "user", "content": "run the tests"}]
    assert kept[0].metadata["pair"]["teachers"] == ["a", "b"]
    assert kept[0].metadata["pair"]["tools"] == TOOLS
    assert normalizer.report is not None
    assert [one.reason for one in normalizer.report.dropped] == ["text_length_filter on chosen: text_len 4 < 8"]


def test_the_twin_for_callers_without_an_event_loop(server: Server) -> None:
    normalizer = DJNormalizer(skip_dj=True)
    given: dict[str, Any] = {"states": states(), "teachers": server.specs(), "normalizer": normalizer}
    answers, kept = module.replay_and_normalize_trace_sync(**given, agreement="exact")
    assert len(answers) == 9
    # By text alone, what is said in other words is something else.
    assert [one.state_id for one in kept] == ["t::0001", "t::0002"]
    assert {json.dumps(one.metadata["skipped"]) for one in kept} == {"true"}
    assert replay_and_normalize_trace_sync(**given, agreement="action", agreement_threshold=3)[1] == []
    assert len(replay_and_normalize_trace_sync(**given, min_margin=1)[1]) == 3  # by meaning
    assert replay_and_normalize_trace_sync(**given, agreement="action", min_margin=2)[1] == []


def test_the_cap_reaches_the_replay(server: Server) -> None:
    # A worst case of 0.8 dollars.
    specs = [{**spec, "output_per_mtok": 100, "max_output_tokens": 8000} for spec in server.specs()]
    given: dict[str, Any] = {"states": states(), "teachers": specs, "normalizer": DJNormalizer(skip_dj=True)}
    assert replay_and_normalize_trace_sync(**given, max_total_usd=0.5) == ([], [])
    assert server.asked == 0
    assert len(replay_and_normalize_trace_sync(**given)[0]) > 0


def test_a_wrong_recipe_costs_nothing(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DJNormalizer, "DEFAULT_RECIPE", Path("nowhere.yaml"))
    with pytest.raises(FileNotFoundError, match=r"nowhere\.yaml"):
        replay_and_normalize_trace_sync(states=states(), teachers=server.specs())
    assert server.asked == 0


def recorded_answers() -> Iterator[Any]:
    for line in (CODING / "coding_answers.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        calls = [
            ToolCall(one["id"], one["function"]["name"], *parse_arguments(one["function"]["arguments"]))
            for one in row["message"].get("tool_calls", ())
        ]
        action = render_action(Turn("assistant", row["message"]["content"] or "", tool_calls=calls))
        yield {**row, "response_text": action, "error": None}


def test_the_pairs_of_a_recorded_session_pass_the_default_recipe() -> None:
    trace = msgspec.json.decode((CODING / "coding_trace.jsonl").read_bytes(), type=Trace)
    pairs = extract_dpo_pairs(trace.states(), recorded_answers(), agreement="action")
    normalizer = DJNormalizer()
    assert len(normalizer.normalize(pairs)) == len(pairs) > 10
    assert normalizer.report is not None
    assert normalizer.report.tool_call_pairs_out == normalizer.report.tool_call_pairs_in > 10


def test_names_are_where_the_reference_has_them() -> None:
    package = composer_replication.replaysim
    for name in package.__all__:
        assert getattr(package, name).__name__ == name
        assert name in dir(package)
    assert module.DJNormalizer is package.DJNormalizer
    assert module.replay_and_normalize_trace is replay_and_normalize_trace
