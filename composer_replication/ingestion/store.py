"""The output folder: one JSONL file of traces per source, and a manifest of what was read.

    DIR/traces/<key>-<stem>.jsonl   a trace a line, as JSON; each line is also a valid `TraceExample`
    DIR/manifest.jsonl              an entry per source: its hash, its format, its counts

Files appear whole or not at all. The manifest is written entry by entry while a run goes on (the last one of a source
counts), so a run that is stopped keeps what it has done.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from composer_replication.traces import Trace

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Trace)


class ManifestEntry(msgspec.Struct, omit_defaults=True):
    """What is known of a source. `status` is "read", "no log" or "failed"."""

    source: str
    key: str
    status: str
    size: int
    modified_ns: int
    digest: str | None = None
    settings: str = ""
    format: str | None = None
    output: str | None = None
    reason: str | None = None
    traces: int = 0
    stats: dict[str, Any] = {}


_ENTRY_DECODER = msgspec.json.Decoder(ManifestEntry)


def source_key(path: Path) -> str:
    """A short hash of where a source lies: it keeps the ids of files with one name apart, and stays while one grows."""
    return hashlib.sha256(os.path.realpath(path).encode("utf-8", "surrogateescape")).hexdigest()[:12]


class TraceStore:
    """An output folder, made if it is missing.

    Raises:
        NotADirectoryError, PermissionError: the folder cannot be made or written.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._traces = self.folder / "traces"
        self._manifest = self.folder / "manifest.jsonl"
        self._traces.mkdir(parents=True, exist_ok=True)

    def entries(self) -> dict[str, ManifestEntry]:
        """The manifest by source; a line that was cut by a crash is passed over, and its source read again."""
        entries: dict[str, ManifestEntry] = {}
        if not self._manifest.exists():
            return entries
        for line in self._manifest.read_bytes().splitlines():
            try:
                entry = _ENTRY_DECODER.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue
            entries[entry.source] = entry
        return entries

    def note(self, entry: ManifestEntry) -> None:
        """Add an entry to the manifest."""
        with self._manifest.open("ab") as file:
            file.write(_ENCODER.encode(entry) + b"\n")

    def write_manifest(self, entries: Iterable[ManifestEntry]) -> None:
        """Replace the manifest by these entries."""
        lines = (_ENCODER.encode(entry) + b"\n" for entry in sorted(entries, key=lambda entry: entry.source))
        _write_whole(self._manifest, lines)

    def output_name(self, key: str, stem: str) -> str:
        """The name of a source's file of traces."""
        safe = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in stem)[:80]
        return f"{key}-{safe}.jsonl"

    def write_traces(self, output: str, traces: Iterable[Trace]) -> int:
        """Write a source's traces; returns how many. Without any, there is no file."""
        count = 0

        def lines() -> Iterator[bytes]:
            nonlocal count
            for trace in traces:
                count += 1
                yield _ENCODER.encode(trace)
                yield b"\n"

        path = self._traces / output
        _write_whole(path, lines())
        if not count:
            path.unlink()
        return count

    def has(self, output: str | None) -> bool:
        """Whether an output is there; an entry without one needs none."""
        return output is None or (self._traces / output).exists()

    def remove(self, output: str) -> None:
        """Take an output away that its source no longer gives."""
        (self._traces / output).unlink(missing_ok=True)

    def read(self, output: str) -> Iterator[Trace]:
        """The traces of one output file."""
        with (self._traces / output).open("rb", buffering=1 << 20) as file:
            for line in file:
                yield _DECODER.decode(line)


def load_traces(folder: str | Path) -> Iterator[Trace]:
    """Every trace that `ingest` wrote to a folder, one at a time, in the order of their sources.

    Raises:
        FileNotFoundError: the folder holds no traces.
    """
    folder = Path(folder)
    if not (folder / "traces").is_dir():
        raise FileNotFoundError(
            f"{folder} holds no traces: make some with composer-replication ingest PATHS -o {folder}"
        )
    store = TraceStore(folder)
    for _, entry in sorted(store.entries().items()):
        if entry.output is not None and store.has(entry.output):
            yield from store.read(entry.output)


def _write_whole(path: Path, lines: Iterable[bytes]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb", buffering=1 << 18) as file:
            file.writelines(lines)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
