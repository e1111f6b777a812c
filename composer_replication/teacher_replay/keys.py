"""Where a teacher's key comes from: the environment, a file of the user's, or `~/.hermes/.env`, in that order."""

from __future__ import annotations

import os
from pathlib import Path

_HERMES = Path("~/.hermes/.env")


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
    if os.environ.get(variable, "").strip():
        return os.environ[variable].strip()
    if env_file is not None:
        if not Path(env_file).is_file():
            raise FileNotFoundError(f"{env_file}: there is no such file of environment variables")
        if key := read_env_file(Path(env_file)).get(variable):
            return key
    hermes = _HERMES.expanduser()
    return read_env_file(hermes).get(variable) if hermes.is_file() else None


def read_env_file(path: Path) -> dict[str, str]:
    """The `NAME=value` lines of a file: `export` and quotes are taken away, comments and other lines passed over."""
    values = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        name, value = name.strip(), value.strip()
        if not equals or not name.isidentifier():
            continue
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        else:
            value = value.partition(" #")[0].rstrip()
        values[name] = value
    return values
