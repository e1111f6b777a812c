"""Files that appear whole or not at all, and their checksums."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# A write that fails midway does not say in which file. No other call fails with these.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


@contextmanager
def whole_file(path: Path, what: str) -> Iterator[Path]:
    """Yield a path to write to, which replaces `path` at the end of the block; parent folders are made.

    Raises:
        OSError: nothing can be written there, or there is no room; the message names `path` and `what` was to be
            written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch()
    except OSError as error:
        raise _unwritable(path, what, error) from error
    try:
        yield temporary
        temporary.replace(path)
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise _unwritable(path, what, error) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _unwritable(path: Path, what: str, error: OSError) -> OSError:
    return OSError(f"{path}: {error.strerror}; {what} need a place that can be written")


def sha256_of(path: Path) -> str:
    """Return the checksum of a file's content, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
