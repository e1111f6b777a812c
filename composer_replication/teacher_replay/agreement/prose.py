"""When two texts say the same.

Likeness alone cannot tell: "safe" and "not safe" are very alike. So names, numbers, paths and negations must be the
same on both sides, and a text that is another one but for a word means something else. What is left is compared by the
words that carry content.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from composer_replication._optional import require
from composer_replication.teacher_replay.agreement.comparison import Comparison
from composer_replication.teacher_replay.agreement.wording import (
    DIRECTIONS,
    LITTLE_WORDS,
    NEGATIONS,
    NUMBERS,
    PHRASES,
    RESTRICTIONS,
    are_opposite,
    is_word,
    meaning,
)

# How much of what both say must be common.
_ALIKE_ENOUGH = 0.7
# So many words in a row that only one side has are a statement of their own.
_STATEMENT = 3
# From here on two texts are one sentence with words exchanged, and not two sentences.
_ONE_SENTENCE = 0.6
# From here on two texts consist of the same words.
_SAME_WORDS = 0.85
_MOST_WORDS = 4_000
_LONGEST = 20_000

_FENCE = re.compile(r"```[\w+-]*\n?(.*?)```", re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_HEADING = re.compile(r"^\s*(?:#{1,6}\s.*|\*\*[^*]{1,40}\*\*:?)\s*$", re.MULTILINE)
_TOKEN = re.compile(r"[^\s`*,;!?()\[\]{}\"“”]+")
# A request, politely put.
_REQUEST = re.compile(
    r"(?:^|[.!?:]\s+)(?:could|can|would|will) you (?!like|want|prefer|rather|tell|say|confirm|explain)[^.!?]*\?\s*$",
    re.IGNORECASE,
)
_CAMEL = re.compile(r"[a-z][A-Z]|[A-Z]{2}|^(?:None|True|False|NULL|null|nil)$")


@dataclass(frozen=True)
class _Text:
    """A text taken apart: its tokens in lower case, the meanings of those that carry content, the names among them,
    how often it negates, what it restricts, whether it asks."""

    tokens: tuple[str, ...]
    content: tuple[str, ...]
    names: frozenset[str]
    negations: int
    restrictions: frozenset[str]
    asks: bool
    directions: frozenset[tuple[str, str]]


def likeness(first: str, second: str, *, as_request: bool = False) -> Comparison:
    """Whether two texts say the same, and how alike they are.

    `as_request`: they are prompts or queries, for which "How is it done?" and "Tell me how it is done." are one.
    """
    if first.split() == second.split():
        return Comparison(True, 1.0)
    fuzz = require("rapidfuzz.fuzz", "replay")
    if max(len(first), len(second)) > _LONGEST:
        return Comparison(False, fuzz.ratio(first[:_LONGEST], second[:_LONGEST]) / 100)
    one, other = _text(first), _text(second)
    distance = require("rapidfuzz.distance", "replay")
    alike: float = distance.Indel.normalized_similarity(sorted(one.content), sorted(other.content))
    if not one.content or not other.content:
        # Nothing but little words: "Yes." against "OK, go on." cannot be told apart by them.
        alike = fuzz.ratio(" ".join(one.tokens), " ".join(other.tokens)) / 100
        return Comparison(alike == 1.0 and one.negations == other.negations, alike)
    same = _may_say_the_same(one, other, as_request=as_request) and _is_alike_enough(one, other, alike, as_request)
    return Comparison(same, alike)


def _may_say_the_same(one: _Text, other: _Text, *, as_request: bool) -> bool:
    if one.restrictions != other.restrictions:
        return False
    if one.negations != other.negations or (one.asks != other.asks and not as_request):
        return False
    if not one.names <= set(other.tokens) or not other.names <= set(one.tokens):
        return False
    named_twice = {name for name, _ in one.directions} & {name for name, _ in other.directions}
    if any(name in named_twice for name, _ in one.directions ^ other.directions):
        return False
    mine, theirs = set(map(meaning, one.tokens)), set(map(meaning, other.tokens))
    return not any(are_opposite(a, b) for a in mine - theirs for b in theirs - mine)


def _is_alike_enough(one: _Text, other: _Text, alike: float, as_request: bool) -> bool:
    adds = _adds(one.content, other.content) or _adds(other.content, one.content)
    return alike >= _ALIKE_ENOUGH and not adds and not _exchanges(one, other, as_request)


def _adds(content: Sequence[str], other: Sequence[str]) -> bool:
    """Whether a text says something of its own beside what the other says."""
    known, run = set(other), 0
    for word in content:
        run = 0 if word in known else run + 1
        if run == _STATEMENT:
            return True
    return False


def _exchanges(one: _Text, other: _Text, as_request: bool) -> bool:
    """Whether the texts are one sentence in which words with content are exchanged, for others or for each other.

    The words of a query have no order, so there only an exchange for another word counts.
    """
    distance = require("rapidfuzz.distance", "replay")
    # In one order: where several alignments are as short, which is found depends on it.
    one, other = sorted((one, other), key=lambda text: text.tokens)
    mine, theirs = [meaning(token) for token in one.tokens], [meaning(token) for token in other.tokens]
    if distance.Indel.normalized_similarity(mine, theirs) < _ONE_SENTENCE:
        return False
    has_same_words = distance.Indel.normalized_similarity(sorted(mine), sorted(theirs)) >= _SAME_WORDS
    common = set(one.content) & set(other.content)
    only_mine, only_theirs = set(one.content) - common, set(other.content) - common
    for step in distance.Levenshtein.opcodes(mine, theirs):
        gone, come = set(mine[step.src_start : step.src_end]), set(theirs[step.dest_start : step.dest_end])
        if step.tag != "replace":
            continue
        if only_mine & gone and only_theirs & come:
            return True
        swaps = has_same_words and common & gone and common & come
        if swaps and not as_request and not _is_choice(mine, theirs):
            return True
    return False


def _is_choice(mine: Sequence[str], theirs: Sequence[str]) -> bool:
    """Whether only the two sides of an "or" or "and" have changed places."""
    if sorted(mine) != sorted(theirs):
        return False
    changed = [place for place, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b]
    between = mine[changed[0] + 1 : changed[-1]]
    return len(changed) == 2 and bool(between) and set(between) <= {"or", "and", "the", "a"}


@lru_cache(maxsize=4096)
def _text(text: str) -> _Text:
    asks = text.rstrip().endswith("?") and not _REQUEST.search(text)
    text = _HEADING.sub(" ", text)
    for phrase, word in PHRASES.items():
        text = re.sub(phrase, word, text, flags=re.IGNORECASE)
    spans = [*_FENCE.findall(text), *_SPAN.findall(_FENCE.sub(" ", text))]
    quoted = {_usual(token) for span in spans for token in _TOKEN.findall(span)}
    tokens: list[str] = []
    names: set[str] = set()
    negations = 0
    for found in _TOKEN.findall(_FENCE.sub(r" \1 ", text))[:_MOST_WORDS]:
        whole = _trimmed(found)
        if not any(character.isalnum() for character in whole):
            continue
        is_compound = re.fullmatch(r"[A-Za-z]+(?:-[A-Za-z]+)+", whole) and whole.lower() not in quoted
        for part in whole.split("-") if is_compound else [whole]:
            token = _usual(part)
            negations += token in NEGATIONS or token.endswith("n't")
            tokens.append(token)
            if _is_name(part) or token in quoted:
                names.add(token)
    content = [
        token if token in names and not is_word(token) else meaning(token)
        for token in tokens
        if token in names or not (token in LITTLE_WORDS or token.endswith("n't"))
    ]
    restrictions = RESTRICTIONS & set(tokens)
    directions = _directions(tokens, names)
    return _Text(tuple(tokens), tuple(content), frozenset(names), negations, restrictions, asks, directions)


def _trimmed(token: str) -> str:
    token = token.replace("’", "'").strip("'<>").rstrip(".:")
    return token.removesuffix("()")


def _usual(token: str) -> str:
    token = _trimmed(token).lower()
    return NUMBERS.get(token, token)


def _is_name(token: str) -> bool:
    """Numbers, paths, options, identifiers: what must not be exchanged for anything else."""
    if token.lower() in NUMBERS or _CAMEL.search(token):
        return True
    return not is_word(token)


def _directions(tokens: Sequence[str], names: set[str]) -> frozenset[tuple[str, str]]:
    """Names that stand behind "from", "to" and the like: 30 to 300 is not 300 to 30."""
    return frozenset((name, word) for word, name in pairwise(tokens) if word in DIRECTIONS and name in names)
