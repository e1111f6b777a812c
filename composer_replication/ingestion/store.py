"""The output folder: one JSONL file of traces per source, and a manifest of what was read.

    DIR/traces/<key>-<stem>.jsonl   a trace a line, as JSON; each line is also a valid `TraceExample`
    DIR/manifest.jsonl              an entry per source: its hash, its format, its counts

Files appear whole or not at all. The manifest is written entry by entry while a run goes on (the last one of a source
counts), so a run that is stopped keeps what it has done.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from composer_replication.traces import Trace

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Trace)
# File systems allow 255 bytes; the key, the ending and what a file is called while it is written need some of them.
_LONGEST_STEM = 120


class OutputError(OSError):
    """The output folder cannot be written; unlike a bad source, this ends a run."""

    def __init__(self, message: str) -> None:
        super().__init__(message)


class ManifestEntry(msgspec.Struct, omit_defaults=True):
    """The manifest's line about a source. `status` is "read", "no log" or "failed".

    `turns` are the ids of the assistant turns that the log holds, `began` is when the first was made. `copies` are
    those of them that belong to another source.
    """

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
    began: str = ""
    turns: list[str] = []
    copies: list[str] = []


_ENTRY_DECODER = msgspec.json.Decoder(ManifestEntry)


def source_key(path: Path) -> str:
    """A short hash of a source's path: it keeps files of one name apart, and stays the same while a file grows.

    A file has one key, whatever links lead to it.
    """
    return hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:12]


def written_paths(folder: str | Path) -> tuple[Path, Path]:
    """Return the paths in an output folder: the traces, and the manifest."""
    return Path(folder, "traces"), Path(folder, "manifest.jsonl")


class TraceStore:
    """An output folder, made if it is missing.

    Raises:
        OutputError: the folder cannot be made.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._traces, self._manifest = written_paths(folder)
        try:
            self._traces.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"{self.folder}: {error.strerror}; traces need a folder that can be written") from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder against other runs, and remove the partial files of a killed one.

        Raises:
            OutputError: another run is writing here.
        """
        with _locked(self.folder):
            self._remove_parts()
            try:
                yield
            finally:
                self._remove_parts()

    def entries(self) -> dict[str, ManifestEntry]:
        """The manifest by key; a line that was cut by a crash is skipped, and its source is read again."""
        entries: dict[str, ManifestEntry] = {}
        if not self._manifest.exists():
            return entries
        for line in self._manifest.read_bytes().splitlines():
            try:
                entry = _ENTRY_DECODER.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue
            entries[entry.key] = entry
        return entries

    def note(self, entry: ManifestEntry) -> None:
        """Add an entry to the manifest."""
        try:
            with self._manifest.open("ab") as file:
                file.write(_ENCODER.encode(entry) + b"\n")
        except OSError as error:
            raise _output_error(self._manifest, error) from error

    def write_manifest(self, entries: Iterable[ManifestEntry]) -> None:
        """Replace the manifest by these entries."""
        lines = (_ENCODER.encode(entry) + b"\n" for entry in sorted(entries, key=lambda entry: entry.source))
        _write_whole(self._manifest, lines)

    def output_name(self, key: str, stem: str) -> str:
        """The name of a source's file of traces."""
        safe = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in stem)
        return f"{key}-{safe.encode()[:_LONGEST_STEM].decode(errors='ignore')}.jsonl"

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
        """Remove an output that its source no longer gives."""
        (self._traces / output).unlink(missing_ok=True)

    def read(self, output: str) -> Iterator[Trace]:
        """The traces of one output file."""
        with (self._traces / output).open("rb", buffering=1 << 20) as file:
            for line in file:
                yield _DECODER.decode(line)

    def _remove_parts(self) -> None:
        for folder in (self.folder, self._traces):
            for part in folder.glob(".*.part"):
                part.unlink(missing_ok=True)


def holds_traces(folder: str | Path) -> bool:
    """Whether `ingest` wrote to this folder."""
    return all(path.exists() for path in written_paths(Path(folder).expanduser()))


def load_traces(folder: str | Path) -> Iterator[Trace]:
    """Every trace that `ingest` wrote to a folder, one at a time, in the order of their sources.

    Raises:
        FileNotFoundError: the folder holds no traces.
    """
    folder = Path(folder)
    if not holds_traces(folder):
        raise FileNotFoundError(
            f"{folder} holds no traces: make some with composer-replication ingest PATHS -o {folder}"
        )
    store = TraceStore(folder)
    for entry in sorted(store.entries().values(), key=lambda entry: entry.source):
        if entry.output is not None and store.has(entry.output):
            yield from store.read(entry.output)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    if sys.platform == "win32":
        yield
        return
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OutputError(f"{folder}: another run is writing here; wait for it, or give another folder") from None
        except OSError:
            pass  # a file system that has no locks
        yield
    finally:
        os.close(descriptor)


def _write_whole(path: Path, lines: Iterable[bytes]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    from_lines: Exception | None = None

    def guarded() -> Iterator[bytes]:
        nonlocal from_lines
        try:
            yield from lines
        except Exception as error:
            from_lines = error
            raise

    try:
        with temporary.open("wb", buffering=1 << 18) as file:
            file.writelines(guarded())
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error is not from_lines:
            raise _output_error(path, error) from error
        raise


def _output_error(path: Path, error: OSError) -> OutputError:
    return OutputError(f"{path}: {error.strerror}; make room for it, and run again: what was done is kept")
