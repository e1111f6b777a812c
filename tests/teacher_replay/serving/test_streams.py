"""Answers that are sent while they are generated, over real HTTP: what is sent when, and how a stream may end."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.client import HTTPResponse
from typing import Any

import openai
import pytest
from teacher_replay.serving.loopback import TOOL, USER, complete, model_teacher, open_request, post

from composer_replication._tiny import tiny_model, tiny_tokenizer
from composer_replication.teacher_replay.serving import LocalTeachers
from composer_replication.teacher_replay.serving import model_teacher as module

CALL = '<tool_call>\n{"name": "read_file", "arguments": {"path": "src/ä.py"}}\n</tool_call>'
TOKENIZER = tiny_tokenizer("qwen2_5")


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have models write a text, in place of decoding; `before` is called with what is already written."""

    def write(text: str, before: Callable[[str], None] = lambda _: None) -> None:
        ids = TOKENIZER(text + TOKENIZER.eos_token, add_special_tokens=False)["input_ids"]

        def decode(_: Any, rows: Any, __: int) -> None:
            for row in rows:
                for place, token in enumerate(ids):
                    before(TOKENIZER.decode(ids[:place]))
                    if not row.take(token):
                        break

        monkeypatch.setattr(module, "decode", decode)

    return write


def streamed(server: LocalTeachers, **parameters: Any) -> Iterator[Any]:
    return iter(complete(server, stream=True, stream_options={"include_usage": True}, **parameters))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_pieces_of_a_real_model_are_its_answer(temperature: float) -> None:
    parameters: dict[str, Any] = {"temperature": temperature, "seed": 3, "max_tokens": 60}
    with LocalTeachers({"m": model_teacher()}) as server:
        whole = complete(server, **parameters)
        chunks = list(streamed(server, **parameters))
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == whole.choices[0].message.content
    assert [delta.role for delta in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    assert len(deltas) > 20
    assert len({chunk.id for chunk in chunks}) == 1
    assert [chunk.usage for chunk in chunks] == [None] * (len(chunks) - 1) + [whole.usage]
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices]
    assert reasons == [None] * (len(reasons) - 1) + ["length"]


def test_a_piece_is_sent_before_the_next_token_is_there(scripted: Callable[..., None]) -> None:
    received = threading.Event()

    def before(written: str) -> None:
        if "first" in written:
            assert received.wait(60)

    scripted("The first words, and the rest.", before)
    with LocalTeachers({"m": model_teacher()}) as server:
        content = ""
        for chunk in streamed(server):
            content += "".join(choice.delta.content or "" for choice in chunk.choices)
            if "fir" in content:
                received.set()
    assert content == "The first words, and the rest."


@pytest.mark.parametrize(
    ("text", "content", "reasoning", "calls", "reason"),
    [
        (f"<think>\nHm, ä€.\n</think>\n\nI look < there. {CALL}", "I look < there.", "Hm, ä€.", 1, "tool_calls"),
        (f"{CALL}\n{CALL}\n", "", "", 2, "tool_calls"),
        ("<tool_call> is a tag.\n", "<tool_call> is a tag.\n", "", 0, "stop"),
        ('{"name": "read_file", "parameters": {}}', "", "", 1, "tool_calls"),
    ],
)
def test_thoughts_words_and_calls_come_apart(
    scripted: Callable[..., None], text: str, content: str, reasoning: str, calls: int, reason: str
) -> None:
    scripted(text)
    with LocalTeachers({"m": model_teacher()}) as server:
        whole = complete(server, tools=[TOOL]).choices[0]
        chunks = [chunk.choices[0] for chunk in streamed(server, tools=[TOOL]) if chunk.choices]
    deltas = [chunk.delta for chunk in chunks]
    assert "".join(delta.content or "" for delta in deltas) == content == (whole.message.content or "")
    thoughts = [getattr(delta, "reasoning_content", None) or "" for delta in deltas]
    assert "".join(thoughts) == reasoning == getattr(whole.message, "reasoning_content", "")
    if len(reasoning) > 0:
        assert len([thought for thought in thoughts if thought]) > 1
    made = [call for delta in deltas for call in delta.tool_calls or []]
    assert [call.index for call in made] == list(range(calls))
    assert len({call.id for call in made}) == calls
    assert [(call.function.name, call.function.arguments) for call in made] == [
        (call.function.name, call.function.arguments) for call in whole.message.tool_calls or []
    ]
    assert chunks[-1].finish_reason == whole.finish_reason == reason


