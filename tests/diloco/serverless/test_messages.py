"""Objects that ranks exchange: safetensors, checksums, parts; whatever is damaged is seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from composer_replication.diloco.serverless.messages import FIRST_READ, DamagedError, MessageReader, read_header, seal
from composer_replication.diloco.serverless.store import ObjectStore

FACTS = {"round": 7, "rank": 2, "norms": [0.1, 1e-300]}
PARTS = {
    "layout": {"json": torch.tensor([123, 125], dtype=torch.uint8)},
    "0": {"codes": torch.arange(-50, 51, dtype=torch.int8), "scales": torch.randn(7).bfloat16()},
    "3": {"values": torch.empty(0)},
    "1": {"values": torch.randn(3, 2), "counts": torch.tensor([1], dtype=torch.int32)},
}


def sealed(facts: dict[str, Any] = FACTS) -> bytes:
    return b"".join(seal(facts, PARTS))


def is_part(read: dict[str, torch.Tensor] | None, name: str) -> bool:
    expected = PARTS[name]
    return (
        read is not None
        and read.keys() == expected.keys()
        and all(read[key].dtype == one.dtype and torch.equal(read[key], one) for key, one in expected.items())
    )


def reader(folder: Path, data: bytes, pauses: list[int]) -> MessageReader:
    store = ObjectStore(str(folder), retry_s=0)
    store.put("object", data)
    return MessageReader(store, "object", pauses.append)


def test_a_message_is_read_in_parts(tmp_path: Path) -> None:
    message = reader(tmp_path, sealed(), [])
    header = message.header()
    assert header is not None
    assert header.facts == FACTS
    assert all(is_part(message.part(header, name), name) for name in PARTS)


def test_a_message_is_a_safetensors_file() -> None:
    tensors = safetensors.torch.load(sealed())
    assert all(torch.equal(tensors.pop(f"{part}.{name}"), one) for part in PARTS for name, one in PARTS[part].items())
    assert not tensors


def test_a_long_header_takes_a_second_read(tmp_path: Path) -> None:
    message = reader(tmp_path, sealed({"long": "x" * 3 * FIRST_READ}), [])
    header = message.header()
    assert header is not None
    assert is_part(message.part(header, "0"), "0")


def test_no_object_is_none(tmp_path: Path) -> None:
    message = reader(tmp_path, sealed(), [])
    header = message.header()
    assert header is not None
    ObjectStore(str(tmp_path)).delete(["object"])
    assert message.header() is None
    assert message.part(header, "0") is None


def test_no_changed_byte_of_the_header_goes_unseen() -> None:
    data = sealed()
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
    data = bytearray(sealed())
    data[-1] ^= 1
    pauses: list[int] = []
    message = reader(tmp_path, bytes(data), pauses)
    header = message.header()
    assert header is not None
    assert is_part(message.part(header, "0"), "0")
    with pytest.raises(DamagedError, match="checksum of its part 1"):
        message.part(header, "1")
    assert pauses == [0, 1, 2]
    with pytest.raises(DamagedError, match="no part 9"):
        message.part(header, "9")


def test_what_was_damaged_on_its_way_only_is_read(tmp_path: Path) -> None:
    good = sealed()
    bad = bytearray(good)
    bad[FIRST_READ + 10] ^= 1
    store = ObjectStore(str(tmp_path), retry_s=0)
    store.put("object", bytes(bad))
    message = MessageReader(store, "object", lambda _: store.put("object", good))
    header = message.header()
    assert header is not None
    assert is_part(message.part(header, "0"), "0")
