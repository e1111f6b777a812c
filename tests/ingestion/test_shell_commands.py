"""Commands in the text of a reply."""

from __future__ import annotations

import pytest

from composer_replication.ingestion.shell_commands import command_blocks, protocol_of


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        ("So:\n```bash\nls -l\n```", ["ls -l"]),
        ("```mswea_bash_command\nls\n```\nnot\n```bash\npwd\n```", ["ls"]),
        ("<mswea_bash_command>ls</mswea_bash_command>", ["ls"]),
        ("```bash\nls\n```\n```bash\npwd\n```", []),
        ("```python\nprint()\n```", []),
    ],
)
def test_one_block_is_the_command(text: str, commands: list[str]) -> None:
    assert command_blocks(text) == commands


def test_the_protocol_is_the_one_that_finds_what_was_run() -> None:
    both = ("thought_action", "xml_thought_action")
    fenced, tagged = ("So.\n```\nls\n```", "ls"), ("So.\n<command>\nls\n</command>", "ls")
    assert protocol_of([fenced], both) == "thought_action"
    assert protocol_of([tagged], both) == "xml_thought_action"
    # A reply whose text lacks its command does not count, one that has another speaks against it.
    assert protocol_of([fenced, ("So.", "pwd")], both) == "thought_action"
    assert protocol_of([("```\nx = 1\n```", "ls"), tagged], both) == "xml_thought_action"
    assert protocol_of([fenced, tagged], ("thought_action",)) == "thought_action"
    assert protocol_of([("So.", "ls")], both) is None
    assert protocol_of([("```\npwd\n```", "ls")], both) is None
    assert protocol_of([fenced, ("```\npwd\n```", "ls")], both) is None
    assert protocol_of([], both) is None
