"""The outer loop's arithmetic on real torchft, with a manager that averages over one replica."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from composer_replication.diloco import _TORCHFT_AVAILABLE, _DummyWork, make_diloco_outer_loop


class LocalManager:
    """The part of torchft's Manager that DiLoCo uses, for a replica that is alone: the average is its own value."""

    _use_async_quorum = False

    def __init__(self) -> None:
        self.step = 0

    def register_state_dict_fn(self, *_: Any) -> None: ...

    def allow_state_dict_read(self) -> None: ...

    def disallow_state_dict_read(self) -> None: ...

    def start_quorum(self, *_: Any, **__: Any) -> None: ...

    def current_step(self) -> int:
        return self.step

    def allreduce(self, tensor: torch.Tensor, **_: Any) -> Any:
        return _DummyWork(tensor)

    def should_commit(self) -> bool:
        self.step += 1
        return True


def train(steps: int, **settings: Any) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Inner SGD with a constant gradient of -1: each step adds the learning rate to every weight."""
    model = torch.nn.Linear(3, 2, bias=False)
    start = model.weight.detach().clone()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    with make_diloco_outer_loop(LocalManager(), [model], inner, **settings):
        for _ in range(steps):
            inner.zero_grad()
            (-model.weight).sum().backward()
            inner.step()
            seen.append(model.weight.detach().clone())
    return start, model.weight.detach(), seen


def test_torchft_is_there() -> None:
    assert _TORCHFT_AVAILABLE


def test_plain_averaging_lands_on_the_local_parameters() -> None:
    """lr 1, no momentum: θ - (θ - θ_local) = θ_local. A flipped sign would land on the other side of the start."""
    start, end, _ = train(4, sync_every=4, outer_lr=1.0, outer_momentum=0.0, nesterov=False)
    torch.testing.assert_close(end, start + 0.4)


def test_default_outer_optimiser_is_nesterov_with_the_papers_numbers() -> None:
    start, _, seen = train(4, sync_every=2)
    # Δ = -0.2 each round; buf ← 0.9·buf + Δ; θ ← θ - 0.7·(Δ + 0.9·buf).
    first = start + 0.7 * (0.2 + 0.9 * 0.2)
    second = first + 0.7 * (0.2 + 0.9 * (0.9 * 0.2 + 0.2))
    torch.testing.assert_close(seen[1], first)
    torch.testing.assert_close(seen[3], second)


def test_between_syncs_the_inner_optimiser_is_alone() -> None:
    start, _, seen = train(3, sync_every=4)
    torch.testing.assert_close(seen[2], start + 0.3)


def test_bad_settings_are_named() -> None:
    model = torch.nn.Linear(2, 2)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="model_fragments is empty"):
        make_diloco_outer_loop(LocalManager(), [], inner)
    with pytest.raises(ValueError, match="outer_lr must be a positive finite number, got 0"):
        make_diloco_outer_loop(LocalManager(), [model], inner, outer_lr=0)
    with pytest.raises(ValueError, match="sync_every must be a positive whole number, got 0"):
        make_diloco_outer_loop(LocalManager(), [model], inner, sync_every=0)
    with pytest.raises(ValueError, match=r"fragment_update_alpha must be in \[0, 1\], got 2"):
        make_diloco_outer_loop(LocalManager(), [model], inner, fragment_update_alpha=2)
