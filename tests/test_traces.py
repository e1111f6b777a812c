"""A trace and its two views."""

from __future__ import annotations

import json
import sys
import tracemalloc
from collections.abc import Sequence
from itertools import pairwise
from types import FrameType
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.histories import CLEARED_RESULT, NO_RESULT, Context, History, estimate_tokens, is_truncated
from composer_replication.traces import (
    Message,
    Source,
    Step,
    ToolCall,
    Trace,
    TraceExample,
    TraceState,
    Turn,
    Usage,
    parse_arguments,
    render_action,
    without_thinking,
)

CALL = ToolCall("c1", "Read", {"path": "a.py"})


def trace_of(*turns: Turn, **fields: Any) -> Trace:
    return Trace("t", list(turns), Source("f.jsonl", "made_up"), **fields)


def user(content: str, **fields: Any) -> Turn:
    return Turn("user", content, **fields)


def says(content: str = "", *calls: str, **fields: Any) -> Turn:
    return Turn("assistant", content, tool_calls=[ToolCall(call, "Read") for call in calls], **fields)


def result(call: str | None, content: str = "", **fields: Any) -> Turn:
    return Turn("tool", content or f"of {call}", tool_call_id=call, **fields)


def seen(trace: Trace, **options: Any) -> list[list[str]]:
    """The contents of every state's history."""
    return [[message["content"] for message in state["messages"]] for state in trace.states(**options)]


# The view for teachers.


def test_one_state_for_each_assistant_turn() -> None:
    trace = trace_of(user("go"), Turn("assistant", "look", tool_calls=[CALL]), result("c1", "x"), says("done"))
    first, second = trace.states()
    assert first == {
        "state_id": "t::0000",
        "messages": [{"role": "user", "content": "go"}],
        "student_action": 'look\n[TOOL_USE] name=Read input={"path": "a.py"}',
    }
    function = {"name": "Read", "arguments": '{"path": "a.py"}'}
    calls = [{"id": "c1", "type": "function", "function": function}]
    assert second["state_id"] == "t::0001"
    assert list(second["messages"])[1:] == [
        {"role": "assistant", "content": "look", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "x"},
    ]


def test_a_step_carries_the_turn_itself_and_a_state_its_text() -> None:
    trace = full_trace()
    assert [step.turn is trace.turns[1] for step in trace.steps()] == [True]
    assert [step.state() for step in trace.steps()] == list(trace.states())
    (step,) = map(Step.of, trace.states())
    assert step.state() == next(trace.states())
    calls = [ToolCall("call_0", "Read", {"path": "a.py"}), ToolCall("call_1", "Bash", raw_arguments="{oops")]
    assert step.turn == Turn("assistant", thinking="hm", tool_calls=calls)


def test_repeats_are_context_and_no_states() -> None:
    trace = trace_of(user("go"), says("copied", repeats=True), user("more"), says("own"))
    (state,) = trace.states()
    assert (state["state_id"], state["student_action"]) == ("t::0000", "own")
    assert [message["content"] for message in state["messages"]] == ["go", "copied", "more"]


def test_histories_stay_as_they_are_while_the_trace_goes_on() -> None:
    trace = trace_of(
        user("go"),
        says("a", "c1"),
        result("c1"),
        says("b"),
        user("back", follows=0, clears=["c1"]),
        says("c"),
        user("summary", follows=-1),
        says("d"),
    )
    at_once = [list(state["messages"]) for state in trace.states()]
    kept = [state["messages"] for state in list(trace.states())]
    assert kept == at_once


def test_missing_results_get_the_placeholder() -> None:
    trace = trace_of(says("a", "c1", "c2", "c3"), result("c2"), user("stop"), says("b", "c4"), says("c"))
    (_, second, third) = (list(state["messages"]) for state in trace.states())
    tools = [(message["tool_call_id"], message["content"]) for message in second if message["role"] == "tool"]
    assert tools == [("c2", "of c2"), ("c1", NO_RESULT), ("c3", NO_RESULT)]
    assert second[-1] == {"role": "user", "content": "stop"}
    assert third[-1] == {"role": "tool", "tool_call_id": "c4", "content": NO_RESULT}


