"""Names and keys of coding agents' tools, whichever agent gives them."""

from __future__ import annotations

from typing import Any

import pytest

from composer_replication import coding_tools
from composer_replication.agent_tool_sets import TOOLS
from composer_replication.coding_tools import PATH_KEYS, command_of, path_of, plain_name, runs_commands

SETS = {name: names for name in dir(coding_tools) if name.endswith("_TOOLS") and (names := getattr(coding_tools, name))}


def test_names_stand_as_they_are_compared() -> None:
    assert all(name == plain_name(name) for names in SETS.values() for name in names)


@pytest.mark.parametrize("first", sorted(SETS.keys() - {"CHANGE_TOOLS"}))
def test_a_tool_does_one_thing(first: str) -> None:
    for second in SETS.keys() - {first, "CHANGE_TOOLS"}:
        assert not SETS[first] & SETS[second]


def test_what_known_agents_give_has_its_keys_in_the_table() -> None:
    for agent in TOOLS.values():
        for tool in agent:
            keys = {*tool.required, *tool.optional}
            if plain_name(tool.name) in coding_tools.COMMAND_TOOLS - {"exec"}:
                assert keys & set(coding_tools.COMMAND_KEYS), tool.name
            if plain_name(tool.name) in coding_tools.READ_TOOLS | coding_tools.WRITE_TOOLS | coding_tools.EDIT_TOOLS:
                assert keys & set(PATH_KEYS), tool.name


@pytest.mark.parametrize(
    ("name", "arguments", "runs", "command", "path"),
    [
        ("Bash", {"command": "ls"}, True, "ls", None),
        ("mcp__box__Bash", {"cmd": "ls"}, True, "ls", None),
        ("shell", {"command": ["bash", "-lc", "ls a"]}, True, "ls a", None),
        ("shell", {"command": ["ls", "a"]}, True, "ls a", None),
        ("str_replace_editor", {"command": "view", "path": "a.py"}, False, "view", "a.py"),
        ("", {"command": "ls"}, True, "ls", None),
        ("", {"command": "view", "path": "a.py"}, False, "view", "a.py"),
        ("edit_file_by_replace", {"file_name": "a.py"}, False, None, "a.py"),
        ("Read", {"path": "", "filename": "b.py"}, False, None, "b.py"),
        ("Bash", {"command": 3}, True, None, None),
    ],
)
def test_a_call_is_told_by_name_and_keys(
    name: str, arguments: dict[str, Any], runs: bool, command: str | None, path: str | None
) -> None:
    assert (runs_commands(name, arguments), command_of(arguments), path_of(arguments)) == (runs, command, path)
