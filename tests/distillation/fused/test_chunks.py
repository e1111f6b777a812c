"""How many rows of logits exist at once."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

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
