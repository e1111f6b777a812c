"""A recorded session of fifty steps and three teachers' answers, priced and timed, through every command over HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from teacher_replay.loopback_teacher import Asked, LoopbackTeachers, Said, Whole

from composer_replication.cli import app as cli
from composer_replication.ingestion import SYSTEM_PROMPT
from composer_replication.ingestion.store import ManifestEntry, TraceStore
from composer_replication.teacher_replay import DEFAULT_TEACHERS
from composer_replication.teacher_replay.pair_files import load_pairs
from composer_replication.traces import Trace

FIXTURES = Path(__file__).parents[1] / "teacher_replay" / "fixtures"
# The recorded seconds, made bearable.
HASTE = 1000


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FIXTURES / "coding_answers.jsonl").read_text(encoding="utf-8").splitlines()]


def outcomes() -> dict[str, list[str]]:
    """The teachers behind the pair of each state that has one."""
    recorded = json.loads((FIXTURES / "coding_outcomes.json").read_text(encoding="utf-8"))
    return {state: sorted(one["teachers"]) for state, one in recorded.items() if one["pair"]}


@pytest.fixture
def trace() -> Trace:
    return msgspec.json.decode((FIXTURES / "coding_trace.jsonl").read_bytes(), type=Trace)


@pytest.fixture
def traces(trace: Trace, tmp_path: Path) -> Path:
    store = TraceStore(tmp_path / "traces")
    output = store.output_name("key", "session")
    store.write_traces(output, [trace])
    store.note(ManifestEntry(source="session", key="key", status="read", size=0, modified_ns=0, output=output))
    return tmp_path / "traces"


@pytest.fixture
def server(trace: Trace) -> Iterator[LoopbackTeachers]:
    # Every state of this session has a history of another length.
    by_length = {len(state["messages"]): state["state_id"] for state in trace.states(system_prompt=SYSTEM_PROMPT)}
    assert len(by_length) == 50
    recorded = {(row["state_id"], row["teacher_slug"]): row for row in rows()}

    def answer(asked: Asked) -> Said:
        row = recorded[by_length[len(asked.body["messages"])], asked.model]
        time.sleep(row["latency_s"] / HASTE)
        choice = {"index": 0, "message": row["message"], "finish_reason": row["finish_reason"]}
        return Whole({"choices": [choice], "usage": row["usage"]})

    with LoopbackTeachers(answer) as server:
        yield server


@pytest.fixture
def teachers(server: LoopbackTeachers, tmp_path: Path) -> Path:
    file = tmp_path / "teachers.yaml"
    file.write_text(yaml.safe_dump([{**spec, "base_url": server.url} for spec in DEFAULT_TEACHERS]))
    return file


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    assert cli.run([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def price_of_all() -> Fraction:
    specs = {spec["slug"]: spec for spec in DEFAULT_TEACHERS}
    total = Fraction(0)
    for row in rows():
        spec, usage = specs[row["teacher_slug"]], row["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        # They do not say what was written to the cache, so all of the rest may have been.
        total += (usage["prompt_tokens"] - cached) * Fraction(str(spec["cache_write_per_mtok"]))
        total += cached * Fraction(str(spec["cached_input_per_mtok"]))
        total += usage["completion_tokens"] * Fraction(str(spec["output_per_mtok"]))
    return total / 10**6


def test_from_states_to_normalised_pairs(
    traces: Path, teachers: Path, server: LoopbackTeachers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replayed, pairs, normalised = tmp_path / "replayed", tmp_path / "pairs.jsonl", tmp_path / "normalised.jsonl"
    figures = run(capsys, "replay", traces, "--teachers", teachers, "-o", replayed, "--gate", "none", "--max-usd", 50)
    assert (figures["states"], figures["calls"], figures["failed"]) == (50, 150, 0)
    assert figures["spent_usd"] == pytest.approx(float(price_of_all()), abs=150e-9)  # each call is rounded up
    assert all(use["latency_p50_s"] >= 1 / HASTE for use in figures["teachers"].values())

    counts = run(capsys, "pairs", traces, "--replay", replayed, "-o", pairs)
    found = list(load_pairs(pairs))
    behind = {pair["state_id"]: sorted(pair["teachers"]) for pair in found}
    # Three summaries in free text, of which the comparer takes but two for the same.
    assert behind.pop("parcelboard::0049") == ["anthropic/claude-opus-4.7", "deepseek/deepseek-v4-pro"]
    assert behind == {state: teachers for state, teachers in outcomes().items() if state != "parcelboard::0049"}
    assert (counts["states"], counts["pairs"], sum(counts["histogram"].values())) == (50, 17, 50)

    kept = run(capsys, "normalize", pairs, "-o", normalised)
    assert (kept["pairs_in"], kept["pairs_out"]) == (17, 17)

    asked = len(server.asked)
    again = run(capsys, "replay", traces, "--teachers", teachers, "-o", replayed, "--gate", "none", "--max-usd", 50)
    assert (again["calls"], again["spent_usd"], len(server.asked)) == (0, 0.0, asked)
    # One gives a number as text, which the tool does not take.
    assert (again["stored"], again["cut"], again["unusable"]) == (149, 0, 1)


def test_the_gate_finds_the_same_pairs_for_less(
    traces: Path, teachers: Path, server: LoopbackTeachers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replayed, pairs = tmp_path / "replayed", tmp_path / "pairs.jsonl"
    figures = run(capsys, "replay", traces, "--teachers", teachers, "-o", replayed, "--max-usd", 50)
    assert figures["calls"] == len(server.asked) == 150 - figures["not_asked_by_gate"] < 140
    assert figures["spent_usd"] < float(price_of_all())
    run(capsys, "pairs", traces, "--replay", replayed, "-o", pairs)
    assert [pair["state_id"] for pair in load_pairs(pairs)] == sorted(outcomes())
