"""Every chat template that the installed trl ships: exact for traces, pairs and rollouts, or refused with a reason."""

from __future__ import annotations

from typing import Any

import pytest
from template_matrix import (
    ANSWER,
    EXACT,
    READ,
    TASK,
    TEMPLATES,
    USES,
    called,
    documented_table,
    said_in,
    table_row,
    template_tokenizer,
)

from composer_replication.chat_templates import (
    END_OF_TURN,
    TemplatedTokenizer,
    configured_ends,
    end_of_turn_ids,
    opening_without_thinking,
    renders_tool_calls,
)
from composer_replication.rendering import hint_message, render_conversation, render_response
from composer_replication.template_check import check_chat_template
from composer_replication.trainer.data_collator import CollatorConfig, ComposerDataCollator

TODAY = {
    **dict.fromkeys(("qwen3_training", "qwen3_5_think_training", "qwen3_6_training", "qwen3_8_training"), USES),
    **dict.fromkeys(
        ("qwen3_5_nothink_training", "gemma4", "gemma4_v5", "glm4moe", "lfm2_2_5", "nemotron_3_super"),
        ("traces", "pairs", "rollouts"),
    ),
    **dict.fromkeys(("qwen3_5_think", "qwen3_6", "gptoss"), ("pairs", "rollouts")),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_is_exact_or_refused_as_the_page_says(name: str) -> None:
    assert table_row(name) in documented_table(), "run `python tests/template_matrix.py`"


def test_the_page_has_the_templates_that_trl_ships_and_no_others() -> None:
    assert [line.split(" | ")[0].removeprefix("| ") for line in documented_table()] == ["template", *TEMPLATES]


@pytest.mark.parametrize(("name", "use"), [(name, use) for name, uses in TODAY.items() for use in uses])
def test_templates_of_todays_models_are_exact(name: str, use: str) -> None:
    (line,) = [line for line in documented_table() if line.startswith(f"| {name} |")]
    assert line.removesuffix(" |").split(" | ")[1 + USES.index(use)] == EXACT


def hinting(**settings: Any) -> CollatorConfig:
    return CollatorConfig(hint_generator=lambda kind, meta: "Look.", **settings)


def masked(tokenizer: Any, given: dict[str, Any], **settings: Any) -> str:
    (row,) = ComposerDataCollator(tokenizer, hinting(**settings)).rows(given)  # type: ignore[arg-type]
    return str(tokenizer.decode([token for token, flag in zip(row.ids, row.response_mask, strict=True) if flag]))


TRACE = {
    "turns": [
        {"role": "user", "content": TASK},
        {"role": "assistant", "content": ANSWER, "thinking": "It looks like one."},
    ]
}


def test_an_empty_block_of_thinking_is_the_templates_and_a_thought_is_the_models() -> None:
    tokenizer = template_tokenizer("qwen3_training")
    assert opening_without_thinking(tokenizer) == "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert masked(tokenizer, TRACE) == f"{ANSWER}<|im_end|>"
    kept = masked(tokenizer, TRACE, strip_thinking=False)
    assert kept == f"<think>\nIt looks like one.\n</think>\n\n{ANSWER}<|im_end|>"
    prompt, response = render_response(
        tokenizer, [{"role": "user", "content": TASK}], {"role": "assistant", "content": ANSWER}
    )
    assert tokenizer.decode(prompt).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert tokenizer.decode(response) == f"{ANSWER}<|im_end|>"
    assert opening_without_thinking(template_tokenizer("qwen2_5")) == ""
    assert opening_without_thinking(template_tokenizer("gptoss")) == ""


def test_a_turn_ends_with_any_of_the_models_ends() -> None:
    tokenizer = template_tokenizer("qwen2_5")
    tokenizer.eos_token = "<|endoftext|>"
    assert masked(tokenizer, TRACE) == f"{ANSWER}<|im_end|>"
    glm = template_tokenizer("glm4moe")
    talk = [{"role": "user", "content": TASK}, {"role": "assistant", "content": ANSWER}]
    (turn,) = (rendered := render_conversation(glm, talk)).turns
    assert glm.decode(rendered.ids[turn.start : turn.stop]) == f"{ANSWER}<|user|>"
    odd = template_tokenizer("qwen2_5")
    odd.chat_template = odd.chat_template.replace("<|im_end|>", "<stop>")
    odd.add_tokens(["<stop>"])
    bound = TemplatedTokenizer(odd, odd.chat_template, end_ids=(odd.convert_tokens_to_ids("<stop>"),))
    assert masked(bound, TRACE) == f"{ANSWER}<stop>"
    assert masked(odd, TRACE) == f"{ANSWER}<stop>\n", "without the generation config nobody can know"


def test_the_generation_config_has_one_end_several_or_none() -> None:
    class Model:
        class generation_config:  # noqa: N801
            eos_token_id: Any = None

    assert configured_ends(Model) == ()
    Model.generation_config.eos_token_id = 3
    assert configured_ends(Model) == (3,)
    Model.generation_config.eos_token_id = [3, 5]
    assert configured_ends(Model) == (3, 5)
    assert configured_ends(None) == ()
    tokenizer = template_tokenizer("qwen2_5")
    assert end_of_turn_ids(tokenizer) == set(tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"]))
    assert end_of_turn_ids(TemplatedTokenizer(tokenizer, end_ids=(5,))) == {*end_of_turn_ids(tokenizer), 5}


def test_a_template_that_shows_definitions_and_no_calls_is_refused() -> None:
    dropping = template_tokenizer("lfm2")
    assert "read_file" in dropping.apply_chat_template(
        [{"role": "user", "content": TASK}], tools=[READ], tokenize=False
    )
    assert not renders_tool_calls(dropping)
    with pytest.raises(ValueError, match="leaves tool calls or their results out; trl has no better template"):
        check_chat_template(dropping, tools=True)


def test_advice_is_given_where_it_helps() -> None:
    with pytest.raises(ValueError, match=r"not prefix-preserving.*; trl's template qwen3_6_training does what"):
        check_chat_template(template_tokenizer("qwen3_6"), tools=True, growing=True, hints=True)
    for needs in ({"growing": True}, {"responses": True}, {"hints": True}):
        with pytest.raises(ValueError, match="trl has no better template") as refused:
            check_chat_template(template_tokenizer("deepseekv3"), tools=True, **needs)
        assert "\n" not in str(refused.value)
    with pytest.raises(ValueError, match=r"does not show the thinking of every turn: leave the thinking out"):
        check_chat_template(template_tokenizer("qwen2_5"), thinking=True)


def shown(tokenizer: Any, *turns: dict[str, Any]) -> tuple[str, list[str]] | None:
    """The text of a trace, and what carries loss in it; None if the template is refused."""
    given: Any = {"trace_id": "t", "turns": list(turns), "tools": [READ]}
    try:
        (row,) = ComposerDataCollator(tokenizer, hinting()).rows(given)
    except ValueError:
        return None
    return tokenizer.decode(row.ids), said_in(tokenizer, row.ids, row.response_mask)


ASKS, SAYS = {"role": "user", "content": TASK}, {"role": "assistant", "content": ANSWER}
RETURNS = {"role": "tool", "content": "print(1)", "tool_call_id": "abcdefgh1"}


@pytest.mark.parametrize("name", TEMPLATES)
def test_text_is_shown_or_the_template_is_refused(name: str) -> None:
    tokenizer = template_tokenizer(name)
    collator = ComposerDataCollator(tokenizer)
    try:
        (row,) = collator.rows({"turns": [ASKS, SAYS]})  # type: ignore[typeddict-item]
    except ValueError:
        return
    assert TASK in tokenizer.decode(row.ids)
    (said,) = said_in(tokenizer, row.ids, row.response_mask)
    assert ANSWER in said
    assert said.endswith(END_OF_TURN)


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_a_turn_says_beside_its_call_is_in_the_turn_or_nowhere(name: str) -> None:
    """Gemma 4 moves it behind the result, gpt-oss drops it when an answer follows."""
    calling = {**called("a.py", 1), "content": "I look there."}
    found = shown(template_tokenizer(name), ASKS, calling, RETURNS, SAYS)
    if found is not None:
        text, (call, answer) = found
        assert text.count("I look there.") == call.count("I look there.") <= 1
        assert ("a.py" in call, ANSWER in answer) == (True, True)


@pytest.mark.parametrize("name", TEMPLATES)
def test_all_calls_of_a_turn_are_shown_or_the_trace_is_refused(name: str) -> None:
    """gpt-oss shows the first of several calls alone, and the results of all."""
    both = {**called("a.py", 1), "tool_calls": [called(f"{one}.py", 1 + one)["tool_calls"][0] for one in (0, 1)]}
    results = [{**RETURNS, "tool_call_id": f"abcdefgh{1 + one}"} for one in (0, 1)]
    found = shown(template_tokenizer(name), ASKS, both, *results, SAYS)
    if found is not None:
        assert all(path in found[1][0] for path in ("0.py", "1.py"))
    if name.startswith("gptoss"):
        assert found is None


@pytest.mark.parametrize("name", ["qwen2_5", "llama3_1", "glm4moe", "gemma4", "nemotron_3_super"])
def test_an_end_token_amid_the_text_does_not_end_the_turn(name: str) -> None:
    tokenizer = template_tokenizer(name)
    for mark in tokenizer.convert_ids_to_tokens(sorted(end_of_turn_ids(tokenizer))):
        spoken = f"It writes {mark} first, then the text."
        found = shown(tokenizer, ASKS, {"role": "assistant", "content": spoken})
        assert found is not None
        (said,) = found[1]
        assert spoken in said
        assert said.endswith(END_OF_TURN)
        prompt = [ASKS]
        one, other = (render_response(tokenizer, prompt, {**SAYS, "content": f"{spoken} {end}"})[1] for end in "AB")
        assert one != other


def test_a_closing_mark_of_thinking_in_an_answer_is_text() -> None:
    spoken = "It ends with </think> here."
    for name in ("qwen3_training", "qwen3_5_think_training", "glm4moe"):
        found = shown(template_tokenizer(name), ASKS, {"role": "assistant", "content": spoken})
        assert found is not None
        assert found[1][0].startswith(spoken)


def test_a_hint_behind_a_result_leaves_the_conversation_as_it_is() -> None:
    """The template drops the thinking of earlier turns when a user's message follows; the student's ids keep it."""
    tokenizer = template_tokenizer("qwen3_5_think")
    talk = [{"role": "user", "content": TASK}, {**called("a.py", 1), "reasoning_content": "Let me look."}]
    talk = [*talk, {"role": "tool", "content": "no such file", "tool_call_id": "abcdefgh1"}]
    ids, role = hint_message(tokenizer, talk, "Look.")
    assert (tokenizer.decode(ids), role) == ("<|im_start|>user\nLook.<|im_end|>\n", "user")
    gemma, header = template_tokenizer("gemma4"), "<|turn>model\n"
    ids, role = hint_message(gemma, talk, "Look.")
    assert gemma.decode(ids).endswith(f"Look.<turn|>\n{header}"), "after a result the turn goes on without a header"
