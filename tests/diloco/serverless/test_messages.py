"""Objects that ranks exchange: safetensors, checksums, parts; whatever is damaged is seen."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch

from composer_replication.diloco.serverless.messages import FIRST_READ, DamagedError, MessageReader, read_header, seal
from composer_replication.diloco.serverless.store import ObjectStore

FACTS = {"round": 7, "rank": 2, "norms": [0.1, 1e-300]}
BLOBS = {"layout": b"{}", "0": bytes(range(256)) * 40, "3": b"", "1": b"end"}


def reader(folder: Path, data: bytes, pauses: list[int]) -> MessageReader:
    store = ObjectStore(str(folder), retry_s=0)
    store.put("object", data)
    return MessageReader(store, "object", pauses.append)


def test_a_message_is_read_in_parts(tmp_path: Path) -> None:
    message = reader(tmp_path, seal(FACTS, BLOBS), [])
    header = message.header()
    assert header is not None
    assert header.facts == FACTS
    assert {name: message.blob(header, name) for name in BLOBS} == BLOBS


def test_a_message_is_a_safetensors_file() -> None:
    tensors = safetensors.torch.load(seal(FACTS, BLOBS))
    assert {name: bytes(one.numpy()) for name, one in tensors.items()} == BLOBS
    assert {one.dtype for one in tensors.values()} == {torch.uint8}


def test_a_long_header_takes_a_second_read(tmp_path: Path) -> None:
    message = reader(tmp_path, seal({"long": "x" * 3 * FIRST_READ}, BLOBS), [])
    header = message.header()
    assert header is not None
    assert message.blob(header, "0") == BLOBS["0"]


def test_no_object_is_none(tmp_path: Path) -> None:
    message = reader(tmp_path, seal(FACTS, BLOBS), [])
    header = message.header()
    assert header is not None
    ObjectStore(str(tmp_path)).delete(["object"])
    assert message.header() is None
    assert message.blob(header, "0") is None


def test_no_changed_byte_of_the_header_goes_unseen() -> None:
    data = seal(FACTS, BLOBS)
    # A wrong length (the first 8 bytes) that leaves the JSON whole moves the parts, whose checksums then differ.
    for position in range(8, len(data[:FIRST_READ].rstrip(b" "))):
        changed = bytearray(data)
        changed[position] ^= 1
        if data[position : position + 1] != b" ":  # between the tokens of JSON
            with pytest.raises(DamagedError):
                read_header(bytes(changed))


@pytest.mark.parametrize("data", [b"", b"1234567", b"\xff" * 5000, b"\0" * 5000, b"\x10" + b"\0" * 5000])
def test_foreign_bytes_are_damaged(data: bytes) -> None:
    with pytest.raises(DamagedError):
        read_header(data)


def test_a_damaged_part_is_read_again_and_then_refused(tmp_path: Path) -> None:
    data = bytearray(seal(FACTS, BLOBS))
    data[-1] ^= 1
    pauses: list[int] = []
    message = reader(tmp_path, bytes(data), pauses)
    header = message.header()
    assert header is not None
    assert message.blob(header, "0") == BLOBS["0"]
    with pytest.raises(DamagedError, match="checksum of its part 1"):
        message.blob(header, "1")
    assert pauses == [0, 1, 2]
    with pytest.raises(DamagedError, match="no part 9"):
        message.blob(header, "9")


def test_what_was_damaged_on_its_way_only_is_read(tmp_path: Path) -> None:
    good = seal(FACTS, BLOBS)
    bad = bytearray(good)
    bad[FIRST_READ + 10] ^= 1
    store = ObjectStore(str(tmp_path), retry_s=0)
    store.put("object", bytes(bad))
    message = MessageReader(store, "object", lambda _: store.put("object", good))
    header = message.header()
    assert header is not None
    assert message.blob(header, "0") == BLOBS["0"]
