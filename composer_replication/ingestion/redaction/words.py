"""Names that people give to things, told from characters drawn at random."""

from __future__ import annotations

import re

_BREAK = re.compile(r"[-_./:@]")
_LETTERS = re.compile(r"[A-Za-z]+")
# How names are put together: `dbPassword`, `getHTTPToken`. What is drawn at random is seldom made of syllables.
_HUMP = re.compile(r"[A-Z]{2,8}(?![a-z])|[A-Z]?[a-z]+|[A-Z]")
_SYLLABLE = re.compile(
    r"(?i)(?=.{2})[a-z]*[aeiouy]|[eix]\Z|[a-z]?db|cfg|cmd|ctx|dst|http|jwt|mgr|msg|pwd|sql|src|ssh|str|tls|tmp"
)
# `v2`, `2fa`, `k8s`, `32B`, `20240115`, `ed25519`
_SHORT_OR_NUMBER = re.compile(r"[A-Za-z0-9]{0,4}|\d{8}|[A-Za-z]+\d{5}")
# `oauth2callback`, `TestOAuth2Callback_V2`, `2024q3`: numbers are short, and most of the letters stand together.
_WITH_NUMBERS = re.compile(r"\d{0,4}[A-Za-z]+(?:\d{1,3}[A-Za-z]+){0,3}\d{0,4}")
_WORD = re.compile(r"[A-Za-z][a-z]{2,}")
_VOWEL = re.compile(r"[aeiou]")
_UUID = re.compile(r"(?i)[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")


def is_identifier(value: str) -> bool:
    """Whether the text is words, maybe with numbers: `db-password-2`, `tests/e2e/.env`, `TestOAuth2Callback_V2`."""
    value = value.lstrip("$@")
    pieces = _BREAK.split(value)
    if len(pieces) == 1:
        return _is_word(value, alone=True) and _has_words(value)
    if not all(_SHORT_OR_NUMBER.fullmatch(piece) or _is_word(piece) for piece in pieces):
        return False
    return _has_words(value) and _UUID.fullmatch(value) is None


def _has_words(value: str) -> bool:
    """Some of an identifier is words. In a short one they may be abbreviations."""
    words = sum(len(word) for word in _WORD.findall(value) if len(value) < 20 or _VOWEL.search(word))
    return words >= 0.4 * len(value) or value.isupper() or (len(value) < 20 and words >= 3)


def is_words_and_number(value: str) -> bool:
    """`db-password-2`: several words. `hunter2` is one."""
    return _BREAK.search(value) is not None and is_identifier(value)


def mixes_case(value: str) -> bool:
    """Letters in a mix of cases that no name has. In one case, or as a name, letters may be just words."""
    return any(len(word) >= 4 and not is_name(word) for word in _LETTERS.findall(value))


def is_name(word: str) -> bool:
    """`password`, `Password`, `PASSWORD`, `dbPassword`, `getHTTPToken`, `RpcGroupManagementToken`."""
    if word[1:].islower() or word.isupper():
        return True
    humps = _HUMP.findall(word)
    acronyms = sum(map(str.isupper, humps))
    odd = sum(not hump.isupper() and _SYLLABLE.match(hump) is None for hump in humps)
    if acronyms <= 1 and not odd:
        return True
    return len(word) >= max(12, 5 * len(humps)) and 2 * (acronyms + odd) <= len(humps)


def _is_word(piece: str, *, alone: bool = False) -> bool:
    if _WITH_NUMBERS.fullmatch(piece) is None:
        return not piece
    letters = _LETTERS.findall(piece)
    if not all(map(is_name, letters)):
        return False
    if not alone:
        return sum(len(word) < 3 for word in letters) <= 1
    # `abc12defghij` and `12abcdef` are as good a secret as a name.
    one_case = piece.islower() or piece.isupper()
    return piece[0].isalpha() and (len(letters) == 1 or (not one_case and all(len(word) >= 3 for word in letters)))
