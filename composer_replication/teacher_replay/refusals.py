"""Which refusals are about the prompt alone: it is too long for this teacher, whatever else it could answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from composer_replication.ingestion.loose_json import fields

# OpenAI and most others, llama.cpp, Anthropic (its HTTP 413), Copilot, Zhipu.
_CODES = frozenset(
    {
        "context_length_exceeded",
        "exceed_context_size_error",
        "request_too_large",
        "model_max_prompt_tokens_exceeded",
        "1261",
    }
)
# A local server may say it with a 500.
_STATUSES = frozenset({400, 422, 500})
# OpenAI's answer (429) to a request that is larger than a minute's tokens.
_TOO_LARGE = re.compile(r"request too large", re.IGNORECASE)
_CERTAIN = re.compile(r"maximum (?:context|prompt|model|input) length", re.IGNORECASE)
_TEXTS = re.compile(
    r"\b(?:prompt|inputs?|messages?|conversation|request)\b[^.]{0,60}?\b(?:too (?:long|large)|exceed|less than \d+ tok)"
    r"|exceed\w*[^.]{0,40}(?:\b(?:message|input|prompt)\b[^.]{0,20}tokens|\bcontext)|\bcontext\b[^.]{0,40}exceed"
    r"|too many (?:input )?tokens|tokens? \+ `?max_new_tokens|range of input length|max_seq_len|model token limit"
    r"|reduce the length of (?:the|your) (?:messages|prompt|input)",
    re.IGNORECASE,
)
# A setting that no prompt would make right, or an account.
_OTHER = re.compile(
    r"output tokens|number of tools|tool name|(?:un\w+|invalid) parameter"
    r"|quota|monthly|per (?:day|month)|credit|balance",
    re.IGNORECASE,
)
_DEEPEST = 4


def is_too_long(status: int, reply: dict[str, Any]) -> bool:
    """Whether a refusal says that the prompt does not fit, in the words of any endpoint. A router's refusal holds that
    of the provider behind it."""
    error = fields(reply.get("error")) or reply
    if status == 413 or not _CODES.isdisjoint(str(error.get(name)) for name in ("code", "type", "error")):
        return True
    said = " ".join(_texts(reply))
    if status == 429:
        return _TOO_LARGE.search(said) is not None
    if status not in _STATUSES:
        return False
    return bool(_CERTAIN.search(said) or (_TEXTS.search(said) and not _OTHER.search(said)))


def _texts(value: Any, depth: int = 0) -> Iterator[str]:
    """All texts in an error, messages before the rest."""
    if isinstance(value, str):
        yield value
    elif depth < _DEEPEST and isinstance(value, dict):
        for name in sorted(value, key=lambda name: name != "message"):
            yield from _texts(value[name], depth + 1)
    elif depth < _DEEPEST and isinstance(value, list):
        for one in value:
            yield from _texts(one, depth + 1)
