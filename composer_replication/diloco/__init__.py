"""DiLoCo: several replicas train separately and synchronise every so many steps.

`Δ = θ_initial - θ_local`, averaged over the replicas, is the outer *gradient*: the outer optimiser subtracts it like
any gradient, which moves the shared parameters toward the local ones. No sign is flipped anywhere.

torchft does the work; without it the names below are None and `make_diloco_outer_loop` says what to install.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from composer_replication._arguments import check_count, check_non_negative, check_positive, check_range
from composer_replication._optional import MissingExtraError, is_available

_TORCHFT_AVAILABLE: bool = is_available("torchft")
if _TORCHFT_AVAILABLE:
    from torchft.local_sgd import DiLoCo
    from torchft.manager import Manager
    from torchft.work import _DummyWork
else:
    DiLoCo = Manager = _DummyWork = None

__all__ = ["_TORCHFT_AVAILABLE", "DiLoCo", "Manager", "_DummyWork", "make_diloco_outer_loop"]


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
) -> Any:
    """Make a `torchft.local_sgd.DiLoCo` context manager with the DiLoCo paper's outer optimiser.

    Args:
        manager: a `torchft.Manager`, or an object with the methods that DiLoCo uses.
        model_fragments: one module for plain DiLoCo, several for the streaming kind.
        inner_optimizer: steps every batch; the outer loop hooks onto it.
        outer_lr: learning rate of the outer SGD.
        outer_momentum: its momentum.
        nesterov: its kind of momentum.
        sync_every: inner steps in an outer round.
        fragment_sync_delay: steps between sending a fragment and applying its average; above 0 is streaming.
        fragment_update_alpha: share of the local parameters kept at a sync; 0 takes only the average.

    Raises:
        MissingExtraError: torchft is not installed.
        ValueError: no fragments, or a setting out of range.
    """
    if not _TORCHFT_AVAILABLE:
        raise MissingExtraError("diloco", "torchft")
    if not model_fragments:
        raise ValueError("model_fragments is empty: pass at least one module")
    check_positive("outer_lr", outer_lr)
    check_range("outer_momentum", outer_momentum, 0.0, 1.0)
    check_count("sync_every", sync_every)
    check_non_negative("fragment_sync_delay", fragment_sync_delay)
    check_range("fragment_update_alpha", fragment_update_alpha, 0.0, 1.0)
    outer = [
        torch.optim.SGD(fragment.parameters(), lr=outer_lr, momentum=outer_momentum, nesterov=nesterov)
        for fragment in model_fragments
    ]
    return DiLoCo(
        manager,
        list(model_fragments),
        inner_optimizer,
        outer,
        sync_every=sync_every,
        fragment_sync_delay=fragment_sync_delay,
        fragment_update_alpha=fragment_update_alpha,
    )
