"""The tensors of a round as one flat float32 vector, and its cuts into shards."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise, zip_longest

import torch

# Shards begin at multiples of it, and codecs have one scale for so many values: cuts do not change what is decoded.
BLOCK = 64


@dataclass(frozen=True)
class Layout:
    """Names, shapes and dtypes of the tensors in a flat vector, in their order."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @classmethod
    def of(cls, tensors: Sequence[torch.Tensor], names: Sequence[str] | None = None) -> Layout:
        """Describe tensors; without `names` they are called "0", "1" and so on.

        Raises:
            ValueError: a tensor is not of a real floating-point dtype, or the names do not fit.
        """
        chosen = tuple(map(str, range(len(tensors)))) if names is None else tuple(names)
        if len(chosen) != len(tensors):
            raise ValueError(f"names has {len(chosen)} entries for {len(tensors)} tensors: pass one name for each")
        for name, tensor in zip(chosen, tensors, strict=True):
            if not tensor.is_floating_point():
                raise ValueError(f"tensor {name!r} is {_dtype_name(tensor)}: only floating-point tensors are averaged")
        return cls(chosen, tuple(tuple(tensor.shape) for tensor in tensors), tuple(map(_dtype_name, tensors)))

    @property
    def numel(self) -> int:
        """Length of the flat vector."""
        return sum(map(math.prod, self.shapes))

    def offsets(self) -> list[int]:
        """Return where each tensor begins in the flat vector, and, last, its length."""
        return list(accumulate(map(math.prod, self.shapes), initial=0))

    def to_json(self) -> str:
        """Return the layout as JSON that is the same for equal layouts."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Layout:
        """Read what `to_json` wrote; ValueError if it is something else."""
        try:
            read = json.loads(text)
            return cls(tuple(read["names"]), tuple(map(tuple, read["shapes"])), tuple(read["dtypes"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"this is not a layout of tensors: {text[:80]!r} ({error})") from error

    def difference(self, other: Layout) -> str | None:
        """Say where another replica's layout first differs from this one's; None if they are equal."""
        mine = zip(self.names, self.shapes, self.dtypes, strict=True)
        theirs = zip(other.names, other.shapes, other.dtypes, strict=True)
        for index, (here, there) in enumerate(zip_longest(mine, theirs)):
            if here == there:
                continue
            if here is None or there is None:
                return f"there are {len(other.names)} tensors there and {len(self.names)} here"
            if here[0] != there[0]:
                return f"tensor {index} is {there[0]!r} there and {here[0]!r} here"
            return f"tensor {here[0]!r} is {there[2]} {there[1]} there and {here[2]} {here[1]} here"
        return None


def pack(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return a new flat float32 vector on the CPU with all values of the tensors, in order.

    bfloat16 and float16 are kept exactly; float64 is rounded.
    """
    flat = torch.empty(sum(tensor.numel() for tensor in tensors), dtype=torch.float32)
    for part, tensor in zip(torch.split_with_sizes(flat, [tensor.numel() for tensor in tensors]), tensors, strict=True):
        part.view(tensor.shape).copy_(tensor.detach())
    return flat


def flat_view(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return what `pack` returns, without a copy where one tensor already is such a vector."""
    first = tensors[0].detach() if len(tensors) == 1 else None
    if first is None or first.dtype != torch.float32 or first.device.type != "cpu" or not first.is_contiguous():
        return pack(tensors)
    return first.view(-1)


def unpack_into(pieces: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
    """Copy a flat vector, given in consecutive pieces, into tensors, cast to each one's dtype and device.

    Raises:
        ValueError: the lengths differ.
    """
    expected, found = (sum(one.numel() for one in several) for several in (tensors, pieces))
    if found != expected:
        raise ValueError(f"a vector of {found} values does not fill tensors of {expected}: layouts differ")
    rest = list(pieces)
    with torch.no_grad():
        for tensor in tensors:
            into = tensor if tensor.is_contiguous() else torch.empty_like(tensor, memory_format=torch.contiguous_format)
            start = 0
            while start < tensor.numel():
                count = min(rest[0].numel(), tensor.numel() - start)
                into.view(-1)[start : start + count] = rest[0][:count]
                rest[:1] = [rest[0][count:]] if count < rest[0].numel() else []
                start += count
            if into is not tensor:
                tensor.copy_(into)


def shard_bounds(numel: int, count: int) -> list[tuple[int, int]]:
    """Cut `numel` values into `count` ranges (start, stop) of about equal length, each beginning at a block.

    A vector of fewer blocks than shards has empty ranges.
    """
    if count < 1:
        raise ValueError(f"count must be a positive whole number of shards, got {count!r}")
    blocks = -(-numel // BLOCK)
    starts = [min(numel, BLOCK * -(-blocks * shard // count)) for shard in range(count + 1)]
    return list(pairwise(starts))


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
