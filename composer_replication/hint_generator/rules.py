"""Ordered rules: kinds of errors and the patterns that show them."""

from __future__ import annotations

import re
from typing import TypeAlias

import re2

from composer_replication.hint_generator.literals import required_literals

Found: TypeAlias = tuple[str, re.Match[str]]
# Many errors are the same short text every time: "File has not been read yet."
_REMEMBERED_LENGTH = 400
_MOST_REMEMBERED = 2000


class Rules:
    """Rules in the order in which they are tried. Each is given as a kind and the patterns that show it.

    One pass over a text tells which patterns can match it at all: those of whose required texts it holds one.
    """

    def __init__(self, flags: re.RegexFlag, *given: tuple[str, ...]) -> None:
        patterns = [(kind, "|".join(alternatives)) for kind, *alternatives in given]
        self._fill(flags, [(kind, re.compile(pattern, flags)) for kind, pattern in patterns])

    def _fill(self, flags: re.RegexFlag, rules: list[tuple[str, re.Pattern[str]]]) -> None:
        self._flags, self._rules = flags, rules
        self._ignores_case = bool(flags & re.IGNORECASE)
        self._remembered: dict[str, Found | None] = {}
        self._always: list[int] = []
        self._rule_of_literal: list[int] = []
        self._literals = re2.Set.SearchSet()
        for number, (_, pattern) in enumerate(rules):
            literals = required_literals(pattern.pattern)
            if not literals:
                self._always.append(number)
            for literal in literals:
                self._literals.Add(re2.escape(literal.lower() if self._ignores_case else literal))
                self._rule_of_literal.append(number)
        self._literals.Compile()

    def __add__(self, other: Rules) -> Rules:
        if self._flags != other._flags:
            raise ValueError("rules with different flags cannot be joined")
        both = Rules.__new__(Rules)
        both._fill(self._flags, self._rules + other._rules)
        return both

    def find(self, text: str) -> Found | None:
        """The first rule that a text satisfies: its kind and its match."""
        if len(text) > _REMEMBERED_LENGTH:
            return self._find(text)
        if text not in self._remembered:
            if len(self._remembered) >= _MOST_REMEMBERED:
                self._remembered.clear()
            self._remembered[text] = self._find(text)
        return self._remembered[text]

    def _find(self, text: str) -> Found | None:
        searched = text.lower() if self._ignores_case else text
        found = self._literals.Match(searched.encode("utf-8", "replace")) or ()
        for number in sorted({*self._always, *(self._rule_of_literal[literal] for literal in found)}):
            kind, pattern = self._rules[number]
            match = pattern.search(text)
            if match is not None:
                return kind, match
        return None
