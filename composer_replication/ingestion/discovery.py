"""Which files a user means: files, folders and globs, each file once."""

from __future__ import annotations

import glob
import logging
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

_LOGGER = logging.getLogger(__name__)
# Never a log, and often large.
_PASSED_FOLDERS = {".git", "node_modules", "__pycache__"}


def find_files(paths: Iterable[str | Path], *, leave_out: Iterable[Path] = ()) -> list[Path]:
    """Every regular file behind the given paths, sorted; folders are searched to the bottom.

    Links are followed; a folder is entered once, so a loop of links ends. Files named twice are found once. A folder
    that may not be read is logged as a warning.

    Raises:
        FileNotFoundError: a path that is neither a file nor a folder nor a glob that matches anything.
    """
    left_out = {os.path.realpath(path) for path in leave_out}
    found: dict[str, Path] = {}
    for given in paths:
        for path in _expand(Path(given).expanduser()):
            for file in _files_under(path, left_out):
                found.setdefault(os.path.realpath(file), file)
    return sorted(found.values())


def _expand(given: Path) -> list[Path]:
    if os.path.lexists(given):
        return [given]
    pattern = str(given)
    matches = sorted(glob.glob(pattern, recursive=True)) if glob.has_magic(pattern) else []  # noqa: PTH207 - a whole path
    if not matches:
        raise FileNotFoundError(f"{given}: there is no such file or folder")
    return [Path(match) for match in matches]


def _files_under(path: Path, left_out: set[str]) -> Iterator[Path]:
    if not path.is_dir():
        if _is_regular(path):
            yield path
        return
    entered = set(left_out)
    for folder, subfolders, names in os.walk(path, onerror=_warn, followlinks=True):
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


def _warn(error: OSError) -> None:
    _LOGGER.warning("%s cannot be searched: %s", error.filename, error.strerror)


def _is_regular(path: Path) -> bool:
    """Whether it is a file with bytes in it: no pipe, no device, no link to nowhere."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False
