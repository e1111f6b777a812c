"""What a call's arguments tell: the file it is about, the command it runs, the programs in that command."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

_PATH_KEYS = ("file_path", "path", "notebook_path", "filename", "file", "target_file", "filePath", "absolute_path")
_COMMAND_KEYS = ("command", "cmd", "script", "commands", "keystrokes")
_COMMAND_TOOLS = frozenset(
    [
        "bash",
        "shell",
        "execute_bash",
        "exec_command",
        "exec",
        "run_command",
        "run_shell_command",
        "run_terminal_cmd",
        "run_in_terminal",
        "local_shell",
        "local_shell_call",
        "terminal",
        "execute_command",
        "container.exec",
        "run",
        "bashtool",
        "powershell",
        "shell_command",
        "bash_command",
        "mswea_bash_command",
    ]
)

_SEPARATOR = re.compile(r"&&|\|\||[;|\n]")
_QUOTED = re.compile(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=\S*\Z")
# Programs that only start another one, and the words of theirs that come before it.
_STARTERS = frozenset(
    [
        "sudo",
        "time",
        "nohup",
        "env",
        "exec",
        "command",
        "npx",
        "bunx",
        "pnpx",
        "uvx",
        "xargs",
        "then",
        "do",
        "else",
        "if",
        "while",
        "!",
        "(",
        "{",
    ]
)
_FILE_NAME = re.compile(r"[^-+\d]")
_SHOWING = re.compile(
    r"(?:cat|tac|zcat|bat|nl|head|tail|less|more|open|view|[ef]?grep|rg|sed|awk|cut|jq|find|xxd|strings|diff"
    r"|git|gh|curl|docker|podman|kubectl|journalctl)\Z"
)
_RUNNERS = {"uv": "run", "poetry": "run", "pipenv": "run", "bundle": "exec", "pnpm": "exec", "npm": "exec"}


def path_of(arguments: Mapping[str, Any]) -> str | None:
    """The file or folder that a call is about."""
    for key in _PATH_KEYS:
        value = arguments.get(key)
        if isinstance(value, str) and value:
            return value
    return None


def command_of(arguments: Mapping[str, Any]) -> str | None:
    """The command line that a call runs."""
    for key in _COMMAND_KEYS:
        value = arguments.get(key)
        if isinstance(value, str) and value:
            return value
        if isinstance(value, list) and value and all(isinstance(word, str) for word in value):
            # ["bash", "-lc", "the command"], as Codex runs it
            return str(value[2]) if len(value) == 3 and value[1] in ("-c", "-lc", "-ic") else " ".join(value)
    return None


def runs_commands(tool_name: str, arguments: Mapping[str, Any]) -> bool:
    """Whether a tool runs command lines. Editors have an argument named `command` too, and a path beside it."""
    if tool_name:
        return _is_shell(tool_name)
    return command_of(arguments) is not None and path_of(arguments) is None


@lru_cache(maxsize=1000)
def _is_shell(tool_name: str) -> bool:
    name = tool_name.lower()
    return name in _COMMAND_TOOLS or name.rpartition("__")[2] in _COMMAND_TOOLS


def programs(command: str) -> list[list[str]]:
    """The commands of a command line, each as its words: `cd a && uv run pytest -q | tail` → cd, pytest, tail."""
    found = []
    for part in _SEPARATOR.split(_QUOTED.sub("''", command[:4000])):
        words = part.split()
        while words:
            first = words[0]
            if first in _STARTERS or _ASSIGNMENT.match(first):
                words = words[1:]
            elif (
                first == "timeout"
                or (len(words) > 2 and _RUNNERS.get(first) == words[1])
                or (first.rpartition("/")[2].startswith("python") and len(words) > 2 and words[1] == "-m")
            ):
                words = words[2:]
            else:
                break
        if words:
            found.append([words[0].rpartition("/")[2], *words[1:]])
    return found


def shows_files(command: str) -> bool:
    """Whether what a command prints last is text that it was asked to show: a file, a log, a page."""
    parts = programs(command)
    # Behind a pipe they show what the program before them prints.
    while len(parts) > 1 and parts[-1][0] in ("head", "tail") and not any(map(_FILE_NAME.match, parts[-1][1:])):
        parts.pop()
    return bool(parts) and _SHOWING.match(parts[-1][0]) is not None
