"""Turns found in one rendering by the real chat templates, and hints spliced in without touching the other ids."""

from __future__ import annotations

import copy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tokenizers import processors

from composer_replication.rendering import Splice, hint_message, hinted_rows, render_conversation
from composer_replication.template_check import check_chat_template

CALL = {"type": "function", "function": {"name": "read_file", "arguments": {"path": "a b.py"}}}
CONVERSATION = [
    {"role": "system", "content": "You are a coding agent."},
    {"role": "user", "content": "Fix the bug. Überprüfe es 🙂"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "Error: no such file"},
    {"role": "assistant", "content": "The file is missing 🙂."},
    {"role": "user", "content": "Try again."},
    {"role": "assistant", "content": "Done."},
]


def spoken(tokenizer: Any, conversation: list[dict[str, Any]]) -> list[str]:
    rendered = render_conversation(tokenizer, conversation)
    return [tokenizer.decode(rendered.ids[turn.start : turn.stop]) for turn in rendered.turns]


def test_ids_are_those_of_the_template(tokenizer: Any) -> None:
    rendered = render_conversation(tokenizer, CONVERSATION)
    assert rendered.ids == tokenizer.apply_chat_template(CONVERSATION, return_dict=False)


def test_turns_start_where_generation_starts_and_end_with_the_end_token(tokenizer: Any) -> None:
    rendered = render_conversation(tokenizer, CONVERSATION)
    assert [turn.message for turn in rendered.turns] == [2, 4, 6]
    for turn in rendered.turns:
        prompt = tokenizer.apply_chat_template(
            CONVERSATION[: turn.message], add_generation_prompt=True, return_dict=False
        )
        assert rendered.ids[: turn.start] == prompt
        assert rendered.ids[turn.stop - 1] == tokenizer.eos_token_id
        assert tokenizer.eos_token_id not in rendered.ids[turn.start : turn.stop - 1]
        assert rendered.ids[: turn.header] == tokenizer.apply_chat_template(
            CONVERSATION[: turn.message], return_dict=False
        )
    call, missing, done = spoken(tokenizer, CONVERSATION)
    assert '"read_file"' in call
    assert "a b.py" in call
    assert missing.startswith("The file is missing 🙂.")
    assert done.startswith("Done.")


def test_mask_covers_exactly_the_turns(tokenizer: Any) -> None:
    rendered = render_conversation(tokenizer, CONVERSATION)
    masked = [token for token, flag in zip(rendered.ids, rendered.response_mask(), strict=True) if flag]
    turns = [token for turn in rendered.turns for token in rendered.ids[turn.start : turn.stop]]
    assert masked == turns


@pytest.mark.parametrize("role", ["system", "user"])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_hint_is_spliced_before_the_turn_and_nothing_else_changes(tokenizer: Any, role: str, which: int) -> None:
    rendered = render_conversation(tokenizer, CONVERSATION)
    turn = rendered.turns[which]
    context = CONVERSATION[: turn.message]
    hint_ids, shown_role = hint_message(tokenizer, context, "Reminder: list the files first.", role=role)
    assert shown_role == role
    splice = Splice(tuple(hint_ids), turn.header, ((turn.start, turn.stop),))
    hinted = splice.hinted(rendered.ids)
    assert hinted[: turn.header] == rendered.ids[: turn.header]
    assert hinted[turn.header + splice.shift :] == rendered.ids[turn.header : turn.stop]
    # The same ids as if the template had rendered the hinted conversation itself.
    with_hint = [
        *CONVERSATION[: turn.message],
        {"role": role, "content": "Reminder: list the files first."},
        CONVERSATION[turn.message],
    ]
    whole = tokenizer.apply_chat_template(with_hint, return_dict=False)
    assert whole[: len(hinted)] == hinted


TALK = [{"role": role, "content": f"{number}"} for number in range(5) for role in ("user", "assistant")]


