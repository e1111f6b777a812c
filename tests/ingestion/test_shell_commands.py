"""Commands in the text of a reply."""

from __future__ import annotations

import pytest

from composer_replication.ingestion.shell_commands import command_blocks


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
