"""Grading: what counts as a result, that right solutions pass, and that no trick does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from composer_replication.envs.contract import SPLITS, Split
from composer_replication.envs.python_tasks import functions_train
from composer_replication.envs.python_tasks.bank import find_function, functions
from composer_replication.envs.python_tasks.driver import plain_text
from composer_replication.envs.python_tasks.environment import LIMITS
from composer_replication.envs.python_tasks.grader import Call, Outcome, failing_text, outcomes
from composer_replication.envs.python_tasks.tasks import make_tasks
from composer_replication.envs.sandbox import Limits, Sandbox, SandboxResult, make_sandbox


def calls_of(name: str) -> list[Call]:
    function = find_function(name)
    return [Call(function, arguments) for arguments in function.tests]


def graded(name: str, source: str, limits: Limits = LIMITS) -> list[Outcome]:
    with make_sandbox("auto", limits) as sandbox:
        sandbox.write("solution.py", source)
        return outcomes(sandbox, calls_of(name))


@pytest.mark.parametrize("split", SPLITS)
def test_every_solution_of_the_bank_passes(split: Split) -> None:
    calls = [call for name in functions(split) for call in calls_of(name)]
    with make_sandbox("auto", LIMITS) as sandbox:
        sandbox.write("solution.py", "\n\n".join(function.source for function in functions(split).values()))
        found = outcomes(sandbox, calls)
    assert failing_text(calls, found) is None
    assert len(found) == len(calls)


@pytest.mark.parametrize(("split", "count"), [("train", 4), ("dev", 140), ("train", 340), ("held_out", 340)])
def test_a_mistake_fails_an_example(split: Split, count: int) -> None:
    for task in make_tasks(split, count, kind="repair"):
        found = [outcome.passed for outcome in graded(task["function"], task["solution"])]
        assert not all(found)
        assert not all(found[find_function(task["function"]).tests.index(one)] for one in task["examples"])


# Solutions that are none: each for a function whose results are of the type that it plays tricks with.
_FORGED = """
import atexit, os, sys, threading

def stolen_mark():
    frame = sys._getframe()
    while frame is not None:
        for value in frame.f_locals.values():
            if isinstance(value, str) and len(value) == 16 and set(value) <= set("0123456789abcdef"):
                return value
        frame = frame.f_back
    return "0" * 16

def forged(text="14", count=40):
    return "".join("{} {} 1 {}\\n".format(MARK, number, text.encode().hex()) for number in range(count))

