"""Which refusals are about the prompt alone: it is too long for this teacher, whatever else it could answer."""

from __future__ import annotations

import re
from typing import Any

from composer_replication.ingestion.loose_json import fields

_CODES = frozenset({"context_length_exceeded", "exceed_context_size_error", "request_too_large"})
_SAID = ("code", "type", "message", "detail")
_STATUSES = frozenset({400, 422})
# OpenAI's answer (429) and Groq's (413) to a request that is larger than a minute's tokens.
_TOO_LARGE = re.compile(r"request too large", re.IGNORECASE)
_TEXTS = re.compile(
    r"context[_ ](?:length|window|size|limit)"
    r"|maximum (?:context|prompt|model|input) length"
    r"|(?:prompt|input|request|message|conversation)s? (?:is|are|was|were) too (?:long|large)"
    r"|(?:prompt|context|input|request) exceed(?:s|ed)|exceed(?:s|ed) (?:the )?(?:model|maximum|max)[\w ]{0,24}"
    r"(?:tokens?|length|limit)"
    r"|prompt too long|too many (?:input )?tokens|exceeds? the available context"
    r"|input token count|tokens? \+ `?max_new_tokens|range of input length|maximum number of (?:input )?tokens"
    r"|reduce the length of (?:the|your) (?:messages|prompt|input)",
    re.IGNORECASE,
)


def is_too_long(status: int, reply: dict[str, Any]) -> bool:
    """Whether a refusal says that the prompt does not fit, in the words of any endpoint. A router's refusal holds that
    of the provider behind it."""
    error = fields(reply.get("error")) or reply
    given = (reply.get("error"), *map(error.get, _SAID), fields(error.get("metadata")).get("raw"))
    said = " ".join(part for part in given if isinstance(part, str))
    if status == 413 or not _CODES.isdisjoint(said.split()):
        return True
    words = _TEXTS if status in _STATUSES else _TOO_LARGE if status == 429 else None
    return words is not None and words.search(said) is not None
