"""Questions that are answered together, over real HTTP: as if each were alone, with the passes of the longest one."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from teacher_replay.serving.loopback import USER, model_teacher, open_request, post
from transformers import AutoModelForCausalLM, GPT2Config

from composer_replication._tiny import tiny_model
from composer_replication.teacher_replay.serving import Completion, HuggingFaceTeacher, LocalTeachers, Question


def teacher(model: Any = None, **options: Any) -> HuggingFaceTeacher:
    one = model_teacher(model, **options)
    one._model.double()  # so that no rounding is as wide as the distance between two logits
    return one


class Gathered:
    """A teacher whose model waits, in its first pass, until `expected` questions have come."""

    def __init__(self, inner: HuggingFaceTeacher, expected: int) -> None:
        self.inner = inner
        self.passes: list[int] = []  # the rows of each
        self.started, self.all_here = threading.Event(), threading.Event()
        self._missing = expected
        inner._model.register_forward_pre_hook(self._hold, with_kwargs=True)

    def _hold(self, _: Any, __: Any, given: dict[str, Any]) -> None:
        self.passes.append(len(given["input_ids"]))
        self.started.set()
        self.all_here.wait()

    async def answer(self, question: Question) -> Completion:
        answering = asyncio.ensure_future(self.inner.answer(question))
        await asyncio.sleep(0)  # it waits in the queue now
        self._missing -= 1
        if not self._missing:
            self.all_here.set()
        return await answering


def answered(one: HuggingFaceTeacher, requests: list[dict[str, Any]]) -> tuple[list[Any], list[int]]:
    """The replies to requests that arrive while another one is being answered, and the rows of each pass for them."""
    gathered = Gathered(one, len(requests) + 1)
    with LocalTeachers({"m": gathered}) as server, ThreadPoolExecutor(len(requests) + 1) as pool:
        first = pool.submit(post, server, {"messages": USER, "max_tokens": 1})
        gathered.started.wait()
        replies = [pool.submit(post, server, request) for request in requests]
        assert first.result()[0] == 200
        return [reply.result() for reply in replies], gathered.passes[1:]


def alone(one: HuggingFaceTeacher, requests: list[dict[str, Any]]) -> list[Any]:
    with LocalTeachers({"m": one}) as server:
        return [said(post(server, request)) for request in requests]


def said(reply: tuple[int, Any]) -> Any:
    status, body = reply
    assert status == 200
    return body["choices"][0]["message"]["content"], body["choices"][0]["finish_reason"], body["usage"]


def request(length: int, **parameters: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Hello? " * length}], "temperature": 0, **parameters}


def test_eight_at_once_are_answered_as_each_alone_and_take_the_passes_of_the_longest() -> None:
    whole = alone(teacher(), [request(3, max_tokens=30)])[0][0]
    requests = [
        request(1, max_tokens=30),
        request(40, max_tokens=7),
        request(3, max_tokens=30, stop=whole[20:25]),
        request(3, max_tokens=30, temperature=1.0, seed=5),
        request(3, max_tokens=30, temperature=1.0, seed=6),
        request(9, max_tokens=30, temperature=0.7, top_p=0.5, seed=5),
        request(2, max_tokens=1),
        request(2, max_tokens=22),
    ]
    expected = alone(teacher(), requests)
    assert len({content for content, _, _ in expected}) == 8
    together, passes = answered(teacher(), requests)
    assert [said(reply) for reply in together] == expected
    assert len(passes) == 30
    assert passes[:3] == [8, 7, 7]  # the row that was to say one word has left
    assert passes[-1] < 6


def test_a_batch_is_no_larger_than_it_may_be_and_nobody_is_overtaken() -> None:
    replies, passes = answered(teacher(batch_size=3), [request(1, max_tokens=4)] * 7)
    assert len({json.dumps(said(reply)) for reply in replies}) == 1
    assert passes == [3] * 4 + [3] * 4 + [1] * 4
    with pytest.raises(ValueError, match="batch_size must be a positive whole number, got 0"):
        teacher(batch_size=0)


def test_one_bad_question_spoils_no_batch() -> None:
    model = tiny_model("qwen2", vocab_size=640, seed=1)
    model.config.max_position_embeddings = 100
    bad = request(300)
    replies, passes = answered(teacher(model), [request(1, max_tokens=3), bad, request(2, max_tokens=3)])
    assert [status for status, _ in replies] == [200, 400, 200]
    assert replies[1][1]["error"]["code"] == "context_length_exceeded"
    assert passes == [2, 2, 2]


def test_a_model_that_fails_fails_all_who_are_in_the_batch_and_answers_the_next() -> None:
    one = teacher()

    def fails(*_: Any) -> None:
        if len(passes) == 3:
            raise RuntimeError("out of luck")

    passes: list[int] = []
    one._model.register_forward_pre_hook(lambda *_: passes.append(1))
    one._model.register_forward_pre_hook(fails)
    replies, _ = answered(one, [request(1, max_tokens=1), request(2, max_tokens=3), request(3, max_tokens=3)])
    assert [status for status, _ in replies] == [200, 500, 500]
    assert "RuntimeError: out of luck" in replies[1][1]["error"]["message"]
    assert asyncio.run(one.answer(Question(USER, max_tokens=2))).completion_tokens == 2


def test_a_row_that_is_done_is_not_computed_at_positions_that_the_model_lacks() -> None:
    ends = dict.fromkeys(("bos_token_id", "eos_token_id"))
    config = GPT2Config(vocab_size=640, n_embd=32, n_layer=1, n_head=2, n_positions=150, **ends)
    one = teacher(AutoModelForCausalLM.from_config(config))
    one._ends.clear()
    replies, passes = answered(one, [request(1, max_tokens=60), request(10)])
    used = [said(reply)[2] for reply in replies]
    assert used[0]["completion_tokens"] == 60
    assert used[1]["total_tokens"] == 150
    assert used[1]["prompt_tokens"] + 60 > 150
    assert len(passes) == 60


def test_padding_is_nothing_that_a_penalty_could_see() -> None:
    def punished() -> HuggingFaceTeacher:
        model = tiny_model("qwen2", vocab_size=640, seed=1)
        model.generation_config.repetition_penalty = 3.0
        return teacher(model)

    requests = [request(1, max_tokens=20), request(40, max_tokens=20)]
    assert [said(reply) for reply in answered(punished(), requests)[0]] == alone(punished(), requests)


def test_a_client_that_goes_away_leaves_the_batch_and_harms_nobody() -> None:
    one, left = teacher(), threading.Event()
    gathered = Gathered(one, 4)
    discard = one._queue.discard

    def note(asked: Any) -> None:
        discard(asked)
        if asked.question.max_tokens == 40:
            left.set()

    def leave(*_: Any) -> None:
        if len(gathered.passes) == 5:
            connection.close()
            left.wait()

    one._queue.discard = note  # type: ignore[method-assign]
    one._model.register_forward_hook(leave)
    others = [request(length, max_tokens=20) for length in (1, 9)]
    with LocalTeachers({"m": gathered}) as server, ThreadPoolExecutor(3) as pool:
        first = pool.submit(post, server, request(1, max_tokens=1))
        gathered.started.wait()
        connection = open_request(server, request(5, max_tokens=40))
        replies = [pool.submit(post, server, other) for other in others]
        assert first.result()[0] == 200
        answers = [said(reply.result()) for reply in replies]
    assert answers == alone(teacher(), others)
    assert gathered.passes == [1] + [3] * 4 + [2] * 16


def test_a_client_that_goes_away_while_it_waits_is_never_answered() -> None:
    one = teacher(max_new_tokens=4)
    gathered = Gathered(one, 99)

    async def give_up() -> None:
        first = asyncio.ensure_future(one.answer(Question(USER, temperature=0.0)))
        await asyncio.to_thread(gathered.started.wait)
        waiting = asyncio.ensure_future(one.answer(Question(USER, temperature=0.0)))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        gathered.all_here.set()
        await first

    asyncio.run(give_up())
    for thread in threading.enumerate():
        if thread.name == "local-teacher":
            thread.join()
    assert gathered.passes == [1] * 4
