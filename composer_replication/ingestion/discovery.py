"""Which files a user means: files, folders and globs, each file once."""

from __future__ import annotations

import glob
import logging
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

_LOGGER = logging.getLogger(__name__)
# Never a log, and often large.
_PASSED_FOLDERS = {".git", "node_modules", "__pycache__"}


class NoSuchPathError(FileNotFoundError):
    """A path that a user gave leads to nothing."""


def _warn(error: OSError) -> None:
    _LOGGER.warning("%s cannot be searched: %s", error.filename, error.strerror)


def find_files(
    paths: Iterable[str | Path],
    *,
    leave_out: Iterable[Path] = (),
    on_error: Callable[[OSError], None] = _warn,
) -> list[Path]:
    """Every regular file behind the given paths, sorted; folders are searched to the bottom.

    Links are followed; a folder is entered once, so a loop of links ends. Files named twice are found once.

    Args:
        leave_out: files and folders that are not meant.
        on_error: called with the error of a folder that cannot be listed; without it, that is logged as a warning.

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
            raise NoSuchPathError(f"{path}: the link leads nowhere")
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
    """Whether it is a file with bytes in it: no pipe, no device, no link to nowhere."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False
