"""A hint in a rollout: where it goes, and on which tokens it is learnt from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from jinja2.exceptions import TemplateError

from composer_replication.rendering import accepted_hint_role, hint_message_ids
from composer_replication.trainer.rollouts.rollout import Rollout, SampledTurn, context_before

HintOrigin = Literal["tool", "environment", "reward", "sibling"]


@dataclass(frozen=True)
class HintSite:
    """`hint_ids` go in at `header`, the loss falls on the tokens in `spans`.

    Positions are indices into the rollout's `prompt_ids + completion_ids`, without padding. `source` is who said that
    something was wrong, `kind` what ("feedback" if it came as a text, "sibling" for a sibling's solution).
    """

    kind: str
    source: HintOrigin
    hint: str
    hint_ids: tuple[int, ...]
    header: int
    spans: tuple[tuple[int, int], ...]

    @property
    def teacher_length(self) -> int:
        """How many tokens the hinted context has, up to the last one that is scored."""
        return self.spans[-1][1] + len(self.hint_ids)

    def to_json(self) -> dict[str, Any]:
        """Plain values, for `json.dumps`."""
        return asdict(self)

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> HintSite:
        """The site that `to_json` gave, also after a way through JSON, which has no tuples."""
        spans = tuple((int(start), int(stop)) for start, stop in given["spans"])
        return cls(**{**given, "hint_ids": tuple(given["hint_ids"]), "spans": spans})


@dataclass(frozen=True)
class SitePlacer:
    """Makes sites of hints, and counts in `counts` what became of each."""

    tokenizer: Any
    hint_role: str = "system"
    max_length: int | None = None
    counts: Counter[str] = field(default_factory=Counter)

    def place(
        self, rollout: Rollout, turns: Sequence[SampledTurn], *, kind: str, source: HintOrigin, hint: str
    ) -> list[HintSite]:
        """The site of a hint that stands before the first of these turns and is learnt from on all of them.

        Empty if there is no place for it: the reason is counted.
        """
        first = turns[0]
        if first.header is None:
            self.counts["header_not_found"] += 1
            return []
        context = context_before(rollout, first)
        try:
            role = accepted_hint_role(self.tokenizer, context, role=self.hint_role, tools=rollout.tools)
            hint_ids = hint_message_ids(self.tokenizer, context, hint, role=role, tools=rollout.tools)
        except (TemplateError, ValueError):
            hint_ids = []
        if not hint_ids:
            self.counts["hint_not_rendered"] += 1
            return []
        spans = tuple((turn.start, turn.stop) for turn in turns)
        site = HintSite(kind, source, hint, tuple(hint_ids), first.header, spans)
        if self.max_length is not None and site.teacher_length > self.max_length:
            self.counts["too_long"] += 1
            return []
        self.counts["sites"] += 1
        if role != self.hint_role:
            self.counts[f"hint_role_{role}"] += 1
        return [site]
