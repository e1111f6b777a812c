"""Turns located in rollouts as TRL's tool loop leaves them, and the failures found in their messages."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from trainer.scripted_rollouts import (
    ANSWER,
    CONTENT,
    NOT_FOUND,
    OPENED,
    PROMPT,
    READ,
    TOOLS,
    answers,
    calls,
    play,
    raised,
    says,
)

from composer_replication.chat_templates import TemplatedTokenizer, tool_definitions
from composer_replication.hint_generator import LayeredHints, as_collator_hint
from composer_replication.rendering import TurnSpan, generation_header_ids
from composer_replication.trainer import rollouts
from composer_replication.trainer.rollouts import Rollout, context_before, sampled_turns, tool_remarks
from composer_replication.trainer.sites import Remark

SCRIPT = [OPENED, NOT_FOUND, READ, CONTENT, ANSWER]
BASH = [{"type": "function", "function": {**TOOLS[1]["function"], "name": "bash"}}]


def turns_of(tokenizer: Any, rollout: Rollout) -> list[TurnSpan]:
    turns = sampled_turns(rollout, tokenizer)
    assert turns is not None
    return turns


def test_turns_are_the_sampled_runs_with_the_header_before_them(tokenizer: Any) -> None:
    rollout = play(tokenizer, SCRIPT)
    turns = turns_of(tokenizer, rollout)
    assert [turn.message for turn in turns] == [0, 2, 4]
    header_ids = generation_header_ids(tokenizer, PROMPT)
    for turn, said in zip(turns, ("open_file", "read_file", "It prints 1."), strict=True):
        assert turn.header is not None
        assert rollout.ids[turn.header : turn.start] == header_ids
        assert said in tokenizer.decode(rollout.ids[turn.start : turn.stop])
        assert rollout.ids[turn.stop - 1] == tokenizer.eos_token_id
    assert turns[0].start == len(rollout.prompt_ids)
    assert turns[-1].stop == len(rollout.ids)


def test_without_messages_the_ids_alone_tell(tokenizer: Any) -> None:
    rollout = play(tokenizer, SCRIPT)
    known, bare = turns_of(tokenizer, rollout), turns_of(tokenizer, replace(rollout, messages=[]))
    assert [(turn.header, turn.start, turn.stop) for turn in bare] == [
        (turn.header, turn.start, turn.stop) for turn in known
    ]
    assert {turn.message for turn in bare} == {None}


def test_messages_of_another_number_of_turns_do_not_match(qwen_tokenizer: Any) -> None:
    rollout = play(qwen_tokenizer, SCRIPT)
    assert sampled_turns(replace(rollout, messages=SCRIPT[:-1]), qwen_tokenizer) is None
    assert sampled_turns(replace(rollout, messages=[*SCRIPT, ANSWER]), qwen_tokenizer) is None


def test_a_turn_that_another_header_prompted_has_none(qwen_tokenizer: Any) -> None:
    rollout = play(qwen_tokenizer, SCRIPT)
    odd = replace(rollout, prompt_ids=[*rollout.prompt_ids, rollout.prompt_ids[0]])
    turns = turns_of(qwen_tokenizer, odd)
    assert [turn.header is None for turn in turns] == [True, False, False]


def test_an_environment_that_speaks_before_the_first_turn(qwen_tokenizer: Any) -> None:
    rollout = play(qwen_tokenizer, [ANSWER])
    spoken = "<|im_start|>user\nGo.<|im_end|>\n<|im_start|>assistant\n"
    ids = qwen_tokenizer(spoken)["input_ids"]
    led = replace(rollout, completion_ids=[*ids, *rollout.completion_ids], generated=[0] * len(ids) + rollout.generated)
    turns = turns_of(qwen_tokenizer, led)
    assert turns[0].start == len(rollout.prompt_ids) + len(ids)
    assert led.ids[turns[0].header : turns[0].start] == generation_header_ids(qwen_tokenizer, PROMPT)
    # No tool spoke before the first message, whatever spoke last.
    answered = replace(led, messages=[ANSWER, CONTENT])
    before = context_before(answered, turns[0].message, turns[0].start)
    assert [message["role"] for message in before] == ["user", "assistant", "user"]


def test_the_context_of_a_turn_is_what_was_said_before_it(qwen_tokenizer: Any) -> None:
    rollout = play(qwen_tokenizer, SCRIPT)
    turns = turns_of(qwen_tokenizer, rollout)
    assert context_before(rollout, turns[0].message, turns[0].start) == PROMPT
    assert context_before(rollout, turns[2].message, turns[2].start) == [*PROMPT, *SCRIPT[:-1]]


@pytest.mark.parametrize(
    "text",
    [
        " to=functions.read_file<|channel|>commentary json<|message|>{broken",
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant to=functions.read_file<|message|>{broken",
        "<|channel|>commentary to=functions.read_file<|message|>{broken",
        "<|tool_call>call:read_file{path:",
        '<atem:function_calls>\n<atem:invoke name="read_file">',
    ],
)
def test_broken_calls_of_other_families_are_recognised(text: str, qwen_tokenizer: Any) -> None:
    call = rollouts._unreadable_call(play(qwen_tokenizer, [ANSWER]), text)
    assert call is not None
    assert call.name == ("" if "atem" in text else "read_file")


def test_flags_that_do_not_cover_the_completion_are_refused() -> None:
    with pytest.raises(ValueError, match="generated has 1 flags for 2 completion_ids"):
        Rollout([], [], [1], [2, 3], [1])


def test_a_tokenizer_renders_with_the_trainers_template(qwen_tokenizer: Any) -> None:
    own = "{% for m in messages %}{{ m.content + mark }}{% endfor %}{{ '>' if add_generation_prompt }}"
    bound = TemplatedTokenizer(qwen_tokenizer, own, {"mark": "!"})
    assert bound.apply_chat_template(PROMPT, tokenize=False, add_generation_prompt=True) == "What does a.py print?!>"
    assert bound("a.py")["input_ids"] == qwen_tokenizer("a.py")["input_ids"]
    assert bound.eos_token_id == qwen_tokenizer.eos_token_id
    assert bound.is_fast
    plain = TemplatedTokenizer(qwen_tokenizer)
    assert plain.apply_chat_template(PROMPT, tokenize=False) == qwen_tokenizer.apply_chat_template(
        PROMPT, tokenize=False
    )
    assert copy.deepcopy(plain).eos_token_id == qwen_tokenizer.eos_token_id


def test_headers_are_those_of_the_bound_template(qwen_tokenizer: Any) -> None:
    thinking = qwen_tokenizer.chat_template.replace(
        "{{- '<|im_start|>assistant\\n' }}", "{{- '<|im_start|>assistant\\n' + opener }}"
    )
    assert thinking != qwen_tokenizer.chat_template
    bound = TemplatedTokenizer(qwen_tokenizer, thinking, {"opener": "Thinking:\n"})
    plain = play(qwen_tokenizer, [ANSWER])
    opened = replace(
        plain, prompt_ids=bound.apply_chat_template(PROMPT, tools=TOOLS, add_generation_prompt=True, return_dict=False)
    )
    turns = turns_of(bound, opened)
    header, start = turns[0].header, turns[0].start
    assert qwen_tokenizer.decode(opened.ids[header:start]) == "<|im_start|>assistant\nThinking:\n"


def test_functions_become_definitions() -> None:
    def look(place: str) -> str:
        """Look somewhere.

        Args:
            place: where.
        """
        return place

    definitions = tool_definitions([look, TOOLS[0]])
    assert definitions is not None
    assert [tool["function"]["name"] for tool in definitions] == ["look", "read_file"]
    assert definitions[0]["function"]["parameters"]["required"] == ["place"]
    assert tool_definitions([]) is None


hint = as_collator_hint(LayeredHints())


def failures(tokenizer: Any, rollout: Rollout) -> list[Remark]:
    return list(tool_remarks(rollout, turns_of(tokenizer, rollout), tokenizer))


def only(tokenizer: Any, *messages: dict[str, Any], **options: Any) -> Remark:
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
    error = "bash() got an unexpected keyword argument 'command'"
    failure = only(qwen_tokenizer, calls("bash", command="ls"), raised("bash", error), ANSWER, tools=BASH)
    assert failure.kind == "type_error"
    assert failure.meta["tool_schema"]["required"] == ["code"]
    failure = only(qwen_tokenizer, calls("shell", command="ls"), raised("shell", "Tool shell not found."), tools=BASH)
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
    shown = answers("bash", "a.py\ncat: b.py: No such file or directory")
    failure = only(qwen_tokenizer, calls("bash", command="ls; cat b.py"), shown, ANSWER, tools=BASH)
    assert (failure.kind, failure.meta["path"]) == ("missing_file_in_command", "b.py")
    assert failures(qwen_tokenizer, play(qwen_tokenizer, [READ, shown, ANSWER])) == []


def test_one_failure_for_a_turn_of_several_calls(qwen_tokenizer: Any) -> None:
    both = says("", ("read_file", {"path": "a.py"}), ("open_file", {"path": "b"}), ("close_file", {"path": "b"}))
    lost = raised("close_file", "Tool close_file not found.")
    failure = only(qwen_tokenizer, both, CONTENT, NOT_FOUND, lost, ANSWER)
    assert failure.meta["tool_name"] == "open_file"


def test_results_of_asynchronous_tools_come_last(qwen_tokenizer: Any) -> None:
    both = says("", ("run_python", {"code": "1"}), ("read_file", {"path": "b.py"}))
    lost = raised("read_file", "File does not exist: b.py")
    failure = only(qwen_tokenizer, both, lost, answers("run_python", "1"), ANSWER)
    assert (failure.meta["tool_name"], failure.kind) == ("read_file", "file_not_found")


def test_the_same_call_again_is_a_repeated_failure(qwen_tokenizer: Any) -> None:
    first, second = failures(qwen_tokenizer, play(qwen_tokenizer, [OPENED, NOT_FOUND, OPENED, NOT_FOUND, ANSWER]))
    assert (first.kind, second.kind) == ("tool_not_found", "repeated_failure")
    assert second.meta["available_tools"] == ["read_file", "run_python"]


def test_errors_in_the_prompt_are_not_the_rollouts(qwen_tokenizer: Any) -> None:
    prompt = [*PROMPT, OPENED, NOT_FOUND, ANSWER, {"role": "user", "content": "Go on."}]
    (failure,) = failures(qwen_tokenizer, play(qwen_tokenizer, [OPENED, NOT_FOUND, ANSWER], prompt=prompt))
    assert (failure.turn, failure.kind) == (0, "repeated_failure")


def broken(tokenizer: Any, text: str, *, tools: Any = TOOLS, ended: bool = True) -> Rollout:
    """A last turn that TRL could not parse: its message is the text without special tokens."""
    rollout = play(tokenizer, [READ, CONTENT, ANSWER], tools=tools)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id] * ended
    kept = turns_of(tokenizer, rollout)[-1].start - len(rollout.prompt_ids)
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
