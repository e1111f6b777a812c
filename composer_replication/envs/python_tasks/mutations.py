"""Puts small mistakes into a solution: one edit of its text, by templates on its syntax tree."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from types import CodeType
from typing import Any, NamedTuple

from composer_replication.envs.python_tasks.bank import Function
from composer_replication.envs.python_tasks.driver import plain_text
from composer_replication.python_syntax import parse_python

_MOST_MUTANTS = 10
_MOST_STEPS = 5000
# Each sign with those that are mistaken for it.
_SIGNS: dict[type[ast.AST], tuple[str, ...]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.FloorDiv: ("//", "%"),
    ast.Mod: ("%", "//"),
    ast.Lt: ("<", "<=", ">"),
    ast.LtE: ("<=", "<", ">="),
    ast.Gt: (">", ">=", "<"),
    ast.GtE: (">=", ">", "<="),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
}
_NAMES = {"max": "min", "min": "max", "sorted": "list", "reversed": "list", "abs": "int"}
_ATTRIBUTES = {"lower": "upper", "upper": "lower", "append": "extend", "isalnum": "isalpha", "rstrip": "lstrip"}


class Mutant(NamedTuple):
    """A solution with a mistake, and the indices of the tests that it fails, of which there is at least one."""

    source: str
    failed: tuple[int, ...]


@cache
def mutants(function: Function) -> tuple[Mutant, ...]:
    """Return mutants of a function: each of them ends on all tests and fails some."""
    sources = list(dict.fromkeys(mistakes(function.source)))
    random.Random(function.name).shuffle(sources)
    found: list[Mutant] = []
    expected = [plain_text(function.expected(arguments)) for arguments in function.tests]
    for source in sources:
        if len(found) == _MOST_MUTANTS:
            break
        results = guarded_results(source, function.name, function.tests)
        failed = tuple(index for index, result in enumerate(results) if result != expected[index])
        if failed and len(results) == len(expected):
            found.append(Mutant(source, failed))
    return tuple(found)


def mistakes(source: str) -> Iterator[str]:
    """Yield the source with one mistake each."""
    statements = parse_python(source).body[0].body  # type: ignore[attr-defined]
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def span(node: Any) -> tuple[int, int]:
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset

    # Not in the annotations.
    for node in (node for statement in statements for node in ast.walk(statement)):
        for start, stop, text in _edits(node, source, span):
            changed = source[:start] + text + source[stop:]
            try:
                compile(changed, "solution.py", "exec", dont_inherit=True)
            except SyntaxError:
                continue
            yield changed


def _edits(node: ast.AST, source: str, span: Callable[[Any], tuple[int, int]]) -> Iterator[tuple[int, int, str]]:
    """Yield the mistakes that can be made at a node: what is replaced, from where to where, and by what."""

    def signs(kind: ast.AST, left: ast.AST, right: ast.AST) -> Iterator[tuple[int, int, str]]:
        between = span(left)[1], span(right)[0]
        sign, *others = _SIGNS.get(type(kind), ("",))
        for other in others:
            yield (*between, source[slice(*between)].replace(sign, other, 1))

    def swapped(left: ast.AST, right: ast.AST) -> tuple[int, int, str]:
        (start, left_end), (right_start, stop) = span(left), span(right)
        return start, stop, source[right_start:stop] + source[left_end:right_start] + source[start:left_end]

    match node:
        case ast.Constant(value=bool(value)):
            yield (*span(node), str(not value))
        case ast.Constant(value=int(value)):
            yield (*span(node), str(value + 1))
            # Not "-0".
            if value > 0 and source[span(node)[0] - 1] != "-":
                yield (*span(node), str(value - 1))
        case ast.Compare(left=left, ops=[kind], comparators=[right]):
            yield from signs(kind, left, right)
        case ast.BinOp(left=left, op=kind, right=right):
            yield from signs(kind, left, right)
            yield swapped(left, right)
        case ast.BoolOp(op=kind, values=[left, right, *_]):
            yield from signs(kind, left, right)
        case ast.AugAssign(target=left, op=kind, value=right):
            yield from signs(kind, left, right)
        case ast.IfExp(body=body, orelse=other):
            yield swapped(body, other)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield (*span(node), source[slice(*span(operand))])
        case ast.Call(func=ast.Name(id=name) as called, keywords=[]) if name in _NAMES:
            yield (*span(called), _NAMES[name])
        case ast.Attribute(attr=name) if name in _ATTRIBUTES:
            stop = span(node)[1]
            yield stop - len(name), stop, _ATTRIBUTES[name]
        case ast.Call(func=ast.Name(id="range"), args=[stop_value]):
            start, stop = span(stop_value)
            yield start, start, "1, "
            yield stop, stop, " - 1"
        case ast.If(orelse=[]):
            # The branch goes, with its line ends.
            start, stop = span(node)
            yield source.rfind("\n", 0, start), stop, ""
        case ast.Return(value=ast.AST() as result) if span(node)[1] == len(source.rstrip()):
            yield span(node)[0], span(result)[0], ""


@cache
def _compiled(arguments: str) -> CodeType:
    return compile(arguments, "", "eval")


def guarded_results(source: str, name: str, tests: Sequence[str]) -> list[str]:
    """Call a function of ours with arguments as text. Returns the results as text; an exception is its name.

    The list ends before a call that goes around in loops without end.
    """
    tree = parse_python(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.For, ast.While)):
            node.body.insert(0, ast.Expr(ast.Call(ast.Name("_step", ast.Load()), [], [])))
    left = 0

    def step() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise TimeoutError

    namespace: dict[str, Any] = {"_step": step}
    exec(compile(ast.fix_missing_locations(tree), "solution.py", "exec", dont_inherit=True), namespace)
    results: list[str] = []
    for arguments in tests:
        left = _MOST_STEPS
        try:
            results.append(plain_text(namespace[name](*eval(_compiled(arguments)))))  # noqa: S307 - the bank's
        except TimeoutError:
            break
        except Exception as error:  # noqa: BLE001 - a mistake may raise anything
            results.append(type(error).__name__)
    return results
