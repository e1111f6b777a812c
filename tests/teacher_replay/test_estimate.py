"""What a replay would cost: the sums by hand, nothing written, and the range of a gate."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from teacher_replay.loopback_teacher import Asked, LoopbackTeachers, Said, states_of, to_replay

from composer_replication.teacher_replay.estimate import ReplayEstimate, estimate_replay
from composer_replication.teacher_replay.ledger import LedgerError
from composer_replication.teacher_replay.prices import NANO
from composer_replication.teacher_replay.schedule import ReplayOptions, replay_trace
from composer_replication.teacher_replay.teachers import resolve_teachers
from composer_replication.traces import TraceState

NOWHERE = "http://127.0.0.1:9/v1"


def spec(slug: str, price: float = 1.0, **fields: Any) -> dict[str, Any]:
    prices = {"input_per_mtok": price, "output_per_mtok": 5 * price, "cached_input_per_mtok": price / 10}
    return {"slug": slug, "base_url": NOWHERE, "max_output_tokens": 100, **prices, **fields}


def estimated(
    states: Sequence[TraceState], specs: Sequence[Any], tools: Sequence[dict[str, Any]] = (), **options: Any
) -> ReplayEstimate:
    settings = ReplayOptions(**{"agreement": "exact", "redact": False, **options})
    return estimate_replay([to_replay("t", states, tools)], resolve_teachers(specs), settings)


def size(state: TraceState, tools: str = "[]") -> int:
    """The bytes of a prompt: its tools, and its messages with a comma behind each."""
    return len(tools) + sum(len(json.dumps(message, separators=(",", ":"))) + 1 for message in state["messages"])


def test_every_call_is_priced_as_by_hand() -> None:
    states = states_of("a", "b" * 3, padding=9000)
    first, second = map(size, states)
    estimate = estimated(states, [spec("t")], expected_output_tokens=40)
    assert (estimate.traces, estimate.states) == (1, 2)
    teacher = estimate.teachers["t"]
    assert (teacher.calls, teacher.stored) == (2, 0)
    assert teacher.prompt_tokens == first // 4 + second // 4
    assert teacher.cached_tokens == first // 4
    # In nano-dollars: 1000 for a fresh token, 100 for a cached one, 5000 for one of an answer.
    assert teacher.uncached == (first // 4 + second // 4) * 1000 + 2 * 40 * 5000
    assert teacher.expected == first // 4 * 1000 + (second // 4 - first // 4) * 1000 + first // 4 * 100 + 2 * 40 * 5000
    assert teacher.dearest_call == (second + 1024) * 1000 + 100 * 5000
    assert estimated(states[::-1], [spec("t")]).teachers["t"].dearest_call == teacher.dearest_call
    assert estimate.at_least == estimate.at_most == teacher.expected
    figures = estimate.as_dict()
    assert figures["at_most_usd"] == teacher.expected / NANO
    assert figures["teachers"]["t"]["without_prompt_cache_usd"] == teacher.uncached / NANO
    assert json.loads(json.dumps(figures)) == figures


def test_tools_are_sent_with_every_call() -> None:
    tool = {
        "type": "function",
        "function": {"name": "x", "description": "d", "parameters": {"type": "object", "properties": {}}},
    }
    states = states_of("a", padding=9000)
    encoded = json.dumps([tool], separators=(",", ":"))
    assert estimated(states, [spec("t")], [tool]).teachers["t"].prompt_tokens == size(states[0], encoded) // 4


def test_what_goes_into_a_cache_has_a_price_where_caches_are_asked_for() -> None:
    states = states_of("a", "b", padding=9000)
    first, second = (size(state) // 4 for state in states)
    teacher = estimated(
        states, [spec("t", cache_control=True, cache_write_per_mtok=2)], expected_output_tokens=0
    ).teachers["t"]
    assert teacher.expected == first * 2000 + (second - first) * 2000 + first * 100
    assert teacher.uncached == (first + second) * 1000
    elsewhere = estimated(states, [spec("t", cache_write_per_mtok=2)], expected_output_tokens=0).teachers["t"]
    assert elsewhere.expected == first * 1000 + (second - first) * 1000 + first * 100


@pytest.mark.parametrize("cache_control", [True, False])
def test_what_is_too_short_for_a_cache_is_neither_written_nor_read(cache_control: bool) -> None:
    states = states_of("a", "b")
    one = spec("t", cache_control=cache_control, cache_write_per_mtok=9)
    teacher = estimated(states, [one], expected_output_tokens=0).teachers["t"]
    assert teacher.cached_tokens == 0
    assert teacher.expected == teacher.uncached == sum(size(state) // 4 for state in states) * 1000


def test_a_context_that_begins_anew_is_not_cached() -> None:
    states = [*states_of("a", padding=9000), *states_of("c", padding=8000)]
    assert estimated(states, [spec("t")]).teachers["t"].cached_tokens == 0


def test_of_a_gate_the_least_is_what_it_always_asks() -> None:
    states = states_of("a", "b", padding=9000)
    specs = [spec("dear", 9.0), spec("cheap", 1.0), spec("middle", 3.0)]
    everything = estimated(states, specs)
    cost = {slug: teacher.expected for slug, teacher in everything.teachers.items()}
    assert everything.at_least == everything.at_most == sum(cost.values())
    for threshold, asked in ((2, ["cheap", "middle"]), (3, ["cheap"]), (4, [])):
        gated = estimated(states, specs, gate="sequential", agreement_threshold=threshold)
        assert gated.at_least == sum(cost[slug] for slug in asked)
        assert gated.at_most == everything.at_most
    assert estimated(states, specs, gate=lambda *_: True).at_least == 0


def test_of_a_gate_nobody_is_asked_where_the_student_did_nothing() -> None:
    thought = "[THINKING]\nhm\n[/THINKING]"
    states = states_of("a", student=thought)
    assert estimated(states, [spec("a"), spec("b")], gate="sequential").at_least == 0
    assert estimated(states, [spec("a"), spec("b")]).at_least > 0


def test_a_teacher_of_the_students_family_is_named_and_can_be_left_out() -> None:
    trace = to_replay("t", states_of("a"), student_models=["claude-x", "unknown"])
    teachers = resolve_teachers([spec("my-claude"), spec("other")])
    for exclude, calls in ((False, 1), (True, 0)):
        estimate = estimate_replay([trace], teachers, ReplayOptions(agreement="exact", exclude_same_family=exclude))
        assert estimate.same_family == {"my-claude": "claude"}
        assert (estimate.teachers["my-claude"].calls, estimate.teachers["other"].calls) == (calls, 1)


def test_nothing_is_written_and_nobody_is_asked(tmp_path: Path) -> None:
    with LoopbackTeachers() as server:
        for ledger in (None, tmp_path / "folder" / "ledger.sqlite"):
            estimated(states_of("a"), [spec("t", base_url=server.url)], ledger=ledger)
    assert list(tmp_path.iterdir()) == []
    assert server.asked == []


def test_no_key_is_needed_for_an_estimate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    assert estimated(states_of("a"), [spec("t", api_key_variable="NO_SUCH_KEY")]).teachers["t"].calls == 1


def test_what_is_stored_costs_nothing_and_the_ledger_stays_as_it_is(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.sqlite"

    def short(asked: Asked) -> Said:
        return "x"

    with LoopbackTeachers(short) as server:
        specs = [spec("a", base_url=server.url), spec("b", base_url=server.url)]
        # Something that would be redacted: an estimate has to make the prompts that the replay makes.
        states = states_of("ghp_" + "a1B2" * 9, "two", "three", padding=9000)
        asyncio.run(replay_trace(states[:2], specs[:1], 1.0, ledger=ledger, redact=False))
        before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
        estimate = estimated(states, specs, ledger=ledger)
        assert (estimate.teachers["a"].stored, estimate.teachers["a"].calls) == (2, 1)
        assert (estimate.teachers["b"].stored, estimate.teachers["b"].calls) == (0, 3)
        assert estimate.teachers["a"].cached_tokens == size(states[1]) // 4
        assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before
        # What a replay then pays is about what was said.
        asyncio.run(replay_trace(states, specs, 1.0, ledger=ledger, redact=False))
        assert len(server.asked) == 6
        assert estimated(states, specs, ledger=ledger).at_most == 0


def test_a_file_that_is_no_ledger_is_an_error(ledger: Path) -> None:
    (ledger).write_text("not a database, but long enough to be one" * 100)
    with pytest.raises(LedgerError, match=r"ledger\.sqlite cannot be used as a replay ledger"):
        estimated(states_of("a"), [spec("t")], ledger=ledger)
