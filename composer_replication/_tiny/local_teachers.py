"""Three teachers for the sample traces, small enough to read: functions of the prompt, with no model behind them.

Each can be served on its own:
`composer-replication serve-teacher --callable composer_replication._tiny.local_teachers:careful`
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from composer_replication.traces import Message, ToolCall, Turn, render_action

Tools = Sequence[Mapping[str, Any]]

_FILE = re.compile(r"[\w./-]+\.py\b")
_SEARCH = re.compile(r"find (?P<target>-?\d+) in (?P<items>\[[-\d, ]+\])")


class _Intent(NamedTuple):
    """What the user's request comes to: a file to read, or code to run."""

    deed: Literal["read a file", "run python"]
    value: str


def careful(messages: Sequence[Message], tools: Tools = ()) -> str:
    """Looks up the tool and the name of its argument in the definitions, and makes the call without a word."""
    intent = _intent(messages)
    return _call(*_defined(intent, tools), intent.value)


def thorough(messages: Sequence[Message], tools: Tools = ()) -> str:
    """Does what `careful` does, but says so first and spells it otherwise."""
    intent = _intent(messages)
    if intent.deed == "read a file":
        return _call(*_defined(intent, tools), f"./{intent.value}", said="Let me look at the file before I answer.")
    return _call(*_defined(intent, tools), f"{intent.value}\n", said="I will let Python look that up.")


def hasty(messages: Sequence[Message]) -> str:
    """Never reads the definitions, and calls what such tools are called elsewhere."""
    intent = _intent(messages)
    return _call(*(("open_file", "path") if intent.deed == "read a file" else ("run_python", "script")), intent.value)


LOCAL_TEACHERS: dict[str, Callable[..., str]] = {"careful": careful, "thorough": thorough, "hasty": hasty}


def _intent(messages: Sequence[Message]) -> _Intent:
    request = next((message["content"] for message in reversed(messages) if message["role"] == "user"), "")
    if (file := _FILE.search(request)) is not None:
        return _Intent("read a file", file[0])
    if (search := _SEARCH.search(request)) is not None:
        return _Intent("run python", f"print({search['items']}.index({search['target']}))")
    # No answer at all: whatever two teachers said for want of a better idea, they would agree on.
    raise ValueError(f"the request names neither a .py file nor a list to search: {request!r}")


def _defined(intent: _Intent, tools: Tools) -> tuple[str, str]:
    """The tool that is described as doing this, and its first argument that must be given."""
    words = set(intent.deed.split())
    for tool in tools:
        function = tool["function"]
        if words <= set(re.findall(r"\w+", function["description"].lower())):
            return function["name"], function["parameters"]["required"][0]
    raise ValueError(f"no tool is described as one to {intent.deed}")


def _call(name: str, argument: str, value: str, *, said: str = "") -> str:
    return render_action(Turn("assistant", said, tool_calls=[ToolCall("", name, {argument: value})]))
