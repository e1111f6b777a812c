"""Passes over many contexts within a budget of tokens, in which what contexts share is computed once.

Channel 2's teacher reads a rollout once without hints and once for each hint, and these contexts are alike up to where
a hint comes in. So the longest of them becomes a *trunk*, and of each other context only the rest is computed: a
*branch* behind the trunk in the same packed row, which attends to the trunk up to where the two part, and to itself.
Without gradient, and with values that are those of plain rows up to rounding.

A trunk is plain causal text, for which attention has fast kernels without a mask; only branches need one. So the mask
of a packed row has N lines and not W, and the model runs with an attention function that knows how to read it.

Shapes: B packed rows, T columns of their trunks, N columns of their branches, W = T + N, P positions, H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from composer_replication.causal_lm import HiddenStates, evaluating, run_causal_lm, transformers_model
from composer_replication.shared_prefix import WORTHWHILE_SHARE, mask_for, packs

_ATTENTION = "trunk_and_branches"


def context_states(
    model: nn.Module,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor | None,
    index_P2: torch.Tensor,
    *,
    token_budget: int,
) -> HiddenStates:
    """Return the (P, H) hidden states that predict the tokens at (P, 2) places, without gradient and in eval mode.

    A context is a row of `input_ids` from its first attended column on, so padding on either side changes nothing. What
    contexts share is computed once if the model allows it; otherwise each is a row of its own.

    Args:
        model: the model.
        input_ids: the contexts, padded on either side.
        attention_mask: of the same shape; None if nothing is padded.
        index_P2: row and column of the tokens that are predicted.
        token_budget: the most tokens of a pass, padding included; a longer context has a pass of its own.

    Raises:
        ValueError: a context with gaps in its attention mask, or a position that is the first of its context.
    """
    contexts = _contexts(input_ids, attention_mask, index_P2)
    shares = packs(model, max(len(ids) for ids in contexts.ids))
    states_PH: torch.Tensor | None = None
    with torch.no_grad(), evaluating(model):
        for rows in _passes(_rows(contexts.ids, token_budget, shares), token_budget):
            packed = _Packed(rows, contexts.ids)
            states = _run(model, packed, input_ids)
            places = packed.places(contexts.context_P, contexts.column_P)
            here, rows_here, columns_here = (place.to(input_ids.device) for place in places)
            found = states.hidden[rows_here, columns_here]
            if states_PH is None:
                states_PH = found.new_empty(len(index_P2), found.shape[-1])
            states_PH[here] = found
            head = states.head
    assert states_PH is not None
    return HiddenStates(states_PH, head)


class _Contexts(NamedTuple):
    """The ids of each context as far as they are read, and for each position its context and the column to read."""

    ids: list[torch.Tensor]
    context_P: torch.Tensor
    column_P: torch.Tensor


def _contexts(input_ids: torch.Tensor, attention_mask: torch.Tensor | None, index_P2: torch.Tensor) -> _Contexts:
    """Take the contexts apart on the CPU, where passes are planned."""
    rows, context_P = torch.unique(index_P2[:, 0], return_inverse=True)
    ids_CT = input_ids[rows].cpu()
    seen_CT = torch.ones_like(ids_CT) > 0 if attention_mask is None else (attention_mask[rows] > 0).cpu()
    context_P, column_P = context_P.cpu(), index_P2[:, 1].cpu()
    firsts_C = seen_CT.long().argmax(1)
    # The last token is predicted, not read: its own column is not needed.
    ends_C = torch.zeros_like(firsts_C).scatter_reduce(0, context_P, column_P, "amax")
    if bool((column_P <= firsts_C[context_P]).any()):
        raise ValueError("a position is the first token of its context, which nothing predicts")
    ids = []
    for number, (first, end) in enumerate(zip(firsts_C.tolist(), ends_C.tolist(), strict=True)):
        if not bool(seen_CT[number, first:end].all()):
            raise ValueError(
                f"the attention mask of row {int(rows[number])} has gaps: pad contexts at their ends alone"
            )
        ids.append(ids_CT[number, first:end])
    return _Contexts(ids, context_P, column_P - 1 - firsts_C[context_P])


class _Branch(NamedTuple):
    """A context that parts from its row's trunk after `shared` tokens; its rest begins at `start` among the rests."""

    context: int
    shared: int
    start: int


@dataclass
class _Row:
    """A packed row: the number of the context that is its trunk, the tokens of the trunk and of all branches."""

    trunk: int
    length: int
    rests: int = 0
    branches: list[_Branch] = field(default_factory=list)


def _rows(contexts: Sequence[torch.Tensor], token_budget: int, shares: bool) -> list[_Row]:
    """Make each context, the longest first, a branch of the trunk that it shares most with, or a trunk."""
    rows: list[_Row] = []
    tokens = [ids.tolist() for ids in contexts]
    for number in sorted(range(len(contexts)), key=lambda one: -len(contexts[one])):
        ids = contexts[number]
        least = max(1, len(ids) - int(WORTHWHILE_SHARE * len(ids)))
        best, shared = None, least - 1
        for row in rows if shares else ():
            # Most trunks are of other rollouts: one look tells them apart.
            if tokens[row.trunk][least - 1] != tokens[number][least - 1]:
                continue
            common = _common(contexts[row.trunk], ids)
            rests = row.rests + len(ids) - common
            # Every branch is masked against the whole row: more of them than trunk would waste more than they save.
            if common > shared and rests <= row.length and row.length + rests <= token_budget:
                best, shared = row, common
        if best is None:
            rows.append(_Row(number, len(ids)))
        else:
            best.branches.append(_Branch(number, shared, best.rests))
            best.rests += len(ids) - shared
    return rows


