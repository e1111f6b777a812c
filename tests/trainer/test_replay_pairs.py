"""Replay pairs: an order of their own, shared out among processes, that goes on where it stopped."""

from __future__ import annotations

import json
import random

import pytest
import torch

from composer_replication.channels.preference import DPOVariant, Preference
from composer_replication.trainer.pairs import ReplayPairs
from composer_replication.trainer.preference_rows import PreferenceRow

PAD = 99


def rows(count: int) -> list[PreferenceRow]:
    """Pairs of different lengths whose first token is their number."""
    return [
        PreferenceRow([n, *range(40, 41 + n % 3)], [50 + n] * (1 + n % 4), [70 + n] * (2 + n % 2)) for n in range(count)
    ]


def references(count: int) -> torch.Tensor:
    return torch.stack([-torch.arange(count) - 0.25, -9 * torch.arange(count) - 100.5], dim=1)


def supply(count: int = 7, **settings: int) -> ReplayPairs:
    chosen = {"seed": 3, "pad_token_id": PAD, **settings}
    return ReplayPairs(rows(count), references=references(count), **chosen)


def numbers(pairs: ReplayPairs, size: int, batches: int) -> list[int]:
    return [int(n) for _ in range(batches) for n in pairs.next_batch(size, "cpu")["dpo_chosen_input_ids"][:, 0]]


def test_a_batch_holds_the_rows_and_their_own_references() -> None:
    batch = supply().next_batch(5, "cpu")
    for place, number in enumerate(batch["dpo_rejected_input_ids"][:, 0].tolist()):
        row = rows(7)[number]
        for side, response in (("chosen", row.chosen_ids), ("rejected", row.rejected_ids)):
            ids, seen, asked = (
                batch[f"dpo_{side}_{part}"][place].tolist() for part in ("input_ids", "attention_mask", "response_mask")
            )
            gap = len(ids) - len(row.prompt_ids) - len(response)
            assert ids == [*row.prompt_ids, *response, *[PAD] * gap]
            assert seen == [1] * (len(ids) - gap) + [0] * gap
            assert asked == [0] * len(row.prompt_ids) + [1] * len(response) + [0] * gap
        assert float(batch["dpo_chosen_ref_logprobs"][place]) == -number - 0.25
        assert float(batch["dpo_rejected_ref_logprobs"][place]) == -9 * number - 100.5
    # No wider than its longest row.
    assert all(bool(batch[f"dpo_{side}_attention_mask"][:, -1].any()) for side in ("chosen", "rejected"))


def test_padding_is_masked_even_where_its_id_is_a_token() -> None:
    pairs = ReplayPairs(
        [PreferenceRow([5, 5], [5], [5, 6, 7]), PreferenceRow([5], [6], [7])], references=None, seed=0, pad_token_id=5
    )
    batch = pairs.next_batch(2, "cpu")
    assert sorted(batch["dpo_chosen_attention_mask"].sum(1).tolist()) == [2, 3]
    assert "dpo_chosen_ref_logprobs" not in batch


