"""Preference pairs over tool calls, made up, in the shape of what coding agents do.

Modelled on public sessions of Claude Code, Codex, SWE-agent, OpenHands and plain function calling (450 actions with
calls): the mix of tools, how often a turn says something before it calls, how often the very same call comes again at
another state (one in seven), and the lengths of actions (half below 220 characters, one in twenty above 1,900). Among
10,000 calls there are also those that 450 do not show: files of 40 kB, tables of numbers, deeply indented markup.
Two sets of one seed are equal.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

from composer_replication.histories import assistant_message
from composer_replication.traces import dump_json, parse_action

_STATES_PER_SESSION = 40
_FOLDERS = ("src", "src/api", "src/core", "tests", "tests/unit", "web/components", "scripts", "internal/store")
_NAMES = (
    "account",
    "session",
    "invoice",
    "parser",
    "router",
    "worker",
    "cache",
    "export",
    "report",
    "token",
    "policy",
    "payment",
    "upload",
    "search",
    "index",
)
_ENDINGS = ("py", "py", "py", "ts", "tsx", "go")
_VERBS = ("load", "save", "check", "merge", "render", "parse", "find", "update", "close", "open")
_PROSE = (
    "Let me look at the code first.",
    "The test still fails, so the change was not enough. I check what is really returned.",
    "Now the callers have to follow.",
    "I'll run the tests to see where we are.",
    "This looks right. One more place has the same mistake.",
    "Before I change anything I read how it is used elsewhere.",
    "Good. Next I update the documentation, then I commit.",
)
_EVERYDAY = (
    "pytest -q",
    "git status",
    "git diff",
    "ls -la",
    "git log --oneline -5",
    "npm test 2>&1 | tail -20",
    "ruff check .",
    "make test",
)


def tool_call_pairs(count: int, seed: int) -> list[dict[str, Any]]:
    """`count` pairs. The states of a session share their messages; no pair stands twice."""
    return list(itertools.islice(_pairs(random.Random(seed)), count))


def stuck_pairs(count: int, seed: int) -> tuple[list[dict[str, Any]], list[bool]]:
    """`count` pairs of sessions in which the student gets stuck, and of each whether it only repeats the one before.

    A call that fails is made again, up to six times over, with or without words, and fails as it did, while the
    teachers say the same each time: all but the first after a failure are repeats. The others look much the same and
    are none: each try has another result, as of a job that is polled; the call is made again after another step, or
    after the user said something; the teachers change their minds; or the same two actions meet in another session.
    """
    made = list(itertools.islice(_stuck(random.Random(seed)), count))
    return [pair for pair, _ in made], [repeats for _, repeats in made]


class _StuckSession:
    def __init__(self, dice: random.Random, number: int) -> None:
        self._dice, self._number, self._states, self._results = dice, number, itertools.count(), itertools.count()
        self._messages: list[dict[str, Any]] = []
        self.user_says()

    def pair(self, chosen: str, rejected: str) -> dict[str, Any]:
        return {
            "state_id": f"stuck-{self._number:04d}::{next(self._states):04d}",
            "state_messages": self._messages[:],
            "chosen": chosen,
            "rejected": rejected,
            "n_teachers_agreeing": 2,
        }

    def does(self, action: str, result: str = "") -> None:
        result = result or f"Exit code 1: {self._dice.choice(_NAMES)} {next(self._results)}"
        self._messages.append(assistant_message(parse_action(action)))
        self._messages.append({"role": "tool", "tool_call_id": "call_0", "content": result})

    def user_says(self) -> None:
        said = f"Session {self._number}: {self._dice.choice(_PROSE)}"
        self._messages.append({"role": "user", "content": said})


def _stuck(dice: random.Random) -> Iterator[tuple[dict[str, Any], bool]]:
    everyday = [_written(_everyday(dice)) for _ in range(4)]
    for number in itertools.count():
        session = _StuckSession(dice, number)
        for _ in range(_STATES_PER_SESSION // 5):
            wrong, right = (_written(_command(dice)) for _ in range(2))
            if dice.random() < 0.3:
                right = dice.choice(everyday)
            result = "" if dice.random() < 0.2 else f"Exit code 1: {dice.choice(_NAMES)}"
            for repeat in range(dice.randint(1, 7)):
                said, advised = (dice.choice(("", "", f"{dice.choice(_PROSE)}\n")) for _ in range(2))
                yield session.pair(advised + right, said + wrong), repeat > 1 and bool(result)
                session.does(said + wrong, result)
            session.does(_written(_read(dice)))
            yield session.pair(right, wrong), False
            session.does(wrong)
            session.user_says()
            yield session.pair(right, wrong), False
            session.does(wrong)
            yield session.pair(_written(_edit(dice)), wrong), False
            session.does(_written(_edit(dice)))


def _pairs(dice: random.Random) -> Iterator[dict[str, Any]]:
    for session in itertools.count():
        messages: list[dict[str, Any]] = [{"role": "user", "content": f"Task {session}: {dice.choice(_PROSE)}"}]
        for number in range(_STATES_PER_SESSION):
            chosen, rejected = _action(dice), _action(dice)
            while rejected == chosen:
                rejected = _action(dice)
            yield {
                "state_id": f"session-{session:04d}::{number:04d}",
                "state_messages": messages[:],
                "chosen": chosen,
                "rejected": rejected,
                "n_teachers_agreeing": dice.choice((2, 3)),
            }
            messages.append({"role": "assistant", "content": rejected})
            messages.append({"role": "user", "content": f"step {number}: {dice.choice(_PROSE)}"})


def _action(dice: random.Random) -> str:
    if dice.random() < 0.06:
        return " ".join(dice.choice(_PROSE) for _ in range(dice.randint(1, 12)))
    makers, weights = zip(*_TOOLS, strict=True)
    (make,) = dice.choices(makers, weights)
    call = _written(make(dice))
    prose = " ".join(dice.choice(_PROSE) for _ in range(dice.choice((0, 0, 0, 1, 1, 2, 3))))
    return f"{prose}\n{call}".lstrip()


Call = tuple[str, dict[str, Any]]


def _written(call: Call) -> str:
    name, arguments = call
    return f"[TOOL_USE] name={name} input={dump_json(arguments)}"


def _path(dice: random.Random) -> str:
    return f"{dice.choice(_FOLDERS)}/{dice.choice(_NAMES)}_{dice.choice(_NAMES)}.{dice.choice(_ENDINGS)}"


def _everyday(dice: random.Random) -> Call:
    return "Bash", {"command": dice.choice(_EVERYDAY)}


def _command(dice: random.Random) -> Call:
    start = dice.randint(1, 900)
    command = dice.choice(
        (
            f"sed -n '{start},{start + 40}p' {_path(dice)}",
            f"grep -rn '{dice.choice(_VERBS)}_{dice.choice(_NAMES)}' {dice.choice(_FOLDERS)}/ | head -{start % 50 + 1}",
            f"pytest {_path(dice)} -x -q --tb=short 2>&1 | tail -{start % 40 + 5}",
            f"find . -name '*.{dice.choice(_ENDINGS)}' -newer {_path(dice)} -not -path './node_modules/*'",
            f"cat {_path(dice)} | head -{start}",
            f"cp -{dice.choice('rR')} {_path(dice)} /tmp/{start}",
            f"awk -F: '$2>{start} && !/^#/ {{print $1\":\"$3}}' {_path(dice)} | sort -t: -k2,2n | uniq -c",
            f"git commit -am 'Fix {dice.choice(_NAMES)} {dice.choice(_VERBS)}'",
            "python3 - <<'EOF'\n" + _code(dice, dice.randint(2, 12), 0) + "EOF",
        )
    )
    given = {"command": command}
    if dice.random() < 0.5:
        given["description"] = f"{dice.choice(_VERBS).capitalize()} the {dice.choice(_NAMES)} {dice.choice(_NAMES)}"
    return "Bash", given


def _read(dice: random.Random) -> Call:
    given: dict[str, Any] = {"file_path": f"/repo/app/{_path(dice)}"}
    if dice.random() < 0.4:
        given |= {"offset": dice.randint(1, 40) * 50, "limit": dice.choice((50, 100, 200))}
    return "Read", given


def _grep(dice: random.Random) -> Call:
    pattern = dice.choice((r"def {}\(", "class {}", r"\b{}_id\b", "{}", r"import.*{}|from.*{}")).replace(
        "{}", dice.choice(_NAMES)
    )
    return "Grep", {"pattern": pattern, "path": dice.choice(_FOLDERS), "output_mode": "content", "-n": True}


def _glob(dice: random.Random) -> Call:
    return "Glob", {"pattern": f"**/{dice.choice(('*', 'test_*', dice.choice(_NAMES) + '*'))}.{dice.choice(_ENDINGS)}"}


def _edit(dice: random.Random) -> Call:
    depth = dice.choice((0, 1, 1, 2, 3, 5))
    old, new = (_code(dice, dice.randint(1, 14), depth) for _ in range(2))
    return "Edit", {"file_path": f"/repo/app/{_path(dice)}", "old_string": old, "new_string": new}


def _write(dice: random.Random) -> Call:
    lines = int(dice.lognormvariate(4.2, 0.9))
    return "Write", {"file_path": f"/repo/app/{_path(dice)}", "content": _code(dice, lines, 0)}


def _write_table(dice: random.Random) -> Call:
    rows = "\n".join(
        f"{number},{dice.randint(0, 9999)},{dice.uniform(0, 1):.6f},2026-0{dice.randint(1, 9)}-1{dice.randint(0, 9)}"
        for number in range(dice.randint(5, 60))
    )
    return "Write", {"file_path": f"/repo/app/tests/data/{dice.choice(_NAMES)}.csv", "content": f"a,b,c,d\n{rows}\n"}


def _write_whole_file(dice: random.Random) -> Call:
    return "Write", {"file_path": f"/repo/app/{_path(dice)}", "content": _code(dice, dice.randint(900, 1300), 0)}


def _edit_markup(dice: random.Random) -> Call:
    indent = "  " * dice.randint(8, 16)
    lines = [f"{indent}<{dice.choice('abpi')}>{{{dice.choice('xyz')}[{number}]}}</i>" for number in range(9)]
    old = "\n".join(lines[:4])
    return "Edit", {"file_path": f"/repo/app/{_path(dice)}", "old_string": old, "new_string": "\n".join(lines)}


def _todo(dice: random.Random) -> Call:
    todos = [
        {
            "content": f"{dice.choice(_VERBS).capitalize()} the {dice.choice(_NAMES)} {dice.choice(_NAMES)}",
            "status": dice.choice(("pending", "in_progress", "completed")),
            "id": str(number),
        }
        for number in range(dice.randint(2, 9))
    ]
    return "TodoWrite", {"todos": todos}


def _function(dice: random.Random) -> Call:
    name = f"{dice.choice(_VERBS)}_{dice.choice(_NAMES)}"
    return name, {"id": dice.randint(1, 99_999), dice.choice(_NAMES): dice.choice((True, False, "on", "off", 12.5))}


def _code(dice: random.Random, lines: int, depth: int) -> str:
    indent = "    " * depth
    made = []
    for _ in range(lines):
        name, verb, other = dice.choice(_NAMES), dice.choice(_VERBS), dice.choice(_NAMES)
        made.append(
            dice.choice(
                (
                    f"{indent}def {verb}_{name}(self, {other}: str, limit: int = {dice.randint(1, 99)}) -> None:",
                    f"{indent}    {name} = self._{other}.{verb}({name}_id, retries={dice.randint(1, 9)})",
                    f"{indent}    if {name} is None or {other}['{name}'] != {dice.randint(0, 999)}:",
                    f'{indent}        raise ValueError(f"{name} {{{other}!r}} cannot be {verb}d")',
                    f"{indent}    return [{other} for {other} in {name}s if {other}.{verb}(0)]",
                    f"{indent}    # {dice.choice(_PROSE)}",
                    "",
                )
            )
        )
    return "\n".join(made) + "\n"


_TOOLS: tuple[tuple[Callable[[random.Random], Call], float], ...] = (
    (_everyday, 14),
    (_command, 20),
    (_read, 17),
    (_grep, 12),
    (_glob, 4),
    (_edit, 16),
    (_write, 3),
    (_todo, 6),
    (_function, 10),
    (_edit_markup, 0.6),
    (_write_table, 0.3),
    (_write_whole_file, 0.1),
)
