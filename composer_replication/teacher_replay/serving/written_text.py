"""The text of a generation, token by token: whole characters, up to the first stop text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from composer_replication.teacher_replay.serving.tool_call_text import without_beginning

# What stands for bytes that are no character, or not yet one.
_BROKEN = "\ufffd"


class WrittenText:
    """What a model has written so far.

    `text` grows by whole characters and ends before a stop text; `is_stopped` says that there was one. Tokens are
    decoded a few at a time, with some before them: what a token looks like depends on the one before it, not on all.
    """

    def __init__(self, decode: Callable[[list[int]], str], stops: Sequence[str] = ()) -> None:
        self._decode, self._stops = decode, stops
        self._overlap = max(map(len, stops), default=1) - 1
        self._ids: list[int] = []
        self._shown = 0  # how many of these are in the text
        self.text = ""
        self.is_stopped = False

    def add(self, token: int) -> None:
        """Take the next token."""
        self._ids.append(token)
        self._grow(at_end=False)

    def end(self) -> None:
        """No token comes any more: bytes that are no character are shown as such."""
        self._grow(at_end=True)

    def certain(self) -> str:
        """The text without what may be the beginning of a stop text."""
        return self.text if self.is_stopped else without_beginning(self.text, self._stops)

    def _grow(self, *, at_end: bool) -> None:
        before, now = self._decode(self._ids[: self._shown]), self._decode(self._ids)
        if self.is_stopped or len(now) <= len(before) or (now.endswith(_BROKEN) and not at_end):
            return
        start = max(0, len(self.text) - self._overlap)
        self.text += now[len(before) :]
        del self._ids[: self._shown]
        self._shown = len(self._ids)
        places = [place for stop in self._stops if (place := self.text.find(stop, start)) >= 0]
        if places:
            self.text, self.is_stopped = self.text[: min(places)], True
