"""Failing turns found in a tool loop's messages, with all that a hint needs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from trainer.rollouts.scripted_rollouts import (
    ANSWER,
    CONTENT,
    NOT_FOUND,
    OPENED,
    READ,
    TOOLS,
    answers,
    calls,
    play,
    raised,
    says,
)

from composer_replication.hint_generator import LayeredHints, as_collator_hint
from composer_replication.trainer.rollouts.errors import ToolFailure, tool_failures
from composer_replication.trainer.rollouts.rollout import GenerationHeaders, Rollout, sampled_turns

hint = as_collator_hint(LayeredHints())


def failures(tokenizer: Any, rollout: Rollout) -> list[ToolFailure]:
    turns = sampled_turns(rollout, GenerationHeaders(tokenizer))
    assert turns is not None
    return tool_failures(rollout, turns, tokenizer)


def only(tokenizer: Any, *messages: dict[str, Any], **options: Any) -> ToolFailure:
    (failure,) = failures(tokenizer, play(tokenizer, messages, **options))
    return failure


def test_a_tool_that_is_not_there(tokenizer: Any) -> None:
    failure = only(tokenizer, OPENED, NOT_FOUND, READ, CONTENT, ANSWER)
    assert (failure.turn, failure.kind) == (0, "tool_not_found")
    assert failure.meta["available_tools"] == ["read_file", "run_python"]
    assert failure.meta["error_message"] == "Tool open_file not found."
    assert hint(failure.kind, failure.meta) == (
        "There is no tool named `open_file` here: use `read_file`. Available tools: `read_file`, `run_python`."
    )


@pytest.mark.parametrize("owner", ["", "House.", "make.<locals>."])
def test_arguments_that_the_tool_does_not_take(qwen_tokenizer: Any, owner: str) -> None:
    error = f"{owner}read_file() got an unexpected keyword argument 'file'"
    failure = only(qwen_tokenizer, READ, CONTENT, calls("read_file", file="a.py"), raised("read_file", error), ANSWER)
    assert (failure.turn, failure.kind) == (1, "type_error")
    assert failure.meta["unexpected_parameters"] == ["file"]
    assert failure.meta["tool_schema"]["required"] == ["path"]
    assert '"path"' in str(hint(failure.kind, failure.meta))


def test_arguments_that_are_missing(qwen_tokenizer: Any) -> None:
    error = "House.read_file() missing 1 required positional argument: 'path'"
    failure = only(qwen_tokenizer, calls("read_file"), raised("read_file", error), ANSWER)
    assert failure.kind == "type_error"
    assert failure.meta["missing_parameters"] == ["path"]
    assert failure.meta["tool_schema"]["required"] == ["path"]


def test_the_same_of_a_tool_that_runs_commands(qwen_tokenizer: Any) -> None:
    tools = [{"type": "function", "function": {**TOOLS[1]["function"], "name": "bash"}}]
    error = "bash() got an unexpected keyword argument 'command'"
    failure = only(qwen_tokenizer, calls("bash", command="ls"), raised("bash", error), ANSWER, tools=tools)
    assert failure.kind == "type_error"
    assert failure.meta["tool_schema"]["required"] == ["code"]
    failure = only(qwen_tokenizer, calls("shell", command="ls"), raised("shell", "Tool shell not found."), tools=tools)
    assert (failure.kind, failure.meta["available_tools"]) == ("tool_not_found", ["bash"])


SHELL = [
    {"type": "function", "function": {"name": name, "description": name, "parameters": {"type": "object"}}}
    for name in ("bash", "write_file")
]
WRITTEN = (
    calls("write_file", path="shop/cart.py", content="import os\nprint(itms)\n"),
    answers("write_file", "written"),
)
CHECK = (
    calls("bash", command="ruff check"),
    answers("bash", "Exit code 1\nshop/cart.py:2:7: F821 Undefined name `itms`"),
)


def test_a_check_that_fails_is_charged_to_the_turn_that_wrote_the_line(qwen_tokenizer: Any) -> None:
    failure = only(qwen_tokenizer, *WRITTEN, *CHECK, ANSWER, tools=SHELL)
    assert (failure.turn, failure.kind) == (0, "type_or_lint_error")
    assert hint(failure.kind, failure.meta) == (
        "Write this so that the checker accepts it: it would report shop/cart.py:2:7: F821 Undefined name `itms`."
    )


def test_a_check_that_fails_on_what_nobody_wrote_is_an_outcome(qwen_tokenizer: Any) -> None:
    failure = only(qwen_tokenizer, *CHECK, ANSWER, tools=SHELL)
    assert (failure.turn, failure.kind) == (0, "type_or_lint_error")
    assert failure.meta == {"students_mistake": False, "outcome": True}


def test_what_the_tool_itself_raised(qwen_tokenizer: Any) -> None:
    failure = only(qwen_tokenizer, READ, raised("read_file", "[Errno 2] No such file or directory: 'a.py'"), ANSWER)
    assert (failure.kind, failure.meta["path"]) == ("file_not_found", "a.py")
    quoted = raised("read_file", "it's \"not\" there: 'x'\nsecond line")
    failure = only(qwen_tokenizer, READ, quoted, ANSWER)
    assert failure.kind == "runtime_error"
    assert failure.meta["error_message"].startswith("it's \"not\" there: 'x'")
    assert only(qwen_tokenizer, READ, raised("read_file", ""), ANSWER).kind == "runtime_error"


@pytest.mark.parametrize(
    "content",
    [
        "print(1)",
        "{'error': None, 'lines': 3}",
        "{'a': {1, 2}}",
        "{'errors': 0}",
        '{"status": true}',
        "{not a dict}",
        "{" * 3000 + "}" * 3000,
        "def f():\n    raise ValueError('Tool x not found.')",
    ],
)
def test_results_that_are_no_errors(qwen_tokenizer: Any, content: str) -> None:
    assert failures(qwen_tokenizer, play(qwen_tokenizer, [READ, answers("read_file", content), ANSWER])) == []


@pytest.mark.parametrize("content", ["{'exit_code': 1, 'stdout': 'x'}", "{'success': False, 'message': 'no'}"])
def test_a_dict_that_says_it_failed(qwen_tokenizer: Any, content: str) -> None:
    assert only(qwen_tokenizer, READ, answers("read_file", content), ANSWER).turn == 0


def test_a_command_whose_output_shows_that_it_failed(qwen_tokenizer: Any) -> None:
    tools = [{"type": "function", "function": {**TOOLS[1]["function"], "name": "bash"}}]
    shown = answers("bash", "a.py\ncat: b.py: No such file or directory")
    failure = only(qwen_tokenizer, calls("bash", command="ls; cat b.py"), shown, ANSWER, tools=tools)
    assert (failure.kind, failure.meta["path"]) == ("missing_file_in_command", "b.py")
    assert failures(qwen_tokenizer, play(qwen_tokenizer, [READ, shown, ANSWER])) == []


def test_one_failure_for_a_turn_of_several_calls(qwen_tokenizer: Any) -> None:
    both = says("", ("read_file", {"path": "a.py"}), ("open_file", {"path": "b"}), ("close_file", {"path": "b"}))
    lost = raised("close_file", "Tool close_file not found.")
    failure = only(qwen_tokenizer, both, CONTENT, NOT_FOUND, lost, ANSWER)
    assert failure.meta["tool_name"] == "open_file"


def test_results_of_asynchronous_tools_come_last(qwen_tokenizer: Any) -> None:
    both = says("", ("run_python", {"code": "1"}), ("read_file", {"path": "b.py"}))
    failure = only(
        qwen_tokenizer,
        both,
        raised("read_file", "File does not exist: b.py"),
        answers("run_python", "1"),
        ANSWER,
    )
    assert (failure.meta["tool_name"], failure.kind) == ("read_file", "file_not_found")


def test_the_same_call_again_is_a_repeated_failure(qwen_tokenizer: Any) -> None:
    first, second = failures(qwen_tokenizer, play(qwen_tokenizer, [OPENED, NOT_FOUND, OPENED, NOT_FOUND, ANSWER]))
    assert (first.kind, second.kind) == ("tool_not_found", "repeated_failure")
    assert second.meta["available_tools"] == ["read_file", "run_python"]


def test_errors_in_the_prompt_are_not_the_rollouts(qwen_tokenizer: Any) -> None:
    prompt = [
        {"role": "user", "content": "Read a.py."},
        OPENED,
        NOT_FOUND,
        ANSWER,
        {"role": "user", "content": "Go on."},
    ]
    (failure,) = failures(qwen_tokenizer, play(qwen_tokenizer, [OPENED, NOT_FOUND, ANSWER], prompt=prompt))
    assert (failure.turn, failure.kind) == (0, "repeated_failure")


def broken(tokenizer: Any, text: str, *, tools: Any = TOOLS, ended: bool = True) -> Rollout:
    """A last turn that TRL could not parse: its message is the text without special tokens."""
    rollout = play(tokenizer, [READ, CONTENT, ANSWER], tools=tools)
    turns = sampled_turns(rollout, GenerationHeaders(tokenizer))
    assert turns is not None
    ids = tokenizer(text, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id] * ended
    kept = turns[-1].start - len(rollout.prompt_ids)
    return replace(
        rollout,
        messages=[READ, CONTENT, says(tokenizer.decode(ids, skip_special_tokens=True))],
        completion_ids=rollout.completion_ids[:kept] + ids,
        generated=rollout.generated[:kept] + [1] * len(ids),
    )


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "read_file", "arguments": {"path": "a.py"\n</tool_call>',
        'Let me see.\n<tool_call>\n{"name": "read_file", "arguments": path}\n</tool_call>',
        '{"name": "read_file", "parameters": {"path": }',
        "<function=read_file><parameter=path>",
    ],
)
def test_a_call_that_could_not_be_read(tokenizer: Any, text: str) -> None:
    (failure,) = failures(tokenizer, broken(tokenizer, text))
    assert (failure.turn, failure.kind) == (1, "json_decode")
    assert failure.meta["tool_name"] == "read_file"
    assert '{"path": "<string>"}' in str(hint(failure.kind, failure.meta))
    assert failures(tokenizer, broken(tokenizer, text, ended=False)) == []
    assert failures(tokenizer, broken(tokenizer, text, tools=None)) == []


def test_a_broken_call_of_an_unknown_tool_names_none(qwen_tokenizer: Any) -> None:
    (failure,) = failures(qwen_tokenizer, broken(qwen_tokenizer, '<tool_call>\n{"name": "open_file", \n</tool_call>'))
    assert failure.kind == "json_decode"
    assert "open_file" not in str(hint(failure.kind, failure.meta))


@pytest.mark.parametrize("text", ["The call was {} and fine.", 'It prints {"name": 1}.', "A tool_call."])
def test_a_text_that_is_no_call(qwen_tokenizer: Any, text: str) -> None:
    assert failures(qwen_tokenizer, broken(qwen_tokenizer, text)) == []
