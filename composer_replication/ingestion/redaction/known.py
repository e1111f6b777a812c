"""Secrets that are known by their value, and where they stand in a text."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

_RUN = re.compile(r"[A-Za-z0-9]+")
_ALPHANUMERIC = re.compile(r"[A-Za-z0-9]")
# Up to this many secrets, looking for each is faster than looking at every word.
_FEW = 32


class Known(NamedTuple):
    """A secret in one of its spellings, and what stands for it. `offset` is where its longest run of letters begins."""

    secret: str
    kind: str
    placeholder: str
    offset: int


class KnownSecrets:
    """Secrets to be found again wherever they stand, but not inside of a longer word.

    A secret's longest run of letters and digits is a whole word of the text, so that looking up the words finds the
    secrets: the time it takes depends on the text, not on how many secrets there are.
    """

    def __init__(self) -> None:
        self.secrets: dict[str, Known] = {}
        self._by_run: dict[str, list[Known]] = {}
        self._without_run: list[Known] = []
        self._shortest = 1 << 30
        self._words = _RUN

    def add(self, secret: str, kind: str, placeholder: str) -> None:
        """Know this one from now on."""
        if secret in self.secrets:
            return
        run = max(_RUN.finditer(secret), key=lambda found: len(found[0]), default=None)
        known = self.secrets[secret] = Known(secret, kind, placeholder, run.start() if run else 0)
        if run is None:
            self._without_run.append(known)
            return
        self._by_run.setdefault(run[0], []).append(known)
        if len(run[0]) < self._shortest:
            self._shortest = len(run[0])
            self._words = re.compile(rf"[A-Za-z0-9]{{{self._shortest},}}")

    def find(self, text: str) -> list[tuple[int, Known]]:
        """Where they are, in order and apart; of two that begin at the same place, the longer one."""
        few = len(self.secrets) <= _FEW
        if few:
            for secret in self.secrets:
                if secret in text:
                    break
            else:
                return []
        tried = self.secrets.values() if few else self._without_run
        places = [(found.start(), known) for known in tried for found in _whole(known.secret).finditer(text)]
        for match in () if few else self._words.finditer(text):
            start, word = match.start(), match[0]
            places += [(start - known.offset, known) for known in self._by_run.get(word, ())]
            if word[0] in "nrt" and text[start - 1 : start] == "\\":  # the letter is the escape's
                places += [(start + 1 - known.offset, known) for known in self._by_run.get(word[1:], ())]
        places = [place for place in places if _stands_at(text, *place)]
        apart: list[tuple[int, Known]] = []
        end = 0
        for start, known in sorted(places, key=lambda place: (place[0], -len(place[1].secret))):
            if start >= end:
                apart.append((start, known))
                end = start + len(known.secret)
        return apart


@lru_cache(256)
def _whole(secret: str) -> re.Pattern[str]:
    # Where a word ends is part of the pattern: a short one is part of many words.
    return re.compile(re.escape(secret) + r"(?![A-Za-z0-9])")


def _stands_at(text: str, start: int, known: Known) -> bool:
    """Whether it is there and no part of a longer word; but an escape before it ends in a letter."""
    if start < 0 or not text.startswith(known.secret, start):
        return False
    if _ALPHANUMERIC.match(text, start + len(known.secret)):
        return False
    before = text[max(0, start - 2) : start]
    return not _ALPHANUMERIC.match(before[-1:]) or before in ("\\n", "\\r", "\\t")