def _common(one: torch.Tensor, other: torch.Tensor) -> int:
    """The number of ids that both begin with."""
    length = min(len(one), len(other))
    return int((one[:length] == other[:length]).long().cumprod(0).sum())


def _passes(rows: Sequence[_Row], token_budget: int) -> Iterator[list[_Row]]:
    """Fill passes up to the budget; rows come by the length of their trunks, so that little is padding."""
    filled: list[_Row] = []
    for row in rows:
        trial = [*filled, row]
        if filled and len(trial) * sum(_widths(trial)) > token_budget:
            yield filled
            trial = [row]
        filled = trial
    yield filled


def _widths(rows: Sequence[_Row]) -> tuple[int, int]:
    """T and N."""
    return max(row.length for row in rows), max(row.rests for row in rows)


class _Packed:
    """The rows of a pass: ids and positions (B, W), and for each column of a branch (B, N) the number of its branch
    (from 1; 0: padding) and how much of the trunk it sees."""

    def __init__(self, rows: Sequence[_Row], contexts: Sequence[torch.Tensor]) -> None:
        self.trunk, rests = _widths(rows)
        self.ids_BW = torch.zeros(len(rows), self.trunk + rests, dtype=torch.long)
        self.positions_BW = torch.zeros_like(self.ids_BW)
        self.positions_BW[:, : self.trunk] = torch.arange(self.trunk)
        self.branch_BN = torch.zeros(len(rows), rests, dtype=torch.long)
        self.shared_BN = torch.zeros_like(self.branch_BN)
        self.lengths_B1 = torch.tensor([[row.length] for row in rows])
        # By context: its packed row, where it parts from the trunk, and how far the rest is moved; -1: in another pass.
        self._homes_C3 = torch.full((len(contexts), 3), -1)
        for place, row in enumerate(rows):
            self.ids_BW[place, : row.length] = contexts[row.trunk]
            self._homes_C3[row.trunk] = torch.tensor([place, row.length, 0])
            for number, (context, shared, start) in enumerate(row.branches, 1):
                rest = contexts[context][shared:]
                stop, begin = start + len(rest), self.trunk + start
                self.branch_BN[place, start:stop], self.shared_BN[place, start:stop] = number, shared
                self.ids_BW[place, begin : begin + len(rest)] = rest
                self.positions_BW[place, begin : begin + len(rest)] = torch.arange(shared, shared + len(rest))
                self._homes_C3[context] = torch.tensor([place, shared, begin - shared])

    def places(self, context_P: torch.Tensor, column_P: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The numbers of those of P positions that are in this pass, and the packed row and column of each of them."""
        row_P, parting_P, move_P = self._homes_C3[context_P].T
        packed_P = column_P + torch.where(column_P >= parting_P, move_P, 0)
        here = (row_P >= 0).nonzero()[:, 0]
        return here, row_P[here], packed_P[here]


def _run(model: nn.Module, packed: _Packed, like: torch.Tensor) -> HiddenStates:
    """Make a pass over ids of the type and on the device of `like`."""
    ids_BW = packed.ids_BW.to(like)
    columns_W = torch.arange(ids_BW.shape[1], device=like.device)
    if packed.branch_BN.shape[1] == 0:
        return run_causal_lm(model, ids_BW, (columns_W < packed.lengths_B1.to(like.device)).long())
    positions_BW = packed.positions_BW.to(like.device)
    visible_BNW = _visible(packed.branch_BN.to(like.device), packed.shared_BN.to(like.device), packed.trunk)
    inner: Any = transformers_model(model)
    if inner.config._attn_implementation == "sdpa":
        with _attending_in_parts(inner.config):
            return run_causal_lm(model, ids_BW, visible_BNW[:, None], positions_BW)
    causal_TW = columns_W <= columns_W[: packed.trunk, None]
    visible_BWW = torch.cat([causal_TW.expand(len(ids_BW), -1, -1), visible_BNW], 1)
    return run_causal_lm(model, ids_BW, mask_for(model, visible_BWW), positions_BW)


def _visible(branch_BN: torch.Tensor, shared_BN: torch.Tensor, trunk: int) -> torch.Tensor:
    """Whether a branch's column sees a column of its packed row: (B, N, W). Padding sees padding, and so something."""
    columns = torch.arange(max(trunk, branch_BN.shape[1]), device=branch_BN.device)
    of_trunk_BNT = columns[:trunk] < shared_BN[:, :, None]
    columns_N = columns[: branch_BN.shape[1]]
    of_branch_BNN = (branch_BN[:, None, :] == branch_BN[:, :, None]) & (columns_N <= columns_N[:, None])
    return torch.cat([of_trunk_BNT, of_branch_BNN], 2)


@contextmanager
def _attending_in_parts(config: Any) -> Iterator[None]:
    """Let a model that uses SDPA attend to packed rows with a mask for their branches alone."""
    from transformers import AttentionInterface

    AttentionInterface.register(_ATTENTION, _trunk_then_branches)
    before = config._attn_implementation
    config._attn_implementation = _ATTENTION
    try:
        yield
    finally:
        config._attn_implementation = before


def _trunk_then_branches(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attention over (B, heads, W, size) packed rows; `attention_mask` is (B, 1, N, W)."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    trunk = query.shape[2] - attention_mask.shape[2]
    causal = (states[:, :, :trunk] for states in (query, key, value))
    of_trunk, _ = sdpa_attention_forward(module, *causal, None, **options)
    of_branches, _ = sdpa_attention_forward(module, query[:, :, trunk:], key, value, attention_mask, **options)
    return torch.cat([of_trunk, of_branches], 1), None