def test_orphan_results_become_user_messages() -> None:
    trace = trace_of(result("c9", "whose?"), says("a", "c1"), result("c8", "nobody's"), says("b"))
    first, second = (list(state["messages"]) for state in trace.states())
    assert first == [{"role": "user", "content": "whose?"}]
    assert [message["role"] for message in second] == ["user", "assistant", "tool", "user"]
    assert [message["content"] for message in second[2:]] == [NO_RESULT, "nobody's"]


def test_a_second_result_of_a_call_is_an_orphan() -> None:
    trace = trace_of(says("a", "c1"), result("c1"), result("c1", "again"), says("b"))
    assert [message["role"] for message in list(trace.states())[1]["messages"]] == ["assistant", "tool", "user"]


def test_the_given_system_prompt_leads() -> None:
    trace = trace_of(user("go"), says("a"), user("summary", follows=-1), says("b"))
    assert seen(trace, system_prompt="S") == [["S", "go"], ["S", "summary"]]
    assert seen(trace, system_prompt="") == [["go"], ["summary"]]


def test_the_logged_system_prompt_leads_and_survives() -> None:
    trace = trace_of(
        Turn("system", "logged"),
        Turn("system", "logged too"),
        user("go"),
        says("a"),
        Turn("system", "in the middle"),
        says("b"),
        user("summary", follows=-1),
        says("c"),
    )
    expected = [["logged", "logged too", "go"]]
    expected += [["logged", "logged too", "go", "a", "in the middle"], ["logged", "logged too", "summary"]]
    assert seen(trace) == expected
    assert seen(trace, system_prompt="S") == expected
    assert seen(trace, max_history_tokens=1)[1] == ["logged", "logged too", "in the middle"]


def test_thinking_in_histories() -> None:
    trace = trace_of(says("a", thinking="hm"), says("", thinking="so"), says("b"))
    assert seen(trace)[-1] == ["a", ""]
    assert seen(trace, strip_thinking=False)[-1] == [
        "[THINKING]\nhm\n[/THINKING]\na",
        "[THINKING]\nso\n[/THINKING]",
    ]


def test_follows_goes_back() -> None:
    trace = trace_of(user("go"), says("a"), user("wrong"), says("b"), user("right", follows=1), says("c"))
    assert seen(trace) == [["go"], ["go", "a", "wrong"], ["go", "a", "right"]]


def test_follows_into_an_abandoned_branch() -> None:
    turns = [user("go"), says("a"), user("wrong"), says("b"), user("right", follows=1), says("c")]
    trace = trace_of(*turns, user("wrong after all", follows=3), says("d"))
    assert seen(trace)[-1] == ["go", "a", "wrong", "b", "wrong after all"]


def test_follows_behind_a_call_leaves_its_results_to_come() -> None:
    turns = [user("go"), says("a", "c1", "c2"), result("c1"), result("c2"), says("b")]
    again = trace_of(*turns, result("c2", "other", follows=2), says("c"))
    assert seen(again)[-1] == ["go", "a", "of c1", "other"]
    assert [message["role"] for message in list(again.states())[-1]["messages"]][-1] == "tool"
    without = trace_of(*turns, user("stop", follows=1), says("c"))
    assert seen(without)[-1] == ["go", "a", NO_RESULT, NO_RESULT, "stop"]


def test_keeps_stand_behind_the_turn_and_stay_with_it() -> None:
    turns = [user("go"), says("a", "c1"), result("c1"), user("more"), says("b")]
    trace = trace_of(*turns, user("summary", follows=-1, keeps=[1, 2, 3]), says("c"), user("x", follows=5), says("d"))
    expected = ["summary", "a", "of c1", "more"]
    assert seen(trace)[-2:] == [expected, [*expected, "x"]]


def test_clears_hold_from_there_on() -> None:
    turns = [
        says("a", "c1", "c2"),
        result("c1"),
        result("c2"),
        says("b", clears=["c1"]),
        says("c"),
        user("d", follows=2),
    ]
    trace = trace_of(*turns, says("e"))
    assert seen(trace)[1:] == [
        ["a", CLEARED_RESULT, "of c2"],
        ["a", CLEARED_RESULT, "of c2", "b"],
        ["a", CLEARED_RESULT, "of c2", "d"],
    ]
    assert trace.turns[1].content == "of c1"


