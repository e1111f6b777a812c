"""Prompts that do not fit a teacher: not sent where that is known, and no reason to give the teacher up."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from teacher_replay.loopback_teacher import Bare, EndlessModels, LoopbackTeachers, states_of, to_replay
from teacher_replay.metered_replays import growing_states, spec_of

from composer_replication.teacher_replay.records import TeacherCallResult
from composer_replication.teacher_replay.replay_files import TraceToReplay
from composer_replication.teacher_replay.replay_report import TeacherUse
from composer_replication.teacher_replay.schedule import ReplayOptions, open_replay
from composer_replication.teacher_replay.teachers import resolve_teachers

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from metered_billing import Teacher
from metered_server import MeteredServer
from misbehaviour import TOO_LONG


def replay(
    spec: Any, traces: list[TraceToReplay], **options: Any
) -> tuple[dict[str, TeacherCallResult], TeacherUse, dict[str, Any]]:
    async def run() -> tuple[dict[str, TeacherCallResult], TeacherUse, dict[str, Any]]:
        async with open_replay(resolve_teachers([spec]), ReplayOptions(backoff=0.0, **options)) as opened:
            rows = {row.state_id: row.result() async for some in opened.run(traces) for row in some}
        return rows, opened.report.teachers["a"], opened.report.as_dict()

    return asyncio.run(run())


def traces_of(count: int, states: int, letters: int = 1000) -> list[TraceToReplay]:
    """Traces that begin differently and grow by about `letters` a state."""
    made = []
    for number in range(count):
        grown = growing_states(states, letters=letters)
        for index, state in enumerate(grown):
            first = {"role": "system", "content": f"trace {number}"}
            state["messages"] = [first, *state["messages"]]
            state["state_id"] = f"{number}::{index:04d}"
        made.append(to_replay(str(number), grown))
    return made


@pytest.mark.parametrize("refusal", TOO_LONG)
def test_a_teacher_is_not_given_up_for_prompts_that_do_not_fit(refusal: str) -> None:
    # One trace is longer than the rest, and there are more states that do not fit than failures that are put up with.
    teacher = Teacher(window=1500, refusal=refusal)
    with MeteredServer({"a": teacher}) as server:
        rows, use, figures = replay(spec_of(server, "a", teacher), traces_of(3, 20), give_up_after=2, concurrency=4)
        refused, broken = server.meter.too_long, server.meter.broken
        fitting = {record.digest for record in server.meter.records}
    assert broken == []
    assert (use.failed, use.left_alone, use.retries) == (0, None, 0)
    assert use.answered == len(fitting) > 0
    assert use.answered + use.too_long == 60
    assert figures["too_long"] == use.too_long > 0
    # What begins with a prompt that did not fit is not sent; only those that were already under way are.
    assert refused <= 3 * 4
    assert all((row["error"] is None) == (row["response_text"] is not None) for row in rows.values())


@pytest.mark.parametrize("known", ["by the spec", "by the list of models"])
def test_prompts_that_are_known_not_to_fit_are_not_sent(known: str) -> None:
    # Messages of 36 kB are at least 6,000 tokens; the teacher itself would take them.
    teacher = Teacher(context_length=6000 if known == "by the list of models" else None)
    window = {"context_window": 6000} if known == "by the spec" else {}
    with MeteredServer({"a": teacher}) as server:
        rows, use, _ = replay(spec_of(server, "a", teacher, **window), traces_of(1, 40, letters=2000))
        asked = server.meter.requests
    assert asked == use.answered > 0
    assert use.too_long > 0
    last = list(rows.values())[-1]
    assert last["error"] is not None
    assert "6,000 fit" in last["error"]


def test_the_tokens_that_were_counted_tell_what_fits() -> None:
    # Two bytes a token: three times as many tokens as the prompts have for certain by their bytes alone. The server
    # would take them all.
    teacher = Teacher(bytes_per_token=2.0, context_length=9000)
    traces = traces_of(1, 40, letters=1000)
    assert sum(len(message["content"]) for message in traces[0].steps[-1].messages) < 9000 * 6
    with MeteredServer({"a": teacher}) as server:
        _, use, _ = replay(spec_of(server, "a", teacher), traces, concurrency=1)
    assert server.meter.requests == use.answered > 0
    assert use.too_long > 0


def test_a_window_that_is_not_told_is_looked_for_once() -> None:
    teacher = Teacher()
    with MeteredServer({"a": teacher}) as server:
        _, use, _ = replay(spec_of(server, "a", teacher), traces_of(2, 5))
    assert (use.answered, use.too_long, server.meter.listed) == (10, 0, 1)


def test_a_server_without_a_list_of_models_answers_all_the_same() -> None:
    with LoopbackTeachers() as server:
        _, use, _ = replay(server.spec("a"), [to_replay("t", states_of("one", "two"))])
    assert use.answered == 2


@pytest.mark.parametrize(
    "said",
    [
        Bare(400, b'[{"error": {"code": 400, "message": "The input token count (9) exceeds the maximum of 4"}}]'),
        Bare(400, b"the prompt is too long"),
        Bare(200, b'{"base_resp": {"status_code": 2013, "status_msg": "context window exceeds limit"}}'),
        Bare(200, b'{"error": {"code": "context_length_exceeded", "message": "no"}}'),
    ],
)
def test_bodies_of_other_shapes(said: Bare) -> None:
    priced = {"input_per_mtok": 1.0, "output_per_mtok": 1.0}
    with LoopbackTeachers(lambda _: said) as server:
        _, use, _ = replay(server.spec("a", **priced), [to_replay("t", states_of("one"))])
    assert (use.too_long, use.failed, use.cost, len(server.asked)) == (1, 0, 0, 1)


def test_a_list_of_models_that_does_not_end_holds_up_nobody_else() -> None:
    came: list[str] = []

    def note(row: TeacherCallResult) -> None:
        came.append(row["teacher_slug"])
        endless.end()  # from here on the other one goes on

    async def run(specs: list[Any]) -> None:
        options = ReplayOptions(backoff=0.0, max_retries=0)
        async with open_replay(resolve_teachers(specs), options, on_result=note) as opened:
            async for _ in opened.run([to_replay("t", states_of("one"))]):
                pass

    with LoopbackTeachers() as server, EndlessModels() as endless:
        asyncio.run(run([{"slug": "a", "base_url": endless.url}, server.spec("b")]))
    assert came == ["b", "a"]


def test_a_list_of_models_that_never_ends_is_given_up() -> None:
    with EndlessModels() as endless:
        spec = {"slug": "a", "base_url": endless.url}
        _, use, _ = replay(spec, [to_replay("t", states_of("one"))], timeout=0.3, max_retries=0)
    assert (use.failed, use.too_long) == (1, 0)
