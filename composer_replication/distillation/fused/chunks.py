"""How many rows of logits exist at once.

Two sizes. A *chunk* is what a matrix product fills: long enough to use the head's weight well each time it is read from
memory, short enough that its logits stay small. A *block* is what the elementwise formula and its gradient work on: on
a CPU it stays in the cache, where a dozen passes cost little more than one from memory; on an accelerator kernel
launches cost more than memory traffic, so a block is the whole chunk.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

# Chosen with benchmarks/divergence.py at a vocabulary of 151,936. A chunk of 128 rows (78 MB of float32 logits) gives
# up some of the matrix products' speed; longer ones win little of it back and cost memory in proportion. A block of 6
# rows is as fast as any on an idle machine; shorter ones suffer when another process takes a core, because every
# operator ends with the threads waiting for each other.
CHUNK_ELEMENTS = 20_000_000
CPU_BLOCK_ELEMENTS = 2**20


def chunk_rows(positions: int, vocabulary: int) -> int:
    """Rows in a chunk: as many as the element budget holds, then evened out so that no chunk is a remnant."""
    at_most = max(1, CHUNK_ELEMENTS // vocabulary)
    return math.ceil(positions / math.ceil(positions / at_most))


def block_rows(chunk: int, vocabulary: int, device: torch.device) -> int:
    """Rows in a block of a chunk."""
    if device.type != "cpu":
        return chunk
    return min(chunk, max(1, CPU_BLOCK_ELEMENTS // vocabulary))


def slices(total: int, length: int) -> Iterator[slice]:
    """Cut `range(total)` into slices of at most `length`."""
    for start in range(0, total, length):
        yield slice(start, min(start + length, total))
