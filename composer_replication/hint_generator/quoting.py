"""How hints quote what they are about: short, on one line, without anything that looks like a credential."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from composer_replication.hint_generator.errors.form import HintContext

_LINE = 160
_NAME = 80
_PATH = 120
_MOST_TOOLS = 12
_MOST_PARAMETERS = 8

# A guard, not a redactor: traces are redacted when they are read.
_CREDENTIAL = re.compile(
    r"\b(?:sk|pk|rk|ghp|gho|ghs|ghu|glpat|github_pat|xox[abprs]|hf|AKIA|ASIA|AIza|eyJ)[-_A-Za-z0-9.]{12,}"
    r"|(?i:\b(?:bearer|basic)\s+)[\w.~+/=-]{8,}"
    r"|(?i:(?:password|passwd|secret|token|api[_-]?key)[\"']?\s*[=:]\s*)[\"']?[^\s\"',;]{4,}"
    r"|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"
)
# What makes an error text tell something: it names a thing, or says what is wanted.
_NAMED = re.compile(
    r"(?<!\w)[`'\"‘“][^\s`'\"]"  # something in quotes
    r"|(?<!\w)(?:\.{0,2}|~)/\w|://|\b\w[\w-]*\.(?![eg]\b)[a-z]{1,5}\d?\b"  # a path, an address, a file
    r"|(?<!\S)--?[A-Za-z]"  # an option
    r"|[A-Za-z]_[A-Za-z]|\b[a-z]+[A-Z]|\b[A-Z][a-z]+[A-Z]|\b[A-Za-z]+\d|\w\("  # an identifier
    r"|\b[Nn]o (?:such (?:container|table|image|column|volume|network|service)|matching distribution)\b"
    r"|\b(?:expect(?:s|ed)|requires?|required|must|should|instead|missing|exceeds?|exceeded|already"
    r"|not (?:found|allowed|supported|installed|defined|available))\b"
)


def names_something(text: str) -> bool:
    """Whether an error text is specific enough to act on: "cannot open a.py" is, "something went wrong" is not."""
    return _NAMED.search(text[:1000]) is not None


def one_line(text: str, limit: int = _LINE) -> str:
    """The first line of a text, cut to a length, without credentials."""
    line = " ".join(text.strip().partition("\n")[0].split())
    line = _CREDENTIAL.sub("[hidden]", line)
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def error_line(ctx: HintContext) -> str:
    """The line that says what fails, without the full stop, to stand within a sentence."""
    return one_line(str(ctx.get("error_message") or "")).rstrip(".:? ")


def code(text: str, limit: int = _NAME) -> str:
    """A name or a path, in backticks. The end of a long path says more than its beginning."""
    line = _CREDENTIAL.sub("[hidden]", " ".join(text.replace("`", "'").split()))
    if len(line) > limit:
        line = "…" + line[-(limit - 1) :] if "/" in line[-limit:] else line[: limit - 1] + "…"
    return f"`{line}`"


def path(ctx: HintContext, otherwise: str) -> str:
    """The file that the call is about, or words for it."""
    given = ctx.get("path")
    return code(given, _PATH) if isinstance(given, str) and given else otherwise


def tool(ctx: HintContext, otherwise: str = "the tool") -> str:
    """The tool that is called, or words for it."""
    name = ctx.get("tool_name")
    return code(name) if isinstance(name, str) and name else otherwise


def names(given: Iterable[str], most: int = _MOST_TOOLS) -> str:
    """A list of names, cut to a few."""
    listed = [str(name) for name in given]
    return ", ".join(code(name) for name in listed[:most]) + (", …" if len(listed) > most else "")


def closest(name: str, candidates: Sequence[str]) -> str | None:
    """The candidate that was probably meant: nearly the same letters, or the same words in other clothes."""
    plain = {_plain(candidate): candidate for candidate in reversed(candidates)}
    if _plain(name) in plain:
        return plain[_plain(name)]
    found = difflib.get_close_matches(_plain(name), list(plain), n=1, cutoff=0.6)
    if found:
        return plain[found[0]]
    contained = [candidate for key, candidate in plain.items() if len(key) > 2 and (key in _plain(name))]
    return contained[-1] if contained else None


def call_shape(schema: Mapping[str, Any] | None) -> str | None:
    """The arguments that a tool takes, as JSON: the required ones, each with its type in place of a value."""
    properties = (schema or {}).get("properties")
    if not isinstance(properties, Mapping) or not properties:
        return None
    required = [name for name in (schema or {}).get("required") or [] if name in properties]
    shown = required[:_MOST_PARAMETERS] or list(properties)[:_MOST_PARAMETERS]
    return json.dumps({name: _placeholder(properties[name]) for name in shown}, ensure_ascii=False)


def parameter_type(schema: Mapping[str, Any] | None, name: str) -> str | None:
    """The type of a parameter, as its schema says."""
    properties = (schema or {}).get("properties")
    given = properties.get(name) if isinstance(properties, Mapping) else None
    return _type(given) if isinstance(given, Mapping) else None


def _placeholder(given: Any) -> str:
    kind = _type(given) if isinstance(given, Mapping) else None
    return f"<{kind or 'value'}>"


def _type(given: Mapping[str, Any]) -> str | None:
    choices = given.get("enum")
    if isinstance(choices, list) and choices:
        return " | ".join(str(choice) for choice in choices[:6])
    kind = given.get("type")
    if isinstance(kind, list):
        return " | ".join(str(one) for one in kind)
    if kind is None and isinstance(given.get("anyOf"), list):
        kinds = [_type(one) for one in given["anyOf"] if isinstance(one, Mapping)]
        return " | ".join(one for one in kinds if one) or None
    return kind if isinstance(kind, str) else None


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
