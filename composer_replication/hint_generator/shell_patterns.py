"""Patterns that zsh found no file for: a question about files that was answered, or text meant for the program."""

from __future__ import annotations

import re
from collections.abc import Sequence

# The name of a route or of an extra in brackets, a query: no pattern at all.
_LITERAL = re.compile(r"\[(?:\.{3})?[A-Za-z]\w+\]|\?[\w.-]+=|://")
_TAKING_PATTERNS = frozenset(["git", "gh", "curl", "wget"])
_SEARCHING = frozenset(["grep", "egrep", "fgrep", "rg", "ag", "git-grep"])


def meant_for_the_program(pattern: str, parts: Sequence[list[str]]) -> bool:
    """Whether a program of the command line takes the pattern itself, so that it has to be quoted."""
    if pattern.startswith("-") or _LITERAL.search(pattern) is not None:
        return True
    for program, *words in parts:
        if pattern not in words:
            continue
        before = words[: words.index(pattern)]
        if program == "find":
            return any(word.startswith("-") for word in before)
        if program in _SEARCHING:
            # What is searched for, or which files are searched: `-g *.py`.
            return all(word.startswith("-") for word in before) or before[-1].startswith("-")
        return program in _TAKING_PATTERNS
    return False
