"""Generation in batches: the queue that gathers work, sampling, and text from tokens."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import Any

import pytest
import torch
from teacher_replay.serving.loopback import USER
from tokenizers import Tokenizer, decoders, models

from composer_replication._tiny import tiny_model, tiny_tokenizer
from composer_replication.teacher_replay.serving import Question
from composer_replication.teacher_replay.serving.decoding import BatchQueue, GumbelNoise, WrittenText, sampling_of


class Worker:
    """Notes the batches that it is given, and is busy with the first one until it is let go."""

    def __init__(self, size: int, patience: float = 0.0) -> None:
        self.batches: SimpleQueue[list[int]] = SimpleQueue()
        self.started, self.go_on = threading.Event(), threading.Event()
        self.threads: set[threading.Thread] = set()
        self.queue = BatchQueue(self._run, size, patience)

    def _run(self, batch: list[int]) -> None:
        self.batches.put(batch)
        self.threads.add(threading.current_thread())
        self.started.set()
        self.go_on.wait()

    def finish(self, batches: int) -> list[list[int]]:
        """Let it go, wait for its threads, and give what it has worked on since the last time."""
        self.go_on.set()
        for thread in self.threads:
            thread.join()
        return [self.batches.get_nowait() for _ in range(batches)]


def test_what_arrives_during_work_is_the_next_batch_in_order() -> None:
    worker = Worker(size=3)
    worker.queue.put(0)
    worker.started.wait()
    for item in range(1, 8):
        worker.queue.put(item)
    worker.queue.discard(4)
    worker.queue.discard(0)
    worker.queue.discard(99)
    assert worker.finish(3) == [[0], [1, 2, 3], [5, 6, 7]]
    assert len(worker.threads) == 1


def test_its_thread_ends_with_the_work_and_begins_with_it() -> None:
    worker = Worker(size=3)
    for item in (1, 2):
        worker.queue.put(item)
        worker.started.wait()
        assert worker.finish(1) == [[item]]
        worker.started.clear()
    assert len(worker.threads) == 2


def test_clients_that_were_answered_together_are_waited_for() -> None:
    worker = Worker(size=2, patience=3600)
    for item in range(3):
        worker.queue.put(item)
        worker.started.wait()
    worker.go_on.set()
    assert [worker.batches.get(), worker.batches.get()] == [[0], [1, 2]]
    worker.queue.put(3)
    with pytest.raises(Empty):
        worker.batches.get(timeout=0.1)
    worker.queue._patience = 0.0  # so that the thread ends after the next batch
    worker.queue.put(4)
    assert worker.batches.get() == [3, 4]


def test_a_draw_has_the_probabilities_of_the_softmax() -> None:
    scores_NV = torch.tensor([2.0, 1.0, 0.0, -torch.inf]).expand(20_000, 4)
    noise = GumbelNoise(torch.Generator().manual_seed(0))
    drawn = noise(torch.zeros(1, 1), scores_NV).argmax(-1)
    frequencies = torch.bincount(drawn, minlength=4) / 20_000
    assert torch.allclose(frequencies, scores_NV[0].softmax(-1), atol=0.01)


def test_what_the_client_leaves_open_comes_from_the_models_own_settings() -> None:
    config = tiny_model("qwen2", vocab_size=640).generation_config

    def names(**given: Any) -> list[str]:
        return [type(one).__name__ for one in sampling_of(config, Question(USER, **given), torch.device("cpu"))]

    assert names() == names(temperature=0.0, top_p=0.5) == []
    assert names(temperature=1.0) == ["TemperatureLogitsWarper", "GumbelNoise"]
    config.do_sample, config.temperature, config.top_k, config.top_p = True, 0.7, 20, 0.8
    full = ["TemperatureLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper", "GumbelNoise"]
    assert names() == full
    assert names(top_p=1.0) == [full[0], full[1], full[3]]
    assert names(temperature=0.0) == []
    assert sampling_of(config, Question(USER), torch.device("cpu"))[0].temperature == 0.7


def letters(ids: Sequence[int]) -> str:
    return bytes(ids).decode(errors="replace")


@pytest.mark.parametrize("text", ["Hello <tool_call> ä€𝄞 x\n\n  y", "𝄞", "", "é" * 40])
def test_text_grows_by_whole_characters_to_what_the_tokenizer_makes_of_all_tokens(text: str) -> None:
    tokenizer = tiny_tokenizer("qwen2_5")
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    written = WrittenText(tokenizer.decode)
    for token in ids:
        before = written.text
        written.add(token)
        assert written.text.startswith(before)
        assert "\ufffd" not in written.text
        assert text.startswith(written.text)
    written.end()
    assert written.text == tokenizer.decode(ids) == text


def test_bytes_that_are_no_character_are_shown_when_that_is_clear() -> None:
    written = WrittenText(letters)
    for byte in b"a\xe2\x82":
        written.add(byte)
    assert written.text == "a"
    written.add(ord("b"))
    assert written.text == "a\ufffdb"
    written.add(0xE2)
    written.end()
    assert written.text == "a\ufffdb\ufffd"


def test_a_space_that_depends_on_the_token_before_stays() -> None:
    # A sentence-piece decoder drops the space of the first token that it sees.
    vocabulary = {"▁a": 0, "▁b": 1, "c": 2}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="c"))
    tokenizer.decoder = decoders.Metaspace()
    ids = [0, 1, 2, 1, 1, 2]
    written = WrittenText(tokenizer.decode)
    for token in ids:
        written.add(token)
    assert written.text == tokenizer.decode(ids) == "a bc b bc"


def test_it_ends_before_the_first_stop_text_and_holds_back_what_may_become_one() -> None:
    written = WrittenText(letters, ("##", "#END", "zz"))
    certain = []
    for byte in b"a#bc#ENz":
        written.add(byte)
        certain.append(written.certain())
    assert certain == ["a", "a", "a#b", "a#bc", "a#bc", "a#bc", "a#bc", "a#bc#EN"]
    assert not written.is_stopped
    written.add(ord("z"))
    assert written.is_stopped
    assert written.text == written.certain() == "a#bc#EN"
    written.add(ord("x"))
    written.end()
    assert written.text == "a#bc#EN"


def test_a_stop_text_within_one_token_or_over_several() -> None:
    for stop in ("llo wor", "l", "Hello world"):
        written = WrittenText(lambda ids: "".join(("Hel", "lo", " ", "world")[one] for one in ids), (stop,))
        for token in range(4):
            written.add(token)
        assert written.text == "Hello world"[: "Hello world".index(stop)]