def is_valid_chat(messages: Sequence[Message]) -> bool:
    """Whether every call is answered once, at once, and nothing else is."""
    open_calls: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                return False
            open_calls.remove(message["tool_call_id"])
        elif open_calls:
            return False
        else:
            open_calls = {call["id"] for call in message.get("tool_calls", ())}
    return not open_calls


@st.composite
def wild_traces(draw: st.DrawFn) -> Trace:
    """Turns in any order, with lost and foreign results, rewinds to anywhere, compactions, and cleared results."""
    turns: list[Turn] = []
    calls: list[str] = []
    for number in range(draw(st.integers(1, 14))):
        role = draw(st.sampled_from(["user", "assistant", "tool", "tool", "system"]))
        turn = Turn(role, f"{role} {number}")  # type: ignore[arg-type]
        if role == "assistant":
            turn.tool_calls = [ToolCall(f"c{number}.{index}", "Read") for index in range(draw(st.integers(0, 2)))]
            calls += [call.id for call in turn.tool_calls]
        if role == "tool":
            turn.tool_call_id = draw(st.sampled_from([*calls[-3:], "c?"]))
        if draw(st.integers(0, 4)) == 0:
            turn.follows = draw(st.integers(-1, number - 1))
        if calls and draw(st.integers(0, 5)) == 0:
            turn.clears = [draw(st.sampled_from(calls))]
        turns.append(turn)
    return trace_of(*turns)


@given(wild_traces(), st.integers(1, 40))
def test_every_history_is_a_chat_that_a_provider_takes(trace: Trace, limit: int) -> None:
    states = list(trace.states())
    assert len(states) == sum(turn.role == "assistant" for turn in trace.turns)
    for state in [*states, *trace.states(system_prompt="S", max_history_tokens=limit)]:
        assert is_valid_chat(state["messages"])


class PlainContext(Context):
    """Clears by going through everything there is."""

    def _clear(self, calls: Sequence[str]) -> None:
        def cleared(message: Message) -> Message:
            hit = message["role"] == "tool" and message["tool_call_id"] in calls
            return {**message, "content": CLEARED_RESULT} if hit else message

        self._rendered = [[cleared(message) for message in messages] for messages in self._rendered]
        self._rebuild()


@given(wild_traces(), st.data())
def test_clearing_goes_everywhere(trace: Trace, data: st.DataObject) -> None:
    for number, turn in enumerate(trace.turns):
        if turn.follows == -1 and number:
            turn.keeps = data.draw(st.lists(st.integers(0, number - 1), max_size=4))
    quick, plain = Context(), PlainContext()
    kept: list[tuple[History, list[Message]]] = []
    for turn in trace.turns:
        for context in (quick, plain):
            context.before(turn)
        assert quick.history() == plain.history()
        kept.append((quick.history(), list(quick.history())))
        for context in (quick, plain):
            context.add(turn)
    assert quick.history() == plain.history()
    for history, shown in kept:
        assert list(history) == shown


