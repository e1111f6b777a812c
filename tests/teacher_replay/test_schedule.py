"""Replay over real HTTP: the order of rows and calls, limits, gates, and ends of every kind that lose nothing."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from teacher_replay.loopback_teacher import Asked, Cut, LoopbackTeachers, Refusal, Said, states_of, to_replay
from teacher_replay.replays import PRICES, balance, dollars, numbered, opened, replayed, report_of

from composer_replication.teacher_replay import teachers as teachers_module
from composer_replication.teacher_replay.agreement.comparison import Comparison
from composer_replication.teacher_replay.pairs import extract_dpo_pairs
from composer_replication.teacher_replay.records import TeacherCallResult
from composer_replication.teacher_replay.replay_files import TraceToReplay
from composer_replication.teacher_replay.schedule import cheapest_first
from composer_replication.teacher_replay.teachers import MissingKeyError, resolve_teachers
from composer_replication.traces import Source, ToolCall, Trace, TraceState, Turn


def test_rows_are_in_the_order_of_the_states_and_of_the_teachers_whoever_answers_first(
    server: LoopbackTeachers,
) -> None:
    def slowly(asked: Asked) -> Said:
        time.sleep(0.03 * ((asked.earlier * 7 + len(asked.model)) % 4))
        return f"{asked.model} on {asked.text}"

    server.answer = slowly
    came: list[TeacherCallResult] = []
    rows = replayed(numbered(6), [server.spec("bb"), server.spec("a"), server.spec("ccc")], on_result=came.append)
    expected = [
        (f"t::{number:04d}", slug, f"{slug} on question {number}") for number in range(6) for slug in ("bb", "a", "ccc")
    ]
    assert [(row["state_id"], row["teacher_slug"], row["response_text"]) for row in rows] == expected
    assert sorted(map(json.dumps, came)) == sorted(map(json.dumps, rows))
    assert came != rows
    assert {(row["error"], row["stored"], row["cost_usd"]) for row in rows} == {(None, False, 0.0)}
    assert all(row["latency_s"] > 0 and row["prompt_tokens"] > 0 and row["completion_tokens"] > 0 for row in rows)


def test_answers_with_calls_have_the_form_of_the_students_actions(server: LoopbackTeachers) -> None:
    call = ToolCall("c", "Bash", {"command": "ls -l", "timeout": 3})
    server.answer = lambda _: {"content": "I look.", "tool_calls": [call.message()], "reasoning_content": "hm"}
    turns = [Turn("user", "go"), Turn("assistant", "I look.", tool_calls=[call])]
    trace = Trace("t", turns, Source("t.jsonl", "test"))
    (row,) = replayed(trace.states(), [server.spec("a")])  # an iterator, as traces give it
    (state,) = trace.states()
    assert (
        row["response_text"]
        == state["student_action"]
        == ('I look.\n[TOOL_USE] name=Bash input={"command": "ls -l", "timeout": 3}')
    )
    (tool,) = server.asked[0].body["tools"]
    assert tool["function"]["name"] == "Bash"
    assert set(tool["function"]["parameters"]["properties"]) == {"command", "timeout"}


def test_half_of_a_surrogate_pair_does_not_cost_an_answer(server: LoopbackTeachers, ledger: Path) -> None:
    call = ToolCall("c", "Write", {"text": "smile \ud83d"})
    server.answer = lambda _: {"content": "cut \ud83d here, whole \U0001f600 there", "tool_calls": [call.message()]}
    for stored in (False, True):
        (row,) = replayed(numbered(1), [server.spec("a")], ledger=ledger)
        assert (row["error"], row["stored"]) == (None, stored)
        assert row["response_text"] == (
            'cut ? here, whole \U0001f600 there\n[TOOL_USE] name=Write input={"text": "smile ?"}'
        )
    assert len(server.asked) == 1


def test_a_request_says_what_the_teacher_was_set_to(server: LoopbackTeachers) -> None:
    tool = {"name": "Read", "description": "Reads.", "input_schema": {"type": "object", "properties": {}}}
    spec = server.spec("slug", model="the-model", max_output_tokens=33, parameters={"temperature": 0.25})
    replayed(numbered(1), [spec], tools=[tool])
    body = dict(server.asked[0].body)
    assert [message["role"] for message in body.pop("messages")] == ["system", "user"]
    assert body.pop("tools")[0]["function"]["description"] == "Reads."
    assert body == {"model": "the-model", "max_tokens": 33, "temperature": 0.25}


def test_no_states_are_an_error(server: LoopbackTeachers) -> None:
    for nothing in ([], iter([])):
        with pytest.raises(ValueError, match="there are no states: replay needs at least one turn of an assistant"):
            replayed(nothing, [server.spec("a")])


def test_a_state_without_an_id_is_named_before_anyone_is_asked(server: LoopbackTeachers) -> None:
    first, second = numbered(2)
    del second["state_id"]  # type: ignore[misc]
    with pytest.raises(ValueError, match=r"states\[1\]: a state needs 'state_id'"):
        replayed([first, second], [server.spec("a")])
    assert server.asked == []


def test_an_unknown_option_gets_the_nearest_name(server: LoopbackTeachers) -> None:
    with pytest.raises(TypeError, match="replay_trace has no argument 'concurency': did you mean 'concurrency'"):
        replayed(numbered(1), [server.spec("a")], concurency=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_total_usd": -1}, "max_total_usd must be an amount of 0 or more, not -1"),
        ({"max_total_usd": float("nan")}, "max_total_usd must be an amount of 0 or more, not nan"),
        ({"concurrency": 0}, "concurrency must be at least 1, not 0"),
        ({"total_concurrency": 0}, "total_concurrency must be at least 1, not 0"),
        ({"agreement_threshold": 0}, "agreement_threshold must be at least 1, not 0"),
        ({"give_up_after": 0}, "give_up_after must be at least 1, not 0"),
        ({"max_retries": -1}, "max_retries must not be negative, not -1"),
        ({"min_margin": -1}, "min_margin must not be negative, not -1"),
        ({"backoff": -0.5}, r"backoff must not be negative, not -0\.5"),
        ({"timeout": 0}, "timeout must be positive, not 0"),
        ({"gate": "sometimes"}, "gate must be 'none', 'sequential' or a callable, not 'sometimes'"),
        ({"gate": "sequential", "agreement": "vague"}, "agreement must be 'exact', 'action' or a comparer"),
    ],
)
def test_a_wrong_option_is_named_before_anything_is_written(
    server: LoopbackTeachers, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        replayed(numbered(1), [server.spec("a")], ledger=tmp_path / "ledger.sqlite", **options)
    assert list(tmp_path.iterdir()) == []
    assert server.asked == []


def test_a_missing_key_is_an_error_before_anybody_is_asked(
    server: LoopbackTeachers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    specs = [server.spec("a"), server.spec("b", api_key_variable="NO_SUCH_KEY")]
    with pytest.raises(MissingKeyError, match="teacher b needs a key: set NO_SUCH_KEY"):
        replayed(numbered(1), specs, ledger=tmp_path / "ledger.sqlite")
    assert list(tmp_path.iterdir()) == []
    assert server.asked == []


def test_a_key_goes_to_the_endpoint_it_is_for_and_shows_up_nowhere(
    server: LoopbackTeachers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    key, own = "sk-or-v1-0123456789abcdefghij", "sk-own-9876543210zyxwvuts"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OWN_KEY", own)
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    server.answer = lambda asked: Refusal(400, f"{asked.headers.get('Authorization')} is wrong")
    with LoopbackTeachers() as openrouter:
        openrouter.answer = server.answer
        monkeypatch.setattr(teachers_module, "OPENROUTER", openrouter.url)
        specs: list[Any] = [
            {"slug": "routed", "input_per_mtok": 0, "output_per_mtok": 0},
            server.spec("keyless"),
            server.spec("own", api_key_variable="OWN_KEY"),
        ]
        rows = replayed(numbered(2), specs, api_key=key, ledger=tmp_path / "ledger.sqlite")
        assert {asked.headers["Authorization"] for asked in openrouter.asked} == {f"Bearer {key}"}
    assert {asked.headers["Authorization"] for asked in server.of("own")} == {f"Bearer {own}"}
    assert all("Authorization" not in asked.headers for asked in server.of("keyless"))
    assert len(server.of("keyless")) == 2
    assert all(row["error"] is not None and "is wrong" in row["error"] for row in rows)
    shown = json.dumps(rows) + caplog.text + repr(resolve_teachers(specs, api_key=key))
    for file in tmp_path.iterdir():
        shown += file.read_bytes().decode("latin-1") if file.is_file() else ""
    assert key not in shown
    assert own not in shown
    assert all(asked.raw.find(secret.encode()) < 0 for asked in server.asked for secret in (key, own))


def test_what_is_sent_is_redacted_unless_that_is_switched_off(server: LoopbackTeachers) -> None:
    secret = "ghp_" + "a1B2" * 9
    states = states_of(f"the token is {secret}", "go on")
    replayed(states, [server.spec("a")])
    assert len(server.asked) == 2
    assert all(secret.encode() not in asked.raw for asked in server.asked)
    replayed(states, [server.spec("a")], redact=False)
    assert all(secret.encode() in asked.raw for asked in server.asked[2:])


def test_the_requests_of_a_trace_begin_alike_and_carry_marks_for_those_who_want_them(
    server: LoopbackTeachers,
) -> None:
    states = numbered(5, padding=5000)
    replayed(states, [server.spec("plain"), server.spec("marked", cache_control=True)], concurrency=1)
    for asked, later in itertools.pairwise(server.of("plain")):
        assert later.raw.startswith(asked.raw.removesuffix(b"]}"))
    for asked, plain in zip(server.of("marked"), server.of("plain"), strict=True):
        assert asked.text == plain.text
        marked = [i for i, message in enumerate(asked.body["messages"]) if isinstance(message["content"], list)]
        last = len(asked.body["messages"]) - 1
        # Behind the system prompt, behind the prompt that was answered before, at the end.
        assert marked == sorted({0, max(last - 2, 1), last})
        for index in marked:
            (part,) = asked.body["messages"][index]["content"]
            assert part["cache_control"] == {"type": "ephemeral"}
            assert part["text"] == plain.body["messages"][index]["content"]


def test_the_first_call_of_a_trace_to_a_teacher_goes_alone(server: LoopbackTeachers) -> None:
    def slow_at_first(asked: Asked) -> Said:
        if asked.earlier == 0:
            server.wait_until(lambda: len(server.of("a")) >= 1 and len(server.of("b")) >= 1)
            time.sleep(0.1)  # others would be here by now
        else:
            server.wait_until(lambda: len(server.of(asked.model)) >= 5)
        return "x"

    server.answer = slow_at_first
    replayed(numbered(8), [server.spec("a"), server.spec("b")], concurrency=4)
    for model in ("a", "b"):
        first, second, *others = server.of(model)
        assert first.text == "question 0"
        assert (first.beside, second.beside) == (0, 0)
        assert max(asked.beside for asked in others) == 3
    assert server.peak_of["a"] == server.peak_of["b"] == 4


@pytest.mark.parametrize(
    ("specs", "options", "peaks", "peak"),
    [
        ([{}, {}], {"concurrency": 3}, (3, 3), 6),
        ([{"concurrency": 1}, {}], {"concurrency": 4}, (1, 4), 5),
        ([{}, {}], {"concurrency": 8, "total_concurrency": 2}, (2, 2), 2),
    ],
)
def test_no_more_calls_are_in_flight_than_was_allowed(
    server: LoopbackTeachers, specs: list[Any], options: dict[str, Any], peaks: tuple[int, int], peak: int
) -> None:
    def when_it_is_full(asked: Asked) -> Said:
        if asked.earlier:
            server.wait_until(lambda: server.peak >= peak)
        time.sleep(0.02)  # more would be here by now
        return "x"

    server.answer = when_it_is_full
    traces = [to_replay(str(n), states_of(*(f"{n} {i}" for i in range(10)))) for n in range(3)]
    report_of(traces, [server.spec(name, **spec) for name, spec in zip("ab", specs, strict=True)], **options)
    assert len(server.asked) == 60
    assert server.peak == peak
    assert server.peak_of["a"] <= peaks[0]
    assert server.peak_of["b"] <= peaks[1]


def test_only_a_few_traces_are_taken_at_once(server: LoopbackTeachers) -> None:
    taken: list[int] = []
    most_open: list[int] = []

    def traces() -> Iterator[TraceToReplay]:
        for number in range(30):
            taken.append(number)
            yield to_replay(str(number), states_of(f"of {number}"))

    async def run() -> None:
        done = 0
        async with opened([server.spec("a")]) as replay:
            async for rows in replay.run(traces()):
                most_open.append(len(taken) - done)
                done += len(rows)

    asyncio.run(run())
    assert len(taken) == len(most_open) == 30
    assert max(most_open) <= 8 + 1


# What teachers a, b and c say at every state, what the student did there, and in which order the prices put them.
TABLES = st.lists(st.tuples(*[st.sampled_from("xys")] * 3), min_size=1, max_size=5)


@settings(max_examples=12)
@given(table=TABLES, costs=st.permutations([1, 2, 3]), threshold=st.integers(1, 3), failing=st.sampled_from("abc-"))
def test_a_sequential_gate_gives_the_same_pairs_for_fewer_calls(
    table: list[tuple[str, ...]], costs: list[int], threshold: int, failing: str
) -> None:
    with LoopbackTeachers() as server:

        def from_table(asked: Asked) -> Said:
            if asked.model == failing:
                return Refusal(400)
            return table[int(asked.text)]["abc".index(asked.model)]

        server.answer = from_table
        states = states_of(*map(str, range(len(table))), student="s")
        specs = dollars(server, **dict(zip("abc", costs, strict=True)))
        pairs, calls = [], []
        for gate in ("none", "sequential"):
            before = len(server.asked)
            rows = replayed(states, specs, gate=gate, agreement_threshold=threshold, give_up_after=100)
            calls.append(len(server.asked) - before)
            found = extract_dpo_pairs(states, rows, threshold)
            pairs.append([(pair["state_id"], pair["chosen"], pair["rejected"]) for pair in found])
        assert pairs[0] == pairs[1]
        assert calls[1] <= calls[0] == 3 * len(table)


def test_rows_say_how_they_were_gated_and_pairs_follow(
    server: LoopbackTeachers, caplog: pytest.LogCaptureFixture
) -> None:
    paths = {"a": "src/x.py", "b": "./src/x.py"}
    server.answer = lambda asked: f'[TOOL_USE] name=Read input={{"file_path": "{paths[asked.model]}"}}'
    states, specs = states_of("go", student="s"), [server.spec("a"), server.spec("b")]
    rows = replayed(states, specs, gate="sequential", agreement="action")
    assert [row["gated_by"] for row in rows] == [{"agreement": "action", "agreement_threshold": 2, "min_margin": 0}] * 2
    assert (len(extract_dpo_pairs(states, rows)), caplog.text) == (1, "")
    for gate in ("none", lambda *_: True):
        assert not any("gated_by" in row for row in replayed(states, specs, gate=gate))
    by_length = replayed(states, specs, gate="sequential", agreement=lambda *_: Comparison(True, 1.0), min_margin=1)
    assert by_length[0]["gated_by"] == {"agreement": "custom", "agreement_threshold": 2, "min_margin": 1}


def test_a_sequential_gate_asks_the_cheapest_first_and_counts_what_it_saves(server: LoopbackTeachers) -> None:
    server.answer = lambda asked: "s" if asked.text == "same" else "x"
    specs = dollars(server, dear=9, cheap=1, middle=2)
    traces = [to_replay("t", states_of("same", "other", "same", student="s"))]
    report = report_of(traces, specs, gate="sequential", expected_output_tokens=100)
    assert Counter(asked.model for asked in server.asked) == {"cheap": 3, "middle": 3}
    assert [teacher.slug for teacher in cheapest_first(resolve_teachers(specs))] == ["cheap", "middle", "dear"]
    figures = report.as_dict()
    assert (figures["calls"], figures["not_asked_by_gate"]) == (6, 3)
    assert report.teachers["dear"].gated == 3
    # About what the other two were, at its price: a fourth of the bytes, and the expected output.
    tokens = sum(row["prompt_tokens"] for row in [report.teachers["cheap"].as_dict()])
    assert figures["saved_by_gate_usd"] == pytest.approx(9e-6 * (tokens + 300), rel=0.2)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_gate_of_ones_own_is_asked_before_every_teacher(server: LoopbackTeachers, is_async: bool) -> None:
    seen: list[tuple[str, list[str | None], list[str]]] = []

    def until_two(state: TraceState, answers: Sequence[TeacherCallResult], remaining: Sequence[str], /) -> bool:
        seen.append((state["state_id"], [row["response_text"] for row in answers], list(remaining)))
        return len(answers) < 2

    async def later(state: TraceState, answers: Sequence[TeacherCallResult], remaining: Sequence[str], /) -> bool:
        await asyncio.sleep(0)
        return until_two(state, answers, remaining)

    rows = replayed(numbered(1), dollars(server, c=3, a=1, b=2), gate=later if is_async else until_two)
    assert [row["teacher_slug"] for row in rows] == ["a", "b"]
    texts = ["a on question 0", "b on question 0"]
    assert seen == [
        ("t::0000", [], ["a", "b", "c"]),
        ("t::0000", texts[:1], ["b", "c"]),
        ("t::0000", texts, ["c"]),
    ]


def test_a_gate_of_ones_own_gets_the_states_that_were_given(server: LoopbackTeachers) -> None:
    def easy_ones(state: Any, answers: Sequence[TeacherCallResult], remaining: Sequence[str], /) -> bool:
        assert state["student_action"] == '[TOOL_USE] name=ls input={"p":1}'
        return not answers and state["level"] == "easy"

    states: list[Any] = [
        {**state, "level": level, "student_action": '[TOOL_USE] name=ls input={"p":1}'}
        for state, level in zip(numbered(2), ("easy", "hard"), strict=True)
    ]
    assert [row["state_id"] for row in replayed(states, [server.spec("a")], gate=easy_ones)] == ["t::0000"]


def test_a_comparer_that_takes_texts_is_refused_before_anything_is_asked(server: LoopbackTeachers) -> None:
    def by_text(first: Any, second: Any, /) -> Comparison:
        return Comparison(first.split() == second.split(), 1.0)

    with pytest.raises(ValueError, match=r"cannot compare turns .*: it gets two traces\.Turn"):
        replayed(numbered(1), [server.spec("a")], gate="sequential", agreement=by_text)
    assert not server.asked


def test_a_gate_that_fails_ends_the_replay_without_a_hang(server: LoopbackTeachers, ledger: Path) -> None:
    def broken(state: TraceState, answers: Sequence[TeacherCallResult], remaining: Sequence[str], /) -> bool:
        raise KeyError(state["state_id"])

    with pytest.raises(KeyError, match="t::000"):
        replayed(numbered(5), [server.spec("a")], gate=broken, ledger=ledger)
    assert balance(ledger).in_flight == 0


@pytest.mark.parametrize("status", [401, 402, 403, 404])
def test_a_teacher_that_can_only_fail_is_left_alone_and_the_others_go_on(server: LoopbackTeachers, status: int) -> None:
    server.answer = lambda asked: Refusal(status, "not you") if asked.model == "bad" else "x"
    traces = [to_replay("t", numbered(12))]
    report = report_of(traces, [server.spec("bad"), server.spec("good")])
    assert (len(server.of("bad")), len(server.of("good"))) == (1, 12)
    assert report.teachers["bad"].left_alone == f"HTTP {status}: not you"
    assert (report.teachers["bad"].failed, report.teachers["good"].answered) == (12, 12)
    rows = replayed(numbered(2), [server.spec("bad")])
    assert [row["error"] for row in rows] == [f"HTTP {status}: not you", f"not asked: HTTP {status}: not you"]


def test_a_teacher_that_fails_too_often_in_a_row_is_left_alone(server: LoopbackTeachers) -> None:
    server.answer = lambda asked: "x" if asked.earlier == 2 else Refusal(500, "broken")
    report = report_of(
        [to_replay("t", numbered(12))], [server.spec("bad")], max_retries=0, give_up_after=3, concurrency=1
    )
    assert len(server.asked) == 6  # two failures, an answer, three failures
    assert report.teachers["bad"].left_alone == "3 calls in a row failed, the last: HTTP 500: broken"
    assert (report.teachers["bad"].answered, report.teachers["bad"].failed) == (1, 11)


def test_retries_are_counted_and_rows_have_the_last_error(server: LoopbackTeachers) -> None:
    server.answer = lambda asked: (
        Refusal(503, f"try {asked.earlier}") if asked.model == "bad" or asked.earlier < 2 else "x"
    )
    report = report_of([to_replay("t", numbered(1))], [server.spec("bad"), server.spec("good")], max_retries=3)
    assert (report.teachers["bad"].retries, report.teachers["good"].retries) == (3, 2)
    assert (report.teachers["bad"].failed, report.teachers["good"].answered) == (1, 1)
    rows = replayed(numbered(1), [server.spec("bad")], max_retries=1)
    assert rows[0]["error"] == "HTTP 503: try 5"
    assert (rows[0]["response_text"], rows[0]["cost_usd"], rows[0]["stored"]) == (None, 0.0, False)


def test_a_teacher_that_is_left_alone_keeps_what_it_once_answered(server: LoopbackTeachers, ledger: Path) -> None:
    options = {"ledger": ledger}
    states = numbered(4)
    replayed(states[:3], [server.spec("a")], **options)
    server.answer = lambda _: Refusal(401)
    # The last state comes first: it is the one that is not stored.
    rows = replayed([states[3], *states[:3]], [server.spec("a")], concurrency=1, **options)
    assert [row["error"] for row in rows] == ["HTTP 401: no", None, None, None]
    assert [row["stored"] for row in rows] == [False, True, True, True]
    assert len(server.asked) == 4


def test_a_second_run_asks_only_for_what_is_missing(server: LoopbackTeachers, tmp_path: Path) -> None:
    options = {"ledger": tmp_path / "folder" / "ledger.sqlite", "max_total_usd": 1.0}
    specs = [server.spec("a", **PRICES), server.spec("b", **PRICES)]
    states = numbered(4)
    first = replayed(states[:2], specs[:1], **options)
    assert len(server.asked) == 2
    rows = replayed(states, specs, **options)
    assert len(server.asked) == 8
    assert [row["stored"] for row in rows] == [True, False, True, False, False, False, False, False]
    assert [{**row, "stored": False} for row in rows if row["stored"]] == first
    assert all(row["cost_usd"] > 0 for row in rows)
    again = replayed(states, specs, **options)
    assert len(server.asked) == 8
    assert [{**row, "stored": True} for row in rows] == again


def test_another_limit_or_parameter_is_another_call_and_another_order_is_none(
    server: LoopbackTeachers, ledger: Path
) -> None:
    def ask(**fields: Any) -> None:
        replayed(numbered(1), [server.spec("a", **fields)], ledger=ledger)

    thinking = {"reasoning": {"effort": "low", "exclude": True}, "temperature": 1}
    ask()
    ask(max_output_tokens=5)
    ask(model="another")
    ask(parameters=thinking)
    assert len(server.asked) == 4
    ask(parameters={"temperature": 1, "reasoning": {"exclude": True, "effort": "low"}})
    ask(concurrency=1, cache_control=True, family="x")
    assert len(server.asked) == 4
    # Another teacher is another one, though it be the same model.
    replayed(numbered(1), [server.spec("b", model="a")], ledger=ledger)
    assert len(server.asked) == 5


def test_identical_states_are_asked_once(server: LoopbackTeachers) -> None:
    def slowly(asked: Asked) -> Said:
        time.sleep(0.05)
        return f"{asked.text} {len(server.asked)}"

    server.answer = slowly
    (state,) = numbered(1)
    twins = [{**state, "state_id": f"s{number}"} for number in range(4)]
    traces = [to_replay("one", twins[:2]), to_replay("two", [*twins[2:], *states_of("another")])]
    report = report_of(traces, [server.spec("a")])
    assert len(server.asked) == 2
    assert (report.teachers["a"].answered, report.teachers["a"].stored) == (2, 3)


def test_two_traces_with_the_same_ids_are_two_traces(server: LoopbackTeachers) -> None:
    async def run() -> list[list[tuple[str, str | None]]]:
        async with opened([server.spec("a")]) as replay:
            traces = [to_replay("t", states_of("one", "two")), to_replay("t", states_of("three", "four"))]
            rows = [rows async for rows in replay.run(traces)]
        assert (replay.report.traces, replay.report.states) == (2, 4)
        return sorted([(row.state_id, row.result()["response_text"]) for row in one] for one in rows)

    assert asyncio.run(run()) == [
        [("t::0000", "a on one"), ("t::0001", "a on two")],
        [("t::0000", "a on three"), ("t::0001", "a on four")],
    ]


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (Cut("half an ans", "length"), "the answer was cut at 8192 tokens: raise max_output_tokens"),
        (Cut("", "content_filter"), "the endpoint broke the answer off, or kept it back (content_filter)"),
        (Cut(" \n", "stop"), "the answer is empty"),
        ({"content": None}, "the answer is empty"),
        ({"content": "<think>only this</think>"}, "the answer is empty"),
    ],
)
def test_an_answer_that_is_no_action_is_an_error_and_not_paid_again(
    server: LoopbackTeachers, ledger: Path, said: Said, error: str
) -> None:
    server.answer = lambda _: said
    spec = server.spec("a", **PRICES, max_output_tokens=8192)
    options = {"ledger": ledger, "max_total_usd": 1.0, "give_up_after": 1}
    for stored in (False, True):
        rows = replayed(numbered(2), [spec], **options)
        assert [(row["response_text"], row["error"], row["stored"]) for row in rows] == [(None, error, stored)] * 2
        assert all(row["cost_usd"] > 0 and row["completion_tokens"] > 0 for row in rows)
    assert len(server.asked) == 2


READ = {"name": "Read", "input_schema": {"type": "object", "required": ["file_path"]}}
MISFIT: Said = {"content": None, "tool_calls": [ToolCall("c", "Read", {"path": "a"}).message()]}


def test_answers_that_cannot_be_used_are_counted_with_their_dollars(server: LoopbackTeachers, ledger: Path) -> None:
    said: dict[str, Said] = {
        "question 0": "fine",
        "question 1": MISFIT,
        "question 2": Cut("half", "max_tokens"),
    }
    server.answer = lambda asked: said.get(asked.text, Cut("half", "length"))
    specs = [server.spec(slug, **PRICES, max_output_tokens=64) for slug in "abc"]
    options: dict[str, Any] = {"ledger": ledger, "max_total_usd": 1.0}
    traces = [to_replay("t", numbered(5), [READ])]
    rows: list[TeacherCallResult] = []
    for stored in (False, True):
        report = report_of(traces, specs, **options)
        use, figures = report.teachers["a"], report.as_dict()
        assert (use.cut, use.unusable, use.failed) == (3, 1, 0)
        assert (use.answered, use.stored, use.calls) == ((0, 1, 0) if stored else (1, 0, 5))
        assert (figures["calls"], figures["cut"], figures["unusable"]) == (0 if stored else 15, 9, 3)
        rows = replayed(numbered(5), specs, tools=[READ], **options)
        of_a = [row for row in rows if row["teacher_slug"] == "a"]
        assert figures["teachers"]["a"]["cut_usd"] == pytest.approx(sum(row["cost_usd"] for row in of_a[2:]))
        assert figures["teachers"]["a"]["unusable_usd"] == pytest.approx(of_a[1]["cost_usd"])
        assert figures["cut_usd"] == pytest.approx(3 * figures["teachers"]["a"]["cut_usd"])
        assert figures["unusable_usd"] == pytest.approx(3 * figures["teachers"]["a"]["unusable_usd"])
        assert use.last_unusable == (
            "the answer's call of Read does not fit the tool: 'file_path' is a required property"
        )
        assert report.settled == 15
    assert [row["state_id"] for row in rows if row["error"] is None] == ["t::0000"] * 3


def test_a_gate_asks_on_for_an_answer_that_cannot_be_used(server: LoopbackTeachers) -> None:
    server.answer = lambda asked: MISFIT if asked.model == "a" else "fine"
    specs = [server.spec(slug, input_per_mtok=price, output_per_mtok=1) for price, slug in enumerate("abcd")]
    trace = to_replay("t", numbered(1, student="s"), [READ])
    uses = report_of([trace], specs, gate="sequential", max_total_usd=1.0).teachers
    assert [(uses[slug].unusable, uses[slug].answered, uses[slug].gated) for slug in "abcd"] == [
        (1, 0, 0), (0, 1, 0), (0, 1, 0), (0, 0, 1),
    ]  # fmt: skip


def test_the_figures_add_up(server: LoopbackTeachers, ledger: Path) -> None:
    server.answer = lambda asked: Refusal(400) if (asked.model, asked.text) == ("b", "question 1") else "x y z"
    specs = [server.spec("a", **PRICES), server.spec("b", **PRICES)]
    options: dict[str, Any] = {"ledger": ledger, "max_total_usd": 1.0}
    traces = [to_replay("t", numbered(4))]
    first = replayed(numbered(2), specs[:1], **options)
    came: list[TeacherCallResult] = []
    figures = report_of(traces, specs, on_result=came.append, **options).as_dict()
    assert (figures["traces"], figures["states"], figures["calls"]) == (1, 4, 5)
    assert (figures["stored"], figures["failed"], figures["not_asked_by_gate"]) == (2, 1, 0)
    paid = [row for row in came if not row["stored"] and row["error"] is None]
    assert figures["spent_usd"] == pytest.approx(sum(row["cost_usd"] for row in paid))
    assert figures["saved_by_ledger_usd"] == pytest.approx(sum(row["cost_usd"] for row in first))
    assert figures["budget"]["spent_usd"] == pytest.approx(figures["spent_usd"] + figures["saved_by_ledger_usd"])
    assert (
        figures["budget"]["in_doubt"] == figures["budget"]["in_flight_elsewhere"] == figures["budget"]["repeated"] == 0
    )
    for name in ("answered", "stored", "failed", "retries", "not_asked_by_gate", "not_asked_for_money"):
        total = {"answered": "calls"}.get(name, name)
        if total in figures:
            assert figures[total] == sum(teacher[name] for teacher in figures["teachers"].values())
    for slug in "ab":
        of_teacher = [row for row in paid if row["teacher_slug"] == slug]
        teacher = figures["teachers"][slug]
        assert teacher["prompt_tokens"] == sum(row["prompt_tokens"] for row in of_teacher)
        assert teacher["completion_tokens"] == sum(row["completion_tokens"] for row in of_teacher)
        assert teacher["latency_p50_s"] in [row["latency_s"] for row in of_teacher]
        assert teacher["latency_p95_s"] == max(row["latency_s"] for row in of_teacher)
    assert json.loads(json.dumps(figures)) == figures


def test_what_a_providers_cache_saves_is_counted(server: LoopbackTeachers) -> None:
    server.cached = 0.5
    spec = server.spec("a", **PRICES, cached_input_per_mtok=0.5)
    (row,) = replayed(numbered(1), [spec], max_total_usd=1.0)
    fresh = row["prompt_tokens"] - row["cached_tokens"]
    assert fresh >= row["cached_tokens"] > 0
    dollars = (2 * fresh + 0.5 * row["cached_tokens"] + 10 * row["completion_tokens"]) / 10**6
    assert row["cost_usd"] == pytest.approx(dollars)
    figures = report_of([to_replay("t", numbered(1))], [spec], max_total_usd=1.0).as_dict()
    assert figures["spent_usd"] == pytest.approx(dollars)
    assert figures["saved_by_prompt_cache_usd"] == pytest.approx(1.5 * row["cached_tokens"] / 10**6)
    assert figures["teachers"]["a"]["cached_tokens"] == row["cached_tokens"]


def test_without_money_nobody_is_asked_and_what_costs_nothing_is(server: LoopbackTeachers) -> None:
    specs = [server.spec("paid", **PRICES), server.spec("free")]
    report = report_of([to_replay("t", numbered(3))], specs, max_total_usd=0.0)
    assert {asked.model for asked in server.asked} == {"free"}
    assert (report.teachers["paid"].no_room, report.teachers["free"].answered) == (3, 3)
    assert {row["teacher_slug"] for row in replayed(numbered(1), specs, max_total_usd=0.0)} == {"free"}


def test_a_teacher_of_the_students_family_is_named_and_can_be_left_out(server: LoopbackTeachers) -> None:
    specs = [server.spec("claude-x", cache_control=False), server.spec("gpt-x")]
    traces = [
        to_replay("one", numbered(1), student_models=["claude-sonnet-4-5", "other"]),
        to_replay("two", states_of("else"), student_models=["qwen3"]),
    ]
    report = report_of(traces, specs)
    assert (report.same_family, report.excluded) == ({"claude-x": "claude"}, [])
    assert len(server.asked) == 4
    report = report_of(traces, specs, exclude_same_family=True)
    assert (report.same_family, report.excluded) == ({"claude-x": "claude"}, ["claude-x"])
    assert Counter(asked.model for asked in server.asked[4:]) == {"gpt-x": 2, "claude-x": 1}