def test_each_epoch_has_every_pair_once_in_an_order_of_its_own() -> None:
    drawn = numbers(supply(11), size=11, batches=3)
    epochs = [drawn[start : start + 11] for start in (0, 11, 22)]
    assert all(sorted(epoch) == list(range(11)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert drawn == numbers(supply(11), size=3, batches=11)  # batches cut the stream, they do not make it
    assert drawn[:11] != numbers(supply(11, seed=4), size=11, batches=1)


@pytest.mark.parametrize(("count", "processes", "size"), [(12, 3, 2), (7, 2, 3), (5, 4, 1)])
def test_processes_together_see_each_pair_once_per_epoch(count: int, processes: int, size: int) -> None:
    shares = [
        numbers(supply(count, process_index=index, num_processes=processes), size, batches=count)
        for index in range(processes)
    ]
    stream = [number for draw in zip(*shares, strict=True) for number in draw]
    for epoch in range(len(stream) // count):
        assert sorted(stream[epoch * count : (epoch + 1) * count]) == list(range(count))
    assert stream == numbers(supply(count), size=1, batches=len(stream))


def test_a_batch_larger_than_the_data_wraps_around() -> None:
    drawn = numbers(supply(3), size=8, batches=1)
    assert sorted(drawn[:3]) == sorted(drawn[3:6]) == [0, 1, 2]
    assert numbers(supply(1), size=4, batches=2) == [0] * 8


def test_the_global_random_state_is_neither_used_nor_touched() -> None:
    random.seed(1)
    torch.manual_seed(1)
    first = numbers(supply(), 4, 5)
    assert random.random() == random.Random(1).random()
    assert torch.rand(1) == torch.rand(1, generator=torch.Generator().manual_seed(1))
    assert numbers(supply(), 4, 5) == first


@pytest.mark.parametrize("before", [0, 1, 3, 5])
def test_a_resumed_supply_goes_on_with_the_next_batches(before: int) -> None:
    whole = supply(process_index=1, num_processes=2)
    numbers(whole, 3, before)
    state = json.loads(json.dumps(whole.state_dict()))
    resumed = supply(process_index=1, num_processes=2)
    numbers(resumed, 2, 4)  # wherever it was
    resumed.load_state_dict(state)
    for _ in range(6):
        expected, batch = whole.next_batch(3, "cpu"), resumed.next_batch(3, "cpu")
        assert expected.keys() == batch.keys()
        assert all(torch.equal(expected[name], batch[name]) for name in expected)


def scored(preferred: dict[int, float], count: int = 7, **settings: int) -> ReplayPairs:
    """A supply whose policy puts the chosen side of some pairs this far above the rejected one, beyond the reference's
    own distance: in nats per response."""

    def score(part: list[PreferenceRow]) -> torch.Tensor:
        places = [row.prompt_ids[0] for row in part]
        values = references(count)[places]
        values[:, 0] += torch.tensor([preferred.get(place, 0.0) for place in places])
        return values

    pairs = ReplayPairs(rows(count), references=references(count), seed=3, pad_token_id=PAD, score=score, **settings)
    assert len(pairs.resting) == 0
    return pairs


def resting_at(margin: float, variant: DPOVariant = "dpo") -> Preference:
    return Preference(variant=variant, refresh_pairs_every=1, refresh_margin=margin)


def test_pairs_that_are_preferred_rest_until_the_next_refresh() -> None:
    preferred = {2: 5.0, 4: 4.9, 6: 9.0, 1: -8.0}
    pairs, stream = scored(preferred), numbers(supply(), 1, 21)
    assert numbers(pairs, 3, 2) == stream[:6]
    pairs.refresh(resting_at(5.0))
    assert pairs.resting == {2, 6}
    # The stream is the same, without them.
    after = numbers(pairs, 5, 2)
    assert after == [number for number in stream[6:] if number not in (2, 6)][:10]
    preferred.update({2: 0.0, 6: 9.0})
    pairs.refresh(resting_at(5.0))
    assert pairs.resting == {6}
    assert not pairs.all_rest
    preferred.update(dict.fromkeys(range(7), 9.0))
    pairs.refresh(resting_at(5.0))
    assert pairs.all_rest
    with pytest.raises(ValueError, match="all 7 examples are skipped"):
        pairs.next_batch(1, "cpu")


def test_a_margin_is_in_the_units_of_the_variant() -> None:
    # Row 2 has three chosen and two rejected tokens, row 3 has four and three.
    preferred = {2: 6.0, 3: 6.0}
    for variant, margin, expected in (("dpo", 5.9, {2, 3}), ("dpo_norm", 1.6, {2}), ("dpo_norm", 1.4, {2, 3})):
        pairs = scored(preferred)
        pairs.refresh(resting_at(margin, variant))  # type: ignore[arg-type]
        assert pairs.resting == expected
    # Without a reference: -0.25 / 1 against -100.5 / 2 for row 0.
    pairs = scored({})
    pairs.refresh(resting_at(49.9, "simpo"))
    assert 0 in pairs.resting
    pairs.refresh(resting_at(50.1, "simpo"))
    assert 0 not in pairs.resting


@pytest.mark.parametrize("processes", [2, 3, 4])
def test_every_process_rests_the_same_pairs_and_scores_as_many(processes: int) -> None:
    preferred = {2: 5.0, 5: 6.0, 6: 9.0, 0: 3.0}  # the share of one process wraps around to 0
    shares: list[torch.Tensor] = []
    for index in range(processes):
        one = scored(preferred, process_index=index, num_processes=processes)
        one._reduce = lambda values: shares.append(values) or values  # type: ignore[func-returns-value]
        one.refresh(resting_at(5.0))
    together = [scored(preferred, process_index=index, num_processes=processes) for index in range(processes)]
    for one in together:
        one._reduce = lambda _: torch.stack(shares).sum(0)
        one.refresh(resting_at(5.0))
        assert one.resting == {2, 5, 6}
    alone = scored(preferred)
    alone.refresh(resting_at(5.0))
    drawn = [numbers(one, 2, 5) for one in together]
    assert [number for draw in zip(*drawn, strict=True) for number in draw] == numbers(alone, 1, 10 * processes)
    assert len({json.dumps(one.state_dict()) for one in together}) == 1


def test_a_resumed_supply_knows_who_rests() -> None:
    whole = scored({2: 5.0, 6: 9.0})
    numbers(whole, 3, 1)
    whole.refresh(resting_at(5.0))
    numbers(whole, 3, 1)
    resumed = supply()
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    assert resumed.resting == {2, 6}
    assert numbers(resumed, 2, 4) == numbers(whole, 2, 4)


def test_one_processs_state_serves_all_and_another_number_of_them() -> None:
    two = [supply(process_index=index, num_processes=2) for index in range(2)]
    drawn = [numbers(pairs, 3, 1) for pairs in two]
    assert two[0].state_dict() == two[1].state_dict()
    alone = supply()
    alone.load_state_dict(two[0].state_dict())
    stream = [number for draw in zip(*drawn, strict=True) for number in draw] + numbers(alone, 4, 2)
    assert stream == numbers(supply(), 14, 1)


def test_a_state_of_something_else_is_refused() -> None:
    state = supply().state_dict()
    with pytest.raises(ValueError, match=r"saved with another seed \(3, here 4\): resume with the same data and seed"):
        supply(seed=4).load_state_dict(state)
    with pytest.raises(ValueError, match="saved with other pairs"):
        supply(8).load_state_dict(state)
    changed = rows(7)
    changed[2].chosen_ids[0] += 1
    with pytest.raises(ValueError, match="saved with other pairs"):
        ReplayPairs(changed, references=None, seed=3, pad_token_id=PAD).load_state_dict(state)
    with pytest.raises(ValueError, match="state lacks count, position"):
        supply().load_state_dict({"seed": 3, "pairs": state["pairs"]})
    with pytest.raises(ValueError, match="must not be negative, got -1"):
        supply().load_state_dict({**state, "position": -1})


def test_a_token_that_moves_to_the_other_side_makes_other_pairs() -> None:
    one, other = (
        ReplayPairs([row], references=None, seed=0, pad_token_id=PAD)
        for row in (PreferenceRow([1], [2, 3], [4]), PreferenceRow([1], [2], [3, 4]))
    )
    with pytest.raises(ValueError, match="other pairs"):
        other.load_state_dict(one.state_dict())


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="rows is empty"):
        ReplayPairs([], references=None, seed=0, pad_token_id=PAD)
    with pytest.raises(ValueError, match=r"rows\[1\].rejected_ids is empty"):
        ReplayPairs([*rows(1), PreferenceRow([1], [2], [])], references=None, seed=0, pad_token_id=PAD)
    with pytest.raises(ValueError, match=r"references has shape \(6, 2\), expected \(7, 2\)"):
        ReplayPairs(rows(7), references=references(6), seed=0, pad_token_id=PAD)
    with pytest.raises(ValueError, match="not finite"):
        ReplayPairs(rows(7), references=references(7) * float("inf"), seed=0, pad_token_id=PAD)
    with pytest.raises(ValueError, match=r"process_index must be in 0\.\.1 .*, got 2"):
        supply(process_index=2, num_processes=2)
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        supply().next_batch(0, "cpu")
