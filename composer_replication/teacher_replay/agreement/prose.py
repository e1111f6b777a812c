"""Whether two texts say the same.

Likeness alone cannot tell: "safe" and "not safe" are very alike. So names, numbers, paths and negations must be the
same on both sides, and a text that is another one but for a word means something else. What is left is compared by the
words that carry content.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from composer_replication._optional import require
from composer_replication.teacher_replay.agreement.comparison import Comparison
from composer_replication.teacher_replay.agreement.synonyms import (
    DIRECTIONS,
    LITTLE_WORDS,
    NEGATIONS,
    NUMBERS,
    PHRASES,
    RESTRICTIONS,
    are_opposite,
    function_words,
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
# How far after a negation the word may stand that it denies.
_DENIED_WITHIN = 4
_CAMEL = re.compile(r"[a-z][A-Z]|[A-Z]{2}|^(?:NULL|null|nil)$")
_PHRASES = [(re.compile(phrase, re.IGNORECASE), word) for phrase, word in PHRASES.items()]
# "y because x", "since x, y", "x, so y": where the cause stands.
_CAUSE_AFTER = re.compile(r"\b(?:because|since|as|due to)\b([^.;!?]*)", re.IGNORECASE)
_CAUSE_FIRST = re.compile(r"(?:^|[.;!?]\s+)(?:because|since|as)\b([^.,;!?]*),", re.IGNORECASE)
_CAUSE_BEFORE = re.compile(
    r"(?:^|[.;!?]\s+)([^.;!?]*?),?\s(?:so|therefore|hence|which is why|that is why)\b", re.IGNORECASE
)
# How much of what both say must be common. In a short text every word weighs; if no name holds two texts together and
# each has words of its own, these may be the point.
_ALIKE_ENOUGH = 0.65
_ALIKE_ENOUGH_IF_SHORT = 0.75
_ALIKE_ENOUGH_WITHOUT_NAMES = 0.8
_ALIKE_ENOUGH_ASIDE = 0.5
_FEW_WORDS = 4
# So many words in a row that only one side has are a statement of their own.
_STATEMENT = 3
# From here on two texts are one sentence with words exchanged, and not two sentences.
_ONE_SENTENCE = 0.6
_LONGEST = 20_000


@dataclass(frozen=True)
class Text:
    """The parts of a text that are compared.

    `tokens` are its words and names in lower case, `content` the meanings of those that carry content. `names` are
    numbers, paths, options and identifiers. `directions` are names after "from", "to" and the like, `cause` is the
    content of what it gives as a reason. `denied` are the meanings after negations, `answer` is the "yes" or "no" it
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
    for pattern in (_CAUSE_FIRST, _CAUSE_AFTER, _CAUSE_BEFORE):
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
    """The first word with content after each negation."""
    for place, (token, _) in enumerate(pairs):
        if is_negation(token):
            yield from list(_content(pairs[place + 1 : place + 1 + _DENIED_WITHIN]))[:1]


def is_negation(token: str) -> bool:
    """Whether a word denies what comes after it."""
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


def likeness(
    first: str, second: str, *, as_request: bool = False, is_query: bool = False, is_aside: bool = False
) -> Comparison:
    """Whether two texts say the same, and how alike they are.

    `as_request`: they are prompts, for which "How is it done?" and "Tell me how it is done." are one. `is_query`: they
    are queries, whose words have no order. `is_aside`: they are comments of the same code, which says most of it.
    """
    if first.split() == second.split():
        return Comparison(True, 1.0)
    fuzz = require("rapidfuzz.fuzz", "replay")
    if max(len(first), len(second)) > _LONGEST:
        return Comparison(False, fuzz.ratio(first[:_LONGEST], second[:_LONGEST]) / 100)
    one, other = taken_apart(first), taken_apart(second)
    if not one.is_whole or not other.is_whole:
        # What comes after the limit was not looked at.
        return Comparison(False, fuzz.ratio(first, second) / 100)
    if not one.content or not other.content:
        # Nothing but little words: "Yes." against "OK, go on." cannot be told apart by them.
        alike: float = fuzz.ratio(" ".join(one.tokens), " ".join(other.tokens)) / 100
        return Comparison(one.tokens == other.tokens and one.asks == other.asks, alike)
    distance = require("rapidfuzz.distance", "replay")
    alike = distance.Indel.normalized_similarity(sorted(one.content), sorted(other.content))
    if is_aside:
        return Comparison(_may_say_the_same(one, other) and alike >= _ALIKE_ENOUGH_ASIDE, alike)
    same = (
        (as_request or is_query or one.asks == other.asks)
        and _may_say_the_same(one, other)
        and _is_alike_enough(one, other, alike)
        and not _exchanges(one, other, is_query=is_query)
        and not _stand_in(one.content, other.content)
        and (is_query or not _names_swapped(one, other))
    )
    return Comparison(same, alike)


