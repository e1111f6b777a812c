"""Redaction: secrets and personal data become placeholders, the same one for the same secret within a trace.

One pass over a text selects the rules, and their findings become placeholders.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from itertools import repeat
from typing import Any

from composer_replication.ingestion.redaction.contexts import context_rules, secret_kind
from composer_replication.ingestion.redaction.finding import Finding, Known, KnownSecrets, Rule
from composer_replication.ingestion.redaction.personal import EMAIL, HOME_USER, Logins, munged, personal_rules
from composer_replication.ingestion.redaction.tokens import token_rules
from composer_replication.pattern_set import Gates
from composer_replication.traces import Trace

# The shortest text that can hold something: "/home/x".
_SHORTEST = 6

_PLAIN_HOME = re.compile(r"(/home/|/Users/)[^/]+/")
_OPTION = re.compile(r"--?[A-Za-z][\w-]*")
_WORD_AND_NUMBER = re.compile(r"[A-Za-z][a-z]*\d{1,4}")


class Redactor:
    """Replaces secrets and personal data; one for each trace.

    The same secret becomes the same placeholder wherever this redactor sees it (`<AWS_ACCESS_KEY_1>`, `<EMAIL_2>`),
    and what it has learned from a secret's surroundings it finds again without them. User names in home directories
    become `user1`, so that paths stay paths, and `again` finds them elsewhere: only when all of a trace was seen is it
    known whether its code uses such a name. Redacting what is already redacted changes nothing.

    `counts` says how often something of each kind was replaced.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._gates, self._rules = _rules()
        self._placeholders: dict[str, str] = {}
        self._numbers: Counter[str] = Counter()
        self._spreading = KnownSecrets()
        self._logins = Logins()
        self._munged: dict[str, str] = {}
        self._homes: dict[str, str] = {}
        self._has_seen_text = self._seeks_logins = False

    def text(self, text: str) -> str:
        """The text with placeholders."""
        if len(text) >= _SHORTEST:
            text = self._with_placeholders(text)
        if self._logins.anywhere and self._logins.seen_in(text):
            self._seeks_logins = True
        self._has_seen_text = True
        return text

    def _with_placeholders(self, text: str) -> str:
        # Most of what is found in a log are paths below one or two home directories.
        for home, replacement in self._homes.items():
            if home in text:
                self.counts[HOME_USER] += text.count(home)
                text = text.replace(home, replacement)
        # Text that was glued to a secret is free once that is replaced, and may now be found.
        while (redacted := self._once(text)) is not text:
            text = redacted
        return self._replaced(text, self._spreading.find(text)) if self._spreading.secrets else text

    def _once(self, text: str) -> str:
        data = text.encode("utf-8", "surrogatepass")
        hits = self._gates.matching(data)
        if not hits:
            return text
        # One character for each byte, so that RE2's places and Python's are the same.
        view = text if len(data) == len(text) else data.decode("latin-1")
        findings = [finding for index in hits for finding in self._rules[index].find(view)]
        if not findings:
            return text
        return _as_text(self._replace(view, _apart(findings)))

    def again(self, text: str) -> str:
        """The text without the secrets and the logins that are already known from their surroundings elsewhere."""
        if self._spreading.secrets:
            text = self._replaced(text, self._spreading.find(text))
        return self._replaced(text, self._logins.find(text)) if self._logins.anywhere else text

    def _replaced(self, text: str, places: Iterable[tuple[int, Known]]) -> str:
        pieces, end = [], 0
        for start, known in places:
            self.counts[known.kind] += 1
            pieces += [text[end:start], known.placeholder]
            end = start + len(known.secret)
        return "".join([*pieces, text[end:]]) if pieces else text

    def value(self, value: Any) -> Any:
        """The same for every string in a JSON value, keys too. A key says what its value is, like a variable's name."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self._key(key): self._member(str(key), member) for key, member in value.items()}
        if isinstance(value, list):
            return self._items(value)
        return value

    def value_again(self, value: Any) -> Any:
        """`again` for every string in a JSON value."""
        if isinstance(value, str):
            return self.again(value)
        if isinstance(value, dict):
            return {self.value_again(key): self.value_again(member) for key, member in value.items()}
        if isinstance(value, list):
            return [self.value_again(item) for item in value]
        return value

    @property
    def spreads(self) -> bool:
        """Whether something is known that has to be looked for elsewhere."""
        return bool(self._spreading.secrets) or self._seeks_logins

    def _key(self, key: Any) -> Any:
        # The same few names come again with every call.
        passes = isinstance(key, str) and not self._spreading.secrets and _passes(key)
        return key if passes and not (self._logins.anywhere and self._logins.seen_in(key)) else self.value(key)

    def _member(self, name: str, value: Any) -> Any:
        redacted = self.value(value)
        # What is a token by its own form has become one of its own kind.
        if isinstance(value, str) and redacted == value and (kind := secret_kind(name, value)):
            return self._placeholder(value, kind, by_context=True)
        return redacted

    def _items(self, items: list[Any]) -> list[Any]:
        """A list may be a command's arguments, in which an option names what follows it."""
        redacted, option = [], None
        for item in items:
            redacted.append(self.value(item) if option is None else self._member(option, item))
            option = item if isinstance(item, str) and _OPTION.fullmatch(item) else None
        return redacted

    def _replace(self, view: str, findings: list[Finding]) -> str:
        pieces, end = [], 0
        for finding in map(_on_characters, repeat(view), findings):
            if finding.start < end:
                continue
            if finding.kind == HOME_USER:
                stop, replacement = self._home(view, finding)
            else:
                stop = finding.end
                replacement = self._placeholder(
                    _as_text(view[finding.start : stop]), finding.kind, by_context=finding.by_context
                )
            pieces += [view[end : finding.start], replacement]
            end = stop
        return "".join([*pieces, view[end:]])

    def _home(self, view: str, finding: Finding) -> tuple[int, str]:
        """Return a name's end and its placeholder. In a folder name of Claude Code it may have dashes of its own."""
        name, end = view[finding.start : finding.end], finding.end
        if view[finding.start - 1] == "-":
            for folder, spelled in self._munged.items():
                stop = finding.start + len(folder)
                if view.startswith(folder, finding.start) and not view[stop : stop + 1].isalnum():
                    name, end = spelled, stop
                    break
        known = self._placeholders.get(f"{HOME_USER} {name}")
        if known is None:
            self._numbers[HOME_USER] += 1
            known = self._placeholders[f"{HOME_USER} {name}"] = f"user{self._numbers[HOME_USER]}"
            self._munged[munged(name)] = name
        # Where no path goes on, a log may have cut the name.
        is_whole = view[end : end + 1] in ("/", "\\") or finding.by_context
        if is_whole and self._logins.add(_as_text(name), HOME_USER, known, certain=finding.by_context):
            self._seeks_logins |= self._has_seen_text
        home = _PLAIN_HOME.search(view, max(0, finding.start - 7), end + 1)
        if home and finding.by_context:
            self._homes[_as_text(home[0])] = f"{home[1]}{known}/"
        self.counts[HOME_USER] += 1
        return end, known

    def _placeholder(self, secret: str, kind: str, *, by_context: bool) -> str:
        known = self._placeholders.get(secret)
        if known is None:
            self._numbers[kind] += 1
            known = self._placeholders[secret] = f"<{kind}_{self._numbers[kind]}>"
            if by_context and _is_distinctive(secret):
                for form in (secret, json.dumps(secret, ensure_ascii=False)[1:-1]):
                    self._spreading.add(form, kind, known)
        self.counts[kind] += 1
        return known


