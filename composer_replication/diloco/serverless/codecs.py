"""Codecs for outer gradients: float32, bfloat16, int8 and int4 with a scale per block, and a lossless sparse one.

`ErrorFeedback` adds what one round's encoding lost to the next round, so that nothing is lost over rounds.

    codec     bytes per value
    float32   4
    bfloat16  2
    int8      1.031
    int4      0.531
    sparse    0.125 or 2·density for positions, whichever is less, and 4·density for values (2 if they are bfloat16)
    auto      sparse if it takes no more bytes than int4, else int4

Work is done in chunks that fit into the processor's cache: that is several times faster than whole-vector operations
and needs no temporary copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch

from composer_replication._arguments import check_choice
from composer_replication.diloco.serverless.packing import BLOCK

CodecName = Literal["float32", "bfloat16", "int8", "int4", "sparse", "auto"]

_CHUNK = 2048 * BLOCK
_LEVELS = {"int8": 127, "int4": 7}
# Scales are rounded up to bfloat16, by less than 1 %, and float32 ends at 3.4e38.
_LARGEST = 2.0**127
_OFFSETS_PER_COUNT = 2**16


@dataclass(frozen=True)
class Encoded:
    """An encoded vector: `codec` (never "auto") and the tensors (CPU) that travel."""

    codec: str
    numel: int
    parts: dict[str, torch.Tensor]

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.nbytes for part in self.parts.values())


def encode(flat: torch.Tensor, codec: str) -> Encoded:
    """Encode a flat float32 vector; the result may share its memory.

    Rounding is to nearest, ties to even. "float32" and "sparse" are exact to the bit, -0.0 and denormals too. For
    "int8" and "int4" a value is off by at most half its block's scale, which is the block's largest magnitude / 127
    or / 7, rounded up to bfloat16; a block whose scale would be denormal becomes 0.

    Raises:
        ValueError: NaN, an infinity or a magnitude above 2^127, or not a flat float32 vector on the CPU.
    """
    check_choice("codec", codec, get_args(CodecName))
    if flat.dtype != torch.float32 or flat.dim() != 1 or flat.device.type != "cpu" or not flat.is_contiguous():
        kind = f"{flat.dtype} {tuple(flat.shape)} on {flat.device}"
        raise ValueError(f"a flat contiguous float32 vector on the CPU is encoded, got {kind}: use pack()")
    flat = flat.detach()
    _check_finite(flat)
    if codec == "auto":
        return _sparse_if_no_larger(flat) or _encode_int4(flat)
    if codec == "int4":
        return _encode_int4(flat)
    if codec == "int8":
        return _encode_int8(flat)
    if codec == "sparse":
        return _encode_sparse(flat)
    return Encoded(codec, flat.numel(), {"values": flat if codec == "float32" else flat.to(torch.bfloat16)})


def decode(encoded: Encoded) -> torch.Tensor:
    """Return the float32 vector; for "float32" it is the encoded tensor itself.

    Raises:
        ValueError: parts are missing or do not fit `numel`.
    """
    decoders = {"int4": _decode_int4, "int8": _decode_int8, "sparse": _decode_sparse}
    try:
        if encoded.codec in decoders:
            return decoders[encoded.codec](encoded)
        check_choice("codec", encoded.codec, ("float32", "bfloat16", *decoders))
        _check_length(encoded, "values", encoded.numel)
        return encoded.parts["values"].to(torch.float32)
    except KeyError as error:
        raise ValueError(f"an encoded vector ({encoded.codec}) has no part {error}: it is damaged") from error


class ErrorFeedback:
    """Encodes `x + residual` and keeps what the codec lost as the next residual, for each key (a shard's index).

    The next residual counts once the round is over (`settle`): a round that is tried again sends the same bytes.

    Over rounds the decoded vectors add up to the inputs, except for the last residual. Where "auto" finds that the
    input itself is sparse, it is sent exactly and the residual waits: with it, the sum would no longer be sparse.
    """

    def __init__(self, codec: str) -> None:
        check_choice("codec", codec, get_args(CodecName))
        self.codec = codec
        self._residuals: dict[int, torch.Tensor] = {}
        self._next: dict[int, torch.Tensor] = {}

    def encode(self, key: int, flat: torch.Tensor) -> tuple[Encoded, torch.Tensor]:
        """Return the encoded vector and what it decodes to; either may share the memory of `flat`.

        Raises:
            ValueError: as `encode`; or the key's residual has another length. Nothing is changed then.
        """
        if self.codec in ("float32", "sparse"):
            return encode(flat, self.codec), flat
        residual = self._residuals.get(key)
        if residual is None:
            encoded = encode(flat, self.codec)
            total = flat
        elif residual.numel() != flat.numel():
            raise ValueError(
                f"shard {key} has {flat.numel()} values and its residual has {residual.numel()}: "
                "a residual is for shards that stay as they are"
            )
        else:
            if self.codec == "auto":
                _check_finite(flat)
                if (sparse := _sparse_if_no_larger(flat)) is not None:
                    return sparse, flat
            total = flat + residual
            encoded = encode(total, "int4" if self.codec == "auto" else self.codec)
        decoded = decode(encoded)
        if encoded.codec != "sparse":
            self._next[key] = torch.sub(total, decoded, out=None if residual is None else total)
        return encoded, decoded

    def forget(self, key: int) -> None:
        """Leave a key's residual as it was: what was encoded last is not used."""
        self._next.pop(key, None)

    def settle(self, *, was_used: bool) -> None:
        """End a round: what was encoded in it counts, or does not."""
        if was_used:
            self._residuals = self._residuals | self._next  # another thread may be reading the old ones
        self._next = {}

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return copies of the residuals by key."""
        return {f"residual.{key}": residual.clone() for key, residual in self._residuals.items()}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Replace all residuals by saved ones."""
        for name in state:
            if not (name.startswith("residual.") and name[9:].isdigit()):
                raise ValueError(f"{name!r} is not a saved residual: expected names such as 'residual.0'")
        self._residuals = {int(name[9:]): residual.clone() for name, residual in state.items()}


def _check_finite(flat: torch.Tensor) -> None:
    if flat.numel() == 0:
        return
    low, high = (extreme.item() for extreme in flat.aminmax())
    if low >= -_LARGEST and high <= _LARGEST:  # both are NaN if any value is
        return
    position = int((~(flat.abs() <= _LARGEST)).nonzero()[0])
    raise ValueError(
        f"value {position} of {flat.numel()} is {flat[position].item():g}: NaN, infinity and magnitudes above "
        f"{_LARGEST:.3g} are not sent to other replicas; this one's training has diverged, restart it from a checkpoint"
    )


def _chunks(stop: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + _CHUNK, stop)) for start in range(0, stop, _CHUNK))


