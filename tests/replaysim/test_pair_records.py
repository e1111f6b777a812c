"""Pairs in both of their shapes: texts for the operators, messages for whoever trains."""

from __future__ import annotations

from typing import Any

import pytest
from replaysim.some_pairs import call, pair

from composer_replication.replaysim.records import (
    action_messages,
    makes_a_call,
    normalized,
    to_pair,
    to_records,
)
from composer_replication.traces import Source, ToolCall, Trace, Turn


def record(**given: Any) -> Any:
    (made,) = to_records([pair(**given)])
    return made


def test_a_record_has_flat_texts_and_messages() -> None:
    made = record(chosen="First I look.\n" + call("ls"), rejected="Done with it.", number=7, margin=1)
    assert (made["chosen"], made["rejected"]) == ("First I look.\n" + call("ls"), "Done with it.")
    assert made["rejected_messages"] == [{"role": "assistant", "content": "Done with it."}]
    (message,) = made["chosen_messages"]
    assert (message["role"], message["content"]) == ("assistant", "First I look.")
    (tool_call,) = message["tool_calls"]
    assert tool_call["function"] == {"name": "Bash", "arguments": '{"command": "ls"}'}
    assert (made["index"], made["state_id"], made["n_teachers_agreeing"]) == (0, "state-007", 2)
    assert made["extras"] == {"margin": 1}


def test_thinking_is_on_neither_side() -> None:
    assert action_messages("[THINKING]\nHm.\n[/THINKING]\nSo be it.") == [{"role": "assistant", "content": "So be it."}]


@pytest.mark.parametrize(
    ("chosen", "rejected", "expected"),
    [("words", "words", False), (call("ls"), "words", True), ("words", call("ls"), True)],
)
def test_a_pair_is_about_calls_if_either_side_makes_one(chosen: str, rejected: str, expected: bool) -> None:
    assert makes_a_call(record(chosen=chosen, rejected=rejected)) is expected


def test_states_are_equal_by_their_messages_alone() -> None:
    one, other = {"role": "user", "content": "a"}, {"content": "b", "role": "user"}
    histories = [[one], [one, other], [one], [other, one], [dict(one), {"role": "user", "content": "b"}], [], [other]]
    pairs = [pair(number, state_messages=messages) for number, messages in enumerate(histories)]
    states = [made["state"] for made in to_records(pairs)]
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
    states = [made["state"] for made in to_records([pair(0, state_messages=[message]) for message in given])]
    assert states[0] == states[1]
    assert len(set(states)) == 4


def test_histories_of_a_trace_become_lists() -> None:
    turns = [Turn("user", "Go."), Turn("assistant", "", tool_calls=[ToolCall("1", "Read")]), Turn("assistant", "Done.")]
    states = list(Trace("t", turns, Source("f", "x")).states())
    made = list(to_records([pair(number, state_messages=one["messages"]) for number, one in enumerate(states)]))
    assert [type(one["state_messages"]) for one in made] == [list, list]
    assert [len(one["state_messages"]) for one in made] == [1, 3]
    assert made[0]["state"] != made[1]["state"]


def test_half_a_character_is_replaced_for_the_operators_alone() -> None:
    made = record(chosen="a\ud83d b", rejected="\ud83d\ude00 c")
    assert (made["chosen"], made["rejected"]) == ("a\ufffd b", "\U0001f600 c")
    kept = normalized(made, {}, chosen=made["chosen"], rejected=made["rejected"])
    assert kept.chosen_messages == [{"role": "assistant", "content": "a\ud83d b"}]
    assert kept.metadata == {}


def test_a_changed_text_changes_its_messages() -> None:
    made = record(chosen=call("ls   -l"), rejected="As it was.", teachers=["a", "b"])
    kept = normalized(made, {"recipe": "x"}, chosen=call("ls -l"), rejected="As it was.")
    (message,) = kept.chosen_messages
    assert message["tool_calls"][0]["function"]["arguments"] == '{"command": "ls -l"}'
    assert kept.rejected_messages == [{"role": "assistant", "content": "As it was."}]
    assert kept.metadata == {"recipe": "x", "changed": ["chosen"], "pair": {"teachers": ["a", "b"]}}
    assert normalized(made, {}, chosen=made["chosen"], rejected="As it is.").metadata["changed"] == ["rejected"]


@pytest.mark.parametrize(
    "chosen",
    [
        "Words.",
        "Words.\n" + call("ls"),
        call("ls") + "\n" + call("pwd"),
        "[TOOL_USE] name=Bash input=no JSON",
        "half \ud83d",
    ],
)
def test_a_pair_comes_back_from_its_messages(chosen: str) -> None:
    given = pair(3, chosen=chosen, margin=2)
    (made,) = to_records([given])
    assert to_pair(normalized(made, {"stats": {}})) == given


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"chosen": None}, "pair 1: 'chosen' is of type NoneType"),
        ({"state_messages": "text"}, "pair 1: 'state_messages' is of type str"),
        ({"n_teachers_agreeing": True}, "pair 1: 'n_teachers_agreeing' is of type bool"),
        ({"state_id": 3}, "pair 1: 'state_id' is of type int"),
    ],
)
def test_a_wrong_pair_is_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(to_records([pair(), pair() | wrong]))


def test_a_missing_key_is_named() -> None:
    lacking = {key: value for key, value in pair().items() if key != "rejected"}
    with pytest.raises(ValueError, match="pair 0 lacks 'rejected'; a pair has state_id, state_messages, chosen"):
        list(to_records([lacking]))
    with pytest.raises(ValueError, match="pair 0 is no pair but list"):
        list(to_records([[]]))  # type: ignore[list-item]
