"""Token counts of a model call, under the names that providers and harnesses give them."""

from __future__ import annotations

from typing import Any

from composer_replication.ingestion.loose_json import fields, whole
from composer_replication.traces import Usage


def usage_of(given: Any) -> Usage | None:
    """Token counts as any of the providers name them; None if there are none."""
    record = fields(given)
    details = fields(record.get("prompt_tokens_details")) or fields(record.get("input_tokens_details"))
    extra = fields(record.get("extra"))

    def count(*names: str) -> int:
        for name in names:
            for place in (record, details, extra):
                if whole(place.get(name)):
                    return whole(place.get(name))
        return 0

    cached = count("cached_input_tokens", "cached_tokens", "cache_read_input_tokens", "cache_read_tokens")
    written = count(
        "cache_creation_input_tokens", "cache_creation_tokens", "cache_write_input_tokens", "cache_write_tokens"
    )
    prompt = count("prompt_tokens")
    if not prompt:
        prompt = count("input_tokens")
        if "cache_read_input_tokens" in record:
            # Anthropic's own form counts the cached part beside the rest of the prompt.
            prompt += cached + written
    usage = Usage(
        input_tokens=prompt,
        output_tokens=count("completion_tokens", "output_tokens"),
        cached_tokens=cached,
        cache_write_tokens=written,
    )
    return usage if usage != Usage() else None
