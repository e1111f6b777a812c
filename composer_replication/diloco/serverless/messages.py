"""The objects that ranks exchange: safetensors files with checksums, readable in parts.

    8 bytes      length of the header
    header       JSON: an entry for each tensor, named "part.name", and in `__metadata__` the facts of the message, the
                 parts' checksums ("sums") and a checksum of the header itself ("sum")
    tensors      one after the other, those of a part together

A part is read with one ranged request once the header is known. What does not match its checksum is `DamagedError`;
nothing is ever unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import xxhash

from composer_replication.diloco.serverless.store import ObjectStore

Read = TypeVar("Read")

# What is read of a message first: the header of most. Headers are filled up to it, so that it can always be read.
FIRST_READ = 4096
_READS = 4
_LENGTH = 8
_DTYPES = {
    "F32": torch.float32,
    "I32": torch.int32,
    "BF16": torch.bfloat16,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


class DamagedError(ValueError):
    """An object whose bytes are not those that were written."""


@dataclass(frozen=True)
class Header:
    """The beginning of a message: its facts, the parts' checksums, and the tensors of each part."""

    facts: dict[str, Any]
    sums: dict[str, str]
    parts: dict[str, dict[str, Any]]


def seal(facts: Mapping[str, Any], parts: Mapping[str, Mapping[str, torch.Tensor]]) -> list[bytes | memoryview]:
    """Put facts (as JSON takes them) and tensors (on the CPU) together as one object.

    Returns its bytes in pieces, which share the tensors' memory.
    """
    entries: dict[str, Any] = {}
    sums: dict[str, str] = {}
    pieces: list[bytes | memoryview] = []
    position = 0
    for part, tensors in parts.items():
        checksum = xxhash.xxh3_64()
        # Those of large values first, so that all are aligned in what a reader gets.
        for name, tensor in sorted(tensors.items(), key=lambda one: -one[1].itemsize):
            piece = tensor.contiguous().view(torch.uint8).numpy().data
            entries[f"{part}.{name}"] = {
                "dtype": _NAMES[tensor.dtype],
                "shape": list(tensor.shape),
                "data_offsets": [position, position + piece.nbytes],
            }
            checksum.update(piece)
            pieces.append(piece)
            position += piece.nbytes
        sums[part] = checksum.hexdigest()
    metadata = {"facts": json.dumps(facts), "sums": json.dumps(sums)}
    metadata["sum"] = _header_sum(metadata, entries)
    header = json.dumps({"__metadata__": metadata, **entries}).encode()
    header += b" " * max(FIRST_READ - _LENGTH - len(header), -len(header) % 8)
    return [len(header).to_bytes(_LENGTH, "little") + header, *pieces]


def header_length(data: bytes) -> int:
    """Number of bytes up to the first tensor.

    Raises:
        DamagedError: that cannot be the beginning of a message.
    """
    length = int.from_bytes(data[:_LENGTH], "little")
    if len(data) < _LENGTH or not 0 < length < 1 << 30:
        raise DamagedError("it is not a message")
    return _LENGTH + length


def read_header(data: bytes) -> Header:
    """Read the header of a message; `data` may end anywhere after it.

    Raises:
        DamagedError: the header is cut, or not what was written.
    """
    begin = header_length(data)
    if len(data) < begin:
        raise DamagedError("its header is cut")
    try:
        entries = json.loads(data[_LENGTH:begin])
        metadata = entries.pop("__metadata__")
        if metadata.pop("sum") != _header_sum(metadata, entries):
            raise DamagedError("the checksum of its header differs")
        parts: dict[str, dict[str, Any]] = {}
        for name, entry in entries.items():
            entry["data_offsets"] = [begin + offset for offset in entry["data_offsets"]]
            part, _, tensor = name.partition(".")
            parts.setdefault(part, {})[tensor] = entry
        return Header(json.loads(metadata["facts"]), json.loads(metadata["sums"]), parts)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise (
            error if isinstance(error, DamagedError) else DamagedError(f"its header cannot be read: {error}")
        ) from error


class MessageReader:
    """Reads one object in parts; what is damaged is read again a few times, in case it was damaged on its way.

    Args:
        store: where it is.
        name: its name there.
        pause: called between two reads of something damaged.
    """

    def __init__(self, store: ObjectStore, name: str, pause: Callable[[int], None]) -> None:
        self._store, self._name, self._pause = store, name, pause

    def header(self) -> Header | None:
        """The header; None if there is no such object (yet).

        Raises:
            DamagedError: it stays damaged.
        """
        return self._undamaged(self._header)

    def part(self, header: Header, name: str) -> dict[str, torch.Tensor] | None:
        """The tensors of one part of a message whose header was read; None if the object is gone.

        Raises:
            DamagedError: it stays damaged, or there is no such part.
        """
        if name not in header.parts:
            raise DamagedError(f"it has no part {name}")
        return self._undamaged(lambda: self._part(header, name))

    def _header(self) -> Header | None:
        data = self._store.get(self._name, 0, FIRST_READ)
        if data is None:
            return None
        if (length := header_length(data)) > len(data):
            data = self._store.get(self._name, 0, length)
            if data is None:
                return None
        return read_header(data)

    def _part(self, header: Header, name: str) -> dict[str, torch.Tensor] | None:
        entries = header.parts[name]
        begin = min(entry["data_offsets"][0] for entry in entries.values())
        data = torch.empty(max(entry["data_offsets"][1] for entry in entries.values()) - begin, dtype=torch.uint8)
        if not self._store.get_into(self._name, begin, data.numpy().data):
            return None
        if xxhash.xxh3_64_hexdigest(data.numpy().data) != header.sums.get(name):
            raise DamagedError(f"the checksum of its part {name} differs")
        tensors = {}
        for tensor, entry in entries.items():
            first, last = (offset - begin for offset in entry["data_offsets"])
            tensors[tensor] = data[first:last].view(_DTYPES[entry["dtype"]]).view(entry["shape"])
        return tensors

    def _undamaged(self, read: Callable[[], Read]) -> Read:
        for attempt in range(_READS):
            try:
                return read()
            except DamagedError:
                if attempt == _READS - 1:
                    raise
                self._pause(attempt)
        raise AssertionError


def _header_sum(metadata: Mapping[str, str], entries: Mapping[str, Any]) -> str:
    return xxhash.xxh3_64_hexdigest(json.dumps([dict(metadata), dict(entries)], sort_keys=True).encode())
