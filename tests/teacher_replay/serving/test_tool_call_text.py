"""What models write, read back: calls in each family's format, thoughts, and text that only looks like a call."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.teacher_replay.serving.tool_call_text import read_reply, settled_reply, without_beginning
from composer_replication.traces import dump_json

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "edit",
            "parameters": {
                "type": "object",
                "properties": {
                    "path": {"type": "string"},
                    "line": {"type": "integer"},
                    "all": {"type": "boolean"},
                    "tags": {"type": "array"},
                },
            },
        },
    }
]
READ = '{"name": "read", "arguments": {"path": "a.py"}}'
LIST = '{"name": "list", "arguments": {}}'
LLAMA = '{"name": "read", "parameters": {"path": "a.py"}}'


def calls(text: str, **options: Any) -> list[tuple[str, Any]]:
    turn = read_reply(text, **options)
    return [
        (call.name, call.raw_arguments if call.raw_arguments is not None else call.arguments)
        for call in turn.tool_calls
    ]


@pytest.mark.parametrize(
    ("text", "content", "expected"),
    [
        (f"<tool_call>\n{READ}\n</tool_call>", "", [("read", {"path": "a.py"})]),
        (f"<tool_call>{READ}</tool_call>", "", [("read", {"path": "a.py"})]),
        (f"I look.\n<tool_call>\n{READ}\n</tool_call>", "I look.", [("read", {"path": "a.py"})]),
        (
            f"<tool_call>\n{READ}\n</tool_call>\n<tool_call>\n{LIST}\n</tool_call>",
            "",
            [("read", {"path": "a.py"}), ("list", {})],
        ),
        # The end tag may be missing where the turn ends.
        (f"<tool_call>\n{READ}", "", [("read", {"path": "a.py"})]),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("f", {"a": 1})]),
        ('<tool_call>{"name": "f", "arguments": "not json"}</tool_call>', "", [("f", "not json")]),
        ('<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [("f", {})]),
        # The tag itself, and line breaks, inside an argument.
        (
            '<tool_call>{"name": "write", "arguments": {"text": "a </tool_call> b\nc"}}</tool_call>',
            "",
            [("write", {"text": "a </tool_call> b\nc"})],
        ),
        ("<|python_tag|>" + LLAMA, "", [("read", {"path": "a.py"})]),
        ("Now.<|python_tag|>" + LLAMA, "Now.", [("read", {"path": "a.py"})]),
        (f"<|python_tag|>{LLAMA}; {LLAMA}", "", [("read", {"path": "a.py"})] * 2),
        (
            f'[TOOL_CALLS] [{READ}, {{"name": "list", "arguments": {{}}, "id": "a1b2c3d4e"}}]',
            "",
            [("read", {"path": "a.py"}), ("list", {})],
        ),
        (f"Now.[TOOL_CALLS][{READ}]", "Now.", [("read", {"path": "a.py"})]),
        ('[TOOL_CALLS]read[ARGS]{"path": "a.py"}', "", [("read", {"path": "a.py"})]),
        (
            '[TOOL_CALLS]read[CALL_ID]abc123def[ARGS]{"path": "a.py"}[TOOL_CALLS]list[CALL_ID]x[ARGS]{}',
            "",
            [("read", {"path": "a.py"}), ("list", {})],
        ),
        ('[TOOL_CALLS]read{"path": "a.py"}', "", [("read", {"path": "a.py"})]),
    ],
)
def test_calls_are_read(text: str, content: str, expected: list[tuple[str, Any]]) -> None:
    assert calls(text) == expected
    assert calls(text, tools=TOOLS) == expected
    assert read_reply(text).content == content


@pytest.mark.parametrize("text", [LLAMA, READ, f" {LLAMA}\n", f'{{"type": "function", {LLAMA[1:]}'])
def test_bare_json_is_a_call_only_where_there_is_something_to_call(text: str) -> None:
    assert calls(text, tools=TOOLS) == [("read", {"path": "a.py"})]
    assert read_reply(text, tools=TOOLS).content == ""
    assert calls(text) == calls(text, tools=[]) == []
    assert read_reply(text).content == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Just words.",
        "  leading and trailing stay \n",
        '{"name": "Bob", "age": 5}',
        '{"name": "f", "parameters": {}, "arguments": {}}',
        '{"name": "", "parameters": {}}',
        '{"name": 5, "parameters": {}}',
        '{"parameters": {}}',
        f"The call is {LLAMA}",
        f"{LLAMA} and that is it",
        f"{LLAMA}; and",
        "[1, 2]",
        "42",
        "<tool_call>\nnot json\n</tool_call>",
        '<tool_call>\n{"name": "read", "arguments": {"path": \n</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        f"<tool_call>{READ} and more</tool_call>",
        "Write <tool_call> before the JSON.",
        "<tool_call>",
        "<tool_call><function=edit><parameter=path>a.py",
        "<|python_tag|>import os\nprint(os.getcwd())",
        "[TOOL_CALLS] nothing",
        "[TOOL_CALLS][]",
        f"[TOOL_CALLS][{READ}] and more",
        "[TOOL_CALLS]" + '[{"name": "a", "arguments": {}}, {"no": "name"}]',
        "[" * 100_000,
        "<tool_call>" + '{"a":' * 100_000,
    ],
)
def test_what_is_not_a_call_stays_as_it_is(text: str) -> None:
    turn = read_reply(text, tools=TOOLS)
    assert (turn.content, turn.tool_calls, turn.thinking) == (text, [], "")


def test_a_broken_call_beside_a_good_one_stays_in_the_text() -> None:
    turn = read_reply(f"<tool_call>oops</tool_call>\n<tool_call>{READ}</tool_call>")
    assert turn.content == "<tool_call>oops</tool_call>"
    assert [call.name for call in turn.tool_calls] == ["read"]


def test_values_without_types_get_those_of_the_schema() -> None:
    text = (
        "<tool_call>\n<function=edit>\n<parameter=path>\n12\n</parameter>\n<parameter=line>\n12\n</parameter>\n"
        "<parameter=all>True</parameter>\n<parameter=tags>\n[1, 2]\n</parameter>\n"
        "<parameter=more>\n  x\n\n</parameter>\n</function>\n</tool_call>"
    )
    assert calls(text, tools=TOOLS) == [
        ("edit", {"path": "12", "line": 12, "all": True, "tags": [1, 2], "more": "  x\n"})
    ]
    assert calls(text)[0][1]["line"] == "12"
    wrong = "<tool_call><function=edit><parameter=line>twelve</parameter></function></tool_call>"
    assert calls(wrong, tools=TOOLS) == [("edit", {"line": "twelve"})]


@pytest.mark.parametrize(
    ("text", "is_thinking", "thinking", "content"),
    [
        ("<think>\nHm.\n</think>\n\nYes.", False, "Hm.", "Yes."),
        ("\n<think>Hm.</think>Yes.", False, "Hm.", "Yes."),
        ("Hm.\n</think>\n\nYes.", True, "Hm.", "Yes."),
        ("<think>\nHm.\n</think>\n\nYes.", True, "Hm.", "Yes."),
        # Cut off in the middle of a thought.
        ("<think>\nHm, and", False, "Hm, and", ""),
        ("Hm, and", True, "Hm, and", ""),
        ("<think>\n\n</think>\n\nYes.", False, "", "Yes."),
        # Not where a model thinks.
        ("Write <think>x</think> around it.", False, "", "Write <think>x</think> around it."),
        ("Yes.</think>", False, "", "Yes.</think>"),
    ],
)
def test_thinking_is_told_from_the_answer(text: str, is_thinking: bool, thinking: str, content: str) -> None:
    turn = read_reply(text, is_thinking=is_thinking)
    assert (turn.thinking, turn.content) == (thinking, content)


def test_a_call_that_is_only_thought_of_is_not_made() -> None:
    turn = read_reply(f"<think>Or <tool_call>{LIST}</tool_call>?</think>\n<tool_call>{READ}</tool_call>")
    assert [call.name for call in turn.tool_calls] == ["read"]
    assert turn.thinking == f"Or <tool_call>{LIST}</tool_call>?"


@pytest.mark.parametrize(
    "text",
    [
        "Just words.",
        "  leading and trailing stay \n",
        f"\n I look.\n<tool_call>\n{READ}\n</tool_call>\n",
        f"<tool_call>{READ}</tool_call>\n and <tool_call>{LIST}</tool_call> done",
        f"A <tool_call>oops</tool_call> B <tool_call>{READ}</tool_call>",
        f"A <tool_call>{READ}</tool_call> <tool_call>oops [TOOL_CALLS] B",
        f"A <tool_call>{READ} and more</tool_call>",
        f"A <tool_call>{READ}",
        "A <tool_call><function=edit><parameter=line>1</parameter></function></tool_call> B",
        f"A < b, [TOOL_CALL, </think> [TOOL_CALLS][{READ}]",
        f"A [TOOL_CALLS][{READ}] and more",
        f"A <|python_tag|>{LLAMA}; {LLAMA}",
        f" {LLAMA}\n",
        '{"name": "Bob"} is no call',
        f"{{}} <tool_call>{READ}</tool_call>",
        f"\n<think>\n Hm < </thin </think>\n\n I look. <tool_call>{READ}</tool_call>",
        "<think>never ends <tool_call>",
        "<thinner",
    ],
)
@pytest.mark.parametrize("is_thinking", [False, True])
def test_what_is_settled_grows_into_the_whole_reply(text: str, is_thinking: bool) -> None:
    options: dict[str, Any] = {"tools": TOOLS, "is_thinking": is_thinking}
    whole, before = read_reply(text, **options), read_reply("")
    for length in range(len(text) + 1):
        turn = settled_reply(text[:length], **options)
        for later, earlier in ((turn, before), (whole, turn)):
            assert later.content.startswith(earlier.content)
            assert later.thinking.startswith(earlier.thinking)
            assert later.tool_calls[: len(earlier.tool_calls)] == earlier.tool_calls
        before = turn


@pytest.mark.parametrize(
    ("text", "content", "thinking", "names"),
    [
        ("Just words. ", "Just words.", "", []),
        ("Just <words", "Just <words", "", []),
        ("Just <tool_", "Just", "", []),
        ("  <thi", "", "", []),
        ("<think> Hm, </thi", "", "Hm,", []),
        ("<think>Hm.</think>\n\n Yes, ", " Yes,", "Hm.", []),
        (f"I look. <tool_call>{READ}</tool_call>", "I look.", "", ["read"]),
        (f"I look. <tool_call>{READ}", "I look.", "", []),
        (f"<tool_call>{READ}</tool_call> And <tool_call>{LIST}", "And", "", ["read"]),
    ],
)
def test_what_is_clear_is_settled_at_once(text: str, content: str, thinking: str, names: list[str]) -> None:
    turn = settled_reply(text, tools=TOOLS)
    assert (turn.content, turn.thinking, [call.name for call in turn.tool_calls]) == (content, thinking, names)


def test_the_longest_beginning_is_held_back() -> None:
    assert without_beginning("abcaba", ("abab", "bar")) == "abc"
    assert without_beginning("xab", ("ab",)) == "xab"  # a whole one is for others to find
    assert without_beginning("xab", ()) == "xab"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(name=st.from_regex(r"[A-Za-z_][\w-]{0,20}", fullmatch=True), arguments=st.dictionaries(st.text(), JSON))
def test_any_arguments_survive_every_format(name: str, arguments: dict[str, Any]) -> None:
    given_json = dump_json(arguments)
    for text in (
        f'<tool_call>\n{{"name": "{name}", "arguments": {given_json}}}\n</tool_call>',
        f'<|python_tag|>{{"name": "{name}", "parameters": {given_json}}}',
        f'{{"name": "{name}", "parameters": {given_json}}}',
    ):
        if "<tool_call>" in given_json or "<|python_tag|>" in given_json or "[TOOL_CALLS]" in given_json:
            continue
        assert calls(text, tools=TOOLS) == [(name, arguments)]


@given(st.text())
def test_no_text_breaks_the_reader(text: str) -> None:
    for wrapped in (text, f"<tool_call>{text}", f"[TOOL_CALLS]{text}", f"<|python_tag|>{text}", f"<think>{text}"):
        read_reply(wrapped, tools=TOOLS, is_thinking=True)
        read_reply(wrapped, tools=TOOLS)
