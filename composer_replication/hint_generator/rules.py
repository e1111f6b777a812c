"""Ordered rules: kinds of errors and the patterns that show them."""

from __future__ import annotations

import re
from typing import NamedTuple, TypeAlias

from composer_replication.hint_generator.literals import required_literals

Found: TypeAlias = tuple[str, re.Match[str]]
# Many errors are the same short text every time: "File has not been read yet."
_REMEMBERED_LENGTH = 400
_MOST_REMEMBERED = 2000


class Rule(NamedTuple):
    """A kind, the pattern that shows it, and texts of which a match holds at least one (none: it cannot be told)."""

    kind: str
    pattern: re.Pattern[str]
    literals: tuple[str, ...]


class Rules:
    """Rules in the order in which they are tried. Each is given as a kind and the patterns that show it."""

    def __init__(self, flags: re.RegexFlag, *given: tuple[str, ...]) -> None:
        self._ignores_case = bool(flags & re.IGNORECASE)
        self._rules: list[Rule] = []
        self._remembered: dict[str, Found | None] = {}
        for kind, *patterns in given:
            pattern = "|".join(patterns)
            literals = required_literals(pattern)
            if self._ignores_case:
                literals = tuple(literal.lower() for literal in literals)
            self._rules.append(Rule(kind, re.compile(pattern, flags), literals))

    def __add__(self, other: Rules) -> Rules:
        assert self._ignores_case == other._ignores_case, "rules that fold case and rules that do not"
        both = Rules(re.IGNORECASE if self._ignores_case else re.RegexFlag(0))
        both._rules = self._rules + other._rules
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
        for kind, pattern, literals in self._rules:
            for literal in literals:
                if literal in searched:
                    break
            else:
                if literals:
                    continue
            found = pattern.search(text)
            if found is not None:
                return kind, found
        return None
