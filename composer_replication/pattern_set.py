"""Searches texts for many patterns: one pass finds the few that can match, and only those are tried.

Each pattern has a gate: a pattern in RE2's syntax that matches in every text in which the pattern itself does, and
maybe in more. RE2 runs all gates at once, in time linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from typing import Any, TypeAlias

import re2

# RE2 keeps the states of its automaton in this much memory, and starts over when they do not fit.
_AUTOMATON_BYTES = 64 << 20
_SHORTEST_LITERAL = 3
_SPECIAL = frozenset("^$.*+?()[]{}|\\")
_GROUP = re.compile(r"\((?:\?:|\?P<\w+>|(?!\?))")
# Many texts are the same short one every time: "File has not been read yet."
_REMEMBERED_LENGTH = 400
_MOST_REMEMBERED = 2000

Found: TypeAlias = tuple[str, re.Match[str]]


class Gates:
    """Gates that are tried in one pass.

    Args:
        gates: in RE2's syntax; `^` and `$` need `(?m)` to stand for the ends of lines.
        bytewise: read a text as bytes, of which no pattern is more than one (Latin-1), instead of as UTF-8.
    """

    def __init__(self, gates: Iterable[str], *, bytewise: bool = False) -> None:
        options = re2.Options()
        options.never_capture = True
        options.max_mem = _AUTOMATON_BYTES
        if bytewise:
            options.encoding = re2.Options.Encoding.LATIN1
        self._set: Any = re2.Set.SearchSet(options)
        for gate in gates:
            self._set.Add(gate.encode("latin-1" if bytewise else "utf-8"))
        self._set.Compile()

    def matching(self, text: bytes) -> list[int]:
        """The numbers of the gates that match in a text, given as UTF-8, in their order."""
        found = self._set.Match(text)
        return sorted(found) if found else []


class FirstMatch:
    """Labelled patterns in the order in which they are tried; a pattern is compiled when it is first tried."""

    def __init__(self, flags: re.RegexFlag, labelled: Iterable[tuple[str, str]]) -> None:
        self._flags = flags
        self._patterns = list(labelled)
        self._compiled: dict[int, re.Pattern[str]] = {}
        self._ignores_case = bool(flags & re.IGNORECASE)
        self._remembered: dict[str, Found | None] = {}

    def find(self, text: str) -> Found | None:
        """The first pattern that a text satisfies: its label and its match."""
        if len(text) > _REMEMBERED_LENGTH:
            return self._find(text)
        if text not in self._remembered:
            if len(self._remembered) >= _MOST_REMEMBERED:
                self._remembered.clear()
            self._remembered[text] = self._find(text)
        return self._remembered[text]

    def _find(self, text: str) -> Found | None:
        searched = text.lower() if self._ignores_case else text
        for number in self._gates.matching(searched.encode("utf-8", "replace")):
            label, pattern = self._patterns[number]
            if number not in self._compiled:
                self._compiled[number] = re.compile(pattern, self._flags)
            match = self._compiled[number].search(text)
            if match is not None:
                return label, match
        return None

    @cached_property
    def _gates(self) -> Gates:
        needed = (required_literals(pattern) for _, pattern in self._patterns)
        lower = str.lower if self._ignores_case else str
        # Without a required text, the empty gate, which matches everywhere.
        return Gates("|".join(re2.escape(lower(literal)) for literal in literals) for literals in needed)


def wider_gate(pattern: re.Pattern[str]) -> str:
    """A gate that is the pattern itself, made wider where RE2 needs it.

    Lookarounds go, and so do character classes at the beginning: a counted one can begin at every character of a long
    word, and the automaton would have to keep count of them all. RE2 counts up to a thousand.
    """
    gate = re.sub(r"\(\?<?!(?:[^()\[\]]|\[[^\]]*\])*\)", "", pattern.pattern)
    gate = re.sub(r"^(?:(?:\[[^\]]*\]|\\d)(?:\{[^}]*\})?)+", "", gate)
    gate = re.sub(r"\{(\d+),\d{4,}\}", r"{\1,}", gate)
    return f"(?i:{gate})" if pattern.flags & re.IGNORECASE else gate


def required_literals(pattern: str) -> tuple[str, ...]:
    """Fixed texts of which every match of the pattern holds at least one; empty if that cannot be told.

    Classes and look-arounds are passed over: less may be found than is there, but nothing wrong.
    """
    found: list[str] = []
    for alternative in _alternatives(pattern):
        best = max(_requirements(alternative), key=_weight, default=())
        if _weight(best) < _SHORTEST_LITERAL:
            return ()
        found += best
    return tuple(dict.fromkeys(found))


def _weight(literals: tuple[str, ...]) -> int:
    """Return the selectivity of a set of texts: the length of its shortest."""
    return min(map(len, literals), default=0)


def _requirements(elements: list[str]) -> list[tuple[str, ...]]:
    """Return the requirements of an alternative: its runs of plain characters and those of its groups."""
    needed: list[tuple[str, ...]] = []
    run = ""
    for element, following in zip(elements, [*elements[1:], ""], strict=True):
        optional = following in ("?", "*") or following.startswith("{")
        letter = _plain(element)
        if letter is not None and not optional:
            run += letter
            continue
        needed.append((run,))
        run = ""
        if not optional and (group := _GROUP.match(element)):
            needed.append(required_literals(element[group.end() : -1]))
    return [*needed, (run,)]


def _plain(element: str) -> str | None:
    if element[0] == "\\":
        return None if element[1].isalnum() else element[1]
    return element if len(element) == 1 and element not in _SPECIAL else None


def _alternatives(pattern: str) -> list[list[str]]:
    """The alternatives of a pattern, each as its elements: single characters, escapes, whole groups and classes."""
    alternatives: list[list[str]] = [[]]
    position = 0
    while position < len(pattern):
        end = _element_end(pattern, position)
        element = pattern[position:end]
        if element == "|":
            alternatives.append([])
        else:
            alternatives[-1].append(element)
        position = end
    return alternatives


def _element_end(pattern: str, start: int) -> int:
    letter = pattern[start]
    if letter == "\\":
        return start + 2
    if letter == "[":
        end = start + 1 + pattern.startswith("^", start + 1)
        end += pattern.startswith("]", end)
        while pattern[end] != "]":
            end += 2 if pattern[end] == "\\" else 1
        return end + 1
    if letter == "(":
        end = start + 1
        while pattern[end] != ")":
            end = _element_end(pattern, end)
        return end + 1
    if letter == "{":
        return pattern.index("}", start) + 1
    return start + 1
