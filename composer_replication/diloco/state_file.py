"""Nested state as one safetensors blob: the structure in its metadata, and a checksum over everything. No pickle.

A state is a tensor, None, a bool, an int, a float, a string, or a list, tuple or dict of states. The keys of a dict are
strings or ints; ints stay ints, as in the state of an optimiser.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
import xxhash
from safetensors import SafetensorError
from safetensors.torch import load, save

State = Any
_STRUCTURE, _CHECKSUM = "structure", "xxh3_128"


def dump_state(state: State) -> bytes:
    """Return the state as bytes. Raises a TypeError that names the place of a value which is not a state."""
    tensors: dict[str, torch.Tensor] = {}
    structure = json.dumps(_describe(state, "state", tensors))
    return save(tensors, {_STRUCTURE: structure, _CHECKSUM: _checksum(structure, tensors)})


def state_digest(state: State) -> str:
    """Return a hash that is the same for equal states; the bytes of `dump_state` may differ in their order."""
    tensors: dict[str, torch.Tensor] = {}
    return _checksum(json.dumps(_describe(state, "state", tensors)), tensors)


def load_state(data: bytes) -> State:
    """Return the state that `dump_state` wrote, with tensors on the CPU. Raises a ValueError if it is damaged."""
    try:
        metadata, tensors = _metadata(data), load(data)
        structure = metadata[_STRUCTURE]
        checksum = _checksum(structure, tensors)
    # A damaged header can be anything that JSON and the format allow.
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, OverflowError) as error:
        raise ValueError(f"the state of {len(data)} bytes is damaged ({error!r}): fetch or write it again") from error
    if checksum != metadata.get(_CHECKSUM):
        raise ValueError(f"the state of {len(data)} bytes is damaged (wrong checksum): fetch or write it again")
    return _build(json.loads(structure), tensors)


def _metadata(data: bytes) -> Mapping[str, str]:
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 + length:
        raise ValueError("its header is cut off")
    metadata: Mapping[str, str] = json.loads(data[8 : 8 + length])["__metadata__"]
    return metadata


def _describe(value: State, place: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Return JSON for a value: plain ones are themselves, others are {kind: content}; tensors go to `tensors`."""
    if isinstance(value, torch.Tensor):
        name = str(len(tensors))
        # A copy, because safetensors refuses tensors that share memory; and dense ones only.
        tensors[name] = value.detach().to("cpu", copy=True).contiguous()
        return {"tensor": name}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_describe(one, f"{place}[{index}]", tensors) for index, one in enumerate(value)]}
    if isinstance(value, Mapping):
        for key in value:
            if isinstance(key, bool) or not isinstance(key, (str, int)):
                raise TypeError(f"{place} has the key {key!r}: keys must be strings or ints")
        return {"dict": [[key, _describe(one, f"{place}[{key!r}]", tensors)] for key, one in value.items()]}
    raise TypeError(
        f"{place} is of type {type(value).__name__}: a state holds tensors, numbers, strings, None, lists, tuples and "
        "dicts only"
    )


def _build(described: Any, tensors: Mapping[str, torch.Tensor]) -> State:
    if not isinstance(described, dict):
        return described
    ((kind, content),) = described.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {key: _build(one, tensors) for key, one in content}
    built = [_build(one, tensors) for one in content]
    return tuple(built) if kind == "tuple" else built


def _checksum(structure: str, tensors: Mapping[str, torch.Tensor]) -> str:
    hashed = xxhash.xxh3_128(structure.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        hashed.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        hashed.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return hashed.hexdigest()
