"""The objects that ranks exchange: safetensors files of byte blobs, with checksums, readable in parts.

    8 bytes      length of the header
    header       JSON: one U8 tensor per blob, and in `__metadata__` the facts of the message, the blobs' checksums
                 ("sums") and a checksum of the header itself ("sum")
    blobs        one after the other

A blob is read with one ranged request once the header is known. What does not match its checksum is `DamagedError`;
nothing is ever unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import xxhash

from composer_replication.diloco.serverless.store import ObjectStore

Read = TypeVar("Read")

# What is read of a message first: the header of most. Headers are filled up to it, so that it can always be read.
FIRST_READ = 4096
_READS = 4
_LENGTH = 8


class DamagedError(ValueError):
    """An object whose bytes are not those that were written."""


@dataclass(frozen=True)
class Header:
    """The beginning of a message: its facts, and where each blob lies in the object."""

    facts: dict[str, Any]
    sums: dict[str, str]
    spans: dict[str, tuple[int, int]]


def seal(facts: Mapping[str, Any], blobs: Mapping[str, bytes]) -> bytes:
    """Put facts (as JSON takes them) and blobs together as one object."""
    entries: dict[str, Any] = {}
    position = 0
    for name, blob in blobs.items():
        entries[name] = {"dtype": "U8", "shape": [len(blob)], "data_offsets": [position, position + len(blob)]}
        position += len(blob)
    metadata = {
        "facts": json.dumps(facts),
        "sums": json.dumps({name: xxhash.xxh3_64_hexdigest(blob) for name, blob in blobs.items()}),
    }
    metadata["sum"] = _header_sum(metadata, entries)
    header = json.dumps({"__metadata__": metadata, **entries}).encode()
    header += b" " * max(FIRST_READ - _LENGTH - len(header), -len(header) % 8)
    return b"".join([len(header).to_bytes(_LENGTH, "little"), header, *blobs.values()])


def header_length(data: bytes) -> int:
    """Number of bytes up to the first blob.

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
        spans = {name: tuple(begin + offset for offset in one["data_offsets"]) for name, one in entries.items()}
        return Header(json.loads(metadata["facts"]), json.loads(metadata["sums"]), spans)
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

    def blob(self, header: Header, name: str) -> bytes | None:
        """One blob of a message whose header was read; None if the object is gone.

        Raises:
            DamagedError: it stays damaged, or there is no such blob.
        """
        if name not in header.spans:
            raise DamagedError(f"it has no part {name}")
        return self._undamaged(lambda: self._blob(header, name))

    def _header(self) -> Header | None:
        data = self._store.get(self._name, 0, FIRST_READ)
        if data is None:
            return None
        if (length := header_length(data)) > len(data):
            data = self._store.get(self._name, 0, length)
            if data is None:
                return None
        return read_header(data)

    def _blob(self, header: Header, name: str) -> bytes | None:
        blob = self._store.get(self._name, *header.spans[name])
        if blob is not None and xxhash.xxh3_64_hexdigest(blob) != header.sums.get(name):
            raise DamagedError(f"the checksum of its part {name} differs")
        return blob

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
