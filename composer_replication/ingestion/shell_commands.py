"""Shell commands of agents that have no tool calls: a fenced block in the model's reply."""

from __future__ import annotations

import re

from composer_replication.traces import ToolCall

OWN_BLOCK = re.compile(
    r"```mswea_bash_command\s*\n(.*?)\n```|<mswea_bash_command>(.*?)</mswea_bash_command>", re.DOTALL
)
"""What only mini-swe-agent asks its models for."""
_BASH_BLOCK = re.compile(r"```bash\s*\n(.*?)\n```", re.DOTALL)


def command_blocks(text: str) -> list[str]:
    """The one shell command of a text-protocol reply; none if the reply has several blocks, which are not run."""
    found = [first or second for first, second in OWN_BLOCK.findall(text)] or _BASH_BLOCK.findall(text)
    return [found[0].strip()] if len(found) == 1 else []


def shell_call(command: str, call_id: str) -> ToolCall:
    """A call that the log has only as the text of a command."""
    return ToolCall(id=call_id, name="bash", arguments={"command": command})
