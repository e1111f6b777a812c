"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path, what: str) -> Iterator[Path]:
    """Yield a path to write to, which replaces `path` at the end of the block; parent folders are made.

    Raises:
        OSError: nothing can be written there; the message names `path` and `what` was to be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch()
    except OSError as error:
        raise OSError(f"{path}: {error.strerror}; {what} need a place that can be written") from error
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
