"""Sizes of chunks and blocks, and products of half-precision operands."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.distillation.fused import sweep
from composer_replication.distillation.fused.sweep import (
    CHUNK_ELEMENTS,
    CPU_BLOCK_ELEMENTS,
    block_rows,
    chunk_rows,
    slices,
)


@given(positions=st.integers(1, 100_000), vocabulary=st.integers(2, 300_000))
def test_chunks_stay_within_the_budget_and_are_even(positions: int, vocabulary: int) -> None:
    rows = chunk_rows(positions, vocabulary)
    assert 1 <= rows <= positions
    assert rows == 1 or rows * vocabulary <= CHUNK_ELEMENTS
    lengths = [part.stop - part.start for part in slices(positions, rows)]
    assert sum(lengths) == positions
    # Even: the last chunk lacks less than one row per chunk.
    assert rows - lengths[-1] < len(lengths)


def test_chunk_follows_the_vocabulary() -> None:
    assert chunk_rows(10_000, 151_936) < chunk_rows(10_000, 32_000) < chunk_rows(10_000, 1_000)


def test_blocks_fit_the_cache_on_a_cpu_and_span_the_chunk_elsewhere() -> None:
    assert block_rows(128, 151_936, torch.device("cpu")) == CPU_BLOCK_ELEMENTS // 151_936
    assert block_rows(128, 10**9, torch.device("cpu")) == 1
    assert block_rows(2, 10, torch.device("cpu")) == 2
    assert block_rows(128, 151_936, torch.device("meta")) == 128


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("rows", "inner", "columns"), [(4, 5, 17), (4, 17, 5), (17, 4, 5)])
@pytest.mark.parametrize("fresh", [True, False])
def test_product_is_that_of_the_exact_operands(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, rows: int, inner: int, columns: int, fresh: bool
) -> None:
    monkeypatch.setattr(sweep, "_WIDENED_SLICE", 3)
    left, right = torch.randn(rows, inner), torch.randn(inner, columns).to(dtype)
    out = torch.randn(rows, columns)
    expected = (0 if fresh else out.double()) + left.double() @ right.double()
    sweep.accumulate_product(out, left, right, fresh=fresh)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)


def test_projection_adds_the_bias_and_passes_logits_through() -> None:
    hidden, weight, bias = torch.randn(3, 4), torch.randn(7, 4), torch.randn(7)
    out = torch.full((3, 7), torch.nan)
    sweep.project_into(out, hidden, weight, bias)
    torch.testing.assert_close(out, hidden @ weight.T + bias)
    logits = torch.randn(3, 7)
    sweep.project_into(out, logits, None, None)
    assert torch.equal(out, logits)
