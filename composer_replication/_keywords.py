"""Keyword arguments that are passed on: a misspelt one is refused with the nearest name."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from typing import Any


def check_keywords(owner: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise a `TypeError` for the first keyword that `owner` does not take."""
    names = list(known)
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            advice = f": did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"{owner} has no argument {name!r}{advice}")


def keywords_of(*callables: Callable[..., Any]) -> list[str]:
    """The names of the arguments that these take by keyword."""
    named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [
        name
        for one in callables
        for name, parameter in inspect.signature(one).parameters.items()
        if parameter.kind in named and name != "self"
    ]