def _apart(findings: list[Finding]) -> list[Finding]:
    """Findings that do not overlap, in order.

    What overlaps is one secret, named by the rule that knows most about it; but a mail address or a home directory
    that runs into a secret is an accident of its surroundings.
    """
    secrets = sorted((f for f in findings if f.kind not in (EMAIL, HOME_USER)), key=lambda f: f.start)
    merged: list[Finding] = []
    for finding in secrets:
        if merged and finding.start < merged[-1].end:
            last = merged[-1]
            first = min(last, finding, key=lambda f: (f.by_context, f.start))
            merged[-1] = Finding(
                last.start, max(last.end, finding.end), first.kind, last.by_context or finding.by_context
            )
        else:
            merged.append(finding)
    taken = iter([*merged, Finding(2**62, 2**62, "")])
    secret = next(taken)
    for finding in sorted(f for f in findings if f.kind in (EMAIL, HOME_USER)):
        while secret.end <= finding.start:
            secret = next(taken)
        if finding.end <= secret.start:
            merged.append(finding)
    return sorted(merged)


def _on_characters(view: str, finding: Finding) -> Finding:
    """The finding widened to whole characters: to a pattern, a byte of one may look like a space."""
    start, end = finding.start, finding.end
    while "\x80" <= view[start] < "\xc0" and start:
        start -= 1
    while end < len(view) and "\x80" <= view[end] < "\xc0":
        end += 1
    return finding._replace(start=start, end=end) if (start, end) != finding[:2] else finding