def steps(trace: Trace, **options: Any) -> int:
    """How many functions run until the trace has shown its states: work without a clock."""
    count = 0

    def note(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        for _ in trace.states(**options):
            pass
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("limit", [1, 300, 10**9])
def test_truncation_costs_no_more_for_each_state_of_a_longer_trace(limit: int) -> None:
    def cost(length: int) -> int:
        turns = [turn for number in range(length) for turn in (says("b", f"c{number}"), result(f"c{number}"))]
        return steps(trace_of(*turns), max_history_tokens=limit, system_prompt="S")

    assert cost(800) < 5 * cost(200)


def test_clearing_costs_no_more_for_each_boundary_of_a_longer_trace() -> None:
    def cost(length: int) -> int:
        turns: list[Turn] = []
        for number in range(length):
            turns += [says("", f"c{number}", clears=[f"c{number - 2}"]), result(f"c{number}")]
        return steps(trace_of(*turns))

    assert cost(800) < 5 * cost(200)


def test_memory_grows_with_the_trace_and_not_with_its_square() -> None:
    def cost(length: int) -> int:
        turns = [turn for number in range(length) for turn in (user(f"question {number}"), says(f"answer {number}"))]
        trace = trace_of(*turns)
        tracemalloc.start()
        states = list(trace.states())
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(states) == length
        return used

    cost(10)
    assert cost(2000) < 5 * cost(500)


def test_histories_share_their_messages() -> None:
    states: list[TraceState] = list(trace_of(user("go"), says("a"), says("b"), says("c")).states())
    for earlier, later in pairwise(states):
        assert isinstance(later["messages"], History)
        assert all(one is other for one, other in zip(earlier["messages"], later["messages"], strict=False))


# Limits.


def test_the_newest_message_stays_whatever_it_costs() -> None:
    trace = trace_of(user("x" * 400), says("a"), user("y" * 400), says("b", "c1"), result("c1", "z" * 400), says("c"))
    assert seen(trace, max_history_tokens=1, system_prompt="S") == [
        ["S", "x" * 400],
        ["S", "y" * 400],
        ["S", "b", "z" * 400],
    ]


def test_a_limit_is_met_exactly() -> None:
    trace = trace_of(user("1234"), user("5678"), user("9012"), says("a"))
    assert [len(seen(trace, max_history_tokens=limit)[0]) for limit in (1, 2, 3, 4)] == [1, 2, 3, 3]
    assert [len(seen(trace, max_history_tokens=limit, system_prompt="abcd")[0]) for limit in (2, 3, 4)] == [2, 3, 4]


def truncated(messages: list[Message], limit: int) -> list[Message]:
    """The rule in full: the longest tail of whole units that fits, the newest unit whatever it costs."""
    lead = [message for message in messages if message["role"] == "system" and message["content"] == "S"]
    units: list[list[Message]] = []
    for message in messages[len(lead) :]:
        if message["role"] == "tool" and units:
            units[-1].append(message)
        else:
            units.append([message])

    def tokens(part: list[Message]) -> int:
        calls = [call["function"] for message in part for call in message.get("tool_calls", ())]
        texts = [message["content"] for message in part] + [call["name"] + call["arguments"] for call in calls]
        return sum(map(len, texts))

    for first in range(len(units)):
        rest = lead + [message for unit in units[first:] for message in unit]
        if tokens(rest) <= limit or first == len(units) - 1:
            return rest
    return lead


@given(wild_traces(), st.integers(0, 120), st.data())
def test_truncation_is_the_plain_rule(trace: Trace, limit: int, data: st.DataObject) -> None:
    for turn in trace.turns:
        turn.role = "user" if turn.role == "system" else turn.role  # so that "S" alone leads
        turn.content = "x" * data.draw(st.integers(0, 30))
    whole = [list(state["messages"]) for state in trace.states(system_prompt="S")]
    cut = list(trace.states(system_prompt="S", max_history_tokens=limit, count_tokens=len))
    assert [list(state["messages"]) for state in cut] == [truncated(messages, limit) for messages in whole]


def test_what_is_cleared_makes_room_for_older_messages() -> None:
    trace = trace_of(
        user("go"), says("a", "c1"), result("c1", "r" * 400), says("b"), says("c", clears=["c1"]), says("d")
    )
    assert seen(trace, max_history_tokens=50)[1:] == [
        ["a", "r" * 400],
        ["go", "a", CLEARED_RESULT, "b"],
        ["go", "a", CLEARED_RESULT, "b", "c"],
    ]


def test_truncation_can_be_told() -> None:
    trace = trace_of(user("1234"), user("5678"), says("a"))
    told = [is_truncated(next(trace.states(max_history_tokens=limit))["messages"]) for limit in (1, 2)]
    assert told == [True, False]
    assert not is_truncated([])


def test_counts_belong_to_their_messages() -> None:
    """Cleared messages make room in memory for new ones, which must not be taken for them."""
    turns: list[Turn] = []
    for number in range(30):
        calls = [f"c{number}.{index}" for index in range(5)]
        turns += [says("", *calls), *[result(call, "x" * (400 if number % 2 else 4)) for call in calls]]
        turns += [says("look"), says("now", clears=calls), user("y" * 80), user("z")]
    trace = trace_of(*turns, says("end"))
    limited = [len(state["messages"]) for state in trace.states(max_history_tokens=500)]
    # The same, with all states kept, so that nothing makes room.
    kept = list(trace.states(max_history_tokens=500))
    assert limited == [len(state["messages"]) for state in kept]


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("ää", 1), ("\ud800", 1)])
def test_a_token_is_four_bytes(text: str, tokens: int) -> None:
    assert estimate_tokens(text) == tokens