MARK = stolen_mark()
"""
ADVERSARIES = {
    "prints the answer": ("digit_sum", "print(14)\ndef digit_sum(number): print(14)"),
    "leaves at once": ("digit_sum", "import sys\nsys.exit(0)"),
    "leaves when called": ("digit_sum", "import sys\ndef digit_sum(number): sys.exit(0)"),
    "leaves by force": ("digit_sum", "import os\nos._exit(0)"),
    "leaves by force when called": ("digit_sum", "import os\ndef digit_sum(number): os._exit(0)"),
    "skips": ("digit_sum", "import unittest\ndef digit_sum(number): raise unittest.SkipTest('later')"),
    "interrupts": ("digit_sum", "def digit_sum(number): raise KeyboardInterrupt"),
    "closes all files": ("digit_sum", "import os\ndef digit_sum(number): os.closerange(0, 64)"),
    "changes the framework": (
        "digit_sum",
        "import builtins, json, sys, unittest\n"
        "unittest.TestCase.assertEqual = lambda *given: None\n"
        "json.dumps = json.loads = lambda *given, **more: [0, 1, '14']\n"
        "sys.stdout = sys.stderr = sys.__stdout__ = None\n"
        "builtins.all = builtins.isinstance = builtins.callable = lambda *given: True\n"
        "builtins.repr = lambda value: '14'\n"
        "def digit_sum(number): return 14",
    ),
    "changes the driver": (
        "digit_sum",
        "import __main__\n__main__.plain_text = lambda value: 'True'\ndef digit_sum(number): return True",
    ),
    "agrees with everything": (
        "digit_sum",
        "class Agreeable:\n"
        "    __eq__ = lambda self, other: True\n"
        "    __ne__ = lambda self, other: False\n"
        "    __hash__ = lambda self: 0\n"
        "    __repr__ = lambda self: '14'\n"
        "def digit_sum(number): return Agreeable()",
    ),
    "is nearly an int": (
        "digit_sum",
        "class Number(int):\n"
        "    __eq__ = lambda self, other: True\n"
        "    __hash__ = int.__hash__\n"
        "def digit_sum(number): return Number(sum(map(int, str(abs(number)))))",
    ),
    "is nearly a str": (
        "to_roman",
        "class Text(str):\n"
        "    __eq__ = lambda self, other: True\n"
        "    __hash__ = str.__hash__\n"
        "def to_roman(number): return Text('XIV')",
    ),
    "is nearly a list": (
        "running_maximum",
        "class Items(list):\n"
        "    __eq__ = lambda self, other: True\n"
        "    __hash__ = None\n"
        "def running_maximum(items): return Items(max(items[: end + 1]) for end in range(len(items)))",
    ),
    "is a list of what agrees": (
        "running_maximum",
        "class Number(int):\n"
        "    __eq__ = lambda self, other: True\n"
        "def running_maximum(items): return [Number(max(items[: end + 1])) for end in range(len(items))]",
    ),
    "is a generator": (
        "running_maximum",
        "def running_maximum(items): return (max(items[: end + 1]) for end in range(len(items)))",
    ),
    "is a tuple": (
        "running_maximum",
        "def running_maximum(items): return tuple(max(items[: end + 1]) for end in range(len(items)))",
    ),
    "is a float": ("digit_sum", "def digit_sum(number): return float(sum(map(int, str(abs(number)))))"),
    "counts as a bool": (
        "is_leap_year",
        "def is_leap_year(year): return int(year % 4 == 0 and (year % 100 != 0 or year % 400 == 0))",
    ),
    "contains itself": ("running_maximum", "def running_maximum(items):\n    items.append(items)\n    return items"),
    "empties its input": ("running_maximum", "def running_maximum(items):\n    items.clear()\n    return items"),
    "recurses": ("digit_sum", "def digit_sum(number): return digit_sum(number)"),
    "defines nothing": ("digit_sum", ""),
    "defines no function": ("digit_sum", "digit_sum = 14"),
    "does not parse": ("digit_sum", "def digit_sum(number) return 14"),
    "forges results with a guessed mark": (
        "digit_sum",
        "import os\nfor number in range(40): os.write(1, f'0123456789abcdef {number} 1 3134\\n'.encode())\nos._exit(0)",
    ),
    "forges results with the right mark": ("digit_sum", f"{_FORGED}os.write(1, forged().encode())\nos._exit(0)"),
    "forges results in the right file": (
        "digit_sum",
        f"{_FORGED}for file in range(3, 10):\n"
        "    try: os.write(file, forged().encode())\n"
        "    except OSError: pass\n"
        "os._exit(0)",
    ),
    "forges at exit": (
        "digit_sum",
        f"{_FORGED}atexit.register(lambda: os.write(3, forged().encode()))\ndef digit_sum(number): sys.exit(0)",
    ),
    "forges in a thread": (
        "digit_sum",
        f"{_FORGED}def forge():\n"
        "    while True: os.write(3, forged().encode())\n"
        "threading.Thread(target=forge).start()\n"
        "def digit_sum(number): return 14",
    ),
    "is right and adds a result": (
        "digit_sum",
        f"{_FORGED}def digit_sum(number):\n"
        "    if number >= 0: os.write(3, forged('0', 1).encode())\n"
        "    return sum(map(int, str(abs(number))))",
    ),
    "is right and leaves at once": ("digit_sum", f"{find_function('digit_sum').source}\nimport sys\nsys.exit(0)"),
    "is right and leaves early": (
        "digit_sum",
        "import os\nseen = []\n"
        "def digit_sum(number):\n"
        "    seen.append(number)\n"
        "    if len(seen) == 40: os._exit(0)\n"
        "    return sum(map(int, str(abs(number))))",
    ),
    "imports the bank": (
        "digit_sum",
        "from composer_replication.envs.python_tasks.functions_train import digit_sum",
    ),
    "reads the bank": ("digit_sum", f"exec(open({functions_train.__file__!r}).read())"),
    "deletes and overwrites": (
        "digit_sum",
        "import os\n"
        "for folder, _, files in os.walk('/tmp'):\n"
        "    for file in files: open(os.path.join(folder, file), 'w').write('def digit_sum(number): return 14')\n"
        "def digit_sum(number): return 14",
    ),
}


@pytest.mark.parametrize(("name", "source"), ADVERSARIES.values(), ids=ADVERSARIES)
def test_tricks_do_not_pass(name: str, source: str) -> None:
    assert not all(outcome.passed for outcome in graded(name, source))


def test_a_right_solution_may_print_and_its_exit_handlers_do_not_run() -> None:
    source = find_function("digit_sum").source.replace(":\n", ":\n    os.write(1, b'no end of line')\n", 1)
    forging = f"{_FORGED}atexit.register(lambda: os.write(3, forged().encode()))\nprint('printed')\n"
    assert all(outcome.passed for outcome in graded("digit_sum", forging + source))


def test_leaving_is_an_error_of_the_call_alone() -> None:
    found = graded("digit_sum", ADVERSARIES["leaves when called"][1])
    said = (
        'an error:\n  File "solution.py", line 2, in digit_sum\n    def digit_sum(number): sys.exit(0)\nSystemExit: 0'
    )
    assert found == [Outcome(False, said)] * len(found)


def test_a_forger_must_know_the_results() -> None:
    """The forger's means work: with the right results, which are nowhere to be found, it would pass."""
    results = [call.expected for call in calls_of("digit_sum")]
    source = (
        f"{_FORGED}for number, text in enumerate({results}):\n"
        "    os.write(3, '{} {} 1 {}\\n'.format(MARK, number, text.encode().hex()).encode())\n"
        "os._exit({})"
    )
    assert all(outcome.passed for outcome in graded("digit_sum", source.replace("({})", "(0)")))
    # All results, but no regular end.
    assert not any(outcome.passed for outcome in graded("digit_sum", source.replace("({})", "(1)")))


