"""What a provider counts: questions asked, answered and billed, calls at the same time, and what they cost."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from typing import Any

import msgspec
from metered_billing import Usage


class Count(msgspec.Struct):
    """How often a question was received, answered properly on an open connection, and billed."""

    asked: int = 0
    answered: int = 0
    billed: int = 0


class Record(msgspec.Struct):
    """One request. Times are of time.time(); `retry_at` is the moment that Retry-After named."""

    model: str
    digest: str
    max_tokens: int | None
    arrived: float
    misbehaviour: str | None = None
    status: int | None = None
    billed: int = 0
    usage: Usage | None = None
    ended: float | None = None
    retry_at: float | None = None


class Meter:
    """What the provider counts; `spent` is in nano-dollars. Only the server's own thread changes it."""

    def __init__(self) -> None:
        self.spent = 0
        self.spent_on: defaultdict[str, int] = defaultdict(int)
        self.counts: defaultdict[tuple[str, str], Count] = defaultdict(Count)
        self.records: list[Record] = []
        self.connections = 0
        self.too_long = 0
        """Prompts that were refused for their length."""
        self.listed = 0
        """How often the list of models was asked for."""
        self.in_flight = 0
        self.peak = 0
        self.in_flight_of: defaultdict[str, int] = defaultdict(int)
        self.peak_of: defaultdict[str, int] = defaultdict(int)
        self.authorizations: defaultdict[str, set[str]] = defaultdict(set)
        self.broken: list[str] = []
        """Faults of the server itself. A test that trusts the meter checks that there are none."""

    @property
    def requests(self) -> int:
        """Questions received, whatever became of them."""
        return len(self.records)

    def figures(self) -> dict[str, Any]:
        """Everything as JSON; keys appear as digests."""
        models = sorted(self.peak_of)
        return {
            "spent_nano_usd": self.spent,
            "in_flight": self.in_flight,
            "peak_in_flight": self.peak,
            "models": {
                model: {
                    "spent_nano_usd": self.spent_on[model],
                    "peak_in_flight": self.peak_of[model],
                    "authorizations": sorted(
                        hashlib.sha256(key.encode()).hexdigest() for key in self.authorizations[model]
                    ),
                    **self._totals(model),
                }
                for model in models
            },
            "questions": [
                {"model": model, "digest": digest, **msgspec.structs.asdict(count)}
                for (model, digest), count in self.counts.items()
            ],
            "broken": self.broken,
        }

    def _totals(self, model: str) -> dict[str, int]:
        counts = [count for (of, _), count in self.counts.items() if of == model]
        usages = [record.usage for record in self.records if record.model == model and record.usage is not None]
        return {
            "asked": sum(count.asked for count in counts),
            "answered": sum(count.answered for count in counts),
            "billed": sum(count.billed for count in counts),
            "prompt_tokens": sum(usage.prompt for usage in usages),
            "cached_tokens": sum(usage.cached for usage in usages),
            "cache_write_tokens": sum(usage.written for usage in usages),
            "completion_tokens": sum(usage.output for usage in usages),
        }
