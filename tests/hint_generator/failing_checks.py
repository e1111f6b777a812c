"""Sessions in which a check fails, made up call by call."""

from __future__ import annotations

from typing import Any

from composer_replication.hint_generator import LayeredHints, as_collator_hint, mark_errors
from composer_replication.traces import Source, ToolCall, Trace, Turn

CART = "import os\n\n\ndef total(items):\n    return sum(item.price for item in itms)\n"
RUFF = (
    "Exit code 1\nF821 Undefined name `itms`\n --> shop/cart.py:5:38\n  |\n4 | def total(items):\n"
    "5 |     return sum(item.price for item in itms)\n  |                                       ^^^^\n\nFound 1 error."
)
MYPY = 'Exit code 1\nshop/cart.py:5: error: Name "itms" is not defined  [name-defined]\nFound 1 error in 1 file'
CRASH = (
    'Exit code 1\nTraceback (most recent call last):\n  File "run.py", line 3, in <module>\n    total([])\n'
    '  File "/app/shop/cart.py", line 5, in total\n    return sum(item.price for item in itms)\n'
    "NameError: name 'itms' is not defined"
)
FAILING_TEST = (
    "Exit code 1\n>       return sum(item.price for item in itms)\nE       NameError: name 'itms' is not defined\n\n"
    "shop/cart.py:5: NameError\nFAILED tests/test_cart.py::test_total\n1 failed in 0.1s"
)


class Session:
    """Builds a trace of one call per turn."""

    def __init__(self) -> None:
        self.trace = Trace("t", [], Source("f", "claude_code"))

    def call(self, name: str, arguments: dict[str, Any], result: str = "done", is_error: bool = False) -> int:
        """The index of the turn that makes the call."""
        index = len(self.trace.turns)
        self.trace.turns.append(Turn("assistant", tool_calls=[ToolCall(f"c{index}", name, arguments)]))
        self.trace.turns.append(Turn("tool", result, tool_call_id=f"c{index}", is_error=is_error))
        return index

    def write(self, text: str = CART, path: str = "/app/shop/cart.py") -> int:
        return self.call("Write", {"file_path": path, "content": text})

    def edit(self, old: str, new: str, path: str = "/app/shop/cart.py", **result: Any) -> int:
        return self.call("Edit", {"file_path": path, "old_string": old, "new_string": new}, **result)

    def read(self, text: str, path: str = "/app/shop/cart.py", first: int = 1) -> int:
        numbered = "\n".join(f"{number:6}→{line}" for number, line in enumerate(text.split("\n"), first))
        return self.call("Read", {"file_path": path}, numbered)

    def run(self, command: str = "ruff check", result: str = RUFF) -> Turn:
        """The result of a command that fails."""
        self.call("Bash", {"command": command}, result, is_error=True)
        return self.trace.turns[-1]

    def hints(self) -> dict[int, str | None]:
        mark_errors(self.trace)
        hint = as_collator_hint(LayeredHints())
        return {
            index: hint(turn.tool_error, turn.error_meta)
            for index, turn in enumerate(self.trace.turns)
            if turn.tool_error is not None
        }
