"""Shell commands of agents that have no tool calls: a block in the model's reply, as their prompt asks for it.

`PROTOCOLS` has the forms: mini-swe-agent's, and those of SWE-agent's parsers under their own names. A trace of such an
agent has the name in `meta["text_protocol"]`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from composer_replication.traces import ToolCall

OWN_BLOCK = re.compile(
    r"```mswea_bash_command[^\S\n]*\n(.*?)\n```|<mswea_bash_command>(.*?)</mswea_bash_command>", re.DOTALL
)
"""The form that only mini-swe-agent asks its models for."""
_BASH_BLOCK = re.compile(r"```bash[^\S\n]*\n(.*?)\n```", re.DOTALL)
_FENCE = re.compile(r"^```(\S*)[^\S\n]*\n|^```\s*$", re.MULTILINE)

SHELL_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command in the shell.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}
"""The tool of the calls that commands become."""


class TextProtocol(NamedTuple):
    """`find` gives the commands that the agent would see in a reply, one of which it runs; `form` is how one is
    written."""

    find: Callable[[str], list[str]]
    form: str


def _last_block(text: str) -> list[str]:
    """The last fenced block that is in no other, whatever its language."""
    opened: list[re.Match[str]] = []
    last: list[str] = []
    for fence in _FENCE.finditer(text):
        if opened and not fence[1]:
            begin = opened.pop()
            last = last if opened else [text[begin.end() : fence.start()]]
        elif fence[1] is not None:
            opened.append(fence)
    return last


def _last_tag(text: str) -> list[str]:
    """The text between the last `<command>` and the last `</command>`."""
    before = text.rpartition("</command>")[0]
    begin = text.rfind("<command>")
    return [before[begin + len("<command>") :]] if begin >= 0 else []


PROTOCOLS = {
    "mswea_bash_command": TextProtocol(
        lambda text: [first or second for first, second in OWN_BLOCK.findall(text)], "```mswea_bash_command\n{}\n```"
    ),
    "single_bash_code_block": TextProtocol(_BASH_BLOCK.findall, "```bash\n{}\n```"),
    "thought_action": TextProtocol(_last_block, "```\n{}\n```"),
    "xml_thought_action": TextProtocol(_last_tag, "<command>\n{}\n</command>"),
}


def commands_in(text: str, protocol: str) -> list[str]:
    """The commands in a reply: the agent runs it if it is one, and refuses none or several."""
    return [command for found in PROTOCOLS[protocol].find(text) if (command := found.strip())]


def with_command(text: str, command: str, protocol: str) -> str:
    """A reply with its command, as it is if it has one."""
    if commands_in(text, protocol):
        return text
    return f"{text}\n\n{PROTOCOLS[protocol].form.format(command)}".lstrip("\n")


def protocol_of(replies: Sequence[tuple[str, str]], protocols: Sequence[str]) -> str | None:
    """The first of these protocols that finds the logged command of a reply in its text, and another in none of them.

    Args:
        replies: texts with the commands that were run for them.
    """
    for name in protocols:
        found = [(commands_in(text, name), [command]) for text, command in replies]
        if any(given == run for given, run in found) and all(given in ([], run) for given, run in found):
            return name
    return None


def command_blocks(text: str) -> list[str]:
    """The one shell command of a text-protocol reply; none if the reply has several blocks, which are not run."""
    found = commands_in(text, "mswea_bash_command") or commands_in(text, "single_bash_code_block")
    return found if len(found) == 1 else []


def shell_call(command: str, call_id: str) -> ToolCall:
    """A call that the log has only as the text of a command."""
    return ToolCall(id=call_id, name="bash", arguments={"command": command})