def _is_distinctive(secret: str) -> bool:
    """Whether the text is this secret everywhere. A password that is a word, as `stage2`, is not."""
    kinds = [str.islower, str.isupper, str.isdigit, lambda character: not character.isalnum()]
    if len(secret) < 6 or _WORD_AND_NUMBER.fullmatch(secret):
        return False
    return sum(any(map(kind, secret)) for kind in kinds) >= 2


def _as_text(view: str) -> str:
    return view if view.isascii() else view.encode("latin-1").decode("utf-8", "surrogatepass")


@lru_cache(1024)
def _passes(text: str) -> bool:
    """Whether there is nothing in the text for any rule."""
    return not _rules()[0].matching(text.encode("utf-8", "surrogatepass"))


@cache
def _rules() -> tuple[Gates, list[Rule]]:
    rules = [*token_rules(), *context_rules(), *personal_rules()]
    return Gates((rule.gate for rule in rules), bytewise=True), rules


# Says that what follows is a branch, whose name may begin with a login.
_BRANCH = "refs/heads/"


def redact_trace(trace: Trace) -> Counter[str]:
    """Replace secrets and personal data in everything the trace says; the result counts replacements by kind.

    Ids, time stamps and names of tools, models and formats stay as they are.
    """
    redactor = Redactor()
    _visit(trace, redactor.text, redactor.value)
    if redactor.spreads:
        # A secret or a login may occur before the place that revealed it.
        _visit(trace, redactor.again, redactor.value_again)
    return redactor.counts


def _visit(trace: Trace, text: Callable[[str], str], value: Callable[[Any], Any]) -> None:
    # The working directory comes first: from it the redactor learns the user's name as it is really spelled.
    if trace.cwd:
        trace.cwd = text(trace.cwd)
    trace.source.file = text(trace.source.file)
    if trace.git_branch:
        trace.git_branch = text(f"{_BRANCH}{trace.git_branch}").removeprefix(_BRANCH)
    for turn in trace.turns:
        turn.content = text(turn.content)
        if turn.thinking:
            turn.thinking = text(turn.thinking)
        if turn.tool_error:
            turn.tool_error = text(turn.tool_error)
        if turn.error_meta:
            turn.error_meta = value(turn.error_meta)
        for call in turn.tool_calls:
            call.arguments = value(call.arguments)
            if call.raw_arguments:
                call.raw_arguments = text(call.raw_arguments)
    if trace.tools:
        trace.tools = value(trace.tools)
    if trace.meta:
        trace.meta = value(trace.meta)
