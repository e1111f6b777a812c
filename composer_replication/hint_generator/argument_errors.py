"""What an error text says about the right call: parameters, their types, the tools there are, a signature."""

from __future__ import annotations

import re

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
