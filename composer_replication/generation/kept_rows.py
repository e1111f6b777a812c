"""Rows of token ids that a model has read, with their keys and values: what is added to a row is read alone.

Rows differ in length. What is added to all of them is a block, padded on the left, so that the last column of a batch
is the last token of every row. `own_BT` says which columns of a row are its own; no row attends to the others, and the
positions count a row's own columns.

Shapes: B rows, Q columns of a block, T columns that were read, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, DynamicCache
from transformers.cache_utils import Cache, DynamicLayer

from composer_replication.causal_lm import evaluating, transformers_model, without_wrappers
from composer_replication.shared_prefix import mask_for, packs

_ATTENTION = "composer_replication_grouped_sdpa"
# Columns of a cache are allocated this many at a time.
_SPARE = 64
# Rows are moved together if this many times the longest row would fit into a batch.
_LOOSE = 1.5


def why_not_kept(model: nn.Module) -> str | None:
    """Return the reason why caches of this model cannot be kept, selected and joined row by row; None if they can."""
    inner: Any = transformers_model(model)
    name = type(inner).__name__
    if not hasattr(inner, "_supports_default_dynamic_cache") or not inner._supports_default_dynamic_cache():
        return f"{name} has a cache of its own kind"
    if getattr(inner, "_is_stateful", False):
        return f"{name} keeps a state that does not grow with the text"
    layers = DynamicCache(config=inner.config).layers
    others = {type(layer).__name__ for layer in layers if type(layer) is not DynamicLayer}
    if others:
        return f"the cache of {name} has layers that forget or compress ({', '.join(sorted(others))})"
    if "position_ids" not in inspect.signature(inner.forward).parameters:
        return f"{name} does not take position_ids"
    if inner.config._attn_implementation not in ("sdpa", "eager"):
        return f"the attention of {name} is {inner.config._attn_implementation}; sdpa and eager take masks with gaps"
    adapters: dict[str, Any] = getattr(without_wrappers(model), "peft_config", None) or {}
    if any(getattr(adapter, "is_prompt_learning", False) for adapter in adapters.values()):
        return "its adapter puts virtual tokens before the text"
    return None


@contextmanager
def generating(model: nn.Module) -> Iterator[None]:
    """Run a model for sampling: no gradients, no dropout, and on a CPU an attention that copies no keys and values."""
    inner: Any = transformers_model(model)
    config = inner.config
    before = config._attn_implementation
    # With a mask, transformers repeats keys and values for every head of a group. That copies the whole cache.
    if before == "sdpa" and packs(model, 1) and next(inner.parameters()).device.type == "cpu":
        AttentionInterface.register(_ATTENTION, _grouped_attention)
        config._attn_implementation = _ATTENTION
    try:
        with torch.no_grad(), evaluating(model):
            yield
    finally:
        config._attn_implementation = before


def _grouped_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    attended = scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
    )
    return attended.transpose(1, 2).contiguous(), None


class _RoomyLayer(DynamicLayer):  # type: ignore[misc]
    """A layer of a cache with columns to spare: a step writes its own column, and copies nothing."""

    keys: torch.Tensor
    values: torch.Tensor
    is_initialized: bool
    rooms: tuple[torch.Tensor, ...]

    def make_room(self, like: Sequence[torch.Tensor], rows: int, columns: int) -> None:
        """Allocate keys and values of some rows and columns, with the heads and the type of others."""
        # Zeros, not what was there before: a hidden column that is not a number would still make all of them none.
        self.rooms = tuple(one.new_zeros(rows, one.shape[1], columns + _SPARE, one.shape[3]) for one in like)
        self.is_initialized = True

    def show(self, columns: int) -> None:
        """Make the first columns of the rooms the layer's keys and values."""
        self.keys, self.values = (room[:, :, :columns] for room in self.rooms)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        start = self.get_seq_length()
        stop = start + key_states.shape[-2]
        if not self.is_initialized or stop > self.rooms[0].shape[-2]:
            before = (self.keys, self.values)
            self.make_room((key_states, value_states), len(key_states), stop)
            for room, states in zip(self.rooms, before if start else (), strict=False):
                room[:, :, :start] = states
        for room, states in zip(self.rooms, (key_states, value_states), strict=True):
            room[:, :, start:stop] = states
        self.show(stop)
        return self.keys, self.values


