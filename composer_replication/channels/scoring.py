"""Token positions, index pairs and forward passes that the channels share.

Each channel is normalised by its own active tokens, so that data added to one does not dilute another.

Positions are those of *tokens*: a mask or an index names the token that is predicted, and the prediction is read one
column earlier.

Shapes: B rows, T columns, P positions or index pairs, H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from composer_replication._arguments import check_same_shape, check_token_ids, entry
from composer_replication.causal_lm import HiddenStates, evaluating, run_causal_lm
from composer_replication.context_passes import context_states
from composer_replication.distillation.fused.losses import fused_token_logprobs
from composer_replication.shared_prefix import pair_states

Batch = Mapping[str, torch.Tensor]
HintedStates = Callable[[Batch, torch.Tensor], HiddenStates]
"""A teacher, as channel 2 sees it: from a batch and the (P, 2) positions in its `ctx_teacher_input_ids` to (P, H)
hidden states and the head that reads them."""


class ChannelLoss(NamedTuple):
    """One channel's loss with gradient, and the number of tokens it is an average over (0: the channel was off)."""

    loss: torch.Tensor
    active_tokens: int


def preference_logprobs(model: nn.Module, inputs: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Summed log-probabilities and lengths of the responses, (2·B,) each: first the chosen, then the rejected.

    Both go through one forward pass, and what they share runs once where the model allows it. Call it without gradient
    on the reference policy to get the reference values.
    """
    input_ids, attention_mask, response_mask = _stacked_preferences(inputs)
    index_P2 = response_mask.nonzero()
    states = pair_states(model, input_ids, attention_mask, index_P2)
    logprobs_P = fused_token_logprobs(states.hidden, at(input_ids, index_P2), states.head)
    return row_sums(logprobs_P, index_P2, input_ids.shape[0]), response_mask.sum(-1)


def summed_logprobs(states: HiddenStates, input_ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The (B,) summed log-probabilities of the tokens that a (B, T) mask selects, but for those of the first column."""
    index_P2 = _predictable(mask).nonzero()
    logprobs_P = fused_token_logprobs(states.predicting(index_P2), at(input_ids, index_P2), states.head)
    return row_sums(logprobs_P, index_P2, input_ids.shape[0])


@torch.no_grad()
def token_logprobs(
    states: HiddenStates, input_ids: torch.Tensor, index_P2: torch.Tensor, temperature: float = 1.0
) -> torch.Tensor:
    """The (P,) log-probabilities of the tokens at (P, 2) pairs of row and column, without gradient."""
    return fused_token_logprobs(
        states.predicting(index_P2), at(input_ids, index_P2), states.head, temperature=temperature
    )


def row_sums(values_P: torch.Tensor, index_P2: torch.Tensor, rows: int) -> torch.Tensor:
    """The (B,) sums of values at (P, 2) pairs of row and column, row by row."""
    return values_P.new_zeros(rows).index_add(0, index_P2[:, 0], values_P)


def hinted_states(
    model: nn.Module, inputs: Batch, index_P2: torch.Tensor, token_budget: int | None = None
) -> HiddenStates:
    """A teacher's (P, H) hidden states in the hinted contexts, without gradient.

    The pass covers no more rows and columns than the (P, 2) positions need. With a `token_budget` there are several,
    none over more tokens than that, and what contexts share runs once where the model allows it.
    """
    input_ids, attention_mask = inputs["ctx_teacher_input_ids"], inputs.get("ctx_teacher_attention_mask")
    if attention_mask is not None:
        check_same_shape("ctx_teacher_attention_mask", attention_mask, "ctx_teacher_input_ids", input_ids)
    if token_budget is not None:
        return context_states(model, input_ids, attention_mask, index_P2, token_budget=token_budget)
    rows, row_of_P = torch.unique(index_P2[:, 0], return_inverse=True)
    # The last token is predicted, not read: its own column is not needed.
    columns = int(index_P2[:, 1].max())
    with torch.no_grad(), evaluating(model):
        states = run_causal_lm(
            model, input_ids[rows, :columns], None if attention_mask is None else attention_mask[rows, :columns]
        )
        needed_P2 = torch.stack([row_of_P, index_P2[:, 1]], dim=1)
        return HiddenStates(states.predicting(needed_P2), states.head)


def with_bare_contexts(inputs: Batch, student_P2: torch.Tensor, teacher_P2: torch.Tensor) -> tuple[Batch, torch.Tensor]:
    """The hinted contexts and, below them, the student's own rows, for one teacher to read both.

    Returns:
        `ctx_teacher_input_ids` and `ctx_teacher_attention_mask`, and (2·P, 2) positions in them: the tokens of the
        pairs with the hint, then the same tokens without it.
    """
    stacks: dict[str, torch.Tensor] = {}
    width = max(inputs[f"{prefix}input_ids"].shape[1] for prefix in ("ctx_teacher_", ""))
    for part in ("input_ids", "attention_mask"):
        both = []
        for prefix in ("ctx_teacher_", ""):
            ids = inputs[f"{prefix}input_ids"]
            rows = ids if part == "input_ids" else inputs.get(f"{prefix}{part}", torch.ones_like(ids))
            both.append(F.pad(rows, (0, width - ids.shape[1])))
        stacks[f"ctx_teacher_{part}"] = torch.cat(both)
    below = student_P2.new_tensor([inputs["ctx_teacher_input_ids"].shape[0], 0])
    return stacks, torch.cat([teacher_P2, student_P2 + below])


def sdpo_pairs(inputs: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """The (P, 2) positions of the tokens that channel 2 compares, in the student's and in the teacher's ids.

    Explicit index pairs are used as they are, and a pair that is given twice counts twice. Without them,
    `sdpo_loss_mask` names the same columns in both. Either way the token ids must agree, or the comparison would be
    between predictions of different things.
    """
    input_ids, teacher_ids = entry(inputs, "input_ids"), entry(inputs, "ctx_teacher_input_ids")
    check_token_ids("ctx_teacher_input_ids", teacher_ids)
    if ("sdpo_student_index" in inputs) != ("sdpo_teacher_index" in inputs):
        raise ValueError("sdpo_student_index and sdpo_teacher_index come together: one of them is missing")
    if "sdpo_student_index" in inputs:
        student_P2, teacher_P2 = inputs["sdpo_student_index"], inputs["sdpo_teacher_index"]
        check_same_shape("sdpo_student_index", student_P2, "sdpo_teacher_index", teacher_P2)
        _check_index("sdpo_student_index", student_P2, "input_ids", input_ids)
        _check_index("sdpo_teacher_index", teacher_P2, "ctx_teacher_input_ids", teacher_ids)
        if "sdpo_loss_mask" in inputs:
            check_same_shape("sdpo_loss_mask", inputs["sdpo_loss_mask"], "ctx_teacher_input_ids", teacher_ids)
            _check_none("sdpo_loss_mask is off", at(inputs["sdpo_loss_mask"], teacher_P2) <= 0, "sdpo_teacher_index")
        _check_attended(inputs, "attention_mask", "input_ids", student_P2, "sdpo_student_index")
        _check_attended(inputs, "ctx_teacher_attention_mask", "ctx_teacher_input_ids", teacher_P2, "sdpo_teacher_index")
    else:
        if teacher_ids.shape != input_ids.shape:
            raise ValueError(
                f"ctx_teacher_input_ids has shape {tuple(teacher_ids.shape)}, input_ids {tuple(input_ids.shape)}: "
                "pass sdpo_student_index and sdpo_teacher_index, or equal shapes"
            )
        student_P2 = teacher_P2 = masked_tokens(
            inputs, "sdpo_loss_mask", "ctx_teacher_input_ids", "ctx_teacher_attention_mask"
        )
    student_tokens, teacher_tokens = at(input_ids, student_P2), at(teacher_ids, teacher_P2)
    differing = (student_tokens != teacher_tokens).nonzero()
    if differing.numel():
        first = int(differing[0])
        raise ValueError(
            f"token ids differ at {differing.shape[0]} of {student_P2.shape[0]} paired positions; the first: "
            f"input_ids{student_P2[first].tolist()} is {int(student_tokens[first])}, "
            f"ctx_teacher_input_ids{teacher_P2[first].tolist()} is {int(teacher_tokens[first])}"
        )
    return student_P2, teacher_P2


def _stacked_preferences(inputs: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Chosen above rejected: ids, attention mask and response mask, padded on the right to one width."""
    for side in ("chosen", "rejected"):
        check_token_ids(f"dpo_{side}_input_ids", entry(inputs, f"dpo_{side}_input_ids"))
    stacks: tuple[list[torch.Tensor], ...] = ([], [], [])
    width = max(inputs[f"dpo_{side}_input_ids"].shape[1] for side in ("chosen", "rejected"))
    for side in ("chosen", "rejected"):
        ids, response_mask = (entry(inputs, f"dpo_{side}_{part}") for part in ("input_ids", "response_mask"))
        check_same_shape(f"dpo_{side}_response_mask", response_mask, f"dpo_{side}_input_ids", ids)
        attention_mask = inputs.get(f"dpo_{side}_attention_mask", torch.ones_like(ids))
        check_same_shape(f"dpo_{side}_attention_mask", attention_mask, f"dpo_{side}_input_ids", ids)
        response_mask = _predictable(response_mask)
        empty = (~response_mask.any(-1)).nonzero().flatten().tolist()
        if empty:
            raise ValueError(f"dpo_{side}_response_mask selects no token in rows {empty}")
        _check_none(f"dpo_{side}_attention_mask is 0", attention_mask[response_mask] == 0, f"dpo_{side}_response_mask")
        for stack, tensor in zip(stacks, (ids, attention_mask, response_mask), strict=True):
            stack.append(F.pad(tensor, (0, width - ids.shape[1])))
    if stacks[0][0].shape != stacks[0][1].shape:
        raise ValueError(
            f"dpo_chosen_input_ids has {stacks[0][0].shape[0]} rows, dpo_rejected_input_ids "
            f"{stacks[0][1].shape[0]}: they must pair up"
        )
    ids, attention_mask, response_mask = (torch.cat(stack) for stack in stacks)
    return ids, attention_mask, response_mask


def at(tensor_BT: torch.Tensor, index_P2: torch.Tensor) -> torch.Tensor:
    """The (P,) values at (P, 2) pairs of row and column."""
    return tensor_BT[index_P2[:, 0], index_P2[:, 1]]


def masked_tokens(inputs: Batch, mask_name: str, ids_name: str, attention_name: str) -> torch.Tensor:
    """The (P, 2) positions that a mask selects, without the first column: nothing predicts it."""
    mask = entry(inputs, mask_name)
    check_same_shape(mask_name, mask, ids_name, inputs[ids_name])
    index_P2 = _predictable(mask).nonzero()
    if index_P2.shape[0] == 0:
        raise ValueError(f"{mask_name} selects no token of {ids_name} after the first column")
    _check_attended(inputs, attention_name, ids_name, index_P2, mask_name)
    return index_P2


def _check_attended(inputs: Batch, attention_name: str, ids_name: str, index_P2: torch.Tensor, chooser: str) -> None:
    """Padding carries no loss."""
    if attention_name in inputs:
        check_same_shape(attention_name, inputs[attention_name], ids_name, inputs[ids_name])
        _check_none(f"{attention_name} is 0", at(inputs[attention_name], index_P2) == 0, chooser)


def _check_none(what: str, wrong_P: torch.Tensor, chooser: str) -> None:
    if bool(wrong_P.any()):
        raise ValueError(f"{what} at {int(wrong_P.sum())} of the {wrong_P.numel()} positions that {chooser} selects")


def _predictable(mask_BT: torch.Tensor) -> torch.Tensor:
    active = mask_BT > 0
    active[:, :1] = False
    return active


def _check_index(name: str, index_P2: torch.Tensor, ids_name: str, ids: torch.Tensor) -> None:
    if index_P2.is_floating_point():
        raise ValueError(f"{name} must hold integers, got {index_P2.dtype}")
    if index_P2.dim() != 2 or index_P2.shape[1] != 2 or index_P2.shape[0] == 0:
        raise ValueError(f"{name} has shape {tuple(index_P2.shape)}, expected (pairs, 2) with at least one pair")
    low, high = index_P2.amin(0).tolist(), index_P2.amax(0).tolist()
    if low[0] < 0 or low[1] < 1 or high[0] >= ids.shape[0] or high[1] >= ids.shape[1]:
        raise ValueError(
            f"{name} spans rows {low[0]}..{high[0]} and columns {low[1]}..{high[1]}; {ids_name} of shape "
            f"{tuple(ids.shape)} allows rows 0..{ids.shape[0] - 1} and columns 1..{ids.shape[1] - 1}"
        )