@pytest.mark.parametrize(
    ("content", "refused_at"),
    [
        ("m.content if loop.last or m.role != 'assistant' else '…'", 1),
        ("'…' if messages | length > 6 and loop.index == 4 else m.content", 3),
        ("'…' if add_generation_prompt and messages | length > 6 and loop.index == 4 else m.content", 9),
    ],
)
def test_a_template_that_rewrites_the_past_is_refused(qwen_tokenizer: Any, content: str, refused_at: int) -> None:
    forgetful = copy.deepcopy(qwen_tokenizer)
    forgetful.chat_template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role }}{{ " + content + " }}<|im_end|>{% endfor %}"
        "{{ '<|im_start|>assistant' if add_generation_prompt }}"
    )
    render_conversation(forgetful, TALK[: 2 if refused_at == 1 else 6])
    with pytest.raises(ValueError, match=rf"not prefix-preserving: .* up to message {refused_at}"):
        render_conversation(forgetful, TALK)


def test_an_answer_that_would_merge_with_its_prompt_is_cut_from_it(qwen_tokenizer: Any) -> None:
    talk = [*CONVERSATION, {"role": "user", "content": "Code only."}, {"role": "assistant", "content": "    return 1"}]
    assert len(qwen_tokenizer("\n   ")["input_ids"]) == 1
    rendered = render_conversation(qwen_tokenizer, talk)
    prompt = qwen_tokenizer.apply_chat_template(talk[:-1], add_generation_prompt=True, return_dict=False)
    assert rendered.ids[: rendered.turns[-1].start] == prompt
    assert spoken(qwen_tokenizer, talk)[-1] == "    return 1<|im_end|>"
    assert spoken(qwen_tokenizer, talk)[:-1] == spoken(qwen_tokenizer, CONVERSATION)


def test_offsets_without_white_space_are_understood(qwen_tokenizer: Any) -> None:
    trimming = copy.deepcopy(qwen_tokenizer)
    trimming.backend_tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=True)
    talk = [{"role": "user", "content": "go"}, {"role": "assistant", "content": " Done."}] * 3
    encoded = trimming(" Done.", return_offsets_mapping=True)
    assert encoded["offset_mapping"][0][0] == 1
    assert render_conversation(trimming, talk) == render_conversation(qwen_tokenizer, talk)


def test_a_thinking_models_template_is_refused_and_its_training_template_taken(qwen_tokenizer: Any) -> None:
    thinking = copy.deepcopy(qwen_tokenizer)
    folder = Path(find_spec("trl").submodule_search_locations[0]) / "chat_templates"  # type: ignore[union-attr, index]
    thinking.chat_template = (folder / "qwen3.jinja").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match=r"not prefix-preserving.*; trl's template qwen3_training"):
        check_chat_template(thinking, tools=True, growing=True)
    thinking.chat_template = (folder / "qwen3_training.jinja").read_text(encoding="utf-8")
    check_chat_template(thinking, tools=True, growing=True)


def test_long_conversations_are_rendered_few_times(tokenizer: Any) -> None:
    rounds = [
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "Error: no such file"},
        {"role": "assistant", "content": "It is missing."},
        {"role": "user", "content": "Try again."},
    ]
    talk = [*CONVERSATION[:2], *rounds * 12]
    rendered_messages = 0

    class Counting:
        is_fast = True
        eos_token_id = tokenizer.eos_token_id
        __call__ = staticmethod(tokenizer.__call__)

        @staticmethod
        def apply_chat_template(messages: Any, **settings: Any) -> Any:
            nonlocal rendered_messages
            rendered_messages += len(messages)
            return tokenizer.apply_chat_template(messages, **settings)

    rendered = render_conversation(Counting(), talk)
    assert rendered_messages < 14 * len(talk)
    for turn in rendered.turns:
        prompt = tokenizer.apply_chat_template(talk[: turn.message], add_generation_prompt=True, return_dict=False)
        assert rendered.ids[: turn.start] == prompt


