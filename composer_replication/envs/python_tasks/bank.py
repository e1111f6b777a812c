"""The functions that tasks are about: each with its specification, its solution and inputs to test it with.

The modules `functions_train`, `functions_dev` and `functions_held_out` are the bank: a function that stands in one of
them belongs to that split. Its docstring is the specification, its body the reference solution, and its inputs are
drawn by the types of its parameters or by what `given` says.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from composer_replication.envs.contract import SPLITS, Split
from composer_replication.python_syntax import parse_literal, parse_python

Draw = Callable[[random.Random], Any]
"""Draws a value."""

_Decorated = TypeVar("_Decorated", bound=Callable[..., Any])
_GIVEN: dict[Callable[..., Any], dict[str, Draw]] = {}
_TESTS = 40
_TRIES = 2000
_WORDS = ("a", "an", "to", "be", "Bob", "eel", "Noon", "tree", "level", "apple", "Zebra", "x1", "42", "Mississippi")


@dataclass(frozen=True)
class Function:
    """A function of the bank.

    `body` is the solution without its docstring, as indented lines. `tests` are the arguments of calls, as text.
    """

    name: str
    signature: str
    specification: str
    body: str
    solution: Callable[..., Any]
    tests: tuple[str, ...]

    @property
    def source(self) -> str:
        """The solution without its docstring."""
        return f"def {self.signature}:\n{self.body}\n"

    def expected(self, arguments: str) -> Any:
        """Return the solution's result for arguments as text."""
        return self.solution(*parse_literal(arguments))


def given(**draws: Draw) -> Callable[[_Decorated], _Decorated]:
    """Say how the values of these parameters are drawn."""

    def mark(function: _Decorated) -> _Decorated:
        _GIVEN[function] = draws
        return function

    return mark


def integers(low: int, high: int) -> Draw:
    """Draw from `low` to `high`, both included."""
    return lambda numbers: numbers.randint(low, high)


def choice(*values: Any) -> Draw:
    """Draw one of the values."""
    return lambda numbers: numbers.choice(values)


def lists(of: Draw, shortest: int = 0, longest: int = 7) -> Draw:
    """Draw a list."""
    return lambda numbers: [of(numbers) for _ in range(numbers.randint(shortest, longest))]


def texts(alphabet: str, shortest: int = 0, longest: int = 9) -> Draw:
    """Draw a text of these characters."""
    return lambda numbers: "".join(lists(choice(*alphabet), shortest, longest)(numbers))


def formatted(form: str, *parts: Draw) -> Draw:
    """Draw the parts of a text."""
    return lambda numbers: form.format(*(part(numbers) for part in parts))


def joined(separator: str, of: Draw, shortest: int = 0, longest: int = 5) -> Draw:
    """Draw parts and join them."""
    return lambda numbers: separator.join(map(str, lists(of, shortest, longest)(numbers)))


def either(*draws: Draw) -> Draw:
    """Draw with one of these."""
    return lambda numbers: numbers.choice(draws)(numbers)


def ascending(of: Draw) -> Draw:
    """Draw a list or a pair, and sort it."""
    return lambda numbers: type(drawn := of(numbers))(sorted(drawn))


def pairs(first: Draw, second: Draw) -> Draw:
    """Draw a tuple of two."""
    return lambda numbers: (first(numbers), second(numbers))


def matrices(of: Draw, smallest: int = 1, largest: int = 4, *, square: bool = False) -> Draw:
    """Draw rows of equal lengths."""

    def draw(numbers: random.Random) -> list[list[Any]]:
        height, width = numbers.randint(smallest, largest), numbers.randint(smallest, largest)
        return [[of(numbers) for _ in range(height if square else width)] for _ in range(height)]

    return draw


def mappings(keys: Draw, values: Draw, longest: int = 5) -> Draw:
    """Draw a dict."""
    return lambda numbers: dict(lists(pairs(keys, values), 0, longest)(numbers))


words = choice(*_WORDS)
intervals = either(ascending(pairs(integers(0, 20), integers(0, 20))), choice((0, 3), (3, 4), (5, 9), (9, 9), (12, 14)))
_BY_TYPE: dict[str, Draw] = {
    "int": integers(-9, 30),
    "str": joined(" ", words),
    # Short ranges give ties, longer ones gaps.
    "list[int]": either(lists(integers(-3, 4)), lists(integers(-20, 40))),
    "list[str]": lists(words),
    "list[list[int]]": matrices(integers(-2, 9)),
    "dict[str, int]": mappings(words, integers(-4, 9)),
    "tuple[int, int]": intervals,
    "list[tuple[int, int]]": lists(intervals, 0, 5),
}


@cache
def functions(split: Split) -> dict[str, Function]:
    """Return the functions of a split by name, in the order of its module."""
    module = importlib.import_module(f"{__package__}.functions_{split}")
    source = inspect.getsource(module)
    lines = source.splitlines()
    return {
        node.name: _function(node, lines, getattr(module, node.name))
        for node in parse_python(source).body
        if isinstance(node, ast.FunctionDef)
    }


def find_function(name: str) -> Function:
    """Return the function of that name, of whatever split.

    Raises:
        ValueError: the bank has none.
    """
    for split in SPLITS:
        if name in functions(split):
            return functions(split)[name]
    raise ValueError(f"function must be one of the bank of Python tasks, got {name!r}")


def _function(node: ast.FunctionDef, lines: list[str], solution: Callable[..., Any]) -> Function:
    specification = " ".join((ast.get_docstring(node) or "").split())
    body = "\n".join(lines[node.body[1].lineno - 1 : node.end_lineno])
    signature = lines[node.lineno - 1].removeprefix("def ").removesuffix(":")
    chosen = _GIVEN.get(solution, {})
    draws = [chosen.get(one.arg) or _BY_TYPE[ast.unparse(one.annotation or one)] for one in node.args.args]
    numbers = random.Random(node.name)
    # At most half of the tests have the same result, so that no constant passes for a solution.
    drawn: dict[str, str] = {}
    for _ in range(_TRIES):
        if len(drawn) == _TESTS:
            break
        arguments = tuple(draw(numbers) for draw in draws)
        text, result = repr(arguments), repr(solution(*arguments))
        if list(drawn.values()).count(result) < _TESTS // 2:
            drawn.setdefault(text, result)
    return Function(node.name, signature, specification, body, solution, tuple(drawn))
