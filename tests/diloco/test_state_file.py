"""Nested state as one checked blob: everything comes back as it was, and damage is refused."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from composer_replication.diloco.state_file import dump_state, load_state


def optimizer_state() -> dict[str, Any]:
    layer = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-3)
    layer(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    return optimizer.state_dict()


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        if left.dtype != right.dtype or left.shape != right.shape:
            return False
        return torch.equal(left.reshape(-1).view(torch.uint8), right.reshape(-1).view(torch.uint8))
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


@pytest.mark.parametrize(
    "state",
    [
        None,
        {},
        [],
        torch.tensor([1.0, float("nan"), float("-inf"), -0.0]),
        {"a": {0: (1, 2.5, None, True, "x"), 1: []}, "tensor": "0", "dict": {"list": [{"tuple": ()}]}},
        {"scalar": torch.tensor(3), "empty": torch.empty(0, 4), "half": torch.ones(3, dtype=torch.bfloat16)},
        {"flags": torch.tensor([True, False]), "big": 2**70, "small": 5e-324},
    ],
)
def test_a_state_comes_back_as_it_was(state: Any) -> None:
    assert same(state, load_state(dump_state(state)))


def test_the_state_of_an_optimiser_comes_back_and_loads() -> None:
    state = optimizer_state()
    back = load_state(dump_state(state))
    assert same(state, back)
    assert list(back["state"]) == [0, 1]
    torch.optim.AdamW(torch.nn.Linear(3, 2).parameters()).load_state_dict(back)


def test_views_and_shared_memory_are_written_out() -> None:
    whole = torch.arange(6.0).reshape(2, 3)
    back = load_state(dump_state({"whole": whole, "again": whole, "turned": whole.T, "row": whole[1]}))
    assert same(back, {"whole": whole, "again": whole, "turned": whole.T.contiguous(), "row": whole[1].clone()})
    back["whole"].add_(1)
    assert torch.equal(back["again"], whole)


def test_every_damage_is_a_value_error() -> None:
    state = {"weights": torch.randn(5, 3), "step": 7, "inner": optimizer_state()}
    data = dump_state(state)
    chosen = random.Random(0)
    damaged = [data[:length] for length in (0, 5, 8, 50, len(data) // 2, len(data) - 1)] + [data + b"\0", b"\xff" * 99]
    for _ in range(300):
        place, bit = chosen.randrange(len(data)), 1 << chosen.randrange(8)
        damaged.append(data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :])
    for one in damaged:
        with pytest.raises(ValueError, match="is damaged"):
            load_state(one)


def test_what_is_no_state_is_named_with_its_place() -> None:
    with pytest.raises(TypeError, match=r"state\['a'\]\[1\] is of type set"):
        dump_state({"a": [1, {2}]})
    with pytest.raises(TypeError, match=r"state\['a'\] has the key 1.5: keys must be strings or ints"):
        dump_state({"a": {1.5: 0}})
