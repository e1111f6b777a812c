"""Tensors of a round as one flat vector, and its cuts."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.diloco.serverless.packing import BLOCK, Layout, flat_view, pack, shard_bounds, unpack_into


def tensors() -> list[torch.Tensor]:
    return [
        torch.arange(6, dtype=torch.float32).view(2, 3).t(),  # not contiguous
        torch.tensor(2.5, dtype=torch.bfloat16),
        torch.empty(0, 4),
        torch.tensor([1e-4, -3.0], dtype=torch.float16),
        torch.tensor([0.1], dtype=torch.float64),
    ]


def test_tensors_come_back_with_their_own_dtypes_and_shapes() -> None:
    packed = pack(tensors())
    assert packed.dtype == torch.float32
    assert packed.is_contiguous()
    assert packed[:6].tolist() == [0, 3, 1, 4, 2, 5]
    for cuts in ([10], [0, 4, 0, 3, 3], [1] * 10):
        back = [torch.full_like(tensor, 9.0) for tensor in tensors()]
        unpack_into(packed.split(cuts), back)
        for before, after in zip(tensors(), back, strict=True):
            assert after.dtype == before.dtype
            assert torch.equal(after, before.float().to(before.dtype))


def test_the_packed_vector_is_a_copy_and_parameters_can_be_filled() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    packed = pack([parameter])
    packed += 1
    assert parameter.tolist() == [1, 1, 1]
    assert not packed.requires_grad
    unpack_into([packed], [parameter])
    assert parameter.tolist() == [2, 2, 2]


def test_only_a_flat_float32_tensor_is_viewed_without_a_copy() -> None:
    flat = torch.arange(6, dtype=torch.float32)
    assert flat_view([flat.view(2, 3)]).data_ptr() == flat.data_ptr()
    for others in (tensors(), [flat.view(2, 3).t()], [flat.double()], [flat, flat], []):
        assert torch.equal(flat_view(others), pack(others))


def test_a_vector_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="a vector of 4 values does not fill tensors of 3"):
        unpack_into([torch.zeros(4)], [torch.zeros(3)])


def test_a_layout_knows_its_offsets_and_survives_json() -> None:
    layout = Layout.of(tensors(), ["a", "b", "c", "d", "ä"])
    assert layout.offsets() == [0, 6, 7, 7, 9, 10]
    assert layout.numel == 10
    assert layout.dtypes == ("float32", "bfloat16", "float32", "float16", "float64")
    assert Layout.from_json(layout.to_json()) == layout
    assert Layout.of(tensors()).names == ("0", "1", "2", "3", "4")


@pytest.mark.parametrize("text", ["", "[]", '{"names": ["a"]}', '{"names": 3, "shapes": [], "dtypes": []}'])
def test_another_text_is_no_layout(text: str) -> None:
    with pytest.raises(ValueError, match="is not a layout"):
        Layout.from_json(text)


@pytest.mark.parametrize(
    ("there", "said"),
    [
        (Layout(("w", "b"), ((3, 4), (3,)), ("float32", "float32")), None),
        (
            Layout(("w", "b"), ((4, 4), (3,)), ("float32", "float32")),
            "tensor 'w' is float32 (4, 4) there and float32 (3, 4) here",
        ),
        (
            Layout(("w", "b"), ((3, 4), (3,)), ("float32", "bfloat16")),
            "tensor 'b' is bfloat16 (3,) there and float32 (3,) here",
        ),
        (Layout(("w", "c"), ((3, 4), (3,)), ("float32", "float32")), "tensor 1 is 'c' there and 'b' here"),
        (Layout(("w",), ((3, 4),), ("float32",)), "there are 1 tensors there and 2 here"),
    ],
)
def test_the_first_difference_of_layouts_is_named(there: Layout, said: str | None) -> None:
    here = Layout(("w", "b"), ((3, 4), (3,)), ("float32", "float32"))
    assert here.difference(there) == said


def test_only_floating_point_tensors_with_a_name_each_have_a_layout() -> None:
    with pytest.raises(ValueError, match="tensor 'ids' is int64"):
        Layout.of([torch.zeros(2), torch.zeros(2, dtype=torch.int64)], ["w", "ids"])
    with pytest.raises(ValueError, match="names has 1 entries for 2 tensors"):
        Layout.of([torch.zeros(2), torch.zeros(2)], ["w"])


@given(numel=st.integers(0, 5000), count=st.integers(1, 20))
def test_shards_cover_the_vector_begin_at_blocks_and_are_about_equal(numel: int, count: int) -> None:
    bounds = shard_bounds(numel, count)
    assert len(bounds) == count
    assert bounds[0][0] == 0
    assert bounds[-1][1] == numel
    for (_, stop), (start, _) in pairwise(bounds):
        assert stop == start
        assert start % BLOCK == 0 or start == numel
    blocks = [-(-(stop - start) // BLOCK) for start, stop in bounds]
    assert max(blocks) - min(blocks) <= 1


def test_no_shards_are_refused() -> None:
    with pytest.raises(ValueError, match="count must be a positive whole number of shards, got 0"):
        shard_bounds(10, 0)