# `History` as a sequence.


def test_a_history_is_a_sequence() -> None:
    messages = [{"role": "user", "content": str(number)} for number in range(5)]
    lead = [{"role": "system", "content": "S"}]
    history = History(lead, messages, 1, 4)
    plain = [*lead, *messages[1:4]]
    assert (len(history), list(history), list(reversed(history))) == (4, plain, plain[::-1])
    assert [history[index] for index in range(-4, 4)] == [plain[index] for index in range(-4, 4)]
    for part in (slice(None), slice(1, 3), slice(-2, None), slice(None, None, -1), slice(3, 1), slice(0, 99, 2)):
        assert history[part] == plain[part]
    for index in (4, -5, 99):
        with pytest.raises(IndexError, match=f"message {index} of a history of 4"):
            history[index]
    assert history == plain
    assert plain == history
    assert history == History(lead, plain, 1, 4)
    assert history != plain[1:]
    assert history != "text"
    assert history != 4
    assert messages[1] in history
    assert messages[0] not in history
    assert history.index(messages[3]) == 3
    assert repr(history) == f"History({plain!r})"
    assert list(history.without_oldest(2)) == [*lead, messages[3]]
    with pytest.raises(TypeError):
        hash(history)


def test_a_context_can_be_fed_by_hand() -> None:
    context = Context(system_prompt="S")
    for turn in (user("go"), says("a", "c1")):
        context.before(turn)
        context.add(turn)
    context.before(user("next"))
    assert [message["content"] for message in context.history()] == ["S", "go", "a", NO_RESULT]


# The view for the collator.


def full_trace(**fields: Any) -> Trace:
    asked = Turn("assistant", thinking="hm", tool_calls=[CALL, ToolCall("c2", "Bash", raw_arguments="{oops")], line=3)
    asked.tool_error, asked.error_meta, asked.usage = "json_decode", {"tool_name": "Bash"}, Usage(10, 2)
    failed = result("c2", "no", is_error=True, error_kind="json_decode")
    return trace_of(user("go", origin="prompt"), asked, result("c1", "x"), failed, says("done", repeats=True), **fields)


def test_the_example_of_a_trace() -> None:
    example = full_trace().example()
    assert set(example) == {"trace_id", "turns"}
    prompt, asked, answer, failed, done = example["turns"]
    assert prompt == {"role": "user", "content": "go", "origin": "prompt"}
    assert asked["content"] == ""
    assert asked["tool_calls"][0] == {"id": "c1", "name": "Read", "arguments": {"path": "a.py"}}
    assert asked["tool_calls"][1] == {"id": "c2", "name": "Bash", "arguments": {}, "raw_arguments": "{oops"}
    assert asked["tool_call"] == asked["tool_calls"][0]
    assert (asked["tool_error"], asked["error_meta"]) == ("json_decode", {"tool_name": "Bash"})
    assert answer == {"role": "tool", "content": "x", "tool_call_id": "c1"}
    assert (failed["is_error"], failed["error_kind"]) == (True, "json_decode")
    assert "tool_call" not in done


def test_the_example_has_a_reward_only_if_there_is_one() -> None:
    assert full_trace(final_reward=0.0).example()["final_reward"] == 0.0
    tools = [{"type": "function", "function": {"name": "Read"}}]
    assert full_trace(tools=tools).example()["tools"] == tools


