"""Where a teacher's key comes from: the environment, a file of the user's, or `~/.hermes/.env`, in that order."""

from __future__ import annotations

import os
import re
from pathlib import Path

_HERMES = Path("~/.hermes/.env")
_LINE = re.compile(
    r"""\s* (?:export\s+)? (?P<name>[A-Za-z_]\w*) \s*=\s*
    (?: "(?P<double>[^"]*)"\s* | '(?P<single>[^']*)'\s* | (?P<bare>(?:[^\s\#].*?)?) (?:\s+|$) )
    (?:\#.*)?""",
    re.VERBOSE,
)


class MissingKeyError(RuntimeError):
    """A teacher needs a key that is nowhere to be found."""

    def __init__(self, teacher: str, variable: str) -> None:
        super().__init__(
            f"teacher {teacher} needs a key: set {variable}, or put it into a file for --env-file or into {_HERMES}"
        )


def find_key(variable: str, env_file: str | os.PathLike[str] | None = None) -> str | None:
    """The value of a variable, None if no place has it.

    Raises:
        FileNotFoundError: `env_file` does not exist.
    """
    if env_file is not None and not Path(env_file).is_file():
        raise FileNotFoundError(f"{env_file}: there is no such file of environment variables")
    if from_environment := os.environ.get(variable, "").strip():
        return from_environment
    hermes = _HERMES.expanduser()
    files = [*([] if env_file is None else [Path(env_file)]), *([hermes] if hermes.is_file() else [])]
    return next((key for file in files if (key := read_env_file(file).get(variable))), None)


def read_env_file(path: Path) -> dict[str, str]:
    """The `NAME=value` lines of a file: `export` and quotes are taken away, comments and other lines passed over."""
    lines = map(_LINE.fullmatch, path.read_text(encoding="utf-8-sig", errors="replace").splitlines())
    return {line["name"]: line["double"] or line["single"] or line["bare"] or "" for line in lines if line is not None}
