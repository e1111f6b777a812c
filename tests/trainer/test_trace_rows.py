from __future__ import annotations

import json
import random

import pytest
import torch

from composer_replication.trainer.trace_rows import EpochPositions


def test_each_epoch_sees_everything_once_in_a_new_order() -> None:
    positions = EpochPositions(10, seed=3)
    first, second = positions.next(10), positions.next(10)
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second
    assert EpochPositions(10, seed=4).next(10) != first


def test_processes_share_an_epoch_without_overlap() -> None:
    shares = [EpochPositions(9, seed=0, process_index=index, num_processes=3).next(3) for index in range(3)]
    assert sorted(position for share in shares for position in share) == list(range(9))


def test_a_resumed_walk_goes_on_and_leaves_the_global_state_alone() -> None:
    whole = EpochPositions(7, seed=1)
    expected = [whole.next(3) for _ in range(6)]
    before, state = torch.get_rng_state(), random.getstate()
    first = EpochPositions(7, seed=1)
    seen = [first.next(3) for _ in range(3)]
    second = EpochPositions(7, seed=1)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert seen + [second.next(3) for _ in range(3)] == expected
    assert torch.equal(torch.get_rng_state(), before)
    assert random.getstate() == state


def test_positions_of_other_data_are_refused() -> None:
    with pytest.raises(ValueError, match="another number of examples"):
        EpochPositions(8, seed=1).load_state_dict(EpochPositions(7, seed=1).state_dict())
    with pytest.raises(ValueError, match="at least one"):
        EpochPositions(0, seed=1)
