"""The teachers of the demo: each reads the prompt it is given, and two of them mean the same."""

from __future__ import annotations

import copy

import pytest

from composer_replication._tiny.sample_replay import LOCAL_TEACHERS, careful, hasty, thorough
from composer_replication.batch import VARIANTS, SampleTrace, sample_trace
from composer_replication.teacher_replay.pairs import comparer_for
from composer_replication.traces import Message, ToolCall, parse_action

# One as replay infers it from the student's wrong call, and two that are described in some of the same words.
DECOYS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        },
    }
    for name, description in (
        ("open_file", "The open_file tool of this session."),
        ("write_file", "Write a file of the project."),
        ("run_shell", "Run a command."),
    )
]


def prompt(sample: SampleTrace) -> list[Message]:
    return sample.messages[: sample.erring_message]


def only_call(action: str) -> ToolCall:
    (call,) = parse_action(action).tool_calls
    return call


def function_of(message: Message) -> dict[str, object]:
    (call,) = message["tool_calls"]
    return {"name": call["function"]["name"], "arguments": call["function"]["arguments"]}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("seed", range(12))
def test_careful_and_thorough_are_right_and_hasty_errs_like_the_student(variant: str, seed: int) -> None:
    sample = sample_trace(variant, seed)
    plain = careful(prompt(sample), tools=[*DECOYS, *sample.tools])
    wordy = thorough(prompt(sample), tools=[*DECOYS, *sample.tools])
    quick = hasty(prompt(sample))
    for action, message in ((plain, sample.better_action), (quick, sample.messages[sample.erring_message])):
        call = only_call(action)
        assert {"name": call.name, "arguments": call.arguments} == function_of(message)
        assert parse_action(action).content == ""
    assert parse_action(wordy).content
    assert only_call(wordy).arguments != only_call(plain).arguments
    for mode, agree in (("exact", False), ("action", True)):
        compare = comparer_for(mode)  # type: ignore[arg-type]
        assert compare(plain, wordy).same is agree
        assert not compare(plain, quick).same
        assert not compare(wordy, quick).same


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_definitions_decide_what_is_called(variant: str) -> None:
    sample = sample_trace(variant, 3)
    tools = copy.deepcopy(sample.tools)
    for tool, name in zip(tools, ("inspect_source", "evaluate"), strict=True):
        tool["function"]["name"] = name
        tool["function"]["parameters"]["required"] = ["it"]
    for teacher in (careful, thorough):
        call = only_call(teacher(prompt(sample), tools))
        assert (call.name, list(call.arguments)) == ("inspect_source" if variant == "factorial" else "evaluate", ["it"])


def test_the_last_request_decides_what_it_is_called_with() -> None:
    sample = sample_trace("factorial")
    asked = [*prompt(sample), {"role": "user", "content": "Rather find 7 in [1, 7, 9]."}]
    assert only_call(careful(asked, sample.tools)).arguments == {"code": "print([1, 7, 9].index(7))"}


@pytest.mark.parametrize("name", LOCAL_TEACHERS)
def test_a_request_out_of_its_depth_gets_no_answer(name: str) -> None:
    with pytest.raises(ValueError, match=r"neither a \.py file nor a list to search: 'Sing\.'"):
        LOCAL_TEACHERS[name]([{"role": "user", "content": "Sing."}])


def test_a_tool_that_is_not_there_is_not_called() -> None:
    with pytest.raises(ValueError, match="no tool is described as one to read a file"):
        careful(prompt(sample_trace("factorial")), DECOYS)
