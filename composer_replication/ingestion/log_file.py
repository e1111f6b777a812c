"""Log files on disk: find them, read their lines, and recover the JSON values of damaged lines.

Logs are written by programs that crash, by two programs at once, and by programs that are still running. So a line may
be cut, may hold several values glued together, or may contain bytes that are not UTF-8. Every value that
can be recovered is; the rest is counted.
"""

from __future__ import annotations

import glob
import io
import json
import logging
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from composer_replication.ingestion.statistics import IngestionStats
from composer_replication.traces import Source

LONGEST_LINE = 256 * 1024 * 1024
_LONGEST_RECOVERED = 64 * 1024 * 1024
_MOST_EFFORT = 16
_TAIL = 64 * 1024
_BUFFER = 1024 * 1024
# Blanks, zeros that a file system left after a crash, and a byte order mark.
PADDING = b"\x00 \t\r\n\xef\xbb\xbf"
_SCANNER = json.JSONDecoder(strict=False)
_FAST = msgspec.json.Decoder()


class LogFile:
    """One file. What it holds when it is first looked at is read; what is appended later is the next run's."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._last_read: _BoundedFile | None = None

    @property
    def stem(self) -> str:
        """The file's name without its last extension."""
        return _readable(self.path.stem)

    @cached_property
    def size(self) -> int:
        """Bytes in the file when it was first asked for; reading stops there."""
        return self.path.stat().st_size

    def source(self, log_format: str, *, version: str | None = None, line: int = 1) -> Source:
        """The provenance of a trace of this file."""
        return Source(file=_readable(str(self.path)), format=log_format, version=version, line=line)

    def open(self, buffer_size: int = _BUFFER) -> io.BufferedReader:
        """The file's bytes up to its size, to be iterated by lines."""
        self._last_read = _BoundedFile(self.path, self.size)
        return io.BufferedReader(self._last_read, buffer_size)

    def digest(self) -> str:
        """A hash of the file's content. It costs no second read if the file was just read to its end."""
        last = self._last_read
        if last is None or last.left > 0:
            last = _BoundedFile(self.path, self.size)
            with io.BufferedReader(last, buffer_size=_BUFFER) as file:
                while file.read1():
                    pass
        return last.hasher.hexdigest()

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Line numbers (from 1), and lines that are not blank."""
        with self.open() as file:
            for number, line in enumerate(file, 1):
                if line.strip(PADDING):
                    yield number, line

    def records(self, stats: IngestionStats) -> Iterator[tuple[int, dict[str, Any]]]:
        """The JSON objects of a JSONL file, with the line each begins on. Other values are counted and passed."""
        for number, line in self.lines():
            for value in values_in_line(line, stats):
                stats.n_records_total += 1
                if isinstance(value, dict):
                    yield number, value
                else:
                    stats.skip("not a JSON object")

    def document(self, stats: IngestionStats) -> Any:
        """The whole file as one JSON value; None, and counted, if it is not one."""
        with self.open() as file:
            text = file.read().strip(PADDING)
        value = decode_value(text, stats)
        if value is UNREADABLE:
            stats.skip_line("not valid JSON")
            return None
        stats.n_records_total += 1
        return value


class _BoundedFile(io.RawIOBase):
    """A file up to a given size, with its lines cut to `LONGEST_LINE`: a log that grows, or a disk image that was
    taken for one, costs no more memory than a long line."""

    def __init__(self, path: Path, size: int) -> None:
        self._file = path.open("rb", buffering=0)
        self.left = size
        self._line = 0
        self.hasher = xxhash.xxh3_128()

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        buffer = memoryview(target)
        while True:
            count = self._file.readinto(buffer[: self.left])
            self.left = self.left - count if count else 0
            self.hasher.update(buffer[:count])
            if count and self._line > LONGEST_LINE:
                start = bytes(buffer[:count]).find(b"\n")
                if start < 0:
                    continue
                # The rest of the long line is gone; what follows it moves to the front, after its line end.
                count -= start
                buffer[:count] = bytes(buffer[start : start + count])
            # The last line end is mostly near the end of the buffer: only a long line makes it look at the whole.
            tail = max(0, count - _TAIL)
            end = bytes(buffer[tail:count]).rfind(b"\n") + tail
            if end < tail:
                end = bytes(buffer[:tail]).rfind(b"\n")
            self._line = count - end - 1 if end >= 0 else self._line + count
            return count

    def close(self) -> None:
        self._file.close()
        super().close()


REPLACED = "with replaced characters"
UNREADABLE: Any = object()
"""Returned by `decode_value` for text that is not one JSON value."""


def decode_value(text: bytes, stats: IngestionStats | None = None) -> Any:
    """Decode one JSON value, or return `UNREADABLE`. Invalid Unicode becomes replacement characters and is counted."""
    try:
        return _FAST.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    decoded = text.decode("utf-8", "replace")
    try:
        value = _SCANNER.decode(decoded)
        repaired = without_surrogates(value)
    except (ValueError, RecursionError):
        return UNREADABLE
    if stats is not None and ("\ufffd" in decoded or repaired != value):
        stats.recovered[REPLACED] += 1
    return repaired


def first_value(text: bytes) -> Any:
    """Return the JSON value that a text begins with, whatever follows it, or `UNREADABLE`."""
    try:
        return without_surrogates(_SCANNER.raw_decode(text.decode("utf-8", "replace"))[0])
    except (ValueError, RecursionError):
        return UNREADABLE


def values_in_line(
    line: bytes, stats: IngestionStats, accept: Callable[[dict[str, Any]], bool] = lambda _: True
) -> list[Any]:
    """Return the JSON values of one line: normally one, several if lines were glued. The rest is counted.

    `accept` says whether an object found after a broken part is a record of its own.
    """
    stripped = line.strip(PADDING)
    if not stripped:
        return []
    value = decode_value(stripped, stats)
    if value is not UNREADABLE:
        return [value]
    if len(stripped) > _LONGEST_RECOVERED:
        stats.skip_line("broken line")
        return []
    values, complete = recover_values(stripped.decode("utf-8", "replace"), accept)
    if complete:
        stats.recovered["glued to another record"] += len(values) - 1
    else:
        stats.skip_line("broken line")
        stats.recovered["beside a broken part"] += len(values)
    return values


def recover_values(text: str, accept: Callable[[dict[str, Any]], bool]) -> tuple[list[Any], bool]:
    """Return every whole object of a damaged line, and whether the line held nothing else.

    After a broken part an object counts only if it is `accept`ed and runs to the end of the line or to the next
    object: what is followed by anything else is a piece of the record that broke. Garbage that looks like the
    beginnings of a great many objects is given up.
    """
    values: list[Any] = []
    complete = True
    position = 0
    resuming = False
    # In characters that are parsed. `json` counts the lines before a failure, which is faster, and each attempt has
    # its price: without a limit, a megabyte of garbage would take minutes.
    effort = _MOST_EFFORT * (len(text) + _BUFFER)
    while position >= 0 and effort > 0:
        position = _not_blank(text, position)
        if position == len(text):
            break
        try:
            value, end = _SCANNER.raw_decode(text, position)
            value = without_surrogates(value)
        except RecursionError:
            complete, resuming = False, True
            position = text.find('}{"', position) + 1 or -1
            effort -= _BUFFER // 64
            continue
        except ValueError as error:
            complete, resuming = False, True
            failed_at = getattr(error, "pos", position)
            effort -= failed_at - position + failed_at // 4 + 1000
            position = text.find('{"', position + 1)
            continue
        effort -= end - position + 300
        after = _not_blank(text, end)
        alone = after == len(text) or text[after] == "{"
        if isinstance(value, dict) and (not resuming or (alone and accept(value))):
            values.append(value)
            position, resuming = end, False
        else:
            complete, resuming = False, True
            position = text.find('{"', position + 1)
    return values, complete


def without_surrogates(value: Any) -> Any:
    """Replace half surrogate pairs, left where a program cut a text, by replacement characters."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {without_surrogates(key): without_surrogates(item) for key, item in value.items()}
    return value


