"""Pairs in both of their shapes: texts for the operators, messages for whoever trains."""

from __future__ import annotations

from typing import Any

import pytest
from replaysim.some_pairs import call, pair

from composer_replication.replaysim.records import NormalizedDPOPair, PairRecord, to_records, with_texts
from composer_replication.teacher_replay.records import Pair
from composer_replication.traces import Source, ToolCall, Trace, Turn


def records(*pairs: Any) -> list[PairRecord]:
    return list(to_records(map(Pair.of, pairs)))


def test_a_record_has_texts_and_a_normalised_pair_messages() -> None:
    thought = "[THINKING]\nHm.\n[/THINKING]\n"
    given = pair(7, f"{thought}First I look.\n" + call("ls"), thought + "Done with it.", margin=1)
    (made,) = records(given)
    assert (made["chosen"], made["rejected"]) == ("First I look.\n" + call("ls"), "Done with it.")
    assert (made["index"], made["state_id"]) == (0, "state-007")
    kept = NormalizedDPOPair.of(Pair.of(given), {})
    assert kept.rejected_messages == [{"role": "assistant", "content": "Done with it."}]
    (message,) = kept.chosen_messages
    assert (message["role"], message["content"]) == ("assistant", "First I look.")
    (tool_call,) = message["tool_calls"]
    assert tool_call["function"] == {"name": "Bash", "arguments": '{"command": "ls"}'}
    assert (kept.state_id, kept.n_teachers_agreeing) == ("state-007", 2)
    assert kept.metadata == {"pair": {"margin": 1}}


@pytest.mark.parametrize(
    ("chosen", "rejected", "expected"),
    [("words", "words", False), (call("ls"), "words", True), ("words", call("ls"), True)],
)
def test_a_pair_is_about_calls_if_either_side_makes_one(chosen: str, rejected: str, expected: bool) -> None:
    (made,) = records(pair(chosen=chosen, rejected=rejected))
    assert made["tool_call"] is expected


def test_states_are_equal_by_their_messages_alone() -> None:
    one, other = {"role": "user", "content": "a"}, {"content": "b", "role": "user"}
    histories = [[one], [one, other], [one], [other, one], [dict(one), {"role": "user", "content": "b"}], [], [other]]
    pairs = [pair(number, state_messages=messages) for number, messages in enumerate(histories)]
    states = [made["state"] for made in records(*pairs)]
    assert states[0] == states[2]
    assert states[1] == states[4]
    assert len(set(states)) == 5


def test_states_with_half_a_character_or_strange_values_have_digests_too() -> None:
    given: list[dict[str, Any]] = [{"role": "user", "content": "\ud83d"}, {"content": "\ud83d", "role": "user"}]
    given += [
        {"role": "user", "content": "\ud83e"},
        {"role": "user", "content": {1, 2}},
        {"role": "user", "content": {3}},
    ]
    states = [made["state"] for made in records(*(pair(0, state_messages=[message]) for message in given))]
    assert states[0] == states[1]
    assert len(set(states)) == 4


def test_histories_of_a_trace_become_lists_and_records_hold_none() -> None:
    turns = [Turn("user", "Go."), Turn("assistant", "", tool_calls=[ToolCall("1", "Read")]), Turn("assistant", "Done.")]
    states = list(Trace("t", turns, Source("f", "x")).states())
    pairs = [pair(number, state_messages=one["messages"]) for number, one in enumerate(states)]
    kept = [NormalizedDPOPair.of(Pair.of(one), {}) for one in pairs]
    assert [type(one.state_messages) for one in kept] == [list, list]
    assert [len(one.state_messages) for one in kept] == [1, 3]
    made = records(*pairs)
    assert made[0]["state"] != made[1]["state"]
    assert all(isinstance(value, str | int) for one in made for value in one.values())