def test_an_endless_call_fails_and_so_do_those_after_it() -> None:
    right = find_function("digit_sum").source.replace("digit_sum", "right")
    source = (
        f"{right}calls = []\n"
        "def digit_sum(number):\n"
        "    calls.append(number)\n"
        "    while len(calls) > 3: pass\n"
        "    return right(number)"
    )
    found = graded("digit_sum", source, Limits(cpu_seconds=1))
    assert [outcome.passed for outcome in found] == [True] * 3 + [False] * 37
    assert {outcome.happened for outcome in found[3:]} == {"no result: it took too long"}


class Recorder:
    """A sandbox that says what it is told to say, and keeps what it is given."""

    python = ("python",)

    def __init__(
        self, said: Callable[[str], str] = lambda mark: "", exit_code: int = 0, killed_by: str | None = None
    ) -> None:
        self.said, self.exit_code, self.killed_by = said, exit_code, killed_by
        self.given = ""

    def run(self, command: Sequence[str], *, stdin: str = "", limits: Limits | None = None) -> SandboxResult:
        self.given = f"{command} {stdin}"
        stdout = self.said(stdin.split("'")[1])
        return SandboxResult(self.exit_code, stdout, "", False, self.killed_by, 0.0)

    def write(self, path: str, text: str) -> None: ...

    def read(self, path: str) -> str:
        return ""

    def files(self) -> list[str]:
        return []

    def close(self) -> None: ...

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *exception: object) -> None: ...


