"""Objects under one address: a folder, S3, Google Cloud Storage, Azure, the Hugging Face Hub, or this process's memory.

An object appears at once and whole or not at all. Requests are repeated until they succeed, so that a store which
errs now and then is only slow. Nothing relies on listings, which may lag.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any, Protocol, TypeVar

from composer_replication._arguments import check_non_negative
from composer_replication._optional import require
from composer_replication.diloco.serverless.store_backends import FileSystem, Folder, Memory, Piece
from composer_replication.diloco.serverless.store_errors import one_line, verdict_of, way_out

log = logging.getLogger(__name__)
T = TypeVar("T")

# The package a scheme needs, and whether it can create an object only if there is none.
# s3: If-None-Match. gs: ifGenerationMatch=0. az: If-None-Match. hf: its file system looks first and then writes.
SCHEMES: dict[str, tuple[str, bool]] = {
    "file": ("", True),
    "memory": ("fsspec", True),
    "s3": ("s3fs", True),
    "gs": ("gcsfs", True),
    "az": ("adlfs", True),
    "hf": ("huggingface_hub", False),
}
_FIRST_DELAY_S = 0.05
_LONGEST_DELAY_S = 2.0


class StoreError(OSError):
    """A request to an object store that failed for good: the operation, the object, the address, why, the way out."""


class Backend(Protocol):
    """The requests of a kind of store, each tried once. They raise what the operating system or the client raises."""

    def put(self, name: str, *data: Piece) -> None: ...
    def create(self, name: str, *data: Piece) -> bool: ...
    def read(self, name: str, start: int, stop: int | None) -> bytes: ...
    def read_into(self, name: str, start: int, into: memoryview) -> int: ...
    def delete(self, name: str) -> None: ...
    def names(self, prefix: str) -> list[str]: ...


class ObjectStore:
    """Named objects under `uri`: a plain path, `file://`, `s3://`, `gs://`, `az://`, `hf://` or `memory://`.

    Safe for several threads. Each operation is repeated, with growing and random pauses, until it has failed for
    `retry_s` seconds; a missing bucket, wrong credentials or a full disk fail at once. Both raise `StoreError`.
    `bytes_up` counts what was written, `bytes_down` and `requests` also what was repeated.

    Args:
        uri: the address, without credentials.
        retry_s: how long an operation may fail in a row; 0 tries once.
        storage_options: for the fsspec file system (credentials, `endpoint_url`). They are never in a message.

    Raises:
        ValueError: an unknown scheme, no bucket, or credentials in `uri`.
        MissingExtraError: the scheme's package is not installed.
    """

    def __init__(self, uri: str, *, retry_s: float = 60.0, storage_options: Mapping[str, Any] | None = None) -> None:
        self.uri = uri
        check_non_negative("retry_s", retry_s)
        self.retry_s = retry_s
        self.scheme, root = _split(uri)
        module, self.can_create = SCHEMES[self.scheme]
        self.bytes_up = self.bytes_down = self.requests = 0
        self._lock = threading.Lock()
        self._options = dict(storage_options or {})
        self._creates_for_sure = self.scheme in ("file", "memory")
        if module:
            require(module, "serverless")
        self._backend: Backend
        if self.scheme == "file":
            self._backend = Folder(root)
        elif self.scheme == "memory":
            self._backend = Memory(root)
        else:
            self._backend = FileSystem(self.scheme, root, self._options)

    def put(self, name: str, *data: Piece) -> None:
        """Write an object, over one that is there. Readers see the old or the new one, never a part.

        `data` may be in several pieces, which are not copied where that can be avoided.
        """
        self._repeat("write", name, lambda: self._backend.put(name, *data), sent=_length(data))

    def create(self, name: str, *data: Piece) -> bool:
        """Write an object unless there is one of this name; return whether `data` is there now by this call.

        Of several writers one gets True. Over a network a request may be repeated after it got through, so an object
        that equals `data` counts as one's own: put the writer's name into `data`.
        """
        if not self.can_create:
            raise ValueError(
                f"{self.scheme}:// cannot create objects conditionally ({self.uri}): use file, s3, gs or az"
            )
        self._check_creation()
        created = self._repeat("create", name, lambda: self._backend.create(name, *data), sent=_length(data))
        return created or (self.scheme not in ("file", "memory") and self.get(name) == b"".join(data))

    def get(self, name: str, start: int | None = None, stop: int | None = None) -> bytes | None:
        """Read an object, or its bytes from `start` to before `stop`; None if there is no such object (yet).

        Fewer bytes than asked for are a failure like any other.
        """
        first = start or 0
        if first < 0 or (stop is not None and stop < first):
            raise ValueError(f"start {start} and stop {stop} are not a range of bytes in {name!r}")

        def read() -> bytes:
            data = self._backend.read(name, first, stop)
            self._count_read(len(data), None if stop is None else stop - first)
            return data

        return self._repeat("read", name, read, absent=None)

    def get_into(self, name: str, start: int, into: memoryview) -> bool:
        """Fill a buffer with an object's bytes from `start` on; False if there is no such object (yet)."""

        def read() -> bool:
            self._count_read(self._backend.read_into(name, start, into), len(into))
            return True

        return self._repeat("read", name, read, absent=False)

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects. Missing ones are fine; failures are logged, because this is housekeeping."""
        for name in names:
            try:
                self._repeat("delete", name, lambda name=name: self._backend.delete(name), absent=None)  # type: ignore[misc]
            except StoreError as error:
                log.warning("%s", error)

    def names(self, prefix: str) -> list[str]:
        """Return the names that begin with `prefix`, sorted. For housekeeping: a store's listing may lag."""
        return sorted(self._repeat("list", prefix, lambda: self._backend.names(prefix), absent=[]))

    def _count_read(self, count: int, wanted: int | None) -> None:
        with self._lock:
            self.bytes_down += count
        if wanted not in (None, count):
            raise EOFError(f"{count} bytes instead of {wanted}")

    def _repeat(self, what: str, name: str, request: Callable[[], T], *, sent: int = 0, absent: Any = StoreError) -> T:
        """Make a request until it succeeds, fails for good or has failed for `retry_s` seconds."""
        if what != "list":
            _check_name(name)
        began, delay, warned = 0.0, _FIRST_DELAY_S, False
        while True:
            with self._lock:
                self.requests += 1
            try:
                result = request()
            except Exception as error:  # noqa: BLE001 - the client libraries have no common class of errors
                verdict = verdict_of(error)
                if verdict == "absent" and absent is not StoreError:
                    return absent  # type: ignore[no-any-return]
                now = time.monotonic()
                began = began or now
                lasted = now - began
                # Names that clash with folders are "exists", a bucket that is not there is "absent" when writing.
                if verdict != "again" or lasted + delay > self.retry_s:
                    raise self._error(what, name, error, lasted) from None
                level = logging.DEBUG
                if delay == _LONGEST_DELAY_S and not warned:
                    level, warned = logging.WARNING, True
                log.log(level, "cannot %s %r in %s yet: %s", what, name, self.uri, one_line(error, self._options))
            else:
                with self._lock:
                    self.bytes_up += sent
                return result
            time.sleep(delay * random.uniform(0.5, 1.0))
            delay = min(2 * delay, _LONGEST_DELAY_S)

    def _check_creation(self) -> None:
        """Make sure, once, that the server refuses a second creation: not every S3 server does."""
        with self._lock:
            if self._creates_for_sure:
                return
        probe = f".probe-{os.getpid()}-{random.getrandbits(64):016x}"
        self._repeat("create", probe, lambda: self._backend.create(probe, b"1"))
        again = self._repeat("create", probe, lambda: self._backend.create(probe, b"2"))
        self.delete([probe])
        if again:
            raise StoreError(
                f"{self.uri} overwrites objects that are to be created only if there are none (If-None-Match is "
                "ignored): use a store that honours it, or wait for all replicas (no min_participants)"
            )
        with self._lock:
            self._creates_for_sure = True

    def _error(self, what: str, name: str, error: BaseException, lasted: float) -> StoreError:
        tried = f" for {lasted:.0f} s" if lasted >= 1 else ""
        return StoreError(
            f"cannot {what} {name!r} in {self.uri}{tried}: {one_line(error, self._options)}: {way_out(error)}"
        )


def _split(uri: str) -> tuple[str, str]:
    """Return the scheme and the root: a path for files, bucket and prefix for the others."""
    scheme, separator, root = uri.partition("://")
    if not separator:
        scheme, root = "file", uri
    if scheme not in SCHEMES:
        raise ValueError(f"uri has the scheme {scheme!r}: use a plain path or one of {', '.join(SCHEMES)}")
    if scheme == "file":
        if not root:
            raise ValueError(f"uri is {uri!r}: name a folder")
        return scheme, os.path.abspath(os.path.expanduser(root))  # noqa: PTH100, PTH111 - keeps symbolic links
    if ("@" in root and ":" in root.partition("@")[0]) or "?" in root:
        raise ValueError(f"uri of scheme {scheme!r} has credentials or a query in it: pass them as storage_options")
    root = root.strip("/")
    if not root:
        raise ValueError(f"uri is {uri!r}: name a bucket and a prefix, as in {scheme}://bucket/run")
    return scheme, root


def _length(data: tuple[Piece, ...]) -> int:
    return sum(map(len, data))


def _check_name(name: str) -> None:
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or str(path) != name:
        raise ValueError(f"name is {name!r}: use a relative path with forward slashes, without '..'")