def test_a_call_is_sent_when_it_is_complete(scripted: Callable[..., None]) -> None:
    received = threading.Event()
    scripted(f"{CALL}\nMore.", lambda written: "More" in written and received.wait(60))
    with LocalTeachers({"m": model_teacher()}) as server:
        chunks = streamed(server, tools=[TOOL])
        assert next(chunks).choices[0].delta.tool_calls[0].function.name == "read_file"
        received.set()
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "More."


def test_what_may_be_a_stop_text_is_held_back(scripted: Callable[..., None]) -> None:
    scripted("One, two, three.")
    with LocalTeachers({"m": model_teacher()}) as server:
        pieces = [chunk.choices[0].delta.content or "" for chunk in streamed(server, stop=["two, t"]) if chunk.choices]
    assert "".join(pieces) == "One, "


def test_what_is_wrong_with_a_question_is_told_by_the_status(scripted: Callable[..., None]) -> None:
    def before(_: str) -> None:
        raise RuntimeError("no luck")

    model = tiny_model("qwen2", vocab_size=640)
    model.config.max_position_embeddings = 10
    scripted("Never said.", before)
    with LocalTeachers({"short": model_teacher(model), "broken": model_teacher()}) as server:
        status, reply = post(server, {"model": "short", "messages": USER, "stream": True})
        assert (status, reply["error"]["code"]) == (400, "context_length_exceeded")
        status, reply = post(server, {"model": "broken", "messages": USER, "stream": True})
        assert (status, reply["error"]["code"]) == (500, "teacher_failed")


def test_a_failure_in_the_middle_is_the_last_event(scripted: Callable[..., None]) -> None:
    def before(written: str) -> None:
        if "said" in written:
            raise RuntimeError("no luck")

    scripted("This is said, this is not.", before)
    with LocalTeachers({"m": model_teacher()}) as server:
        with pytest.raises(openai.APIError, match="the teacher 'm' failed: RuntimeError: no luck"):
            list(streamed(server))
        status, body = post(server, {"messages": USER, "stream": True})
    assert status == 200
    events = [event.removeprefix("data: ") for event in body.decode().split("\n\n")]
    assert json.loads(events[-2])["error"]["code"] == "teacher_failed"
    assert "[DONE]" not in body.decode()


def test_the_end_of_the_server_ends_a_stream_with_an_error(scripted: Callable[..., None]) -> None:
    ended = threading.Event()
    scripted("This is said, this is not.", lambda written: "said" in written and ended.wait())
    with ExitStack() as stack:
        with LocalTeachers({"m": model_teacher()}) as server:
            connection = stack.enter_context(open_request(server, {"messages": USER, "stream": True}))
            response = HTTPResponse(connection)
            response.begin()
        body = response.read()
        ended.set()
    assert json.loads(body.split(b"data: ")[-1])["error"]["code"] == "shutting_down"


def test_a_client_that_stops_listening_stops_the_generation() -> None:
    one = model_teacher()
    one._ends.clear()
    one._max_new_tokens = 3500
    passes: list[int] = []
    one._model.register_forward_hook(lambda *_: passes.append(1))
    with LocalTeachers({"m": one}) as server:
        chunks = complete(server, stream=True, temperature=0)
        next(iter(chunks))
        chunks.close()
        # The next one has its turn.
        assert post(server, {"messages": USER, "temperature": 0, "max_tokens": 2})[0] == 200
    assert len(passes) < 3000
