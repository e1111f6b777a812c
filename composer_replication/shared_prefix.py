"""Forward passes over pairs of rows with a common prefix, which is computed once.

A preference pair is one prompt with two responses. Packed into one row, [prefix][rest of one][rest of the other], with
an attention mask that hides the first rest from the second and positions that start again after the prefix, the pair
costs one prompt instead of two. The values are those of the two rows up to rounding.

This needs a model that passes a ready (B, 1, W, W) mask to all of its layers and reads positions from `position_ids`.
No attribute of a model says so, hence a list of architectures, each of which the tests compare with the plain form.

Shapes: B pairs, T columns of a row, W columns of a packed row, P positions, H hidden size.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn

from composer_replication.causal_lm import HiddenStates, run_causal_lm, transformers_model, without_wrappers

PACKABLE_ARCHITECTURES = frozenset(
    {"cohere", "gemma", "gemma2", "glm4", "gpt2", "gpt_neox", "granite", "llama", "mistral", "mixtral"}
    | {"olmo2", "phi", "phi3", "qwen2", "qwen3", "qwen3_moe", "smollm3", "stablelm", "starcoder2"}
)

# Above this share of the plain form's cells, packing costs more than it saves: its mask rules out the fastest kernels,
# and a packed row's attention spans both rests.
WORTHWHILE_SHARE = 0.8


def pair_states(
    model: nn.Module, input_ids: torch.Tensor, attention_mask: torch.Tensor, index_P2: torch.Tensor
) -> HiddenStates:
    """Return the (P, H) hidden states that predict the tokens at (P, 2) places, from one pass over (2·B, T) rows.

    Row b and row B + b are a pair. It is packed if the model allows it and the rows share enough to be worth it; the
    caller sees no difference but the cost.
    """
    packed = None
    if packs(model, input_ids.shape[1]):
        packed = _packed(input_ids, attention_mask, index_P2)
    if packed is None:
        states = run_causal_lm(model, input_ids, attention_mask)
        return HiddenStates(states.predicting(index_P2), states.head)
    mask = mask_for(model, packed.visible_BWW)
    states = run_causal_lm(model, packed.input_ids_BW, mask, packed.position_ids_BW)
    return HiddenStates(states.hidden[packed.rows_P, packed.columns_P], states.head)


class _Packed(NamedTuple):
    """Packed rows, their attention mask, and the places of the requested hidden states."""

    input_ids_BW: torch.Tensor
    position_ids_BW: torch.Tensor
    visible_BWW: torch.Tensor
    rows_P: torch.Tensor
    columns_P: torch.Tensor


def _packed(input_ids: torch.Tensor, attention_mask: torch.Tensor, index_P2: torch.Tensor) -> _Packed | None:
    """Return the packed form, or None if it would not pay."""
    pairs, columns = input_ids.shape[0] // 2, input_ids.shape[1]
    one_BT, other_BT = input_ids.chunk(2)
    seen = attention_mask > 0
    one_seen_BT, other_seen_BT = seen.chunk(2)
    # A prediction is read one column before its token, so the columns from the last of these tokens on are not needed.
    wanted = torch.zeros_like(input_ids)
    wanted[index_P2[:, 0], index_P2[:, 1]] = index_P2[:, 1]
    one_end_B1, other_end_B1 = wanted.amax(1, keepdim=True).chunk(2)
    # Left padding is a common prefix too, if it is equally long.
    alike_BT = (one_BT == other_BT) & (one_seen_BT == other_seen_BT)
    shared_B1 = alike_BT.long().cumprod(1).sum(1, keepdim=True)
    shared_B1 = torch.minimum(shared_B1, torch.minimum(one_end_B1, other_end_B1))
    width = int((one_end_B1 + other_end_B1 - shared_B1).max())
    if width > WORTHWHILE_SHARE * 2 * columns:
        return None

    column_W = torch.arange(width, device=input_ids.device)
    # 0 the prefix, 1 the rest of the one, 2 the rest of the other, 3 padding.
    part_BW = (
        (column_W >= shared_B1).long()
        + (column_W >= one_end_B1).long()
        + (column_W >= one_end_B1 + other_end_B1 - shared_B1).long()
    )
    shift_B1 = one_end_B1 - shared_B1
    source_BW = torch.where(part_BW == 2, column_W - shift_B1, column_W).masked_fill(part_BW == 3, 0)

    def from_rows(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return torch.where(part_BW == 2, other.gather(1, source_BW), one.gather(1, source_BW))

    seen_BW = from_rows(one_seen_BT, other_seen_BT) & (part_BW < 3)
    visible_BWW = (
        (column_W[:, None] >= column_W)
        & seen_BW[:, None, :]
        & ((part_BW[:, None, :] == 0) | (part_BW[:, None, :] == part_BW[:, :, None]))
    )
    # Padding sees itself: a column that sees nothing would become NaN in some kernels.
    visible_BWW |= torch.eye(width, dtype=torch.bool, device=input_ids.device)

    rows_P, source_P = index_P2[:, 0] % pairs, index_P2[:, 1] - 1
    in_rest_of_other_P = (index_P2[:, 0] >= pairs) & (source_P >= shared_B1[rows_P, 0])
    columns_P = torch.where(in_rest_of_other_P, source_P + shift_B1[rows_P, 0], source_P)
    return _Packed(from_rows(one_BT, other_BT), source_BW, visible_BWW, rows_P, columns_P)


def packs(model: nn.Module, columns: int) -> bool:
    """Whether the model computes packed rows of pairs that were `columns` long as it does plain ones."""
    inner = transformers_model(model)
    config: Any = getattr(inner, "config", None)
    if getattr(config, "model_type", None) not in PACKABLE_ARCHITECTURES:
        return False
    # A custom class may have the name of a known architecture and another forward.
    if not type(inner).forward.__module__.startswith("transformers.models."):
        return False
    if getattr(config, "_attn_implementation", None) not in ("sdpa", "eager"):
        return False
    if not set(getattr(config, "layer_types", None) or ()) <= {"full_attention", "sliding_attention"}:
        return False
    # Windowed layers use a ready mask too, so the window must not cut anything off.
    window = getattr(config, "sliding_window", None)
    return (window is None or columns <= window) and _only_plain_adapters(model)


def _only_plain_adapters(model: nn.Module) -> bool:
    """Whether adapters, if any, look at each position by itself: no virtual tokens, no search in the ids."""
    adapters: dict[str, Any] = getattr(without_wrappers(model), "peft_config", None) or {}
    return all(
        adapter.peft_type == "LORA" and not getattr(adapter, "alora_invocation_tokens", None)
        for adapter in adapters.values()
    )


def mask_for(model: nn.Module, visible_BWW: torch.Tensor) -> torch.Tensor:
    """Return the model's form of a mask: eager attention adds it to its scores, SDPA takes booleans."""
    inner: Any = transformers_model(model)
    mask = visible_BWW[:, None]
    if inner.config._attn_implementation == "sdpa":
        return mask
    dtype = inner.get_input_embeddings().weight.dtype
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)