def _may_say_the_same(one: Text, other: Text) -> bool:
    """Whether nothing that must be the same differs."""
    if one.negations != other.negations or one.restrictions != other.restrictions:
        return False
    if _takes_another_stand(one, other):
        return False
    if not one.names <= set(other.tokens) or not other.names <= set(one.tokens):
        return False
    named_twice = {name for name, _ in one.directions} & {name for name, _ in other.directions}
    if any(name in named_twice for name, _ in one.directions ^ other.directions):
        return False
    if one.cause and other.cause and 2 * len(one.cause & other.cause) < min(len(one.cause), len(other.cause)):
        return False
    mine, theirs = set(map(meaning, one.tokens)), set(map(meaning, other.tokens))
    return not any(are_opposite(a, b) for a in mine - theirs for b in theirs - mine)


def _takes_another_stand(one: Text, other: Text) -> bool:
    """Whether they answer, judge or deny something else, or one has done what the other only could or will do."""
    if one.answer and other.answer and one.answer != other.answer:
        return True
    if one.headings and other.headings and not one.headings & other.headings:
        return True
    if any(are_opposite(a, b) for a in one.headings - other.headings for b in other.headings - one.headings):
        return True
    # "Not flaky, but safe" denies as often as "flaky, but not safe".
    if (one.denied - other.denied) & set(other.content) and (other.denied - one.denied) & set(one.content):
        return True
    if one.asks or other.asks:
        return False
    if one.standing and other.standing and not one.standing & other.standing:
        return True
    return one.duty is not None and other.duty is not None and one.duty != other.duty


def _is_alike_enough(one: Text, other: Text, alike: float) -> bool:
    mine, theirs = set(one.content), set(other.content)
    enough = _ALIKE_ENOUGH
    if min(len(one.content), len(other.content)) < _FEW_WORDS:
        enough = _ALIKE_ENOUGH_IF_SHORT
    if not one.names and mine - theirs and theirs - mine:
        enough = _ALIKE_ENOUGH_WITHOUT_NAMES
    return alike >= enough and not _adds(one.content, theirs) and not _adds(other.content, mine)


def _adds(content: Sequence[str], known: set[str]) -> bool:
    """Whether a text says something of its own beside what the other says."""
    run = 0
    for word in content:
        run = 0 if word in known else run + 1
        if run == _STATEMENT:
            return True
    return False


def _stand_in(content: Sequence[str], other: Sequence[str]) -> bool:
    """Whether a word stands where the other text has another one: between the same two words."""
    common = set(content) & set(other)

    def places(words: Sequence[str]) -> set[tuple[str, str]]:
        threes = zip(words, words[1:], words[2:], strict=False)
        return {(a, c) for a, b, c in threes if a in common and c in common and b not in common}

    return bool(places(content) & places(other))


def _exchanges(one: Text, other: Text, *, is_query: bool) -> bool:
    """Whether the texts are one sentence in which words are exchanged, for others or for each other."""
    distance = require("rapidfuzz.distance", "replay")
    # In one order: where several alignments are as short, which is found depends on it.
    one, other = sorted((one, other), key=lambda text: text.tokens)
    mine, theirs = [meaning(token) for token in one.tokens], [meaning(token) for token in other.tokens]
    if distance.Indel.normalized_similarity(mine, theirs) < _ONE_SENTENCE:
        return False
    little = function_words()
    only_mine, only_theirs = set(mine) - set(theirs) - little, set(theirs) - set(mine) - little
    moved: set[tuple[str, str]] = set()
    for step in distance.Levenshtein.opcodes(mine, theirs):
        if step.tag != "replace":
            continue
        gone, come = mine[step.src_start : step.src_end], theirs[step.dest_start : step.dest_end]
        if only_mine & set(gone) and only_theirs & set(come):
            return True
        moved |= {(a, b) for a in gone for b in come if a not in little and b not in little}
    swaps = any((b, a) in moved for a, b in moved)
    return swaps and not is_query and not _is_choice(mine, theirs)


def _names_swapped(one: Text, other: Text) -> bool:
    """Whether the same words say it of other names: "`a` needs `b`" and "`b` needs `a`"."""
    if one.tokens == other.tokens or sorted(one.tokens) != sorted(other.tokens):
        return False
    names = one.names | other.names
    rest = [[token for token in text.tokens if token not in names] for text in (one, other)]
    if rest[0] != rest[1]:
        return False
    changed = [place for place, (a, b) in enumerate(zip(one.tokens, other.tokens, strict=True)) if a != b]
    between = one.tokens[changed[0] : changed[-1] + 1]
    # The order of a mere list says nothing.
    return not {token for token in between if token not in names} <= {"or", "and", "the"}


def _is_choice(mine: Sequence[str], theirs: Sequence[str]) -> bool:
    """Whether only the two sides of an "or" or "and" have changed places."""
    if sorted(mine) != sorted(theirs):
        return False
    changed = [place for place, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b]
    between = mine[changed[0] + 1 : changed[-1]]
    return len(changed) == 2 and bool(between) and set(between) <= {"or", "and", "the", "a"}
