"""The failing call itself, taken out of the hint about it: a teacher that is shown the wrong attempt leans toward it.

Errors quote calls: a validator prints the arguments, a shell the command, a linter the line. What is taken out stands
there word for word; a name or a path alone stays, because a hint must say what it is about.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from composer_replication.coding_tools import command_of
from composer_replication.traces import ToolCall, dump_json

_MARK = "…"
_SHORTEST_LINE = 8
_SHORTEST_END = 20


class Attempt:
    """The texts of a turn's calls: arguments as JSON and as Python writes them, commands, and lines of arguments that
    have several words. White space may differ, and an attempt at the end of a text may be cut. Without calls, every
    text stays as it is."""

    def __init__(self, calls: Iterable[ToolCall] = ()) -> None:
        texts = {_flat(text) for call in calls for text in _texts(call)} - {""}
        self._texts = sorted(texts, key=lambda text: (-len(text), text))

    def removed_from(self, text: str) -> str:
        """Return a text without the attempt; empty if no word is left."""
        left, flat = text, _flat(text)
        for attempt in self._texts:
            if attempt in flat:
                pattern = r"\s+".join(map(re.escape, attempt.split(" ")))
                left = re.sub(rf"(?<!\w){pattern}(?!\w)", _MARK, left)
                flat = _flat(left)
            place = _cut_end(flat, attempt)
            if place >= 0:
                left = _without_last(left, len(flat[place:].replace(" ", ""))) + _MARK
                flat = _flat(left)
        return left if left == text or re.search(r"\w", left) else ""

    def removed_from_meta(self, meta: Mapping[str, Any]) -> dict[str, Any]:
        """Return an `error_meta` whose message is without the attempt."""
        message = meta.get("error_message")
        return {**meta, "error_message": self.removed_from(message)} if isinstance(message, str) else dict(meta)


def _flat(text: str) -> str:
    return " ".join(text.split())


def _cut_end(flat: str, attempt: str) -> int:
    """Where the end of a text begins that is the beginning of an attempt (errors are kept up to a length); -1: nowhere.

    What is too short to tell does not count.
    """
    text, begin = flat.rstrip(f"{_MARK} "), attempt[:_SHORTEST_END]
    # A file's lines are many attempts, so nothing here is longer than an attempt.
    place = text.find(begin, max(0, len(text) - len(attempt))) if len(begin) == _SHORTEST_END else -1
    while place >= 0 and not attempt.startswith(text[place:]):
        place = text.find(begin, place + 1)
    return place


def _without_last(text: str, characters: int) -> str:
    """Remove the last so many characters that are not white space, and all that stands between and after them."""
    places = (place for place in range(len(text) - 1, -1, -1) if not text[place].isspace())
    return text[: next(islice(places, characters - 1, None))]


def _texts(call: ToolCall) -> Iterator[str]:
    if call.raw_arguments is not None:
        yield call.raw_arguments
    if call.arguments:
        yield from (dump_json(call.arguments), json.dumps(call.arguments), str(call.arguments))
        yield json.dumps(call.arguments, ensure_ascii=False, separators=(",", ":"))
    command = command_of(call.arguments)
    if command is not None and len(command.split()) > 1:
        yield command
    for text in _strings(call.arguments):
        yield from (part for part in (text, *text.splitlines()) if _is_telling(part.strip()))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(one)


def _is_telling(line: str) -> bool:
    return len(line) >= _SHORTEST_LINE and len(line.split()) > 1
