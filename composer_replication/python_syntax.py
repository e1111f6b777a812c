"""Python source and literals as syntax trees, made by one thread at a time.

CPython before 3.12 counts the depth of a tree under construction for all threads together. Two at once may raise
"AST constructor recursion depth mismatch", a SystemError that no caller expects.
"""

from __future__ import annotations

import ast
import threading
from typing import Any

_ONE_AT_A_TIME = threading.RLock()  # a garbage collection in the middle may run anything


def parse_python(source: str) -> ast.Module:
    """Return the tree of Python source. Raises as `ast.parse`."""
    with _ONE_AT_A_TIME:
        return ast.parse(source)


def parse_literal(text: str) -> Any:
    """Return the value of a Python literal. Raises as `ast.literal_eval`."""
    with _ONE_AT_A_TIME:
        return ast.literal_eval(text)
