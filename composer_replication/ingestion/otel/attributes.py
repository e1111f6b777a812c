"""Attributes as a tree: the same attribute may stand under a dotted key, in nested objects, or in both mixed.

`llm.input_messages.0.message.role`, `{"llm": {"input_messages": [{"message.role": …}]}}` and everything between them
are read alike. Only the keys of a span are split at their dots; values stay as they are, so that the arguments of a
tool keep theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from composer_replication.ingestion.loose_json import text_or_none, whole

Attributes: TypeAlias = dict[str, Any]

OWN_VALUE = "\x00own"
"""The key of a value that stands on a branch: of `gen_ai.prompt`, beside `gen_ai.prompt.0.role`."""

_DEEPEST = 32
_LONGEST_NUMBER = 20


def grow(flat: Mapping[Any, Any]) -> Attributes:
    """A tree of attributes, its keys split at their dots."""
    tree: Attributes = {}
    ours = {id(tree)}  # objects of the file are copied before anything is put into them
    for key, value in flat.items():
        if value is None:
            continue
        *branches, leaf = str(key).split(".", _DEEPEST)
        node = tree
        for branch in branches:
            below = node.get(branch)
            if not isinstance(below, dict):
                below = {} if below is None else {OWN_VALUE: below}
            elif id(below) not in ours:
                below = dict(below)
            ours.add(id(below))
            node[branch] = below
            node = below
        there = node.get(leaf)
        if isinstance(there, dict):
            node[leaf] = {**there, **(value if isinstance(value, dict) else {OWN_VALUE: value})}
            ours.add(id(node[leaf]))
        else:
            node[leaf] = value
    return tree


def look(node: Any, path: str) -> Any:
    """The value at a dotted path, or None. A branch that has a value of its own gives that value."""
    found = _walk(node, path)
    return found.get(OWN_VALUE, found) if isinstance(found, dict) else found


def _walk(node: Any, path: str) -> Any:
    if not isinstance(node, dict):
        return None
    if path in node:
        return node[path]
    end = path.rfind(".")
    while end > 0:
        if path[:end] in node:
            found = _walk(node[path[:end]], path[end + 1 :])
            if found is not None:
                return found
        end = path.rfind(".", 0, end)
    return None


def text_at(node: Any, *paths: str) -> str | None:
    """The first non-empty text at one of the paths."""
    for path in paths:
        value = text_or_none(look(node, path))
        if value is not None:
            return value
    return None


def number_at(node: Any, *paths: str) -> int:
    """The first whole number at one of the paths, or 0."""
    for path in paths:
        value = look(node, path)
        if isinstance(value, str) and value.isdecimal() and len(value) < _LONGEST_NUMBER:
            value = int(value)
        if whole(value):
            return whole(value)
    return 0


def items_at(node: Any, path: str) -> list[Any]:
    """A list: as one, or as branches `0`, `1`, … in their order (some may be missing)."""
    found = _walk(node, path)
    if isinstance(found, list):
        return found
    if isinstance(found, dict):
        numbered = sorted((int(key), value) for key, value in found.items() if key.isascii() and key.isdigit())
        return [value for _, value in numbered]
    return []
