"""Conversations as the prompts of real chat templates, and of templates that refuse this and that."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import trl
from teacher_replay.serving.loopback import TOOL

from composer_replication._tiny import tiny_tokenizer
from composer_replication.teacher_replay.serving.chat_template import ChatTemplate
from composer_replication.teacher_replay.serving.local_teacher import QuestionError

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Read it."}


def call(name: str, arguments: Any, identity: str) -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def called(*calls: dict[str, Any], content: str = "") -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def result(identity: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": identity, "content": content}


def templated(template: str) -> ChatTemplate:
    tokenizer = tiny_tokenizer("qwen2_5")
    tokenizer.chat_template = template
    return ChatTemplate(tokenizer)


def test_the_prompt_is_what_the_template_makes_of_it(tokenizer: Any) -> None:
    given = [SYSTEM, USER, called(call("read_file", '{"path": "a.py"}', "c1")), result("c1", "x = 1")]
    as_objects = [SYSTEM, USER, called(call("read_file", {"path": "a.py"}, "c1")), result("c1", "x = 1")]
    expected = tokenizer.apply_chat_template(as_objects, tools=[TOOL], add_generation_prompt=True, tokenize=False)
    assert ChatTemplate(tokenizer).prompt(given, [TOOL]) == expected
    assert given[2]["tool_calls"][0]["function"]["arguments"] == '{"path": "a.py"}'


def test_arguments_that_are_no_object_are_shown_as_a_value_of_one(tokenizer: Any) -> None:
    prompt = ChatTemplate(tokenizer).prompt([USER, called(call("read_file", "{broken", "c1")), result("c1", "no")])
    assert '{"arguments": "{broken"}' in prompt


def test_a_developer_is_the_system(tokenizer: Any) -> None:
    template = ChatTemplate(tokenizer)
    assert template.prompt([{**SYSTEM, "role": "developer"}, USER]) == template.prompt([SYSTEM, USER])


def test_halves_of_surrogate_pairs_do_not_reach_the_tokenizer(tokenizer: Any) -> None:
    prompt = ChatTemplate(tokenizer).prompt([{"role": "user", "content": "a\ud83db \ud83d\ude00"}])
    assert "a\ufffdb \U0001f600" in prompt
    tokenizer(prompt)


def test_parallel_calls_are_told_one_by_one_to_a_template_that_takes_one() -> None:
    two = called(
        call("read_file", '{"path": "a.py"}', "c1"), call("read_file", '{"path": "b.py"}', "c2"), content="So."
    )
    given = [USER, two, result("c2", "second"), result("c1", "first"), USER]
    prompt = ChatTemplate(tiny_tokenizer("llama3_1")).prompt(given, [TOOL])
    places = [prompt.index(part) for part in ('"a.py"', "first", '"b.py"', "second")]
    assert places == sorted(places)
    assert prompt.count("second") == 1
    # A template that takes both gets both.
    assert ChatTemplate(tiny_tokenizer("qwen2_5")).prompt(given, [TOOL]).count("<|im_start|>assistant\nSo.") == 1


def test_results_of_one_id_are_each_told_once() -> None:
    two = called(call("read_file", {"path": "a.py"}, "c"), call("read_file", {"path": "b.py"}, "c"))
    prompt = ChatTemplate(tiny_tokenizer("llama3_1")).prompt([USER, two, result("c", "first"), result("c", "second")])
    assert prompt.index("first") < prompt.index("b.py") < prompt.index("second")
    assert (prompt.count("first"), prompt.count("second")) == (1, 1)


def test_ids_that_come_again_later_keep_their_own_results() -> None:
    def turns(number: int) -> list[dict[str, Any]]:
        return [
            called(call("read_file", {"path": f"a{number}"}, "call_0"), call("read_file", {"path": "b"}, "call_1")),
            result("call_0", f"first_{number}"),
            result("call_1", f"second_{number}"),
        ]

    single = [called(call("read_file", {"path": "c"}, "call_0")), result("call_0", "single")]
    prompt = ChatTemplate(tiny_tokenizer("llama3_1")).prompt([USER, *single, *turns(1), *turns(2)])
    assert re.findall(r"single|(?:first|second)_\d", prompt) == ["single", "first_1", "second_1", "first_2", "second_2"]


NINE = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls or [] %}"
    "{% if c.id|length != 9 %}{{ raise_exception('ids must have length 9') }}{% endif %}"
    " id={{ c.id }} {{ c.function.name }}{{ c.function.arguments|tojson }}{% endfor %}"
    "{% if m.tool_call_id %} id={{ m.tool_call_id }} {% endif %}{% endfor %}{{ tools|tojson if tools else '' }}"
)


def test_ids_get_the_length_that_a_template_wants() -> None:
    given = [USER, called(call("read_file", "{}", "toolu_0123456789")), result("toolu_0123456789", "x")]
    prompt = templated(NINE).prompt(given, [TOOL])
    made, answered = re.findall(r"id=(\w+)", prompt)
    assert made == answered
    assert len(made) == 9
    assert made.isalnum()


PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}<assistant>"
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
ALTERNATE = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}"
)


def test_a_template_without_tools_gets_them_as_text() -> None:
    given = [SYSTEM, USER, called(call("read_file", '{"path": "a.py"}', "c1"), content="So."), result("c1", "x = 1")]
    prompt = templated(PLAIN).prompt(given, [TOOL])
    assert prompt.startswith("<system>Be brief.\n\nYou may call these functions:\n<tools>\n{")
    assert '"description": "Read a file."' in prompt
    assert (
        '<assistant>So.\n<tool_call>\n{"name": "read_file", "arguments": {"path": "a.py"}}\n</tool_call></assistant>'
        "<user><tool_response>\nx = 1\n</tool_response></user><assistant>"
    ) in prompt
    # No tools, no talk of them.
    assert templated(PLAIN).prompt([SYSTEM, USER]) == "<system>Be brief.</system><user>Read it.</user><assistant>"
    assert templated(PLAIN).prompt([USER], [TOOL]).startswith("<system>You may call")


FIRST_ONLY = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('system must be first') }}{% endif %}{% endfor %}"
)
IN_TURN = (
    "{% set rest = messages[1:] if messages[0].role == 'system' else messages %}"
    "{% for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}"
)
EARLIER = {"role": "assistant", "content": "Earlier."}


@pytest.mark.parametrize(
    ("refusal", "given", "prompt"),
    [
        (NO_SYSTEM, [SYSTEM, USER], "<user>Be brief.\n\nRead it.</user><assistant>"),
        (
            FIRST_ONLY,
            [SYSTEM, USER, SYSTEM, USER],
            "<system>Be brief.</system><user>Read it.</user><user>Be brief.</user><user>Read it.</user><assistant>",
        ),
        (
            IN_TURN,
            [SYSTEM, EARLIER, USER, USER],
            "<system>Be brief.</system><user>[The conversation began earlier.]</user><assistant>Earlier.</assistant>"
            "<user>Read it.\n\nRead it.</user><assistant>",
        ),
    ],
    ids=["no system message", "only as the first message", "roles in turn after it"],
)
def test_system_messages_where_a_template_refuses_them(refusal: str, given: list[Any], prompt: str) -> None:
    assert templated(refusal + PLAIN).prompt(given) == prompt


def test_a_template_that_wants_the_roles_in_turn_gets_them_so() -> None:
    given = [
        EARLIER,
        USER,
        called(call("f", "{}", "c1"), call("g", "{}", "c2")),
        result("c1", "1"),
        result("c2", "2"),
        SYSTEM,
        USER,
    ]
    prompt = templated(NO_SYSTEM + ALTERNATE + PLAIN).prompt(given, [TOOL])
    assert prompt.count("<user>") == 3
    assert prompt.count("<assistant>") == 3  # the last one is the prompt to answer
    told = ("You may call", "Earlier", "Read it", '"f"', '"g"', "\n1\n", "\n2\n", "brief")
    places = [prompt.index(part) for part in told]
    assert places == sorted(places)


def test_what_is_said_beside_parallel_calls_is_said_once() -> None:
    one_call = (
        "{% for m in messages %}{% if m.tool_calls and m.tool_calls|length > 1 %}{{ raise_exception('one call') }}"
        "{% endif %}<{{ m.role }}>{{ m.content }}{{ m.tool_calls|tojson if m.tool_calls }}{% endfor %}"
        "{{ tools|tojson if tools }}"
    )
    two = called(call("f", "{}", "c1"), call("g", "{}", "c2"), content="So.")
    prompt = templated(one_call).prompt([USER, two, result("c1", "1"), result("c2", "2")])
    assert prompt.count("<assistant>So.") == 1
    assert prompt.count("<assistant>") == 2


# Templates that take images want every text as a list of parts.
TEMPLATES = sorted(
    path
    for path in (Path(trl.__file__).parent / "chat_templates").glob("*.jinja")
    if not re.search("idefics|smolvlm|llava|_training", path.name)
)
# These drop what is said beside a call, for every model of the family.
QUIET_CALLS = ("llama3_1", "llama3_2", "muse_glimmer")


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_every_familys_template_shows_a_whole_agent_conversation(path: Path) -> None:
    given = [
        {"role": "system", "content": "word_system"},
        {"role": "user", "content": "word_question"},
        called(call("read_file", '{"path": "word_a"}', "toolu_1"), call("read_file", '{"path": "word_b"}', "toolu_2")),
        result("toolu_1", "word_first"),
        result("toolu_2", "word_second"),
        {"role": "system", "content": "word_middle"},
        {"role": "user", "content": "word_again"},
        called(call("read_file", "{word_broken", "toolu_3"), content="word_beside"),
        result("toolu_3", "word_third"),
    ]
    tokenizer = tiny_tokenizer("llama3_1")
    tokenizer.chat_template = path.read_text()
    prompt = ChatTemplate(tokenizer).prompt(given, [TOOL])
    words = {*re.findall(r"word_\w+", json.dumps(given)), "Read a file."}
    assert {word for word in words if word not in prompt} <= ({"word_beside"} if path.stem in QUIET_CALLS else set())


def test_what_a_template_refuses_in_every_form_is_the_askers_error() -> None:
    with pytest.raises(QuestionError, match=r"refuses the messages: never at all$") as caught:
        templated("{{ raise_exception('never\n at all') }}").prompt([USER])
    assert caught.value.code == "template_refused"


def test_a_tokenizer_without_a_template_is_no_teacher() -> None:
    with pytest.raises(ValueError, match="has no chat template"):
        templated("")