def _blocks(flat: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    """A range of whole blocks, one in a row; past the vector's end there are zeros."""
    part = flat[start:stop]
    if (missing := stop - start - part.numel()) > 0:
        part = torch.nn.functional.pad(part, (0, missing))
    return part.view(-1, BLOCK)


def _scales(flat: torch.Tensor, blocks: int, levels: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales of blocks as bfloat16, rounded up, and their inverses as float32 (0 for a scale of 0)."""
    largest = torch.empty(blocks)
    magnitudes = torch.empty(_CHUNK // BLOCK, BLOCK)
    for start, stop in _chunks(blocks * BLOCK):
        rows = _blocks(flat, start, stop)
        torch.amax(torch.abs(rows, out=magnitudes[: len(rows)]), 1, out=largest[start // BLOCK : stop // BLOCK])
    largest /= levels
    # bfloat16 is the upper half of float32: adding all ones to the lower half rounds a positive number up.
    rounded_up = (largest.view(torch.int32).add_(0xFFFF) & ~0xFFFF).view(torch.float32)
    rounded_up[rounded_up < torch.finfo(torch.float32).tiny] = 0  # its inverse would overflow
    inverses = rounded_up.reciprocal()
    inverses[rounded_up == 0] = 0
    return rounded_up.to(torch.bfloat16), inverses.unsqueeze(1)


def _rounded(rows: torch.Tensor, inverses: torch.Tensor, start: int, buffer: torch.Tensor) -> torch.Tensor:
    first = start // BLOCK
    torch.mul(rows, inverses[first : first + len(rows)], out=buffer[: len(rows)])
    return buffer[: len(rows)].round_()


def _encode_int8(flat: torch.Tensor) -> Encoded:
    blocks = -(-flat.numel() // BLOCK)
    scales, inverses = _scales(flat, blocks, _LEVELS["int8"])
    codes = torch.empty(blocks, BLOCK, dtype=torch.int8)
    buffer = torch.empty(_CHUNK // BLOCK, BLOCK)
    for start, stop in _chunks(blocks * BLOCK):
        codes[start // BLOCK : stop // BLOCK] = _rounded(_blocks(flat, start, stop), inverses, start, buffer)
    return Encoded("int8", flat.numel(), {"codes": codes.view(-1)[: flat.numel()], "scales": scales})


def _decode_int8(encoded: Encoded) -> torch.Tensor:
    numel, blocks = encoded.numel, -(-encoded.numel // BLOCK)
    codes, scales = _check_length(encoded, "codes", numel), _check_length(encoded, "scales", blocks)
    decoded = torch.empty(blocks * BLOCK)
    for start, stop in _chunks(blocks * BLOCK):
        rows = decoded[start:stop].view(-1, BLOCK).copy_(_blocks(codes, start, stop))
        rows.mul_(scales[start // BLOCK : stop // BLOCK, None])
    return decoded[:numel]


def _encode_int4(flat: torch.Tensor) -> Encoded:
    """The lower four bits of byte i are value i, the upper four are value i + half; each is its code plus 8."""
    half = _half(flat.numel())
    scales, inverses = _scales(flat, 2 * half // BLOCK, _LEVELS["int4"])
    codes = torch.empty(half // BLOCK, BLOCK, dtype=torch.uint8)
    lower, upper = torch.empty(2, _CHUNK // BLOCK, BLOCK)
    for start, stop in _chunks(half):
        both = _rounded(_blocks(flat, start, stop), inverses, start, lower)
        both.add_(_rounded(_blocks(flat, half + start, half + stop), inverses, half + start, upper), alpha=16)
        codes[start // BLOCK : stop // BLOCK] = both.add_(8 + 16 * 8)
    return Encoded("int4", flat.numel(), {"codes": codes.view(-1), "scales": scales[: -(-flat.numel() // BLOCK)]})


def _decode_int4(encoded: Encoded) -> torch.Tensor:
    half = _half(encoded.numel)
    codes = _check_length(encoded, "codes", half)
    scales = _check_length(encoded, "scales", -(-encoded.numel // BLOCK))
    scales = torch.nn.functional.pad(scales, (0, 2 * half // BLOCK - len(scales)))
    decoded = torch.empty(2 * half)
    for start, stop in _chunks(half):
        both = codes[start:stop]
        for first, part in ((start, both & 15), (half + start, both >> 4)):
            values = decoded[first : first + len(part)].copy_(part).sub_(8)
            values.view(-1, BLOCK).mul_(scales[first // BLOCK : first // BLOCK + len(part) // BLOCK, None])
    return decoded[: encoded.numel]


def _half(numel: int) -> int:
    return BLOCK * -(-numel // (2 * BLOCK))


def _encode_sparse(flat: torch.Tensor) -> Encoded:
    """Values that are not 0 by their bits, and a bitmap or offsets in runs of 65536 values, whichever is smaller."""
    numel, bits = flat.numel(), flat.numpy().view(np.int32)
    changed = bits != 0
    counts = np.add.reduceat(changed, np.arange(0, numel, _OFFSETS_PER_COUNT), dtype=np.int32) if numel else bits
    values = bits[changed]
    parts = {"values": torch.from_numpy(values).view(torch.float32)}
    if not (values & 0xFFFF).any():
        parts["values"] = parts["values"].to(torch.bfloat16)
    if 2 * len(values) + 4 * len(counts) < -(-numel // 8):
        offsets = (np.flatnonzero(changed) % _OFFSETS_PER_COUNT).astype(np.uint16)
        parts |= {"offsets": torch.from_numpy(offsets.view(np.int16)), "counts": torch.from_numpy(counts)}
    else:
        parts["bitmap"] = torch.from_numpy(np.packbits(changed))
    return Encoded("sparse", numel, parts)


def _decode_sparse(encoded: Encoded) -> torch.Tensor:
    numel = encoded.numel
    values = encoded.parts["values"].to(torch.float32).numpy()
    decoded = np.zeros(numel, dtype=np.float32)
    chosen: np.ndarray[Any, Any]
    if "bitmap" in encoded.parts:
        bitmap = _check_length(encoded, "bitmap", -(-numel // 8)).numpy()
        chosen = np.unpackbits(bitmap, count=numel).view(np.bool_)
        marked = int(np.count_nonzero(chosen))
    else:
        counts = _check_length(encoded, "counts", -(-numel // _OFFSETS_PER_COUNT)).numpy()
        marked = int(counts.sum())
        offsets = _check_length(encoded, "offsets", marked).numpy().view(np.uint16)
        chosen = np.repeat(np.arange(len(counts)) * _OFFSETS_PER_COUNT, counts) + offsets
    _check_length(encoded, "values", marked)
    decoded[chosen] = values
    return torch.from_numpy(decoded)


def _sparse_if_no_larger(flat: torch.Tensor) -> Encoded | None:
    """The sparse form if it takes no more bytes than int4, else None."""
    numel = flat.numel()
    int4_bytes = _half(numel) + 2 * -(-numel // BLOCK)
    changed = int(np.count_nonzero(flat.numpy().view(np.int32)))
    # The least that it can take: values of two bytes, and positions in a bitmap or as offsets.
    if 2 * changed + min(numel / 8, 2 * changed) > int4_bytes:
        return None
    sparse = _encode_sparse(flat)
    return sparse if sparse.nbytes <= int4_bytes else None


def _check_length(encoded: Encoded, name: str, expected: int) -> torch.Tensor:
    part = encoded.parts[name]
    if part.numel() != expected:
        raise ValueError(
            f"part {name!r} of an encoded vector ({encoded.codec}, {encoded.numel} values) has {part.numel()} "
            f"entries instead of {expected}: it is damaged"
        )
    return part
