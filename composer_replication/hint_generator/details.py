"""The details of an error: read from its text, and quoted in hints, short, on one line and without credentials."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

_WORD = r"[`'\"]([\w.$-]+)[`'\"]"
_MISSING = (
    re.compile(rf"required (?:parameter|argument|field|property) {_WORD}", re.IGNORECASE),
    re.compile(rf"missing (?:required )?(?:field|parameter|argument|property):? {_WORD}", re.IGNORECASE),
    re.compile(rf"parameter {_WORD} is (?:required|missing)", re.IGNORECASE),
    re.compile(rf"{_WORD} is a required property"),
    re.compile(r"^([\w.]+)\n\s+Field required\b", re.MULTILINE),
)
_MISSING_LISTS = (
    re.compile(r"missing \d+ required (?:positional|keyword-only) arguments?: ([^\n]+)"),
    re.compile(
        r"Missing required (?:parameters?|arguments?|fields?|propert(?:y|ies))[^:{\n]*[:{] ?([^\n}]+)", re.IGNORECASE
    ),
)
_UNEXPECTED = (
    re.compile(rf"unexpected (?:parameter|keyword argument|argument|field|property) {_WORD}", re.IGNORECASE),
    re.compile(rf"unknown field {_WORD}"),
    re.compile(r"^([\w.]+)\n\s+Extra inputs are not permitted\b", re.MULTILINE),
)
_UNEXPECTED_LISTS = (
    re.compile(r"Additional properties are not allowed \(([^)\n]+?) (?:was|were) unexpected"),
    re.compile(r"[Uu]nrecognized key\(?s?\)?(?: in object)?: ([^\n]+)"),
)
_TYPES = (
    re.compile(rf"parameter {_WORD} type is expected as {_WORD}(?: but provided as {_WORD})?", re.IGNORECASE),
    re.compile(r"^([\w.]+)\n\s+Input should be a(?:n)? (?:valid )?(\w+)", re.MULTILINE),
)
_ZOD = re.compile(
    r'"expected": "(?P<expected>\w+)",\s*(?:"received": "(?P<given>\w+)",\s*)?(?:"code": "\w+",\s*)?'
    r'"path": \[\s*"(?P<name>[\w.]+)"'
)
_AVAILABLE = re.compile(
    # not of "No such tool available: X"
    r"(?<!tool )\b(?:available|valid|known|supported|existing)"
    r"(?: (?:tools?|functions?|agents?|skills?|names?|types?|commands?|fields))*"
    r"(?: are| is)?:\s*(?P<list>[^\n]*(?:\n\s*[-*] [^\n]+|\n  \w+$)*)|\btry one of:? \[?(?P<tries>[^\]\n]+)",
    re.IGNORECASE | re.MULTILINE,
)
_SIGNATURE = re.compile(r"\bsignatures?:? +`?(?P<signature>[\w.-]+\([^\n]*?\))(?:`|\.?\s|\.?\Z|;)", re.IGNORECASE)
_SUGGESTION = re.compile(
    r"\b(?:Did you mean(?::| this\?| one of these\?)?|a similar (?:argument|option|flag|value) exists:)"
    r"\s(?:\s|npm (?:run|error) )*[`'\"]?(?P<name>(?!this\?)[^\s`'\"?]+)",
    re.IGNORECASE,
)
_QUOTED_NAME = re.compile(r"[`'\"]([\w.$-]+)[`'\"]")
_NAME = re.compile(r"[A-Za-z_][\w.:/-]*\Z")
_MOST_NAMES = 40

_LINE = 160
_NAME_LENGTH = 80
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


class HintContext(TypedDict, total=False):
    """One error, as `mark_errors` writes it into `error_meta`. Every key may be absent."""

    error_kind: str
    error_message: str
    available_tools: list[str]
    tool_name: str
    tool_schema: dict[str, Any]
    intent: str
    # whose mistake it was, and where
    students_mistake: bool
    masked: bool  # the command hid its failure from the log
    tool_call_id: str
    reported_by: str  # the call whose result showed what this turn had written; absent if it was this one
    # what the call was about
    path: str
    command: str
    command_name: str
    exit_code: int
    # what the error names
    name: str
    available_names: list[str]
    suggestion: str
    signature: str
    signatures: list[str]
    missing_parameters: list[str]
    unexpected_parameters: list[str]
    expected_types: dict[str, str]
    matches: int
    size: str
    limit: str
    status: int
    test: str
    # of a repeated failure
    original_kind: str
    repeats: int


def details_in(match: re.Match[str]) -> dict[str, Any]:
    """The details that a pattern's groups have found."""
    groups = {key.rstrip("0123456789"): value for key, value in match.groupdict().items() if value}
    return {key: int(value) if key in ("status", "matches") else value for key, value in groups.items()}