def step(command: str, result: str = "no", prose: str = "") -> list[dict[str, Any]]:
    function = {"name": "Bash", "arguments": f'{{"command": "{command}"}}'}
    return [
        {
            "role": "assistant",
            "content": prose,
            "tool_calls": [{"id": result, "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": result, "content": result},
    ]


TASK = [{"role": "user", "content": "Task"}]


def lessons(*pairs: Any) -> list[str]:
    return [made["lesson"] for made in records(*pairs)]


def test_a_step_that_the_student_repeats_is_one_lesson() -> None:
    one, other = step("make", "Error 1"), step("make", "Error 1", prose="Again.")
    histories = [[*TASK, *one], [*TASK, *one, *other], [*TASK, *one, *other, *one]]
    repeated = [pair(number, call("ls"), call("make"), state_messages=past) for number, past in enumerate(histories)]
    repeated[1]["rejected"] = "Once more.\n" + call("make")
    repeated[2]["chosen"] = "Let me look.\n" + call("ls")
    assert len(set(lessons(*repeated))) == 1
    assert len({made["state"] for made in records(*repeated)}) == 3


def test_a_call_that_gave_another_result_is_news() -> None:
    waiting, done = step("gh run view", "in progress"), step("gh run view", "success")
    histories = [TASK, [*TASK, *waiting], [*TASK, *waiting * 2], [*TASK, *waiting * 2, *done]]
    polled = [pair(0, call("gh pr merge"), call("gh run view"), state_messages=past) for past in histories]
    before, first, again, last = lessons(*polled)
    assert first == again
    assert len({before, first, last}) == 3


@pytest.mark.parametrize(
    "other",
    [
        {"state_messages": TASK},  # it had not failed yet
        {"state_messages": [*TASK, *step("make"), *step("ls"), *step("make")]},  # it did something else in between
        {"state_messages": [*TASK, *step("make"), {"role": "user", "content": "Try again"}, *step("make")]},
        {"state_messages": [*TASK, *step("make"), *step("make -k")]},
        {"state_messages": [*TASK, *step("make"), *step("make")[:1]]},  # it never ran
        {"state_messages": [*TASK, *step("make"), *step("ls")]},
        {"state_messages": [{"role": "user", "content": "Another task"}, *step("make"), *step("make")]},
        {"state_messages": [*TASK, *step("make"), {"role": "assistant", "tool_calls": [{}]}, step("make")[1]]},
        {"state_messages": [*TASK, *step("make"), {"role": "assistant"}, step("make")[1]]},
        {"state_messages": [step("make")[1]]},
        {"state_messages": ["text"]},
        {"chosen": call("ls -a")},
        {"rejected": call("make all")},
        {"rejected": "I ran make."},
        {"chosen": "I would look."},
    ],
)
def test_what_differs_in_anything_else_is_another_lesson(other: dict[str, Any]) -> None:
    first = pair(0, call("ls"), call("make"), state_messages=[*TASK, *step("make")])
    assert len(set(lessons(first, {**first, **other}, first))) == 2


def test_words_that_are_said_again_are_no_step() -> None:
    said = {"role": "assistant", "content": "Done."}
    pairs = [
        pair(0, call("ls"), "Done.", state_messages=TASK),
        pair(0, call("ls"), "Done.", state_messages=[*TASK, said]),
    ]
    assert len(set(lessons(*pairs))) == 2


def test_half_a_character_is_replaced_for_the_operators_alone() -> None:
    given = pair(chosen="a\ud83d b", rejected="\ud83d\ude00 c")
    (made,) = records(given)
    assert (made["chosen"], made["rejected"]) == ("a\ufffd b", "\U0001f600 c")
    assert with_texts(Pair.of(given), chosen=made["chosen"], rejected=made["rejected"]) == (Pair.of(given), [])


def test_a_changed_text_changes_its_turn() -> None:
    given = Pair.of(pair(chosen=call("ls   -l"), rejected="As it was.", teachers=["a", "b"]))
    after, changed = with_texts(given, chosen=call("ls -l"), rejected="As it was.")
    assert after == Pair.of(pair(chosen=call("ls -l"), rejected="As it was.", teachers=["a", "b"]))
    assert changed == ["chosen"]
    assert with_texts(given, chosen=call("ls   -l"), rejected="As it is.")[1] == ["rejected"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"chosen": None}, "p: not a pair, 'chosen' is missing or not a text"),
        ({"state_messages": "text"}, "p: not a pair, 'state_messages' is missing or not a list"),
        ({"n_teachers_agreeing": True}, "p: not a pair, 'n_teachers_agreeing' is missing or not a number"),
        ({"state_id": 3}, "p: not a pair, 'state_id' is missing or not a text"),
    ],
)
def test_a_wrong_pair_is_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Pair.of(pair() | wrong, "p")