class KeptRows:
    """A batch of rows as far as a model has read them; empty rows at first. Use it within `generating`."""

    def __init__(self, model: nn.Module, rows: int) -> None:
        self._model: Any = model
        inner: Any = transformers_model(model)
        self._inner = inner
        device = next(inner.parameters()).device
        self._cache = Cache(layer_class_to_replicate=_RoomyLayer)
        self._own_BT = torch.zeros(rows, 0, dtype=torch.bool, device=device)
        self._lengths_B1 = torch.zeros(rows, 1, dtype=torch.long, device=device)
        keeps = "logits_to_keep" in inspect.signature(inner.forward).parameters
        self._options = {"use_cache": True, **({"logits_to_keep": 1} if keeps else {})}

    def __len__(self) -> int:
        return len(self._own_BT)

    def read(self, added: Sequence[Sequence[int]]) -> torch.Tensor:
        """Read what is added to each row, nothing to some of them.

        Returns:
            The (B, V) logits after the last token of each row; of a row to which nothing was added, anything.
        """
        block = max(map(len, added))
        device = self._own_BT.device
        ids_BQ = torch.tensor([[0] * (block - len(ids)) + list(ids) for ids in added], device=device)
        own_BQ = torch.tensor([[False] * (block - len(ids)) + [True] * len(ids) for ids in added], device=device)
        self._own_BT = torch.cat([self._own_BT, own_BQ], 1)
        positions_BQ = (self._lengths_B1 + own_BQ.cumsum(1) - 1).clamp(min=0)
        self._lengths_B1 = self._lengths_B1 + own_BQ.sum(1, keepdim=True)
        output = self._model(
            input_ids=ids_BQ,
            attention_mask=self._mask(block),
            position_ids=positions_BQ,
            past_key_values=self._cache,
            **self._options,
        )
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    def _mask(self, block: int) -> torch.Tensor:
        config = self._inner.config
        if config._attn_implementation != _ATTENTION and not packs(self._model, 1):
            return self._own_BT.long()
        columns_T = torch.arange(self._own_BT.shape[1], device=self._own_BT.device)
        block_Q1 = columns_T[-block:, None]
        # Padding sees itself: a column that sees nothing would become NaN in some kernels.
        visible_BQT = (self._own_BT[:, None] & (columns_T <= block_Q1)) | (columns_T == block_Q1)
        return visible_BQT[:, None] if config._attn_implementation == _ATTENTION else mask_for(self._model, visible_BQT)


def gathered(parts: Sequence[tuple[KeptRows, Sequence[int]]]) -> KeptRows:
    """Return a batch of some rows of others, in this order; a row may be there several times."""
    first, _ = parts[0]
    made = KeptRows(first._model, sum(len(rows) for _, rows in parts))
    device = made._own_BT.device
    indices = [torch.tensor(rows, dtype=torch.long, device=device) for _, rows in parts]
    made._lengths_B1 = torch.cat([kept._lengths_B1[index] for (kept, _), index in zip(parts, indices, strict=True)])
    longest = int(made._lengths_B1.max())
    width = max(kept._own_BT.shape[1] for kept, _ in parts)
    is_loose = width > _LOOSE * longest
    width = longest if is_loose else width
    made._own_BT = torch.zeros(len(made), width, dtype=torch.bool, device=device)
    made._cache.layers = [_RoomyLayer() for _ in first._cache.layers]
    for old, new in zip(first._cache.layers, made._cache.layers, strict=True):
        new.make_room((old.keys, old.values), len(made), width)
        new.show(width)
    start = 0
    for (kept, rows), index in zip(parts, indices, strict=True):
        stop, own_RT = start + len(rows), kept._own_BT[index]
        if is_loose:
            # A row's own columns last, in their order.
            columns_RT = own_RT.long().argsort(dim=1, stable=True)[:, -width:]
            own_RT = own_RT.gather(1, columns_RT)
        shift = width - own_RT.shape[1]
        made._own_BT[start:stop, shift:] = own_RT
        for old, new in zip(kept._cache.layers, made._cache.layers, strict=True):
            for states, room in ((old.keys, new.keys), (old.values, new.values)):
                place = room[start:stop, :, shift:]
                if not is_loose:
                    torch.index_select(states, 0, index, out=place)
                    continue
                for one, row, columns in zip(place, rows, columns_RT, strict=True):
                    torch.index_select(states[row], 1, columns, out=one)
        start = stop
    return made


def read_prompts(model: nn.Module, prompts: Sequence[Sequence[int]]) -> tuple[KeptRows, torch.Tensor]:
    """Read prompts; what all of them begin with is read once, and so are prompts that are the same.

    Returns:
        A row for each prompt, and the (B, V) logits after it.
    """
    distinct = {tuple(prompt): place for place, prompt in enumerate(dict.fromkeys(map(tuple, prompts)))}
    shortest = min(map(len, distinct))
    alike = (len(set(column)) == 1 for column in zip(*distinct, strict=False))
    # A token of every prompt is left to read: its logits are wanted.
    shared = min(sum(takewhile(bool, alike)), shortest - 1)
    first, *_ = distinct
    if shared and len(distinct) > 1:
        beginning = KeptRows(model, 1)
        beginning.read([first[:shared]])
        kept = gathered([(beginning, [0] * len(distinct))])
        logits_DV = kept.read([prompt[shared:] for prompt in distinct])
    else:
        kept = KeptRows(model, len(distinct))
        logits_DV = kept.read(list(distinct))
    rows = [distinct[tuple(prompt)] for prompt in prompts]
    return gathered([(kept, rows)]), logits_DV[rows]
