"""What a command prints of its own outcome: an exit code, a number of errors, a word for a failure.

`make; echo "exit: $?"`, `cargo build | grep -c error`, `make && echo ok || echo FAILED`.
"""

from __future__ import annotations

import re

from composer_replication.hint_generator.shell_steps import Step, runs, steps

_WORDS = ("$?", "PIPESTATUS", "pipestatus", "|| echo")
_STATUS = r"\$\?|\$\{?(?:PIPESTATUS|pipestatus)\[\d\]\}?"
_SAVED_STATUS = re.compile(rf"\b(?P<name>\w+)=\"?(?:{_STATUS})")
# An exit code of 1 is their answer "no".
_ASKING = re.compile(r"(?:[efzp]?grep|rg|ag|diff|git diff|cmp|test|which|type|p?kill|nc|ping)\b|\[|-v")
# A server that `timeout` ends has not failed, nor has what the command itself ends.
_ENDED = frozenset(["124", "137", "143"])
_ENDING = re.compile(
    r"\bkill|\btimeout\b.*\b(?:start|dev|serve\w*|runserver|up|watch|preview|uvicorn|tail -f|listen)\b"
)

_NUMBER = re.compile(r"\s*[1-9]\d*\s*\Z")
_BAD = r"[^|;\n]*(?:error|fail|FAIL)[^|;\n]*"
_COUNTED = re.compile(
    r"\b(?:tsc|mypy|eslint|cargo|go|gcc|make|pytest|npm|npx|pnpm|yarn|ruff)\b.*"
    rf"\bgrep\s+(?:-\w+\s+)*(?:-\w*c\w*\s{_BAD}|{_BAD}\|\s*wc -l\s*)\Z"
    r"|\b(?:tsc|go vet|go build)\b[^|;\n]*\|\s*wc -l\s*\Z",
    re.DOTALL,
)
_VERDICT = re.compile(r"\|\|\s+echo\s+['\"]?([^'\"$;|&\n]*(?:[Ff]ail|FAIL|[Ee]rror|ERROR|[❌✗✘])[^'\"$;|&\n]*)")


def may_tell(text: str, command: str) -> bool:
    """A first look, at no cost: whether the command can print a verdict at all."""
    return any(word in command for word in _WORDS) or (len(text) < 20 and _NUMBER.match(text) is not None)


def tells_failure(text: str, command: str, lost: list[Step]) -> bool:
    """Whether the output has a verdict of the command's own, and it is a failure.

    `lost` are the steps whose exit codes the log does not have.
    """
    if _NUMBER.match(text) is not None and _COUNTED.search(command) is not None:
        return True
    lines = {line.strip() for line in text.splitlines()}
    # What a filter or a question did not find is no failure.
    checked = [step for step in lost if step.words[0] != "echo"][-1:]
    if checked and runs(checked[0]) and any(said.strip() in lines for said in _VERDICT.findall(command)):
        return True
    return _printed_status(text, command)


def _printed_status(text: str, command: str) -> bool:
    saved = {found["name"]: found.start() for found in _SAVED_STATUS.finditer(command)}
    status = "|".join([_STATUS, *(rf"\${name}\b|\$\{{{name}\}}" for name in saved)])
    echo = re.compile(rf"\b(?:echo|printf)[ \t]+(?:-\w+ )?['\"]?(?P<before>[^'\"$\n;|&]*)(?P<status>{status})")
    for found in echo.finditer(command):
        before = re.escape(found["before"].strip())
        # Without a word before it, it is told from other numbers by its place alone.
        printed = re.findall(rf"^\W*{before}\s*(\d+)\b" if before else r"^(\d+)\s*\Z", text, re.MULTILINE)
        asked = steps(command[: saved.get(found["status"].strip("${}"), found.start())])
        while len(asked) > 1 and asked[-1].operator == "|" and "[" in found["status"]:
            asked.pop()
        harmless = {"0"} | ({"1"} if asked and _ASKING.match(" ".join(asked[-1].words)) else set())
        harmless |= _ENDED if _ENDING.search(command) else set()
        if not harmless.issuperset(printed):
            return True
    return False