def wrong_parameters(text: str) -> dict[str, object]:
    """`missing_parameters`, `unexpected_parameters` and `expected_types` (name to type), those that the text names."""
    missing = _all(_MISSING, text) + _listed(_MISSING_LISTS, text)
    unexpected = _all(_UNEXPECTED, text) + _listed(_UNEXPECTED_LISTS, text)
    types = {found[1]: found[2] for pattern in _TYPES for found in pattern.finditer(text)}
    for found in _ZOD.finditer(text):
        if found["given"] == "undefined":
            missing.append(found["name"])
        else:
            types[found["name"]] = found["expected"]
    details = {
        "missing_parameters": list(dict.fromkeys(missing)),
        "unexpected_parameters": list(dict.fromkeys(unexpected)),
        "expected_types": types,
        "signature": _signature(text),
    }
    return {key: value for key, value in details.items() if value}


def available_names(text: str) -> dict[str, object]:
    """The names that a text offers: `available`, and `signatures` if they stand with their parameters."""
    found = _AVAILABLE.search(text)
    if found is None:
        return {}
    names, signatures = [], []
    for entry in _entries(found["list"] or found["tries"] or ""):
        name = entry.partition("(")[0].strip(" `'\"")
        if not _NAME.match(name):
            continue
        names.append(name)
        if "(" in entry and entry.endswith(")"):
            signatures.append(entry)
    if not names:
        return {}
    offered: dict[str, object] = {"available": list(dict.fromkeys(names))[:_MOST_NAMES]}
    if signatures:
        offered["signatures"] = signatures[:_MOST_NAMES]
    return offered


def suggested_name(text: str) -> dict[str, object]:
    """The `suggestion` of "Did you mean …?"."""
    found = _SUGGESTION.search(text)
    return {} if found is None else {"suggestion": found["name"].rstrip(".,;")}


def _entries(listing: str) -> list[str]:
    """Split at commas, semicolons and list marks, but not inside a signature's parentheses."""
    entries, depth, start = [], 0, 0
    for position, character in enumerate(listing):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character in ",;\n" and depth <= 0:
            entries.append(listing[start:position])
            start = position + 1
    entries.append(listing[start:])
    bare = (entry.strip().strip("[]").removeprefix("- ").removeprefix("* ").strip().rstrip(".") for entry in entries)
    return [entry.removeprefix("and ").strip(" `'\"") for entry in bare if entry]


def _signature(text: str) -> str | None:
    found = _SIGNATURE.search(text)
    return None if found is None else found["signature"]


def _all(patterns: tuple[re.Pattern[str], ...], text: str) -> list[str]:
    return [name for pattern in patterns for name in pattern.findall(text)]


def _listed(patterns: tuple[re.Pattern[str], ...], text: str) -> list[str]:
    names: list[str] = []
    for pattern in patterns:
        for listing in pattern.findall(text):
            quoted = _QUOTED_NAME.findall(listing)
            names += quoted or [word for word in re.split(r"[,\s]+", listing) if re.fullmatch(r"[\w.$-]+", word)][:1]
    return names


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


def code(text: str, limit: int = _NAME_LENGTH) -> str:
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
