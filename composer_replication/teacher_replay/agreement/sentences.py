"""A text taken apart into what decides whether another says the same: names, negations, causes, words with content."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from composer_replication.teacher_replay.agreement.synonyms import (
    DIRECTIONS,
    LITTLE_WORDS,
    NEGATIONS,
    NUMBERS,
    PHRASES,
    RESTRICTIONS,
    is_word,
    meaning,
)

_MOST_WORDS = 4_000
_FENCE = re.compile(r"```[\w+-]*\n?(.*?)```", re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_HEADING = re.compile(r"^\s*(?:#{1,6}\s.*|\*\*[^*]{1,40}\*\*:?)\s*$", re.MULTILINE)
_COMMIT_KIND = re.compile(
    r"^(?:feat|chore|docs|refactor|test|style|perf|build|ci)(?:\(([\w./-]+)\))?!?:", re.IGNORECASE
)
_LIST_NUMBER = re.compile(r"^\s*\d+[.)]\s+", re.MULTILINE)
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}\b)")
_WITH_UNIT = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)(%|ms|s|sec|min|h|[kmg]i?b|x)(?!\w)", re.IGNORECASE)
_TOKEN = re.compile(r"[^\s`*,;!?()\[\]{}\"“”]+")
_COMPOUND = re.compile(r"(?:\d+|[A-Za-z]+)(?:-[A-Za-z]+)+")
_ANSWER = re.compile(r"^\s*(?:yes|no|ok|okay|sure|great|perfect|done|all done|sorry)[,.!:]\s+", re.IGNORECASE)
# A request, politely put.
_REQUEST = re.compile(
    r"(?:^|[.!?:]\s+)(?:could|can|would|will) you (?!like|want|prefer|rather|tell|say|confirm|explain)[^.!?]*\?\s*$",
    re.IGNORECASE,
)
_ANSWERS = {"yes": "yes", "yep": "yes", "sure": "yes", "no": "no", "nope": "no"}
_FIRST_WORD = re.compile(r"\W*([A-Za-z]+)[,.!:;]")
# What is done, will be done, can be done: said by who does it.
_STANDINGS = {
    "done": re.compile(
        r"\b(?:I|we)(?:'ve| have)?(?: now| just| already| also)* (?:\w+ed|wrote|made|ran|built|found|set|put)\b"
        r"|\b(?:I|we)(?:'ve| have)(?! to\b) \w+|^\s*\w+ed (?:the|a|an|all)\b",
        re.IGNORECASE,
    ),
    "will": re.compile(r"\b(?:I|we)(?:'ll| will| shall|'m going to| am going to|'re going to)\b", re.IGNORECASE),
    "can": re.compile(r"\b(?:I|we) (?:can|could)\b", re.IGNORECASE),
}
_DUTY = re.compile(r"\b(?:must|has to|have to|needs? to|required to)\b", re.IGNORECASE)
_LEAVE = re.compile(r"\b(?:may|might|can|could|optionally)\b", re.IGNORECASE)
# How far behind a negation the word may stand that it denies.
_DENIED_WITHIN = 4
_CAMEL = re.compile(r"[a-z][A-Z]|[A-Z]{2}|^(?:NULL|null|nil)$")
_PHRASES = [(re.compile(phrase, re.IGNORECASE), word) for phrase, word in PHRASES.items()]
# "y because x", "since x, y", "x, so y": where the cause stands.
_CAUSE_BEHIND = re.compile(r"\b(?:because|since|as|due to)\b([^.;!?]*)", re.IGNORECASE)
_CAUSE_FIRST = re.compile(r"(?:^|[.;!?]\s+)(?:because|since|as)\b([^.,;!?]*),", re.IGNORECASE)
_CAUSE_BEFORE = re.compile(
    r"(?:^|[.;!?]\s+)([^.;!?]*?),?\s(?:so|therefore|hence|which is why|that is why)\b", re.IGNORECASE
)


@dataclass(frozen=True)
class Text:
    """What a text consists of.

    `tokens` are its words and names in lower case, `content` the meanings of those that carry content. `names` are
    numbers, paths, options and identifiers. `directions` are names behind "from", "to" and the like, `cause` is the
    content of what it gives as a reason. `denied` are the meanings behind negations, `answer` is the "yes" or "no" it
    begins with, `headings` the content of its headings. `standing` says whether the speaker has done, will do or can do
    it, `duty` whether something must or may be done (None: neither or both). `is_whole` is False if it was too long to
    be read to its end.
    """

    tokens: tuple[str, ...]
    content: tuple[str, ...]
    names: frozenset[str]
    negations: int
    restrictions: frozenset[str]
    asks: bool
    directions: frozenset[tuple[str, str]]
    cause: frozenset[str]
    denied: frozenset[str]
    answer: str
    headings: frozenset[str]
    standing: frozenset[str]
    duty: str | None
    is_whole: bool


@lru_cache(maxsize=512)
def taken_apart(text: str) -> Text:
    """Take a text apart. Markup does not count, headings count apart; what stands in backquotes is a name."""
    asks = text.rstrip().endswith("?") and not _REQUEST.search(text)
    text = text.replace("’", "'")
    headings = " ".join(_HEADING.findall(text))
    standing = frozenset(name for name, pattern in _STANDINGS.items() if pattern.search(text))
    first_word = _FIRST_WORD.match(text)
    answer = _ANSWERS.get(first_word[1].lower(), "") if first_word is not None else ""
    text = _usual_text(text)
    must, may = bool(_DUTY.search(text)), bool(_LEAVE.search(text))
    spans = [*_FENCE.findall(text), *_SPAN.findall(_FENCE.sub(" ", text))]
    quoted = {_usual(token) for span in spans for token in _TOKEN.findall(span)}
    text = _FENCE.sub(r" \1 ", text)
    pairs = list(_tokens(text, quoted))
    tokens = [token for token, _ in pairs]
    names = frozenset(token for token, is_name in pairs if is_name)
    return Text(
        tokens=tuple(tokens),
        content=tuple(_content(pairs)),
        names=names,
        negations=sum(map(is_negation, tokens)),
        restrictions=RESTRICTIONS & set(tokens),
        asks=asks,
        # 30 to 300 is not 300 to 30.
        directions=frozenset((name, word) for word, name in pairwise(tokens) if word in DIRECTIONS and name in names),
        cause=frozenset(_content(list(_tokens(_cause(text), quoted)))),
        denied=frozenset(_denied(pairs)),
        answer=answer,
        headings=frozenset(_content(list(_tokens(headings.replace("#", " "), quoted)))),
        standing=standing,
        duty=None if must == may else "must" if must else "may",
        is_whole=len(_TOKEN.findall(text)) <= _MOST_WORDS,
    )


def _usual_text(text: str) -> str:
    # "No, it is not." says so twice.
    text = _ANSWER.sub("", text)
    text = _COMMIT_KIND.sub(r"\1 ", text)
    text = _LIST_NUMBER.sub("", _HEADING.sub(" ", text))
    text = _WITH_UNIT.sub(r"\1 \2", _THOUSANDS.sub("", text)).replace("%", " percent")
    for phrase, word in _PHRASES:
        text = phrase.sub(word, text)
    return text


def _cause(text: str) -> str:
    for pattern in (_CAUSE_FIRST, _CAUSE_BEHIND, _CAUSE_BEFORE):
        if (found := pattern.search(text)) is not None:
            return found[1]
    return ""


def _tokens(text: str, quoted: set[str]) -> Iterator[tuple[str, bool]]:
    """The words of a text in lower case, and whether each is a name."""
    for place, found in enumerate(_TOKEN.findall(text)[:_MOST_WORDS]):
        whole = _trimmed(found)
        if not any(character.isalnum() for character in whole):
            continue
        is_compound = _COMPOUND.fullmatch(whole) and whole.lower() not in quoted
        for part in whole.split("-") if is_compound else [whole]:
            token = _usual(part)
            # A sentence may begin with "None"; within it, it is a value.
            is_value = place > 0 and part in ("None", "True", "False")
            yield token, token in quoted or is_value or _is_name(part)


def _content(pairs: Sequence[tuple[str, bool]]) -> Iterator[str]:
    for token, is_name in pairs:
        if is_name and not is_word(token):
            yield token
        elif is_name or not is_little(token):
            yield meaning(token)


def _denied(pairs: Sequence[tuple[str, bool]]) -> Iterator[str]:
    """The first word with content behind each negation."""
    for place, (token, _) in enumerate(pairs):
        if is_negation(token):
            yield from list(_content(pairs[place + 1 : place + 1 + _DENIED_WITHIN]))[:1]


def is_negation(token: str) -> bool:
    """Whether a word denies what stands behind it."""
    return token in NEGATIONS or token.endswith("n't")


def is_little(token: str) -> bool:
    """Whether a word carries no content."""
    return token in LITTLE_WORDS or token.endswith("n't") or token.partition("'")[0] in LITTLE_WORDS


def _trimmed(token: str) -> str:
    return token.strip("'<>").rstrip(".:").removesuffix("()")


def _usual(token: str) -> str:
    token = _trimmed(token).lower()
    return NUMBERS.get(token, token)


def _is_name(token: str) -> bool:
    """Numbers, paths, options, identifiers: what must not be exchanged for anything else."""
    return token.lower() in NUMBERS or bool(_CAMEL.search(token)) or not is_word(token)
