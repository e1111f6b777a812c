"""Words that carry no content, words that mean the same, and words that mean the opposite."""

from __future__ import annotations

import re
from functools import lru_cache

_LITTLE = """
a an the this that these those it its they them their there here he she we us our i me my mine you your
is are was were be been being am do does did doing done have has had having will would shall should can could may might
must let lets get got getting go goes going gone come comes want wants wanted like likes please need needs needed
and or but so then than if else while because since as for of in on at by with to from into onto about over under up
down out off per via also too just only even still yet already currently now soon later once again ever well moment
which what who whom whose how why where when some any such very more most much many few both either own same other
another anywhere somewhere everywhere ok okay sure yes great perfect alright right i've i'll i'd i'm you'd it's that's
there's let's we'll we've don't doesn't didn't isn't aren't wasn't weren't can't won't cannot not no never nothing none
nobody neither nor without one tell know say said says thing things way ways before after
use uses used using call calls called make makes made sum summary note
""".split()
_SAME = """
delete remove drop erase
leave keep stay remain retain
fix repair correct resolve solve mend
add create introduce write insert implement
document describe explain mention
check verify confirm validate ensure
show display print list output report
find locate search look
change modify update edit alter adjust
run execute launch
start begin
bug issue problem defect
error exception
fail break
whole full entire complete all every each
repo repository project codebase
folder directory dir
function method
handle cope
require depend
absent missing
empty blank
configure config configuration setup set
big large
small little tiny
quick fast
move relocate
finish end
reply respond answer response
increase raise bump
decrease lower reduce
stop halt
allow permit
place spot location
cause reason
argument parameter param
option flag switch
database db
documentation docs doc
environment env
application app
dependency dep
wrong incorrect
old previous former
new
test spec
go proceed continue
try attempt
""".strip().splitlines()
_OPPOSITE = """
add remove
add delete
enable disable
increase decrease
pass fail
open close
read write
start stop
true false
on off
first last
min max
minimum maximum
success failure
sync async
allow deny
allow block
allow forbid
safe unsafe
valid invalid
keep remove
deprecate delete
encode decode
encrypt decrypt
push pull
upload download
import export
install uninstall
lock unlock
load save
send receive
public private
local remote
client server
input output
ascending descending
up down
upgrade downgrade
more less
old new
present missing
""".strip().splitlines()

NEGATIONS = frozenset("not no never nothing none nobody neither nor without cannot unable n't".split())
DIRECTIONS = frozenset("from to into before after than".split())
NUMBERS = {
    word: str(value)
    for value, word in enumerate("zero one two three four five six seven eight nine ten eleven twelve".split())
    if word != "one"
}


@lru_cache(maxsize=65_536)
def stem(word: str) -> str:
    """A word without its ending: "closed" and "closes" are one."""
    word = word.lower().removesuffix("'s")
    if len(word) > 4 and word.endswith(("ies", "ied")):
        word = word[:-3] + "y"
    for ending in ("ing", "edly", "ed", "es", "s", "ly"):
        if len(word) > len(ending) + 2 and word.endswith(ending) and not word.endswith("ss"):
            word = word[: -len(ending)]
            break
    word = word.removesuffix("e")
    return word[:-1] if len(word) > 2 and word[-1] == word[-2] and word[-1].isalpha() else word


LITTLE_WORDS = frozenset(_LITTLE)
_MEANING = {stem(word): stem(line.split()[0]) for line in reversed(_SAME) for word in line.split()}
_OPPOSITES = frozenset(frozenset(_MEANING.get(stem(word), stem(word)) for word in line.split()) for line in _OPPOSITE)
_WORD = re.compile(r"[a-z]+(?:'[a-z]+)?", re.IGNORECASE)


def meaning(word: str) -> str:
    """The word that stands for all that mean the same."""
    found = stem(word)
    return _MEANING.get(found, found)


def are_opposite(first: str, second: str) -> bool:
    """Whether two meanings are opposites."""
    return frozenset((first, second)) in _OPPOSITES


def is_word(token: str) -> bool:
    """Whether a token is a word of a language rather than a name or a number."""
    return _WORD.fullmatch(token) is not None
