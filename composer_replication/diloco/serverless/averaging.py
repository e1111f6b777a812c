"""Averages of replicas' outer gradients, shard by shard: plain, weighted by tokens, and radial-directional.

Radial-directional averaging (decoupled DiLoCo, arXiv 2604.21428) takes the mean direction and the mean length of each
tensor, so that replicas which disagree do not shorten each other's updates:

    RDA = (Σ w‖v‖ / Σ w) · φ(Σ w φ(v) / Σ w),  φ(x) = x / ‖x‖;  embeddings have the plain weighted mean

A tensor may lie in several shards. Every replica sends its tensors' norms; the reducer of a shard
makes `mean_direction` and its `partial_squares`; with the squares of all shards added up, every replica calls
`scale_to_radius`. Cuts do not change the result.

Legend: N replicas, T tensors of the layout.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal, get_args

import torch

from composer_replication._arguments import check_choice
from composer_replication.diloco.serverless.packing import Layout

Averaging = Literal["mean", "tokens", "decoupled"]

_CHUNK = 2**17
# A mean of unit vectors that is this short is rounding error of float32, not a direction.
_CANCELLED = 1e-6
_EMBEDDING = re.compile(r"(^|[./_])(\w*embed\w*|wte|wpe)([./_]|$)", re.IGNORECASE)  # fragments have "/" for "."


def learner_weights(
    averaging: str, tokens: Sequence[float], steps: Sequence[float], ranks: Sequence[int] | None = None
) -> list[float]:
    """Return the replicas' weights, which sum to 1: equal, by tokens, or by tokens² / steps ("decoupled").

    Args:
        averaging: "mean", "tokens" or "decoupled".
        tokens: tokens that each replica trained on in this round.
        steps: its inner steps in this round.
        ranks: names the replicas in errors; 0, 1, ... if None.

    Raises:
        ValueError: a replica that is weighted by tokens or steps reports none.
    """
    check_choice("averaging", averaging, get_args(Averaging))
    if averaging == "mean":
        return [1 / len(tokens)] * len(tokens)
    needed = {"tokens": tokens} if averaging == "tokens" else {"tokens": tokens, "steps": steps}
    for name, counts in needed.items():
        for rank, count in zip(ranks or range(len(counts)), counts, strict=True):
            if not 0 < count < float("inf"):
                raise ValueError(
                    f"rank {rank} reports {count:g} {name} in this round, which averaging={averaging!r} needs: "
                    "report progress before the round, or use averaging='mean'"
                )
    raw = list(tokens) if averaging == "tokens" else [t * t / s for t, s in zip(tokens, steps, strict=True)]
    return [weight / sum(raw) for weight in raw]


def weighted_mean(shards: Sequence[torch.Tensor], weights: Sequence[float]) -> torch.Tensor:
    """Return Σ w·v (weights sum to 1) as float32, summed in the given order in float64: equal inputs come out equal."""
    mean = torch.empty_like(shards[0], dtype=torch.float32)
    _weighted_sum(shards, weights, mean)
    return mean


def is_embedding(name: str) -> bool:
    """Tell whether a parameter's name is that of a token or position embedding."""
    return _EMBEDDING.search(name) is not None


def mean_direction(
    shards: Sequence[torch.Tensor],
    weights: Sequence[float],
    norms_NT: torch.Tensor,
    layout: Layout,
    start: int,
    stop: int,
) -> torch.Tensor:
    """Return the range [start, stop) of Σ w φ(v), or of Σ w v for embeddings.

    Args:
        shards: the range of each replica's vector.
        weights: their weights, which sum to 1.
        norms_NT: length of each tensor of each replica; one of length 0 has no direction and adds nothing.
        layout: tensors of the whole vector.
        start: where the range begins.
        stop: where it ends.
    """
    direction = torch.empty(stop - start)
    for tensor, part in _tensors_in(layout, start, stop):
        factors = list(weights)
        if not is_embedding(layout.names[tensor]):
            norms = norms_NT[:, tensor].tolist()
            factors = [weight / norm if norm > 0 else 0.0 for weight, norm in zip(weights, norms, strict=True)]
        _weighted_sum([shard[part] for shard in shards], factors, direction[part])
    return direction


def partial_squares(shard: torch.Tensor, layout: Layout, start: int, stop: int) -> torch.Tensor:
    """Return the sum of squares of each tensor's values in the range [start, stop), (T,) float64."""
    squares_T = torch.zeros(len(layout.names), dtype=torch.float64)
    for tensor, part in _tensors_in(layout, start, stop):
        for first in range(part.start, part.stop, _CHUNK):
            values = shard[first : min(first + _CHUNK, part.stop)].double()
            squares_T[tensor] += torch.dot(values, values)
    return squares_T


def scale_to_radius(
    flat: torch.Tensor, layout: Layout, weights: Sequence[float], norms_NT: torch.Tensor, squares_T: torch.Tensor
) -> None:
    """Scale each tensor of the whole vector of mean directions, in place, to the replicas' weighted mean length.

    Directions that cancel out have no mean: the tensor becomes 0. Embeddings are left as they are.
    """
    weights_N = torch.tensor(weights, dtype=torch.float64)
    radii_T = (weights_N @ norms_NT) / weights_N.sum()
    for tensor, part in _tensors_in(layout, 0, layout.numel):
        if not is_embedding(layout.names[tensor]):
            length = squares_T[tensor].item() ** 0.5
            flat[part].mul_(radii_T[tensor].item() / length if length > _CANCELLED else 0.0)


def _tensors_in(layout: Layout, start: int, stop: int) -> Iterator[tuple[int, slice]]:
    """Tensors that the range overlaps, with their part of it, counted from its start."""
    offsets = layout.offsets()
    for tensor, (first, last) in enumerate(pairwise(offsets)):
        if max(first, start) < min(last, stop):
            yield tensor, slice(max(first, start) - start, min(last, stop) - start)


def _weighted_sum(shards: Sequence[torch.Tensor], factors: Sequence[float], out: torch.Tensor) -> None:
    """Σ factor·shard into `out`, in chunks that fit into the cache, because the sum is in float64."""
    total = torch.empty(min(_CHUNK, out.numel()), dtype=torch.float64)
    for start in range(0, out.numel(), _CHUNK):
        part = slice(start, min(start + _CHUNK, out.numel()))
        sums = total[: part.stop - start].zero_()
        for shard, factor in zip(shards, factors, strict=True):
            sums.add_(shard[part], alpha=factor)
        out[part] = sums
