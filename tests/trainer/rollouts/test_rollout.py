"""Turns found in rollouts as TRL's tool loop leaves them."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from trainer.rollouts.scripted_rollouts import ANSWER, CONTENT, NOT_FOUND, OPENED, PROMPT, READ, TOOLS, play

from composer_replication.rendering import generation_header_ids
from composer_replication.trainer.rollouts.rollout import (
    GenerationHeaders,
    Rollout,
    TemplatedTokenizer,
    context_before,
    sampled_turns,
    tool_definitions,
)

SCRIPT = [OPENED, NOT_FOUND, READ, CONTENT, ANSWER]


def test_turns_are_the_sampled_runs_with_the_header_before_them(tokenizer: Any) -> None:
    rollout = play(tokenizer, SCRIPT)
    turns = sampled_turns(rollout, GenerationHeaders(tokenizer))
    assert turns is not None
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
    known, bare = (
        sampled_turns(rollout, GenerationHeaders(tokenizer)),
        sampled_turns(replace(rollout, messages=[]), GenerationHeaders(tokenizer)),
    )
    assert known is not None
    assert bare is not None
    assert [(turn.header, turn.start, turn.stop) for turn in bare] == [
        (turn.header, turn.start, turn.stop) for turn in known
    ]
    assert {turn.message for turn in bare} == {None}


def test_messages_of_another_number_of_turns_do_not_match(qwen_tokenizer: Any) -> None:
    rollout = play(qwen_tokenizer, SCRIPT)
    assert sampled_turns(replace(rollout, messages=SCRIPT[:-1]), GenerationHeaders(qwen_tokenizer)) is None
    assert sampled_turns(replace(rollout, messages=[*SCRIPT, ANSWER]), GenerationHeaders(qwen_tokenizer)) is None


def test_a_turn_that_another_header_prompted_has_none(qwen_tokenizer: Any) -> None:
    rollout = play(qwen_tokenizer, SCRIPT)
    odd = replace(rollout, prompt_ids=[*rollout.prompt_ids, rollout.prompt_ids[0]])
    turns = sampled_turns(odd, GenerationHeaders(qwen_tokenizer))
    assert turns is not None
    assert [turn.header is None for turn in turns] == [True, False, False]


def test_an_environment_that_speaks_before_the_first_turn(qwen_tokenizer: Any) -> None:
    rollout = play(qwen_tokenizer, [ANSWER])
    spoken = "<|im_start|>user\nGo.<|im_end|>\n<|im_start|>assistant\n"
    ids = qwen_tokenizer(spoken)["input_ids"]
    led = replace(rollout, completion_ids=[*ids, *rollout.completion_ids], generated=[0] * len(ids) + rollout.generated)
    turns = sampled_turns(led, GenerationHeaders(qwen_tokenizer))
    assert turns is not None
    assert turns[0].start == len(rollout.prompt_ids) + len(ids)
    assert led.ids[turns[0].header : turns[0].start] == generation_header_ids(qwen_tokenizer, PROMPT)
    # No tool spoke before the first message, whatever spoke last.
    answered = replace(led, messages=[ANSWER, CONTENT])
    assert [message["role"] for message in context_before(answered, turns[0])] == ["user", "assistant", "user"]


def test_context_stands_for_what_was_said(qwen_tokenizer: Any) -> None:
    rollout = play(qwen_tokenizer, SCRIPT)
    turns = sampled_turns(rollout, GenerationHeaders(qwen_tokenizer))
    assert turns is not None
    assert context_before(rollout, turns[0]) == PROMPT
    assert [message["role"] for message in context_before(rollout, turns[2])] == ["user", "assistant", "tool"]


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
    turns = sampled_turns(opened, GenerationHeaders(bound))
    assert turns is not None
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
