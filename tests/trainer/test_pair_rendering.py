"""Preference pairs as ids: responses start where the model would start, end with their turn, and are never cut."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from transformers.utils import get_json_schema

from composer_replication._tiny import tiny_tokenizer
from composer_replication.histories import assistant_message
from composer_replication.replaysim.records import NormalizedDPOPair
from composer_replication.teacher_replay.records import Pair
from composer_replication.traces import parse_action
from composer_replication.trainer.preference_rows import (
    PreferenceStats,
    ShownContext,
    check_shown_context,
    preference_rows,
)

STATE = [
    {"role": "system", "content": "You are a coding agent."},
    {"role": "user", "content": "Fix it. Überprüfe es 🙂"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "ls", "arguments": '{"path": "."}'}}],
    },
    {"role": "tool", "tool_call_id": "c", "content": "a.py"},
]
CALL = '[TOOL_USE] name=read_file input={"path": "a.py"}'
OTHER = '[TOOL_USE] name=open_file input={"path": "a.py"}'
TOOLS = [{"type": "function", "function": {"name": "read_file", "description": "Read.", "parameters": {}}}]


def pair(chosen: str = CALL, rejected: str = OTHER, **fields: Any) -> dict[str, Any]:
    made = {"state_id": "s", "state_messages": STATE, "chosen": chosen, "rejected": rejected, "n_teachers_agreeing": 2}
    return {**made, **fields}


def with_objects() -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = copy.deepcopy(STATE)
    shown[2]["tool_calls"][0]["function"]["arguments"] = {"path": "."}
    return shown


def test_the_response_starts_behind_the_generation_prompt_and_ends_with_its_turn(tokenizer: Any) -> None:
    (row,) = preference_rows(tokenizer, [pair(tools=TOOLS)], max_length=2048)
    prompt = tokenizer.apply_chat_template(with_objects(), tools=TOOLS, add_generation_prompt=True, return_dict=False)
    assert row.prompt_ids == prompt
    for ids, name in ((row.chosen_ids, "read_file"), (row.rejected_ids, "open_file")):
        assert ids[-1] == tokenizer.eos_token_id
        assert tokenizer.eos_token_id not in ids[:-1]
        said = tokenizer.decode(ids)
        assert f'{{"name": "{name}", ' in said
        assert '{"path": "a.py"}' in said
        assert "assistant" not in said


def test_all_forms_of_a_pair_give_the_same_row(qwen_tokenizer: Any) -> None:
    call, other = (assistant_message(parse_action(action)) for action in (CALL, OTHER))
    given = pair(tools=TOOLS)
    normalized = NormalizedDPOPair("s", STATE, [call], [other], 2, {"pair": {"tools": TOOLS}})
    conversational = {
        "prompt": STATE,
        # A table fills in the fields that other rows have.
        "chosen": [{**call, "thinking": "hm", "tool_call_id": None}],
        "rejected": [{**other, "reasoning_content": "hm"}],
        "tools": TOOLS,
    }
    forms = [given, Pair.of(given), normalized, conversational]
    first, *others = preference_rows(qwen_tokenizer, forms, max_length=2048)
    assert len(others) == 3
    assert all(row == first for row in others)


def test_training_reads_neither_the_id_nor_the_count_of_teachers(qwen_tokenizer: Any) -> None:
    (row,) = preference_rows(qwen_tokenizer, [pair(tools=TOOLS)], max_length=2048)
    odd = pair(tools=TOOLS, state_id=None, n_teachers_agreeing=2.0)
    assert preference_rows(qwen_tokenizer, [odd], max_length=2048) == [row]


def test_thinking_is_on_neither_side(qwen_tokenizer: Any) -> None:
    plain, thought = preference_rows(
        qwen_tokenizer,
        [pair(), pair(chosen=f"[THINKING]\nhm\n[/THINKING]\n{CALL}", rejected=f"[THINKING]\noh\n[/THINKING]\n{OTHER}")],
        max_length=2048,
    )
    assert thought == plain


def test_a_response_that_would_melt_into_its_prompt_is_cut_from_it(qwen_tokenizer: Any) -> None:
    state = [{"role": "user", "content": "go"}]
    assert len(qwen_tokenizer("\n   ")["input_ids"]) == 1
    (row,) = preference_rows(qwen_tokenizer, [pair("    return 1", "return 1", state_messages=state)], max_length=2048)
    assert row.prompt_ids == qwen_tokenizer.apply_chat_template(state, add_generation_prompt=True, return_dict=False)
    assert qwen_tokenizer.decode(row.chosen_ids) == "    return 1<|im_end|>"


def test_what_cannot_be_used_is_counted_by_reason(qwen_tokenizer: Any) -> None:
    stats = PreferenceStats()
    two = [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]
    unusable = [
        pair(chosen=""),
        pair(rejected=" \n"),
        pair(chosen="[THINKING]\nonly thought\n[/THINKING]"),
        pair(chosen=OTHER),
        pair(chosen="word " * 300),
        {"prompt": STATE, "chosen": two, "rejected": two[:1]},
        {"prompt": STATE, "chosen": [], "rejected": two[:1]},
        {"prompt": STATE, "chosen": [{"content": "a"}], "rejected": two[:1]},
        {"prompt": STATE, "chosen": ["a"], "rejected": two[:1]},
        {"prompt": STATE, "chosen": [{"role": "assistant", "content": [{"type": "image"}]}], "rejected": two[:1]},
    ]
    rows = preference_rows(qwen_tokenizer, [*unusable, pair()], max_length=300, stats=stats)
    assert len(rows) == stats.pairs == 1
    assert stats.pairs_dropped == {
        "empty side": 4,
        "equal sides": 1,
        "response too long": 1,
        "not one assistant message": 1,
        "a message without a role or a text": 3,
    }

    blocks = [{"role": "assistant", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "text"}]}]
    plain = [{"role": "assistant", "content": "one text"}]
    in_blocks, in_one = (
        preference_rows(qwen_tokenizer, [{"prompt": STATE, "chosen": chosen, "rejected": two[:1]}], max_length=300)
        for chosen in (blocks, plain)
    )
    assert in_blocks == in_one


def test_a_pair_that_the_template_refuses_is_counted() -> None:
    stats = PreferenceStats()
    llama = tiny_tokenizer("llama3_1")
    assert preference_rows(llama, [pair(chosen=f"{CALL}\n{CALL}")], max_length=2048, stats=stats) == []
    assert stats.pairs_dropped == {"refused by the chat template": 1}


def test_a_template_without_tools_is_refused_rather_than_rendering_both_sides_as_nothing(qwen_tokenizer: Any) -> None:
    deaf = copy.deepcopy(qwen_tokenizer)
    deaf.chat_template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
        "{{ '<|im_start|>assistant\\n' if add_generation_prompt }}"
    )
    with pytest.raises(ValueError, match="leaves tool calls or their results out; trl has no better template"):
        preference_rows(deaf, [pair()], max_length=2048)
    talk = pair("yes", "no", state_messages=STATE[:2])
    assert len(preference_rows(deaf, [talk], max_length=2048)) == 1
    deaf.chat_template = None
    with pytest.raises(ValueError, match="has no chat template"):
        preference_rows(deaf, [talk], max_length=2048)


@pytest.mark.parametrize("broken", [{"prompt": "p", "chosen": "c", "rejected": "r"}, {"state_messages": STATE}, "text"])
def test_a_pair_of_no_known_form_is_named(qwen_tokenizer: Any, broken: Any) -> None:
    with pytest.raises(ValueError, match=r"pair 1 has .*: expected state_messages"):
        preference_rows(qwen_tokenizer, [pair(), broken], max_length=2048)


SYSTEM = {"role": "system", "content": "You are a coding agent."}
USER = {"role": "user", "content": "Read a.py."}


def tool(name: str, description: str = "") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": {}}}


def say(text: str = "", *calls: str) -> list[dict[str, Any]]:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [{"type": "function", "function": {"name": name, "arguments": {}}} for name in calls]
    return [message]


def shown(*tools: dict[str, Any], prompt: Any = (SYSTEM, USER), calls: bool = True) -> dict[str, Any]:
    chosen, rejected = (say("", "read"), say("", "open")) if calls else (say("yes"), say("no"))
    return {"prompt": list(prompt), "chosen": chosen, "rejected": rejected, "tools": list(tools)}


ROLLOUTS = [ShownContext.of([SYSTEM, USER], [tool("read"), tool("open")])]


def test_the_same_context_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    check_shown_context([shown(tool("open"), tool("read"))], ROLLOUTS)
    check_shown_context([shown()], [ShownContext.of([SYSTEM, USER], None)])
    check_shown_context([shown()], [])
    assert caplog.text == ""


def test_tools_in_every_form_and_text_in_parts(caplog: pytest.LogCaptureFixture) -> None:
    def read(path: str) -> str:
        """Read a file.

        Args:
            path: The file.
        """
        return path

    definition = get_json_schema(read)
    properties = definition["function"]["parameters"]["properties"]
    filled = {"function": {**definition["function"], "parameters": {**definition["function"]["parameters"]}}}
    filled["function"]["parameters"]["properties"] = {**properties, "of_another_tool": None}
    system = {"role": "system", "content": [{"type": "text", "text": SYSTEM["content"]}]}
    rollouts = [ShownContext.of([SYSTEM, USER], [definition])]
    for tools in ([read], [definition], [json.dumps(definition)], json.dumps([definition]), [filled]):
        check_shown_context([{**shown(), "prompt": [system, USER], "tools": tools}], rollouts)
    assert caplog.text == ""
    for tools, words in (([5], "not 5"), ("read", "not JSON")):
        with pytest.raises(ValueError, match=f"pair 0: .* {words}"):
            check_shown_context([{**shown(), "tools": tools}], rollouts)


def test_calls_without_definitions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"replay_dataset: 1 of 2 pairs call tools .* rollouts show open, read: put"):
        check_shown_context([shown(tool("read"), tool("open")), shown()], ROLLOUTS)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (shown(tool("bash")), "1 of 1 pairs show other tools than the rollouts (pairs: bash; rollouts: open, read)"),
        (shown(tool("open"), tool("read", "Reads.")), "(the definitions of read differ)"),
        (shown(calls=False), "(pairs: none; rollouts: open, read)"),
        (
            shown(tool("read"), tool("open"), prompt=[USER]),
            "(pairs: none; rollouts: 'You are a coding agent.'): channel 3 trains a context in which",
        ),
    ],
)
def test_what_differs_is_said(given: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture) -> None:
    check_shown_context([given], ROLLOUTS)
    assert words in caplog.text
