"""Averages of outer gradients over shards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.diloco.serverless.averaging import (
    is_embedding,
    learner_weights,
    mean_direction,
    partial_squares,
    scale_to_radius,
    weighted_mean,
)
from composer_replication.diloco.serverless.packing import Layout, pack, shard_bounds

GOLDEN = 2.474873734


def radial_directional(
    vectors: Sequence[torch.Tensor], weights: Sequence[float], layout: Layout, bounds: Sequence[tuple[int, int]]
) -> torch.Tensor:
    """What reducers of the given shards and then every replica do."""
    norms_NT = torch.stack([partial_squares(vector, layout, 0, layout.numel).sqrt() for vector in vectors])
    shards = [
        mean_direction([vector[start:stop] for vector in vectors], weights, norms_NT, layout, start, stop)
        for start, stop in bounds
    ]
    squares = [partial_squares(shard, layout, *bound) for shard, bound in zip(shards, bounds, strict=True)]
    whole = torch.cat(shards)
    scale_to_radius(whole, layout, weights, norms_NT, torch.stack(squares).sum(0))
    return whole


def test_golden_radial_directional_mean() -> None:
    vectors = [torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0])]
    for bounds in ([(0, 2)], [(0, 1), (1, 2)]):
        mean = radial_directional(vectors, [0.5, 0.5], Layout.of(vectors[:1]), bounds)
        assert mean.tolist() == pytest.approx([GOLDEN, GOLDEN], rel=1e-7)


def test_the_formula_tensor_by_tensor_with_weights() -> None:
    generator = torch.Generator().manual_seed(0)
    names, shapes = ["model.embed_tokens.weight", "a", "b"], [(5, 4), (3, 3), (7,)]
    replicas = [[torch.randn(shape, generator=generator) * (1 + n) for shape in shapes] for n in range(3)]
    weights = [0.5, 0.3, 0.2]
    layout = Layout.of(replicas[0], names)
    expected = []
    for name, *tensors in zip(names, *replicas, strict=True):
        double = [tensor.double() for tensor in tensors]
        if name.startswith("model"):
            expected.append(sum(w * v for w, v in zip(weights, double, strict=True)))
            continue
        radius = sum(w * v.norm() for w, v in zip(weights, double, strict=True))
        direction = sum(w * v / v.norm() for w, v in zip(weights, double, strict=True))
        assert isinstance(direction, torch.Tensor)
        expected.append(radius * direction / direction.norm())
    mean = radial_directional([pack(replica) for replica in replicas], weights, layout, [(0, layout.numel)])
    assert torch.allclose(mean, pack([torch.as_tensor(tensor) for tensor in expected]), rtol=1e-5, atol=1e-7)


@given(count=st.integers(1, 9), cuts=st.lists(st.integers(0, 400), max_size=6))
def test_cuts_do_not_change_the_radial_directional_mean(count: int, cuts: list[int]) -> None:
    generator = torch.Generator().manual_seed(1)
    tensors = [torch.zeros(shape) for shape in ((130,), (10, 20), (), (69,))]
    layout = Layout.of(tensors, ["a", "wte.weight", "c", "d"])
    vectors = [torch.randn(layout.numel, generator=generator) for _ in range(3)]
    weights = learner_weights("decoupled", [10, 20, 30], [1, 2, 1])
    whole = radial_directional(vectors, weights, layout, [(0, layout.numel)])
    edges = sorted({0, *cuts, layout.numel})
    for bounds in (shard_bounds(layout.numel, count), list(pairwise(edges))):
        assert torch.allclose(radial_directional(vectors, weights, layout, bounds), whole, rtol=1e-6, atol=0)


def test_directions_that_cancel_or_do_not_exist_give_zeros() -> None:
    layout = Layout.of([torch.zeros(2), torch.zeros(2), torch.zeros(2)])
    vectors = [torch.tensor([3.0, 4.0, 0.0, 0.0, 1.0, 0.0]), torch.tensor([-6.0, -8.0, 0.0, 0.0, 0.0, 0.0])]
    mean = radial_directional(vectors, [0.5, 0.5], layout, [(0, 3), (3, 6)])
    # The third: one replica has no direction there, but its length 0 counts.
    assert mean.tolist() == [0.0, 0.0, 0.0, 0.0, 0.5, 0.0]


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("model.embed_tokens.weight", True),
        ("transformer.wte.weight", True),
        ("model/embed_tokens/weight", True),
        ("wpe.weight", True),
        ("bert.embeddings.word_embeddings.weight", True),
        ("base_model.model.model.embed_tokens.lora_embedding_A.default", True),
        ("lm_head.weight", False),
        ("model.layers.0.mlp.up_proj.weight", False),
        ("0", False),
    ],
)
def test_embeddings_by_name(name: str, is_one: bool) -> None:
    assert is_embedding(name) == is_one


def test_weights_of_learners() -> None:
    assert learner_weights("mean", [0, 0, 0, 0], [0, 0, 0, 0]) == [0.25] * 4
    assert learner_weights("tokens", [100, 300], [0, 0]) == [0.25, 0.75]
    # 100² / 5 = 2000 and 200² / 5 = 8000: twice the tokens in as many steps count four times.
    assert learner_weights("decoupled", [100, 200], [5, 5]) == [0.2, 0.8]
    assert learner_weights("decoupled", [100, 100], [5, 20]) == [0.8, 0.2]


def test_a_replica_without_progress_is_named() -> None:
    with pytest.raises(ValueError, match="rank 7 reports 0 tokens in this round, which averaging='tokens' needs"):
        learner_weights("tokens", [3, 0], [1, 1], ranks=[2, 7])
    with pytest.raises(ValueError, match="rank 1 reports 0 steps in this round"):
        learner_weights("decoupled", [3, 3], [1, 0])
    with pytest.raises(ValueError, match="rank 0 reports nan tokens"):
        learner_weights("tokens", [math.nan, 1], [1, 1])
    with pytest.raises(ValueError, match=r"averaging must be one of .* got 'median'"):
        learner_weights("median", [1], [1])


def test_the_weighted_mean_is_exact_and_in_chunks() -> None:
    generator = torch.Generator().manual_seed(0)
    for numel in (0, 5, 2**17 + 3):
        shards = [torch.randn(numel, generator=generator) for _ in range(3)]
        expected = (0.5 * shards[0].double() + 0.25 * shards[1].double() + 0.25 * shards[2].double()).float()
        assert torch.equal(weighted_mean(shards, [0.5, 0.25, 0.25]), expected)


@given(count=st.integers(1, 12), value=st.floats(-(2.0**100), 2.0**100, width=32))
def test_the_mean_of_equal_vectors_is_that_vector(count: int, value: float) -> None:
    flat = torch.tensor([value, 1 / 3])
    assert torch.equal(weighted_mean([flat] * count, learner_weights("mean", [0] * count, [0] * count)), flat)
