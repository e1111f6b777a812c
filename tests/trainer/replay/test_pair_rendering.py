"""Preference pairs as ids: responses start where the model would start, end with their turn, and are never cut."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from composer_replication.replaysim.records import NormalizedDPOPair, action_messages
from composer_replication.trainer.replay.preference_rows import PreferenceStats, preference_rows

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
    normalized = NormalizedDPOPair(
        "s", STATE, action_messages(CALL), action_messages(OTHER), 2, {"pair": {"tools": TOOLS}}
    )
    conversational = {
        "prompt": STATE,
        # A table fills in the fields that other rows have.
        "chosen": [{**action_messages(CALL)[0], "thinking": "hm", "tool_call_id": None}],
        "rejected": [{**action_messages(OTHER)[0], "reasoning_content": "hm"}],
        "tools": TOOLS,
    }
    first, *others = preference_rows(qwen_tokenizer, [pair(tools=TOOLS), normalized, conversational], max_length=2048)
    assert len(others) == 2
    assert all(row == first for row in others)


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
    from composer_replication._tiny import tiny_tokenizer

    stats = PreferenceStats()
    llama = tiny_tokenizer("llama3_1")
    assert preference_rows(llama, [pair(chosen=f"{CALL}\n{CALL}")], max_length=2048, stats=stats) == []
    assert stats.pairs_dropped == {"refused by the chat template": 1}


def test_a_long_prompt_loses_its_beginning_and_the_responses_stay_whole(qwen_tokenizer: Any) -> None:
    (whole,) = preference_rows(qwen_tokenizer, [pair()], max_length=2048)
    stats = PreferenceStats()
    longest = max(len(whole.chosen_ids), len(whole.rejected_ids))
    (cut,) = preference_rows(qwen_tokenizer, [pair()], max_length=longest + 10, stats=stats)
    assert cut == (whole.prompt_ids[-10:], whole.chosen_ids, whole.rejected_ids)
    assert (stats.prompts_truncated, stats.prompt_tokens_truncated) == (1, len(whole.prompt_ids) - 10)
    assert preference_rows(qwen_tokenizer, [pair()], max_length=longest, stats=stats) == []
    assert stats.pairs_dropped == {"response too long": 1}


def test_a_template_without_tools_is_refused_rather_than_rendering_both_sides_as_nothing(qwen_tokenizer: Any) -> None:
    deaf = copy.deepcopy(qwen_tokenizer)
    deaf.chat_template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
        "{{ '<|im_start|>assistant\\n' if add_generation_prompt }}"
    )
    with pytest.raises(ValueError, match="leaves tool calls or their results out: set"):
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