def test_a_trace_in_json_is_an_example() -> None:
    trace = full_trace(final_reward=1.0, meta={"a": [1, None]})
    line = msgspec.json.encode(trace)
    assert msgspec.json.decode(line, type=Trace) == trace
    example: TraceExample = json.loads(line)
    expected = trace.example()
    assert (example["trace_id"], example["final_reward"]) == ("t", 1.0)
    for turn, other in zip(example["turns"], expected["turns"], strict=True):
        # `tool_call` repeats the first of `tool_calls`, and is not written.
        assert turn == {name: value for name, value in other.items() if name != "tool_call"}
        assert isinstance(turn["content"], str)


@given(wild_traces())
def test_any_trace_survives_json(trace: Trace) -> None:
    again = msgspec.json.decode(msgspec.json.encode(trace), type=Trace)
    assert again == trace
    assert list(again.states()) == list(trace.states())
    written = json.loads(msgspec.json.encode(trace))["turns"]
    assert all("role" in turn and "content" in turn for turn in written)
    assert all(call["arguments"] == {} for turn in written for call in turn.get("tool_calls", ()))


def test_arguments_are_there_even_if_a_call_has_none() -> None:
    trace = trace_of(says("", "c1"))
    assert msgspec.json.encode(trace.turns[0].tool_calls[0]) == b'{"id":"c1","name":"Read","arguments":{}}'
    (turn,) = trace.example()["turns"]
    assert turn["tool_calls"][0]["arguments"] == {}
    assert (turn["tool_call"] or {})["arguments"] == {}
    assert trace_of(says("", "c1")).turns[0].tool_calls[0].arguments is not trace.turns[0].tool_calls[0].arguments


def test_calls_come_with_their_answers() -> None:
    trace = trace_of(says("a", "c1", "c2"), result("c2"), result("c9"))
    assert [(turn.content, call.id, answer and answer.content) for turn, call, answer in trace.calls()] == [
        ("a", "c1", None),
        ("a", "c2", "of c2"),
    ]


# Actions and arguments.


def test_actions() -> None:
    calls = [ToolCall("c1", "Read", {"path": "ä", "n": 1}), ToolCall("c2", "Bash", raw_arguments="{oops")]
    turn = Turn("assistant", "text", thinking="hm", tool_calls=calls)
    assert render_action(turn).splitlines() == [
        "[THINKING]",
        "hm",
        "[/THINKING]",
        "text",
        '[TOOL_USE] name=Read input={"path": "ä", "n": 1}',
        "[TOOL_USE] name=Bash input={oops",
    ]
    assert render_action(Turn("assistant")) == ""
    assert calls[1].message()["function"] == {"name": "Bash", "arguments": "{oops"}
    assert turn.tool_call is calls[0]
    assert Turn("assistant").tool_call is None


@pytest.mark.parametrize(
    ("given_arguments", "arguments", "raw"),
    [
        ({"a": 1}, {"a": 1}, None),
        (None, {}, None),
        ("", {}, None),
        ('{"a": [1, "ä"]}', {"a": [1, "ä"]}, None),
        ("{}", {}, None),
        ('{"a": ', {}, '{"a": '),
        ("[1]", {}, "[1]"),
        ("3", {}, "3"),
        ([1, "ä"], {}, '[1, "ä"]'),
        (0, {}, "0"),
        (False, {}, "false"),
        ("\ud800", {}, "\ud800"),
        ("[" * 5000, {}, "[" * 5000),
    ],
)
def test_arguments(given_arguments: Any, arguments: dict[str, Any], raw: str | None) -> None:
    assert parse_arguments(given_arguments) == (arguments, raw)


def test_an_action_without_its_thinking_stays_character_for_character() -> None:
    turn = Turn("assistant", "look  at it\n", thinking="hm\n[x]", tool_calls=[CALL])
    assert without_thinking(render_action(turn)) == render_action(Turn("assistant", turn.content, tool_calls=[CALL]))
    assert without_thinking("[THINKING]\nhm\n[/THINKING]") == ""
    for text in ("", "plain", "later [THINKING]\nhm\n[/THINKING]", "[THINKING]\nnever closed"):
        assert without_thinking(text) == text
