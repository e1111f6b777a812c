"""Words that carry no content, words that mean the same, and words that mean the opposite."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import Any

from composer_replication._optional import require
from composer_replication.coding_tools import word_set

LITTLE_WORDS = word_set("""
a an the this that these those it its they them their there here he she we us our i me my mine you your is are was
were be been being am do does did doing done have has had having will would shall should can could may might must
let lets get got getting go goes going gone come comes want wants wanted like likes please need needs needed and or
but so then than if else while because since as for of in on at by with to from into onto about over under up down
out off per via also too just only even still yet already currently now soon later once again ever well moment all
every each which what who whom whose how why where when some any such very more most much many few both either own
same other another anywhere somewhere everywhere ok okay sure yes great perfect alright right i've i'll i'd i'm
you'd it's that's there's let's we'll we've don't doesn't didn't isn't aren't wasn't weren't can't won't cannot not
no never nothing none nobody neither nor without one tell know say said says thing things way ways before after due
thanks hence thus therefore total simply actually really basically apparently successfully respectively able live
lives lie lies sit sits located appear appears newer though although however rather prefer seem seems went use uses
used using call calls called make makes made sum summary note
""")
"""They carry no content."""
_FUNCTION = """
a an the this that these those it its they them their there here he she we us our i me my you your is are was were
be been being am do does did have has had will would shall should can could may might must and or but so then if
because since as for of in on at by with to from into about also too just even still already now please let i've
i'll i'd i'm it's that's there's let's which what who how why where when all every each well one
"""
# Groups of words that mean the same; the first stands for all.
_SAME = """
delete/remove/drop/erase leave/keep/stay/remain/retain fix/repair/correct/resolve/solve/mend
add/create/introduce/write/insert/implement document/describe/explain/mention check/verify/confirm/validate/ensure
show/display/print/list/output/report find/locate/search/look change/modify/update/edit/alter/adjust
run/execute/launch start/begin bug/issue/problem/defect error/exception fail/break whole/full/entire/complete
repo/repository/project/codebase folder/directory/dir function/method handle/cope require/depend absent/miss
empty/blank configure/config/configuration/setup/set big/large small/little/tiny quick/fast move/relocate finish/end
reply/respond/answer/response decrease/lower/reduce increase/raise stop/halt allow/permit place/spot/location
cause/reason argument/parameter/param option/flag/switch database/db documentation/docs/doc environment/env
application/app dependency/dep wrong/incorrect old/previous/former new test/spec go/proceed/continue try/attempt
occur/happen/arise suggest/recommend/propose/advise replace/swap/substitute split/divide/separate merge/combine/join
include/contain exclude/omit/skip/ignore choose/pick/select avoid/prevent deploy/release/ship/publish
revert/undo/rollback refactor/restructure/rewrite improve/enhance unused/dead necessary/mandatory
several/multiple/various entry/item/element/record succeed/pass auth/authentication variable/var admin/administrator
information/info production/prod development/dev performance/perf store/save/persist help/assist
read/inspect/view/examine/review/investigate/see upgrade/bump invoke/trigger
"""
_OPPOSITE = """
add/remove add/delete enable/disable increase/decrease pass/fail open/close read/write start/stop true/false on/off
first/last min/max minimum/maximum success/failure sync/async allow/deny allow/block allow/forbid safe/unsafe
valid/invalid keep/remove deprecate/delete encode/decode encrypt/decrypt push/pull upload/download import/export
install/uninstall lock/unlock load/save send/receive public/private local/remote input/output ascending/descending
up/down upgrade/downgrade more/less more/fewer include/exclude small/big slow/quick long/short empty/full before/after
with/without if/unless above/below over/under in/out everyone/only client/server parent/child left/right top/bottom
upper/lower source/target request/response old/new present/miss work/fail approve/reject approve/decline accept/reject
accept/decline approve/block now/later both/one all/one both/first both/second
"""
NEGATIONS = word_set("not no never nothing none nobody neither nor without cannot unable")
PHRASES = {
    r"\b(?:is|are|was|were)(?: not|n't) (?:installed|found|there|present|available|defined)\b": "is missing",
    r"\b(?:can't|cannot|can not|could not|couldn't) find\b": "misses",
    r"\bthere (?:is|are|was|were) no\b": "misses",
    r"\bdo(?:es)?(?: not|n't) exist\b": "is missing",
    r"\b(?:not able|unable) to\b": "cannot",
    r"\bno changes? (?:is|are|was|were) (?:needed|required|necessary|made)\b": "unchanged",
    r"\bleft (?:the )?(?:\w+ )?(?:alone|unchanged|untouched|as it is)\b": "unchanged",
    r"\b(?:is|are) green\b": "passes",
    r"\bpull requests?\b": "pr",
    r"\b(?:log|sign)(?:ged|ging|ned|ning)? in\b": "login",
    r"\blooks? like\b": "seems",
    r"\b(?:as well|at all|for now|so far|at the moment|right now)\b": "",
    r"\bset up\b": "setup",
    r"\bget rid of\b": "remove",
    r"\b(?:leave|left|leaving) out\b": "exclude",
    r"\b(?:look|looked|looking|(?:take|have) a look) (?:at|into)\b": "inspect",
    r"\bfind out why\b": "investigate",
    r"\bmake sure\b": "ensure",
    r"\bno longer\b": "not",
    r"\b(?:is|are|was|were) gone\b": "is removed",
}
RESTRICTIONS = word_set(
    "except only almost nearly partly partially mostly unless until half some rarely hardly seldom barely scarcely "
    "sometimes occasionally"
)
DIRECTIONS = word_set("from to into before after than")
_NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve"
# "One" is more often a pronoun.
NUMBERS = {word: str(value) for value, word in enumerate(_NUMBERS.split()) if word != "one"}
# Forms that no ending tells.
_IRREGULAR_FORMS = """
wrote/write written/write overwritten/overwrite overwrote/overwrite broke/break broken/break found/find ran/run
left/leave kept/keep took/take taken/take gave/give given/give sent/send built/build began/begin begun/begin shown/show
threw/throw thrown/throw hid/hide hidden/hide lost/lose chose/choose chosen/choose held/hold came/come saw/see seen/see
meant/mean brought/bring thought/think caught/catch
"""
_IRREGULAR = dict(pair.split("/") for pair in _IRREGULAR_FORMS.split())
_INFLECTIONS = word_set("s es e ed d ing ings ly edly y") | {""}
_ENDING = re.compile(r"(?:ions?|e?ly|es|ed|ing|e|(?<!s)s)$")
_WORD = re.compile(r"[a-z]+(?:'[a-z]+)?", re.IGNORECASE)


@lru_cache(maxsize=65_536)
def stem(word: str) -> str:
    """A word without its inflection: "closed" and "closes" are one. Needs the extra "replay"."""
    word = word.lower().removesuffix("'s")
    word = _IRREGULAR.get(word, word)
    stemmed: str = _stemmer().stemWord(word)
    # Snowball also takes off what makes another word ("validator", "important").
    if word[len(stemmed) :].removeprefix(stemmed[-1:]) in _INFLECTIONS:
        return stemmed
    return _ENDING.sub("", re.sub("ie[sd]$", "y", word))


@cache
def _stemmer() -> Any:
    return require("snowballstemmer", "replay").stemmer("english")


@lru_cache(maxsize=65_536)
def meaning(word: str) -> str:
    """The word that stands for all that mean the same."""
    found = stem(word)
    return _meanings().get(found, found)


@cache
def _meanings() -> dict[str, str]:
    groups = [group.split("/") for group in _SAME.split()]
    return {stem(word): stem(group[0]) for group in reversed(groups) for word in group}


@cache
def function_words() -> frozenset[str]:
    """Stems of the words that only hold a sentence together."""
    return frozenset(map(stem, _FUNCTION.split()))


def are_opposite(first: str, second: str) -> bool:
    """Whether two meanings are opposites."""
    return frozenset((first, second)) in _opposites()


@cache
def _opposites() -> frozenset[frozenset[str]]:
    return frozenset(frozenset(map(meaning, pair.split("/"))) for pair in _OPPOSITE.split())


def is_word(token: str) -> bool:
    """Whether a token is a word of a language rather than a name or a number."""
    return _WORD.fullmatch(token) is not None
