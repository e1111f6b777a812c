"""The texts that a pattern cannot match without, so that most patterns need not be tried at all.

A failed result is compared with about a hundred patterns of which at most a few can match, and one pass can look for
all fixed texts at once.
"""

from __future__ import annotations

import re

_SHORTEST = 3
_SPECIAL = frozenset("^$.*+?()[]{}|\\")
_GROUP = re.compile(r"\((?:\?:|\?P<\w+>|(?!\?))")


def required_literals(pattern: str) -> tuple[str, ...]:
    """Fixed texts of which every match of the pattern holds at least one; empty if that cannot be told.

    Classes and look-arounds are passed over: less may be found than is there, but nothing wrong.
    """
    found: list[str] = []
    for alternative in _alternatives(pattern):
        best = max(_requirements(alternative), key=_weight, default=())
        if _weight(best) < _SHORTEST:
            return ()
        found += best
    return tuple(dict.fromkeys(found))


def _weight(literals: tuple[str, ...]) -> int:
    """How much a set of texts tells: as much as its shortest."""
    return min(map(len, literals), default=0)


def _requirements(elements: list[str]) -> list[tuple[str, ...]]:
    """What an alternative needs: its runs of plain characters, and what its groups need, each by itself enough."""
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
