"""One turn of a batch of rows: tokens are drawn until every row has ended its turn.

Shapes: B rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from composer_replication.generation.kept_rows import KeptRows, gathered

WARPERS = (TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper, MinPLogitsWarper)
"""Everything between a model's logits and the draw, in the order of `generate`."""

# Rows that have ended leave the batch when they are this share of it: leaving copies the caches of the others.
_LEAVING = 0.25


@dataclass(frozen=True)
class Sampling:
    """How a token is drawn, by the names of `trl.GRPOConfig`; temperature 0 takes the likeliest token.

    Raises:
        ValueError: a value out of range.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float | None = None

    def __post_init__(self) -> None:
        if not (self.temperature >= 0 and self.top_p > 0 and self.top_k >= 0):
            given = f"{self.temperature}, {self.top_p}, {self.top_k}"
            raise ValueError(f"temperature must be >= 0, top_p > 0 and top_k >= 0, got {given}")
        _ = self._steps

    @cached_property
    def _steps(self) -> list[Any]:
        values = (float(self.temperature or 1.0), self.top_k, self.top_p, self.min_p)
        without = (1.0, 0, 1.0, None)
        given = zip(WARPERS, values, without, strict=True)
        return [warper(value) for warper, value, nothing in given if value != nothing]

    def draw(self, logits_BV: torch.Tensor) -> tuple[list[int], list[float]]:
        """Draw a token for each row. Returns the tokens, and the logarithms of their probabilities in the draw."""
        scores_BV = logits_BV.to(dtype=torch.float32, copy=True)
        for step in self._steps:
            scores_BV = step(None, scores_BV)
        probabilities_BV = scores_BV.softmax(-1)
        if self.temperature == 0:
            tokens_B1 = probabilities_BV.argmax(-1, keepdim=True)
        else:
            tokens_B1 = torch.multinomial(probabilities_BV, num_samples=1)
        logprobs_B = probabilities_BV.gather(1, tokens_B1).log()[:, 0]
        return tokens_B1[:, 0].tolist(), logprobs_B.tolist()


@dataclass(frozen=True)
class Said:
    """The tokens of a row's turn, and the logarithms of the probabilities they were drawn with."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class Part(NamedTuple):
    """A batch whose turns have ended, and which rows of the turn its rows are."""

    kept: KeptRows
    rows: list[int]


def sample_turn(
    kept: KeptRows, logits_BV: torch.Tensor, limits: Sequence[int], sampling: Sampling, ends: Collection[int]
) -> tuple[list[Said], list[Part]]:
    """Draw tokens for every row until one of `ends`, or until there are as many as its limit (at least 1).

    The last token of a row is not read: the row's next block begins with it.

    Args:
        kept: the rows; `logits_BV` are those after their last tokens.

    Returns:
        What each row said, and all rows with what was read of it.
    """
    said = [Said() for _ in limits]
    parts: list[Part] = []
    rows = list(range(len(limits)))
    is_going = [True] * len(rows)
    while True:
        places = [place for place, row in enumerate(rows) if is_going[row]]
        tokens, logprobs = sampling.draw(logits_BV if len(places) == len(rows) else logits_BV[places])
        for place, token, logprob in zip(places, tokens, logprobs, strict=True):
            row = rows[place]
            said[row].ids.append(token)
            said[row].logprobs.append(logprob)
            is_going[row] = token not in ends and len(said[row].ids) < limits[row]
        going = [place for place in places if is_going[rows[place]]]
        if not going:
            return said, [*parts, Part(kept, rows)]
        ended = [place for place, row in enumerate(rows) if not is_going[row]]
        if len(ended) >= _LEAVING * len(rows):
            parts.append(Part(gathered([(kept, ended)]), [rows[place] for place in ended]))
            kept, rows = gathered([(kept, going)]), [rows[place] for place in going]
        logits_BV = kept.read([said[row].ids[-1:] if is_going[row] else [] for row in rows])
