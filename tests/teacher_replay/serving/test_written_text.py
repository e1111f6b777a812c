"""Text from tokens, one at a time: whole characters, stop texts, and nothing that is taken back."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tokenizers import Tokenizer, decoders, models

from composer_replication._tiny import tiny_tokenizer
from composer_replication.teacher_replay.serving.decoding import WrittenText


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