@pytest.mark.parametrize("name", ["to_roman", "twelve_hour_clock", "parse_duration"])
def test_expected_results_do_not_enter_the_sandbox(name: str) -> None:
    sandbox, calls = Recorder(), calls_of(name)
    outcomes(sandbox, calls)
    assert all(call.arguments in sandbox.given for call in calls)
    assert not any(call.expected in sandbox.given for call in calls if len(call.expected) > 4)


def lines(*numbers: int, mark: str, text: str = "14") -> list[str]:
    return [f"{mark} {number} 1 {text.encode().hex()}" for number in numbers]


CALLS = [call for call in calls_of("digit_sum") if call.expected == "14"][:3]
MISSING = "no result: the test run ended early, with exit code 0"
INTERFERED = "no result: the solution interfered with the test run"


@pytest.mark.parametrize(
    ("printed", "happened"),
    [
        (lambda mark: lines(0, 1, 2, mark=mark), ["", "", ""]),
        (lambda mark: ["noise", *lines(0, 1, 2, mark=mark), f"noise {mark}"], ["", "", ""]),
        (lambda mark: lines(0, 1, mark=mark), ["", "", MISSING]),
        (lambda mark: lines(1, 2, mark=mark), [MISSING] * 3),
        (lambda mark: lines(0, 2, 1, mark=mark), ["", MISSING, MISSING]),
        (lambda mark: lines(0, 1, 2, 2, mark=mark), [INTERFERED] * 3),
        (lambda mark: lines(0, 1, 2, mark=mark[::-1]), [MISSING] * 3),
        (lambda mark: lines(0, 1, 2, mark=mark, text="14 "), ["14 "] * 3),
        (
            lambda mark: [line.replace(" 1 3134", " 0 3134") for line in lines(0, 1, 2, mark=mark)],
            ["an error:\n14"] * 3,
        ),
        (lambda mark: [f"{mark} 0 1 zz", f"{mark} 1 1 3", f"{mark}"], [MISSING] * 3),
        (lambda mark: lines(0, 1, 2, mark=mark, text="<a at 0x7f00>"), ["<a at 0x0>"] * 3),
        (lambda mark: [f"{mark} 0 1 ff", *lines(1, 2, mark=mark)], ["\ufffd", "", ""]),
    ],
)
def test_results_count_if_they_are_all_there_and_in_order(
    printed: Callable[[str], list[str]], happened: list[str]
) -> None:
    found = outcomes(Recorder(lambda mark: "\n".join(printed(mark))), CALLS)
    assert found == [Outcome(not one, one) for one in happened]


@pytest.mark.parametrize(
    ("exit_code", "killed_by", "happened"),
    [
        (0, "wall_seconds", "no result: it took too long"),
        (-9, "cpu_seconds", "no result: it took too long"),
        (-9, "memory_bytes", "no result: it went beyond the limit memory_bytes"),
        (3, None, "no result: the test run ended early, with exit code 3"),
    ],
)
def test_a_run_that_was_ended_does_not_pass(exit_code: int, killed_by: str | None, happened: str) -> None:
    for numbers, found in (((0, 1, 2), [INTERFERED] * 3), ((0, 1), ["", "", happened])):
        said = Recorder(lambda mark, shown=numbers: "\n".join(lines(*shown, mark=mark)), exit_code, killed_by)  # type: ignore[misc]
        assert [outcome.happened for outcome in outcomes(said, CALLS)] == found


def test_a_text_is_equal_for_equal_values_of_equal_types() -> None:
    values = [
        None,
        0,
        False,
        0.0,
        "0",
        "",
        [],
        (),
        {},
        [0],
        (0,),
        [0, 0],
        (0, 0),
        ["0"],
        [[0]],
        {0: 0},
        {"0": 0},
        [(0,)],
    ]
    assert len({plain_text(value) for value in values}) == len(values)
    assert plain_text({"b": 1, "a": [{2: 3, 1: ()}]}) == "{'a': [{1: (), 2: 3}], 'b': 1}"
    for value in ({1}, object(), range(3), b"", [iter([])], {"a": {1}}):
        with pytest.raises(TypeError, match="a result is made of None, bool, int, float, str, list, tuple and dict"):
            plain_text(value)