def test_a_template_that_wants_results_after_calls_is_checked_through_whole_prefixes(qwen_tokenizer: Any) -> None:
    strict = copy.deepcopy(qwen_tokenizer)
    strict.chat_template = (
        "{% for m in messages %}{% if loop.previtem and loop.previtem.tool_calls and m.role != 'tool' %}"
        "{{ raise_exception('no result') }}{% endif %}{% endfor %}" + qwen_tokenizer.chat_template
    )
    assert render_conversation(strict, [*CONVERSATION, *TALK]) == render_conversation(
        qwen_tokenizer, [*CONVERSATION, *TALK]
    )


def test_a_token_across_a_turns_border_is_refused(qwen_tokenizer: Any) -> None:
    gluey = copy.deepcopy(qwen_tokenizer)
    gluey.chat_template = (
        "{% for m in messages %}{{ 'fact' if m.role == 'user' else 'orial' }}{% endfor %}"
        "{{ '' if add_generation_prompt }}"
    )
    assert len(gluey("factorial")["input_ids"]) == 1
    with pytest.raises(ValueError, match="a token straddles the border of message 1"):
        render_conversation(gluey, [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}])


def test_a_conversation_that_starts_with_the_assistant_is_refused(qwen_tokenizer: Any) -> None:
    with pytest.raises(ValueError, match="begins with an assistant message"):
        render_conversation(qwen_tokenizer, [{"role": "assistant", "content": "Hello."}])


def test_a_tokenizer_without_offsets_is_refused(qwen_tokenizer: Any) -> None:
    class Slow:
        is_fast = False
        apply_chat_template = staticmethod(qwen_tokenizer.apply_chat_template)

    with pytest.raises(ValueError, match="Slow gives no character offsets: use the fast tokenizer"):
        render_conversation(Slow(), CONVERSATION)


BODY = "{{ '<|im_start|>' + m.role + m.content + '<|im_end|>' }}"


@pytest.mark.parametrize(
    "template",
    [
        *(
            "{% for m in messages %}{% if m.role == 'system' and not loop.first %}" + shown + "{% else %}"
            "" + BODY + "{% endif %}{% endfor %}"
            for shown in (
                "{{ raise_exception('system first') }}",
                "",
                "{{ '<|im_start|>other' + m.content[:0] + '<|im_end|>' }}",
            )
        ),
        "{% for m in messages if m.role == 'system' %}" + BODY + "{% endfor %}"
        "{% for m in messages if m.role != 'system' %}" + BODY + "{% endfor %}",
    ],
    ids=["refused", "dropped", "hidden", "moved to the top"],
)
def test_a_role_that_the_template_does_not_show_becomes_the_users(qwen_tokenizer: Any, template: str) -> None:
    picky = copy.deepcopy(qwen_tokenizer)
    picky.chat_template = template
    for messages in (CONVERSATION[:2], CONVERSATION[1:2]):
        assert hint_message(qwen_tokenizer, messages, "Look.")[1] == "system"
    hint_ids, role = hint_message(picky, CONVERSATION[:2], "Look.")
    assert (picky.decode(hint_ids), role) == ("<|im_start|>userLook.<|im_end|>", "user")


def test_hinted_rows_name_the_same_tokens_in_both_contexts() -> None:
    rows = [[10, 11, 12, 13, 14], [20, 21, 22]]
    splices = [[Splice((1, 2), 2, ((2, 3), (4, 5))), Splice((3,), 3, ((3, 4),))], []]
    made = hinted_rows(rows, splices, pad_token_id=0, left_padding=[4, 6])
    assert made["ctx_teacher_input_ids"].tolist() == [[10, 11, 1, 2, 12, 13, 14], [10, 11, 12, 3, 13, 0, 0]]
    assert made["ctx_teacher_attention_mask"].tolist() == [[1] * 7, [1] * 5 + [0] * 2]
    assert made["sdpo_student_index"].tolist() == [[0, 6], [0, 8], [0, 7]]
    assert made["sdpo_teacher_index"].tolist() == [[0, 4], [0, 6], [1, 4]]
