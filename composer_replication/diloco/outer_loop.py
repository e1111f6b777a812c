"""Make the outer loop of one replica from settings that were checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from composer_replication._arguments import check_count, check_non_negative, check_positive, check_range
from composer_replication.diloco.fragments import Fragment, trainable
from composer_replication.diloco.rounds import OuterLoop, OuterRound
from composer_replication.diloco.torchft_traps import check_quantize

__all__ = ["OuterLoop", "OuterRound", "make_diloco_outer_loop"]


def make_diloco_outer_loop(
    manager: Any,
    model_fragments: Sequence[torch.nn.Module],
    inner_optimizer: torch.optim.Optimizer,
    *,
    outer_lr: float = 0.7,
    outer_momentum: float = 0.9,
    nesterov: bool = True,
    sync_every: int = 100,
    fragment_sync_delay: int = 0,
    fragment_update_alpha: float = 0.0,
    min_participants: int | None = None,
    should_quantize: bool = False,
    on_round: Callable[[OuterRound], None] | None = None,
) -> OuterLoop:
    """Make an `OuterLoop`, a `torchft.local_sgd.DiLoCo` with the DiLoCo paper's outer optimiser.

    Args:
        manager: a `torchft.Manager`, or an object with the methods that DiLoCo uses.
        model_fragments: one module for plain DiLoCo, several for the streaming kind. Their trainable parameters are
            synchronised.
        inner_optimizer: steps every batch; the outer loop hooks onto it.
        outer_lr: learning rate of the outer SGD.
        outer_momentum: its momentum.
        nesterov: its kind of momentum.
        sync_every: inner steps in which every fragment is synchronised once.
        fragment_sync_delay: steps between sending a fragment and applying its average; above 0 is streaming.
        fragment_update_alpha: share of the local parameters kept at a sync; 0 takes only the average.
        min_participants: replicas that every quorum must have; None accepts any number.
        should_quantize: torchft's own quantisation, which needs triton and an accelerator.
        on_round: called after every sync.

    Raises:
        MissingExtraError: torchft is not installed.
        ValueError: no fragments, a setting out of range, or one that torchft would ignore or get wrong.
    """
    if not model_fragments:
        raise ValueError("model_fragments is empty: pass at least one module")
    check_positive("outer_lr", outer_lr)
    check_range("outer_momentum", outer_momentum, 0.0, 1.0)
    check_count("sync_every", sync_every)
    check_non_negative("fragment_sync_delay", fragment_sync_delay)
    check_range("fragment_update_alpha", fragment_update_alpha, 0.0, 1.0)
    check_count("min_participants", min_participants)
    per_fragment, rest = divmod(sync_every, len(model_fragments))
    if rest:
        raise ValueError(f"sync_every={sync_every} must be a multiple of the {len(model_fragments)} fragments")
    if fragment_sync_delay >= per_fragment:
        raise ValueError(
            f"fragment_sync_delay={fragment_sync_delay} must be below {per_fragment}, the steps between two syncs "
            "(sync_every / fragments)"
        )
    fragments = [Fragment(trainable(module)) for module in model_fragments]
    for index, fragment in enumerate(fragments):
        if not fragment.parameter_names:
            raise ValueError(f"model_fragments[{index}] has no trainable parameters: use fewer fragments")
    if should_quantize:
        check_quantize(fragments)
    outer = [
        # nesterov needs momentum; without any there is nothing to look ahead with.
        torch.optim.SGD(
            fragment.parameters(), lr=outer_lr, momentum=outer_momentum, nesterov=nesterov and outer_momentum > 0
        )
        for fragment in fragments
    ]
    return OuterLoop(
        manager,
        fragments,
        inner_optimizer,
        outer,
        sync_every=sync_every,
        fragment_sync_delay=fragment_sync_delay,
        fragment_update_alpha=fragment_update_alpha,
        min_participants=min_participants,
        should_quantize=should_quantize,
        on_round=on_round,
    )
