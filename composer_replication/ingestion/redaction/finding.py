"""Findings and rules of redaction, the difference between names and secrets, and secrets known by their value."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple


class Finding(NamedTuple):
    """A place to be replaced.

    `by_context` says that only the surroundings reveal the secret (`DB_PASSWORD=…`). Elsewhere in the trace it appears
    without them and has to be found by its value.
    """

    start: int
    end: int
    kind: str
    by_context: bool = False


class Rule(NamedTuple):
    """A way to find one kind of secret.

    `gate` is in RE2's syntax and matches in every text in which `find` finds something; it may match in more. One
    automaton runs all gates in one pass over a text, so that `find` runs only where there is a reason to.
    """

    gate: str
    find: Callable[[str], Iterator[Finding]]


# Text that stands for a secret without being one: documentation, masks (an ellipsis also as the bytes that rules see),
# variables, placeholders of our own.
_STANDS_FOR_A_SECRET = re.compile(
    r"""(?ix)
    ^0x[0-9a-f]+[ul]*$ | ^\\[uUx] | ^0123456789 | ^[\[{(<]
    | ^[$@&] (?=[\w({<*$\[]) | ^[%*] [({<*$\[] | ^%[\w.]+%$ | ^%[-+.\d]*[a-z]\d?$
    | (?-i: ^\*(?:[a-z_]+|[A-Z_]+|[a-z]+(?:[A-Z][a-z]+)+)\d?$)
    | ^[.*x_-]+$ | [$#]\{ | \$\( | \{\{ | \{[a-z_][\w.]*[\[(!:}] | %\( | <[\w .-]+> | \*{3}
    | \.{3} | … | \xe2\x80\xa6 | x{4} | example | place.?holder | change.?me | redacted | dummy | sample
    | \b(?:your|my|some|the|insert|replace|put)[-_. ]
    | your[-_]?(?:api|key|token|secret|password) | (?:key|token|secret|password)[-_]?here
    | ^(?:process|os|env|environ|secrets|vars|config|settings|self|this|import|data|var|local|params|props|args|module)
        [.\[(]
    | ^(?:id|type|src|env)= | env(?:iron)?[.(\[] | getenv
    | ^(?:arn|op|vault|ref\+?\w*|file|ssm|sops|enc|https?|ssh|urn|data|keychain):
    | ^(?:none|null|nil|true|false|undefined|string|str|bytes|int|any|unknown|required|optional|default)\b
    """
)
_COMMON_PASSWORD = re.compile(
    r"(?i)(?:test|testing|pass|password|passwd|pwd|pw|secret|admin|user|username|root|guest|demo|foo|bar|token|key"
    r"|postgres|mysql|redis|mongo|rabbitmq|minio|minioadmin|changeit|default|local|dev|value|abc|qwerty)"
    r"[-_]?(?:\d{0,3}|1234|12345|123456)[!@#$]{0,3}"
    r"|(?:test|my|fake|mock|dummy|db|app|user|super|new|old|wrong|api|access|secure|strong|valid|weak)[-_]?"
    r"(?:pass|password|secret|token|key)[-_]?\d{0,4}[!@#$]{0,3}"
    r"|p[a@]ss(?:w[o0]rd)?\d{0,4}[!@#$]{0,3}|(?:0?123456789?0?|12345|123|1234)"
)


def stands_for_a_secret(value: str) -> bool:
    """Whether the text is a placeholder, a variable or a well-known default rather than a secret."""
    return (
        _STANDS_FOR_A_SECRET.search(value) is not None
        or _COMMON_PASSWORD.fullmatch(value) is not None
        or len(set(value)) < 4
    )


_BREAK = re.compile(r"[-_./:@]")
_LETTERS = re.compile(r"[A-Za-z]+")
# How names are put together: `dbPassword`, `getHTTPToken`. What is drawn at random is seldom made of syllables.
_HUMP = re.compile(r"[A-Z]{2,8}(?![a-z])|[A-Z]?[a-z]+|[A-Z]")
_SYLLABLE = re.compile(
    r"(?i)(?=.{2})[a-z]*[aeiouy]|[eix]\Z|[a-z]?db|cfg|cmd|ctx|dst|http|jwt|mgr|msg|pwd|sql|src|ssh|str|tls|tmp"
)
# `v2`, `2fa`, `k8s`, `32B`, `20240115`, `ed25519`
_SHORT_OR_NUMBER = re.compile(r"[A-Za-z0-9]{0,4}|\d{8}|[A-Za-z]+\d{5}")
# `oauth2callback`, `TestOAuth2Callback_V2`, `2024q3`: numbers are short, and most of the letters are adjacent.
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


_RUN = re.compile(r"[A-Za-z0-9]+")
_ALPHANUMERIC = re.compile(r"[A-Za-z0-9]")
# Up to this many secrets, looking for each is faster than looking at every word.
_FEW = 32


class Known(NamedTuple):
    """A secret in one of its spellings, and its placeholder. `offset` is where its longest run of letters begins."""

    secret: str
    kind: str
    placeholder: str
    offset: int


class KnownSecrets:
    """Secrets to be found everywhere, but not inside a longer word.

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
        """Return the places of known secrets, in order, without overlap. Of two at one place, the longer one."""
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
