"""The bank of functions and its mutants: enough of them, apart by split, and tests that tell right from wrong."""

from __future__ import annotations

import ast
from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest

from composer_replication.envs.contract import SPLITS, Split
from composer_replication.envs.python_tasks.bank import Function, find_function, functions
from composer_replication.envs.python_tasks.driver import plain_text
from composer_replication.envs.python_tasks.mutations import guarded_results, mistakes, mutants


def results(solution: Callable[..., Any], tests: tuple[str, ...]) -> list[str]:
    return [plain_text(solution(*ast.literal_eval(arguments))) for arguments in tests]


def defined(source: str, name: str) -> Any:
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    return namespace[name]


def parameter_types(function: Function) -> list[str]:
    return [part.rpartition(": ")[2] for part in function.signature.partition(" -> ")[0].strip(")").split(", ")]


def test_every_split_has_enough_functions_and_shares_none() -> None:
    assert [len(functions(split)) >= least for split, least in zip(SPLITS, (40, 15, 40), strict=True)] == [True] * 3
    names = [name for split in SPLITS for name in functions(split)]
    assert len(set(names)) == len(names)
    assert find_function(names[-1]).name == names[-1]
    with pytest.raises(ValueError, match="function must be one of the bank of Python tasks, got 'no_such'"):
        find_function("no_such")


def test_no_function_does_the_same_as_one_of_another_split() -> None:
    compared = 0
    for one, other in combinations(SPLITS, 2):
        for first in functions(one).values():
            alike = [
                second for second in functions(other).values() if parameter_types(first) == parameter_types(second)
            ]
            for second in alike:
                compared += 1
                found = guarded_results(first.source, first.name, second.tests)
                assert found != results(second.solution, second.tests), (first.name, second.name)
    assert compared > 100


@pytest.mark.parametrize("split", SPLITS)
def test_tests_tell_a_solution_from_what_is_none(split: Split) -> None:
    for function in functions(split).values():
        assert function.specification.startswith(("Return ", "Return, "))
        # Where the parts of an f-string stand differs between versions of Python, and mistakes are put in by place.
        assert not any(isinstance(node, ast.JoinedStr) for node in ast.walk(ast.parse(function.source)))
        assert len(set(function.tests)) == len(function.tests) >= 20
        expected = results(function.solution, function.tests)
        # Whoever knows three examples and answers the same to everything else is wrong several times.
        assert max(map(expected.count, expected)) <= len(expected) - 8, function.name
        assert results(defined(function.source, function.name), function.tests) == expected
        for arguments in function.tests:
            given = ast.literal_eval(arguments)
            function.solution(*given)
            assert repr(given) == arguments  # it leaves its arguments alone


@pytest.mark.parametrize("split", SPLITS)
def test_a_mutant_is_one_edit_and_fails_the_tests_that_it_says(split: Split) -> None:
    gone = 0
    for function in functions(split).values():
        found, right = mutants(function), function.source.split("\n")
        assert len({mutant.source for mutant in found}) == len(found) >= 1
        for mutant in found:
            lines = mutant.source.split("\n")
            gone += len(lines) < len(right)
            if len(lines) == len(right):
                assert sum(one != other for one, other in zip(lines, right, strict=True)) == 1
            wrong = defined(mutant.source, function.name)
            for index in (*mutant.failed[:2], *mutant.failed[-1:]):
                try:
                    said = results(wrong, function.tests[index : index + 1])
                except Exception:  # noqa: BLE001 - whatever the mistake leads to
                    continue
                assert said != results(function.solution, function.tests[index : index + 1])
    assert gone > 0


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("return a < b", ["return a <= b", "return a > b", "a < b"]),
        ("return a not in b", ["return a in b", "a not in b"]),
        (
            "return (a + 1) * (b - a)",
            ["return (a + 1) + (b - a)", "return (a - 1) * (b - a)", "return (a + 2) * (b - a)"],
        ),
        (
            "return (a + 1) * (b - a)",
            ["return (a + 0) * (b - a)", "return (a + 1) * (a - b)", "return (1 + a) * (b - a)"],
        ),
        ("return a and not b", ["return a or not b", "return a and b"]),
        ("return a[-1]", ["return a[-2]", "a[-1]"]),
        ("a //= 10", ["a %= 10", "a //= 11", "a //= 9"]),
        ("return a if b else None", ["return None if b else a"]),
        ("return sorted(a, reverse=True)", ["return sorted(a, reverse=False)"]),
        ("return sorted(max(a))", ["return list(max(a))", "return sorted(min(a))"]),
        ("a.append(b.lower())", ["a.extend(b.lower())", "a.append(b.upper())"]),
        ("for b in range(len(a)): pass", ["for b in range(1, len(a)): pass", "for b in range(len(a) - 1): pass"]),
        ("if a: return b", []),
    ],
)
def test_mistakes_by_template(line: str, wrong: list[str]) -> None:
    head = "def f(a: list[int] | None, b: int) -> int | None:\n    a = a\n    "
    found = list(mistakes(f"{head}{line}\n"))
    assert all(source.startswith(head.rstrip()) for source in found)  # nothing but the line changes
    assert {f"{head}{one}\n" for one in wrong} <= set(found)
    assert (head.rstrip() + "\n" in found) == line.startswith("if")  # a branch that is gone


def test_a_call_without_end_ends() -> None:
    source = "def f(a):\n    while a != 3:\n        a += 1\n    return [1 / a]"
    assert guarded_results(source, "f", ["(3,)", "(2,)", "(4,)", "(3,)"]) == ["[0.3333333333333333]"] * 2
    assert guarded_results("def f(a): return 1 / a", "f", ["(0,)", "(4,)"]) == ["ZeroDivisionError", "0.25"]
