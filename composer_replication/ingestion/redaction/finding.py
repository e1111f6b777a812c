"""What the rules hand to the redactor: a place in a text, and the rule that found it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple


class Finding(NamedTuple):
    """A place to be replaced.

    `by_context` says that only the surroundings betray the secret (`DB_PASSWORD=…`): elsewhere in the trace it stands
    without them, and has to be looked for by its value.
    """

    start: int
    end: int
    kind: str
    by_context: bool = False


class Rule(NamedTuple):
    """How one kind of finding is made.

    `gate` is in RE2's syntax and matches in every text in which `find` finds something; it may match in more. One
    automaton runs all gates in one pass over a text, so that `find` runs only where there is a reason to.
    """

    gate: str
    find: Callable[[str], Iterator[Finding]]


def word_set(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


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
    """,
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
