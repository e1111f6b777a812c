"""The kinds of object stores: a folder, this process's memory, and what fsspec has a file system for.

Each request is made once; `store.ObjectStore` repeats and counts them.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from composer_replication._optional import require
from composer_replication.diloco.serverless.store_errors import verdict_of

Piece = bytes | bytearray | memoryview

_MEMORY_LOCK = threading.Lock()  # MemoryFileSystem is one per process, and has no lock of its own
_LEFT_BEHIND_S = 3600.0


class Folder:
    """Objects as files. A file is written under a hidden name in the same folder and renamed when it is whole."""

    def __init__(self, root: str) -> None:
        self.root = Path(root)

    def put(self, name: str, *data: Piece) -> None:
        path = self.root / name
        temporary = self._write_beside(path, data)
        try:
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def create(self, name: str, *data: Piece) -> bool:
        path = self.root / name
        temporary = self._write_beside(path, data)
        try:
            os.link(temporary, path)
        except FileExistsError:
            # Over NFS a link that was made may be reported as there already.
            return temporary.stat().st_nlink == 2
        finally:
            temporary.unlink(missing_ok=True)
        return True

    def read(self, name: str, start: int, stop: int | None) -> bytes:
        with (self.root / name).open("rb") as file:
            if start:
                file.seek(start)
            return file.read() if stop is None else file.read(stop - start)

    def read_into(self, name: str, start: int, into: memoryview) -> int:
        with (self.root / name).open("rb") as file:
            file.seek(start)
            return file.readinto(into)

    def delete(self, name: str) -> None:
        path = self.root / name
        path.unlink()
        for folder in path.parents:
            if folder == self.root:
                break
            _sweep(folder)
            try:
                folder.rmdir()
            except OSError:
                break

    def names(self, prefix: str) -> list[str]:
        top = self.root / prefix.rpartition("/")[0]
        found = []
        for folder, _, files in os.walk(top):
            inner = Path(folder).relative_to(self.root)
            found += [(inner / file).as_posix() for file in files if not _is_temporary(file)]
        return [name for name in found if name.startswith(prefix)]

    def _write_beside(self, path: Path, data: tuple[Piece, ...]) -> Path:
        temporary = path.with_name(f".{uuid.uuid4().hex}.tmp")
        try:
            while True:
                try:
                    with temporary.open("xb", buffering=0) as file:
                        for piece in data:
                            rest = memoryview(piece)
                            while rest.nbytes:
                                rest = rest[file.write(rest) :]
                    return temporary
                except FileNotFoundError:  # no folder yet, or another process removed it when it was empty
                    path.parent.mkdir(parents=True, exist_ok=True)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise


class FileSystem:
    """Objects in a file system of fsspec, whose own repetitions and caches are off."""

    def __init__(self, scheme: str, root: str, options: Mapping[str, Any]) -> None:
        self.scheme = scheme
        self.root = root
        self._options = options
        self._lock = threading.Lock()
        self._made: tuple[int, Any] | None = None

    @property
    def system(self) -> Any:
        """The file system of this process: its connections do not survive a fork."""
        with self._lock:
            if self._made is None or self._made[0] != os.getpid():
                self._made = os.getpid(), self._make()
            return self._made[1]

    def put(self, name: str, *data: Piece) -> None:
        self.system.pipe_file(self._path(name), _joined(data))

    def create(self, name: str, *data: Piece) -> bool:
        try:
            self.system.pipe_file(self._path(name), _joined(data), mode="create")
        except Exception as error:
            if verdict_of(error) == "exists":
                return False
            raise
        return True

    def read(self, name: str, start: int, stop: int | None) -> bytes:
        path, system = self._path(name), self.system
        if self.scheme == "hf":
            system.invalidate_cache()  # it remembers folders, and what was not in them
        if stop == start:
            system.info(path)
            return b""
        whole = not start and stop is None
        # One request: s3fs would ask for the size first, and then for parts, which could be of two objects.
        extra = {"max_concurrency": 1} if self.scheme in ("s3", "az") else {}
        data: bytes = system.cat_file(path, start=None if whole else start, end=stop, **extra)
        return data

    def read_into(self, name: str, start: int, into: memoryview) -> int:
        data = self.read(name, start, start + len(into))
        into[: len(data)] = data
        return len(data)

    def delete(self, name: str) -> None:
        self.system.rm_file(self._path(name))

    def names(self, prefix: str) -> list[str]:
        if self.scheme == "hf":
            self.system.invalidate_cache()
        found = self.system.find(self._path(prefix.rpartition("/")[0]).rstrip("/"))
        root = f"{self.system._strip_protocol(self._path('')).rstrip('/')}/"
        names = [path.removeprefix(root) for path in found if path.startswith(root)]
        return [name for name in names if name.startswith(prefix)]

    def _path(self, name: str) -> str:
        return f"{self.scheme}://{self.root}/{name}"

    def _make(self) -> Any:
        options: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": True, **self._options}
        if self.scheme == "s3":
            options["config_kwargs"] = {
                "retries": {"total_max_attempts": 1},
                "connect_timeout": 10,
                "read_timeout": 60,
                # The signature covers the body already, and not every S3 server knows the newer checksums.
                "request_checksum_calculation": "when_required",
                "response_checksum_validation": "when_required",
                **options.get("config_kwargs", {}),
            }
        system = require("fsspec", "serverless").filesystem(self.scheme, **options)
        if hasattr(system, "retries"):
            system.retries = 1
        return system


class Memory(FileSystem):
    """Objects in fsspec's file system in memory, which the threads of one process share."""

    def __init__(self, root: str) -> None:
        super().__init__("memory", root, {})

    def put(self, name: str, *data: Piece) -> None:
        with _MEMORY_LOCK:
            super().put(name, *data)

    def create(self, name: str, *data: Piece) -> bool:
        with _MEMORY_LOCK:
            return super().create(name, *data)

    def read(self, name: str, start: int, stop: int | None) -> bytes:
        with _MEMORY_LOCK:
            return super().read(name, start, stop)

    def delete(self, name: str) -> None:
        with _MEMORY_LOCK:
            super().delete(name)

    def names(self, prefix: str) -> list[str]:
        with _MEMORY_LOCK:
            return super().names(prefix)


def _joined(data: tuple[Piece, ...]) -> Piece:
    return data[0] if len(data) == 1 else b"".join(data)


def _is_temporary(file: str) -> bool:
    return file.startswith(".") and file.endswith(".tmp")


def _sweep(folder: Path) -> None:
    """Remove what writers that were killed have left in a folder."""
    before = time.time() - _LEFT_BEHIND_S
    with contextlib.suppress(OSError):
        for file in folder.iterdir():
            if _is_temporary(file.name) and file.stat().st_mtime < before:
                file.unlink()
