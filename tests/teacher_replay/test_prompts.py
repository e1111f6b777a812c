"""Prompts: the same beginning byte for byte, nothing unredacted, and bodies that are whole JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.teacher_replay.prompts import KnownPrompts, Prompt, PromptWriter, new_redactor, token_bound
from composer_replication.traces import Message, Source, ToolCall, Trace, Turn

SETTINGS = {"model": "a-model", "max_tokens": 7, "temperature": 0.5}
TOOLS = [{"type": "function", "function": {"name": "Bash", "description": "", "parameters": {"type": "object"}}}]
# Long enough for every provider's cache.
LONG = "word " * 1000
END = Turn("assistant", "b")


def histories_of(*turns: Turn, system: str = "You write code.") -> list[Sequence[Message]]:
    steps = Trace("t", list(turns), Source("t.jsonl", "test")).steps(system_prompt=system)
    return [step.messages for step in steps]


def call(identity: str, arguments: dict[str, Any] | None = None, raw: str | None = None) -> list[ToolCall]:
    return [ToolCall(identity, "Bash", arguments or {}, raw)]


def steps(count: int, *, text: str = "go on") -> list[Turn]:
    turns = [Turn("user", text)]
    for number in range(count):
        turns.append(Turn("assistant", f"step {number}", tool_calls=call(f"c{number}", {"command": f"ls {number}"})))
        turns.append(Turn("tool", f"{text} {number}", tool_call_id=f"c{number}"))
    return turns


def calling(name: str, arguments: Any, **fields: Any) -> Message:
    """A message with a call as an endpoint or a log may have written it."""
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", **fields, "tool_calls": [{"id": "c", "type": "function", "function": function}]}


def prompts_of(
    histories: Sequence[Sequence[Message]], tools: Sequence[dict[str, Any]] = (), **options: Any
) -> list[Prompt]:
    writer = PromptWriter(histories, tools, **options)
    return [writer.prompt(history) for history in histories]


def sent(history: Sequence[Message], histories: Sequence[Sequence[Message]] = ()) -> str:
    """The body of a redacted request."""
    return PromptWriter(histories or [history], TOOLS, new_redactor()).prompt(history).request(SETTINGS).decode()


def messages_of(body: bytes | str) -> list[Message]:
    messages: list[Message] = json.loads(body)["messages"]
    return messages


def test_a_request_is_whole_json_with_everything_in_it() -> None:
    histories = histories_of(*steps(3))
    for history, prompt in zip(histories, prompts_of(histories, TOOLS), strict=True):
        assert json.loads(prompt.request(SETTINGS)) == {**SETTINGS, "tools": TOOLS, "messages": list(history)}
    assert "tools" not in json.loads(prompts_of(histories)[0].request(SETTINGS))
    assert json.loads(prompts_of([[]])[0].request(SETTINGS)) == {**SETTINGS, "messages": []}


def test_the_requests_of_a_trace_begin_alike_byte_for_byte() -> None:
    prompts = prompts_of(histories_of(*steps(12)), TOOLS, redactor=new_redactor())
    bodies = [prompt.request(SETTINGS) for prompt in prompts]
    for index, body in enumerate(bodies):
        for later in bodies[index + 1 :]:
            assert later.startswith(body.removesuffix(b"]}"))
            assert len(later) > len(body)


def test_cache_marks_change_nothing_but_the_messages_they_stand_on() -> None:
    histories = histories_of(*steps(4, text=LONG))
    prompt = prompts_of(histories, TOOLS)[-1]
    plain, marked = messages_of(prompt.request(SETTINGS)), messages_of(prompt.request(SETTINGS, [0, 3]))
    for index, (before, after) in enumerate(zip(plain, marked, strict=True)):
        if index in (0, 3):
            text = {"type": "text", "text": before["content"], "cache_control": {"type": "ephemeral"}}
            assert after == {**before, "content": [text]}
        else:
            assert after == before
    assert messages_of(prompt.request(SETTINGS)) == plain  # the marks of one request are not in the next


def test_parts_become_text_and_pictures_leave_their_kind() -> None:
    """Nobody could say how many tokens are behind the address of a picture."""
    parts = [{"type": "text", "text": LONG}, {"type": "image_url", "image_url": {"url": "https://h.example/0.png"}}]
    (prompt,) = prompts_of([[{"role": "user", "content": parts}]])
    (message,) = messages_of(prompt.request(SETTINGS, [0]))
    text = f"{LONG}\n[image]"
    assert message["content"] == [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]


def chained(prompts: Sequence[Prompt]) -> None:
    """A digest is a chain over messages: beginnings of prompts and of chains are the same thing."""
    for one in prompts:
        for other in prompts:
            begins = one.encoded[: other.length] == other.encoded[: other.length] and other.length <= one.length
            assert one.begins_with(other) == begins
            assert (one.digest == other.digest) == (begins and one.length == other.length)


def rewound() -> list[Turn]:
    """Three steps, back behind the first, one step, a compaction, one step, and on behind the second of the first."""
    turns = steps(3)  # 0 user, 1 assistant, 2 result, 3 assistant, 4 result, 5 assistant, 6 result
    turns.append(Turn("user", "no, like this", follows=2))
    turns.append(Turn("assistant", "step x", tool_calls=call("x", {"command": "make"})))
    turns.append(Turn("tool", "made", tool_call_id="x"))
    turns.append(Turn("user", "summary: it was made", follows=-1, keeps=[8, 9]))
    turns.append(Turn("assistant", "step y", clears=["x"]))
    turns.append(Turn("user", "and now", follows=4))
    turns.append(Turn("assistant", "step z"))
    return turns


@pytest.mark.parametrize("redacted", [False, True])
def test_branches_and_compactions_have_the_prompts_of_their_own_histories(redacted: bool) -> None:
    histories = histories_of(*rewound())
    prompts = prompts_of(histories, TOOLS, redactor=new_redactor() if redacted else None)
    for history, prompt in zip(histories, prompts, strict=True):
        # Asked at the end: prompts made earlier keep what they had, however lists were shared.
        assert messages_of(prompt.request(SETTINGS)) == list(history)
    chained(prompts)
    assert [prompt.begins_with(prompts[0]) for prompt in prompts] == [True, True, True, True, False, True]
    assert [prompt.begins_with(prompts[2]) for prompt in prompts] == [False, False, True, False, False, True]


WORDS = st.lists(st.sampled_from("abc"), max_size=5)


@given(st.lists(WORDS, min_size=1, max_size=6))
def test_any_histories_in_any_order(words: list[list[str]]) -> None:
    histories = [[{"role": "user", "content": word} for word in some] for some in words]
    prompts = prompts_of(histories, TOOLS)
    chained(prompts)
    for history, prompt in zip(histories, prompts, strict=True):
        assert messages_of(prompt.request(SETTINGS)) == history
        assert PromptWriter([], TOOLS).prompt(history).digest == prompt.digest
        # Every byte is counted, and what is counted is in the request.
        encoded = json.dumps(history, separators=(",", ":"))
        assert prompt.size == len(json.dumps(TOOLS, separators=(",", ":"))) + len(encoded) - 2 + bool(history)


def test_tools_are_part_of_a_digest_and_of_a_size() -> None:
    histories = histories_of(*steps(1))
    without, with_tools = prompts_of(histories)[0], prompts_of(histories, TOOLS)[0]
    assert without.digest != with_tools.digest
    assert with_tools.size > without.size
    assert not with_tools.begins_with(without)


def test_the_same_content_in_other_objects_is_the_same_prompt() -> None:
    histories = histories_of(*steps(3))
    copies = [json.loads(json.dumps(list(history))) for history in histories]
    digests = [prompt.digest for prompt in prompts_of(histories, TOOLS)]
    for others in (copies, [histories[0], copies[1], histories[2]]):
        assert [prompt.digest for prompt in prompts_of(others, TOOLS)] == digests


def marked_texts(prompt: Prompt, known: Sequence[Prompt] = ()) -> list[int]:
    marks = prompt.marks(known)
    assert len(marks) <= 4
    for index in marks:
        message = prompt.messages[index]
        assert message["role"] != "assistant"
        assert message["content"].strip()
    json.loads(prompt.request(SETTINGS, marks))
    return marks


def test_marks_stand_behind_the_system_prompt_behind_what_was_sent_and_at_the_end() -> None:
    prompts = prompts_of(histories_of(*steps(5, text=LONG)))
    # 0 system, 1 user, then an assistant and its result for each step.
    assert marked_texts(prompts[3]) == [0, 7]
    assert marked_texts(prompts[3], prompts[:2]) == [0, 3, 7]
    assert marked_texts(prompts[3], prompts[:4]) == [0, 7]
    assert marked_texts(prompts[3], prompts[4:]) == [0, 7]  # a longer one is no beginning


def test_marks_of_a_branch_are_behind_the_beginning_that_is_shared() -> None:
    turns = [*steps(3, text=LONG), Turn("user", "other", follows=2), Turn("assistant", "x"), Turn("user", "more")]
    prompts = prompts_of(histories_of(*turns, Turn("assistant", "y")))
    assert marked_texts(prompts[4], prompts[:4]) == [0, 4, 6]
    assert marked_texts(prompts[4], prompts[:3]) == [0, 3, 6]


def test_no_mark_on_what_is_too_short_or_has_no_text() -> None:
    assert marked_texts(prompts_of(histories_of(*steps(2)))[-1]) == []
    turns = [Turn("user", LONG), Turn("assistant", "a", tool_calls=call("c")), Turn("tool", " \n", tool_call_id="c")]
    histories = histories_of(*turns, Turn("assistant", "b"), Turn("assistant", "c"), system="")
    assert marked_texts(prompts_of(histories)[-1]) == [0]
    empty = [{"role": "system", "content": ""}, {"role": "assistant", "content": LONG}, {"role": "user", "content": []}]
    (prompt,) = prompts_of([empty])
    assert prompt.marks([]) == []


def test_a_prompt_without_messages_has_no_marks_though_others_share_its_lists() -> None:
    histories = histories_of(*steps(2, text=LONG))
    tool = {"type": "function", "function": {"name": "x", "description": LONG}}
    writer = PromptWriter(histories, [tool])
    nothing, _ = writer.prompt([]), writer.prompt(histories[0])
    assert nothing.marks([]) == []
    assert messages_of(nothing.request(SETTINGS)) == []


SECRET = "hunter2-Zq8k3"


def test_a_secret_is_redacted_in_every_place_a_message_has() -> None:
    key = "sk-ant-api03-" + "Ab3" * 31 + "AA"
    message: Message = {
        "role": "assistant",
        "content": [{"type": "text", "text": f"use {key}"}],
        "reasoning_content": f"the key is {key}",
        "name": "x",
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "extra": {"note": key},
                "function": {"name": "Bash", "arguments": json.dumps({"command": f"export KEY={key}", key: 1})},
            }
        ],
    }
    history = [message, {"role": "tool", "tool_call_id": "call_1", "content": key}]
    tools = [{"type": "function", "function": {"name": "Bash", "description": f"for {key}"}}]
    (prompt,) = prompts_of([history], tools, redactor=new_redactor())
    assert key.encode() not in prompt.request(SETTINGS, [1])
    first, second = messages_of(prompt.request(SETTINGS))
    assert second["tool_call_id"] == first["tool_calls"][0]["id"] == "call_1"
    assert first["tool_calls"][0]["function"]["name"] == "Bash"
    placeholder = second["content"]
    assert set(json.loads(first["tool_calls"][0]["function"]["arguments"])) == {"command", placeholder}
    assert key in str(message)  # the trace itself is left as it is


def test_a_secret_that_only_a_later_message_reveals_is_redacted_in_the_earlier_ones() -> None:
    histories = histories_of(
        Turn("user", f"try {SECRET} on it"),
        Turn("assistant", f"I try {SECRET}.", tool_calls=call("c", {"command": f"login {SECRET}"})),
        Turn("tool", "ok", tool_call_id="c"),
        Turn("assistant", "done"),
        Turn("user", f"DB_PASSWORD={SECRET}"),
        Turn("assistant", "thanks"),
    )
    assert SECRET not in "".join(sent(history, histories) for history in histories)
    assert SECRET in sent(histories[0]), "the first message alone does not give it away: the test shows nothing"


def test_a_secret_behind_a_name_that_comes_twice_is_not_sent() -> None:
    key = "ghp_" + "a1B2" * 9
    text = f'{{"command": "{key}", "command": "ls"}}'
    assert key not in sent([calling("Bash", text, content="")])


def test_messages_that_are_made_anew_are_redacted_too() -> None:
    key = "ghp_" + "a1B2" * 9
    writer = PromptWriter([[{"role": "user", "content": f"use {key}"}]], (), new_redactor())
    prompt = writer.prompt([{"role": "user", "content": f"use {key}"}, {"role": "user", "content": f"use {key} now"}])
    assert key.encode() not in prompt.request(SETTINGS)


def test_what_is_redacted_stays_json_whatever_the_arguments_hold() -> None:
    key = "ghp_" + "a1B2" * 9
    arguments = {"command": f'curl -H "Authorization: token {key}"\n', "list": [key, {"deep": key}], "n": 1.5, "ö": "€"}
    histories = histories_of(
        Turn("user", "go"), Turn("assistant", tool_calls=call("c", arguments)), Turn("assistant", "b")
    )
    body = sent(histories[1], histories)
    assert key not in body
    safe = json.loads(messages_of(body)[2]["tool_calls"][0]["function"]["arguments"])
    assert list(safe) == list(arguments)
    assert (safe["n"], safe["ö"]) == (1.5, "€")


@pytest.mark.parametrize("raw", ['{"command": "ls', "[1]", "ls -l", '{"a": NaN}', '"x"'])
@pytest.mark.parametrize("redacted", [False, True])
def test_arguments_that_are_no_json_object_are_sent_in_one(raw: str, redacted: bool) -> None:
    histories = histories_of(
        Turn("user", "go"), Turn("assistant", tool_calls=call("c", raw=raw)), Turn("assistant", "b")
    )
    prompt = prompts_of(histories, redactor=new_redactor() if redacted else None)[-1]
    (made,) = messages_of(prompt.request(SETTINGS))[2]["tool_calls"]
    assert json.loads(made["function"]["arguments"]) == {"malformed_arguments": raw}


@pytest.mark.parametrize("given", ["", None, {}])
def test_no_arguments_are_an_empty_object(given: Any) -> None:
    (prompt,) = prompts_of([[calling("x", given)]])
    assert messages_of(prompt.request(SETTINGS))[0]["tool_calls"][0]["function"] == {"name": "x", "arguments": "{}"}


def test_an_empty_list_of_calls_is_not_sent() -> None:
    messages = [{"role": "assistant", "content": "a", "tool_calls": calls} for calls in ([], None)]
    (prompt,) = prompts_of([messages])
    assert messages_of(prompt.request(SETTINGS)) == [{"role": "assistant", "content": "a"}] * 2


def test_unredacted_arguments_are_sent_as_they_are_written() -> None:
    text = '{ "b":1,\n"a":2 }'
    message = calling("x", text, content="")
    (prompt,) = prompts_of([[message]])
    assert messages_of(prompt.request(SETTINGS)) == [message]


@pytest.mark.parametrize("redacted", [False, True])
def test_half_of_a_surrogate_pair_does_not_break_a_request(redacted: bool) -> None:
    histories = histories_of(
        Turn("user", "cut \ud83d here, whole \U0001f600 there"),
        Turn("assistant", tool_calls=call("c", {"text": "\udc00", "k\ud83d": 1})),
        Turn("tool", "€ \udfff", tool_call_id="c"),
        Turn("assistant", "b"),
    )
    prompts = prompts_of(histories, redactor=new_redactor() if redacted else None)
    messages = messages_of(prompts[1].request(SETTINGS))
    assert messages[1]["content"] == "cut ? here, whole \U0001f600 there"
    assert json.loads(messages[2]["tool_calls"][0]["function"]["arguments"]) == {"text": "?", "k?": 1}
    assert messages[3]["content"] == "€ ?"
    assert prompts[1].begins_with(prompts[0])
    assert json.loads(prompts[0].request(SETTINGS, [1]))["messages"][1]["content"][0]["text"].startswith("cut ?")


LETTERS = 5000


def prompts(*histories: str) -> list[Prompt]:
    """A prompt for each word; a letter is a long message that begins with it."""
    writer = PromptWriter([], ())
    return [writer.prompt([{"role": "user", "content": letter * LETTERS} for letter in word]) for word in histories]


def known_prompts(*answered: tuple[Prompt, int]) -> KnownPrompts:
    known = KnownPrompts()
    for prompt, tokens in answered:
        known.add(prompt, tokens)
    return known


def test_without_knowledge_every_byte_may_be_a_token() -> None:
    (prompt,) = prompts("ab")
    assert token_bound(prompt) == KnownPrompts().token_bound(prompt) == prompt.size + 1024


def test_where_a_beginning_was_counted_only_the_rest_is_guessed() -> None:
    a, ab, abc, ax = prompts("a", "ab", "abc", "ax")
    known = known_prompts((ab, 2500))
    assert known.token_bound(abc) == 2500 + (abc.size - ab.size) + 256
    assert known.token_bound(ab) == 2500 + 256
    known.add(a, 1250)
    assert known.token_bound(abc) == 2500 + (abc.size - ab.size) + 256  # the longest beginning knows most
    assert known.token_bound(ax) == 1250 + (ax.size - a.size) + 256
    assert known.token_bound(a) == 1250 + 256


def test_what_is_no_beginning_says_nothing() -> None:
    ab, abc, xb = prompts("ab", "abc", "xb")
    assert known_prompts((abc, 10_000), (xb, 10_000)).token_bound(ab) == token_bound(ab)


def test_a_count_that_cannot_be_is_not_believed_and_none_raises_the_bound() -> None:
    a, ab = prompts("a", "ab")
    for count in (0, a.size // 16, 10 * a.size):
        assert known_prompts((a, count)).token_bound(ab) == token_bound(ab)
    assert known_prompts((a, a.size // 16 + 1)).token_bound(ab) < token_bound(ab)


def test_only_so_many_prompts_are_remembered() -> None:
    first, *others = prompts("a", *("b" * length for length in range(1, 65)))
    known = known_prompts((first, 1250), *((other, other.size) for other in others[:63]))
    assert known.token_bound(first) == 1250 + 256
    known.add(others[63], others[63].size)
    assert known.token_bound(first) == token_bound(first)


def test_marks_stand_behind_what_was_answered() -> None:
    a, _, abc = prompts("a", "ab", "abc")
    assert known_prompts((a, 1250)).marks(abc) == [0, 2]
