"""When two texts say the same.

Likeness alone cannot tell: "safe" and "not safe" are very alike. So names, numbers, paths and negations must be the
same on both sides, and a text that is another one but for a word means something else. What is left is compared by the
words that carry content.
"""

from __future__ import annotations

import re
from collections import Counter
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
    are_opposite,
    is_word,
    meaning,
)

# One side says more than the other: what both say must outweigh it. Each says something of its own: much more so.
_ALIKE_ENOUGH = 0.6
_ALIKE_ENOUGH_DIFFERING = 0.75
# From here on two texts are one sentence with words exchanged, and not two sentences.
_ONE_SENTENCE = 0.6
_MOST_WORDS = 4_000
_LONGEST = 20_000

_FENCE = re.compile(r"```[\w+-]*\n?(.*?)```", re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_HEADING = re.compile(r"^\s*(?:#{1,6}\s.*|\*\*[^*]{1,40}\*\*:?)\s*$", re.MULTILINE)
_TOKEN = re.compile(r"[^\s`*,;!?()\[\]{}\"“”]+")
_CLAUSE_END = re.compile(r"[.,;:!?]$")
_CAMEL = re.compile(r"[a-z][A-Z]|[A-Z]{2}|^(?:None|True|False|NULL|null|nil)$")


@dataclass(frozen=True)
class _Text:
    """A text taken apart: its tokens in lower case, the meanings of those that carry content, the names among them,
    how often it negates, whether it asks."""

    tokens: tuple[str, ...]
    content: tuple[str, ...]
    names: frozenset[str]
    negations: int
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
    same = _may_say_the_same(one, other, as_request=as_request) and _is_alike_enough(one, other, alike)
    return Comparison(same, alike)


def _may_say_the_same(one: _Text, other: _Text, *, as_request: bool) -> bool:
    if one.negations != other.negations or (one.asks != other.asks and not as_request):
        return False
    if not one.names <= set(other.tokens) or not other.names <= set(one.tokens):
        return False
    turned = {(name, direction) for name, direction in one.directions ^ other.directions}
    named_twice = {name for name, _ in one.directions} & {name for name, _ in other.directions}
    if any(name in named_twice for name, _ in turned):
        return False
    return not _swaps(one.content, other.content)


def _swaps(first: Sequence[str], second: Sequence[str]) -> bool:
    """Whether "a does b" became "b does a"."""
    threes = set(zip(first, first[1:], first[2:], strict=False))
    others = set(zip(second, second[1:], second[2:], strict=False))
    return any((c, b, a) in others and (c, b, a) not in threes and a != c for a, b, c in threes)


def _is_alike_enough(one: _Text, other: _Text, alike: float) -> bool:
    mine, theirs = Counter(one.content), Counter(other.content)
    only_mine, only_theirs = set(mine) - set(theirs), set(theirs) - set(mine)
    if not only_mine or not only_theirs:
        return alike >= _ALIKE_ENOUGH
    if any(are_opposite(a, b) for a in only_mine for b in only_theirs):
        return False
    return alike >= _ALIKE_ENOUGH_DIFFERING and not _exchanges(one, other, only_mine, only_theirs)


def _exchanges(one: _Text, other: _Text, only_mine: set[str], only_theirs: set[str]) -> bool:
    """Whether the texts are one sentence in which a word with content is exchanged."""
    distance = require("rapidfuzz.distance", "replay")
    mine, theirs = [meaning(token) for token in one.tokens], [meaning(token) for token in other.tokens]
    if distance.Indel.normalized_similarity(mine, theirs) < _ONE_SENTENCE:
        return False
    for step in distance.Levenshtein.opcodes(mine, theirs):
        gone, come = mine[step.src_start : step.src_end], theirs[step.dest_start : step.dest_end]
        if step.tag == "replace" and only_mine & set(gone) and only_theirs & set(come):
            return True
    return False


@lru_cache(maxsize=4096)
def _text(text: str) -> _Text:
    asks = text.rstrip().endswith("?")
    text = _HEADING.sub(" ", text)
    spans = [*_FENCE.findall(text), *_SPAN.findall(_FENCE.sub(" ", text))]
    quoted = {_usual(token) for span in spans for token in _TOKEN.findall(span)}
    tokens: list[str] = []
    names: set[str] = set()
    negations = 0
    for found in _TOKEN.findall(_FENCE.sub(r" \1 ", text))[:_MOST_WORDS]:
        whole = _trimmed(found)
        if not whole:
            continue
        for part in whole.split("-") if re.fullmatch(r"[A-Za-z]+(?:-[A-Za-z]+)+", whole) else [whole]:
            token = _usual(part)
            negations += token in NEGATIONS or token.endswith("n't")
            tokens.append(token)
            if _is_name(part) or token in quoted:
                names.add(token)
    content = [
        token if token in names and not is_word(token) else meaning(token)
        for token in tokens
        if token in names or token not in LITTLE_WORDS
    ]
    return _Text(tuple(tokens), tuple(content), frozenset(names), negations, asks, _directions(tokens, names))


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
    return not is_word(token) and any(character.isalnum() for character in token) and not token.endswith(("'t", "'ve"))


def _directions(tokens: Sequence[str], names: set[str]) -> frozenset[tuple[str, str]]:
    """Names that stand behind "from", "to" and the like: 30 to 300 is not 300 to 30."""
    return frozenset((name, word) for word, name in pairwise(tokens) if word in DIRECTIONS and name in names)
