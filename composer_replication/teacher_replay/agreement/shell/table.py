"""What the options of well-known commands mean, read from tables.

A command stands at the beginning of a line, with what is true of it (see `Command`) behind the colon. Below it are its
options: the spellings of one are joined by "/" and the first stands for all; a final "=" says that it takes a value.
Options behind "shown" change how much is printed, or how, but neither what is done nor what is asked. "default" gives
a value that goes without saying.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from composer_replication.teacher_replay.agreement.shell import developer_commands, system_commands


@dataclass(frozen=True)
class Command:
    """How a command's line is read.

    `spellings` leads from each option to the one that stands for it; `valued` take a value; `shown` are left out;
    `defaults` go without saying. `traits`: "reads" (it changes nothing, so it may change places with others that read),
    "bound" (the working directory matters only through its operands), "each" (it does one thing per operand),
    "any_order" (the order of operands says nothing), "words" (operands are no paths), "long_dash" (options are words
    behind a single dash), "inner" (behind its first operand stands another program's line), "here" (without operands,
    it means the working directory).
    """

    spellings: Mapping[str, str] = field(default_factory=dict)
    valued: frozenset[str] = frozenset()
    shown: frozenset[str] = frozenset()
    defaults: Mapping[str, str] = field(default_factory=dict)
    traits: frozenset[str] = frozenset()
    is_known: bool = True

    def has(self, trait: str) -> bool:
        """Whether something is true of the command."""
        return trait in self.traits


UNKNOWN = Command(is_known=False)
"""Any other program: its options are taken as they come, each with the word behind it."""

_COMPOSE = "-f/--file= -p/--project-name= --env-file= --profile="
_BEFORE = {
    "git": "-C= -c= --git-dir= --work-tree=",
    "npm": "--prefix= -C=",
    "yarn": "--cwd=",
    "pnpm": "-C/--dir= -r/--recursive --filter=",
    "pip": "",
    "docker": "-H/--host= --context=",
    "docker compose": _COMPOSE,
    "cargo": "",
    "go": "-C=",
    "apt-get": "-y/--yes/--assume-yes -q -qq",
    "brew": "",
    "ruff": "",
    "dotnet": "",
    "mix": "",
    "composer": "",
    "bundle": "",
    "gh": "-R/--repo=",
    "gh pr": "",
    "gh run": "",
    "gh issue": "",
    "deno": "",
    "bun": "",
    "uv": "",
    "uv pip": "",
    "poetry": "",
    "coverage": "",
    "flask": "-A/--app= --debug",
}


@cache
def commands() -> Mapping[str, Command]:
    """Every known command, by its name."""
    found: dict[str, Command] = {}
    for table in (system_commands.TABLE, developer_commands.TABLE):
        name, traits, lines = "", "", []
        for line in [*table.splitlines(), "end:"]:
            if not line or line.startswith("#"):
                continue
            if line.startswith(" "):
                lines.append(line.strip())
                continue
            if name:
                found[name] = _command(lines, frozenset(traits.split()))
            name, _, traits = line.partition(":")
            lines = []
    return found


@cache
def subcommands() -> Mapping[str, Command]:
    """Programs whose first operand is a command of its own, with the options that may stand before it."""
    return {name: _command([options], frozenset()) for name, options in _BEFORE.items()}


def _command(lines: list[str], traits: frozenset[str]) -> Command:
    spellings: dict[str, str] = {}
    valued: set[str] = set()
    shown: set[str] = set()
    defaults: dict[str, str] = {}
    for line in lines:
        first_word, _, rest = line.partition(" ")
        if first_word == "default":
            option, _, value = rest.partition("=")
            defaults[option] = value
            continue
        for entry in (rest if first_word == "shown" else line).split():
            first, *others = entry.rstrip("=").split("/")
            spellings.update(dict.fromkeys((first, *others), first))
            valued |= {first} if entry.endswith("=") else set()
            shown |= {first} if first_word == "shown" else set()
    return Command(spellings, frozenset(valued), frozenset(shown), defaults, traits)