def _readable(name: str) -> str:
    """A file's name as text: bytes that are not UTF-8 become replacement characters."""
    return os.fsencode(name).decode("utf-8", "replace")


def printable(name: str) -> str:
    """A name from the file system as text: bytes that are not UTF-8 are written as escapes."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _not_blank(text: str, position: int) -> int:
    while position < len(text) and text[position] in "\x00 \t\r\n":
        position += 1
    return position


_LOGGER = logging.getLogger(__name__)
# Never a log, and often large.
_PASSED_FOLDERS = {".git", "node_modules", "__pycache__"}


class NoSuchPathError(FileNotFoundError):
    """A path that a user gave does not exist."""


def _warn(error: OSError) -> None:
    _LOGGER.warning("%s cannot be searched: %s", error.filename, error.strerror)


def find_files(
    paths: Iterable[str | Path], *, leave_out: Iterable[Path] = (), on_error: Callable[[OSError], None] = _warn
) -> list[Path]:
    """Return every regular file that the paths lead to, sorted. Folders are searched recursively.

    Links are followed; a folder is entered once, so a loop of links ends. Files named twice are found once.

    Args:
        leave_out: files and folders to ignore.
        on_error: called with the error of a folder that cannot be listed. By default the error is logged as a warning.

    Raises:
        NoSuchPathError: a path is neither a file nor a folder nor a glob that matches anything.
    """
    left_out = {os.path.realpath(path) for path in leave_out}
    found: dict[str, Path] = {}
    for given in paths:
        for path in _expand(given):
            for file in _files_under(path, left_out, on_error):
                real = os.path.realpath(file)
                if real not in left_out:
                    found.setdefault(real, file)
    return sorted(found.values())


def _expand(given: str | Path) -> list[Path]:
    path = Path(given).expanduser()
    if given and os.path.lexists(path):
        if not path.exists():
            raise NoSuchPathError(f"{path}: the link is broken")
        if not path.is_dir() and not path.is_file():
            raise NoSuchPathError(f"{path}: this is neither a file nor a folder")
        return [path]
    pattern = str(path)
    matches = sorted(glob.glob(pattern, recursive=True)) if glob.has_magic(pattern) else []  # noqa: PTH207 - a whole path
    if not matches:
        raise NoSuchPathError(f"{given or repr(given)}: there is no such file or folder")
    return [Path(match) for match in matches]


def _files_under(path: Path, left_out: set[str], on_error: Callable[[OSError], None]) -> Iterator[Path]:
    if not path.is_dir():
        if _is_regular(path):
            yield path
        return
    entered = set(left_out)
    for folder, subfolders, names in os.walk(path, followlinks=True, onerror=on_error):
        real = os.path.realpath(folder)
        if real in entered:
            subfolders.clear()
            continue
        entered.add(real)
        subfolders[:] = sorted(name for name in subfolders if name not in _PASSED_FOLDERS)
        for name in sorted(names):
            file = Path(folder, name)
            if _is_regular(file):
                yield file


def _is_regular(path: Path) -> bool:
    """Whether this is a regular file: not a pipe, a device or a broken link."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False
