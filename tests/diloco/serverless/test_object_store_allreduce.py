"""Averages over ranks: exact, the same bits everywhere, few bytes; nothing stale, foreign or damaged is averaged."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import at, errors_of, in_threads

from composer_replication.diloco.serverless import ObjectStoreAllReduce
from composer_replication.diloco.serverless.messages import FIRST_READ
from composer_replication.diloco.serverless.place import Pauses
from composer_replication.diloco.serverless.store import StoreError


def vector(rank: int, numel: int = 1000) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(rank))


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("count", [2, 4, 8])
def test_all_ranks_get_the_mean_in_the_same_bits(tmp_path: Path, count: int) -> None:
    def rank(number: int) -> torch.Tensor:
        tensor = vector(number)
        assert at(tmp_path, number, count).allreduce(tensor) is tensor
        return tensor

    got = in_threads(count, rank)
    mean = torch.stack([vector(number).double() for number in range(count)]).mean(0).float()
    assert torch.equal(got[0], mean)
    assert all(torch.equal(one, got[0]) for one in got)


def test_tensors_of_a_round_keep_their_shapes_and_dtypes(tmp_path: Path) -> None:
    def rank(number: int) -> list[torch.Tensor]:
        tensors = [torch.full((2, 3), number + 1.0), torch.full((5,), 2.0 * number, dtype=torch.bfloat16)]
        tensors += [torch.tensor(float(number)), torch.empty(0)]
        at(tmp_path, number, 2).allreduce_many(tensors, names=["a", "b", "c", "d"])
        return tensors

    for tensors in in_threads(2, rank):
        assert torch.equal(tensors[0], torch.full((2, 3), 1.5))
        assert torch.equal(tensors[1], torch.ones(5, dtype=torch.bfloat16))
        assert tensors[2].item() == 0.5


def test_one_rank_passes_through_without_a_store(tmp_path: Path) -> None:
    alone = ObjectStoreAllReduce(str(tmp_path / "store"), 0, 1, codec="int4")
    tensor = vector(0)
    assert torch.equal(alone.allreduce(tensor), vector(0))
    assert alone.round_id == 1
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("count", [2, 4])
def test_bytes_are_those_of_three_vectors_less_two_shards(tmp_path: Path, count: int) -> None:
    numel = 64 * 1000 * count

    def rank(number: int) -> int:
        reduce = at(tmp_path, number, count)
        reduce.allreduce(vector(number, numel))
        store = reduce.store
        return store.bytes_up + store.bytes_down

    floor = (3 - 2 / count) * 4 * numel
    headers = 2 * (2 * count) * FIRST_READ
    assert all(floor <= moved <= floor + headers for moved in in_threads(count, rank))


def test_rounds_follow_each_other_and_old_ones_are_collected(tmp_path: Path) -> None:
    def rank(number: int) -> list[float]:
        reduce = at(tmp_path, number, 3, round_id=5)
        seen = [reduce.allreduce(torch.tensor([float(number * 10 + turn)])).item() for turn in range(4)]
        assert reduce.round_id == 9
        return seen

    assert in_threads(3, rank) == [[10.0, 11.0, 12.0, 13.0]] * 3
    # One value has one shard, so only rank 0 reduces.
    assert files(tmp_path) == {
        f"run/r000008/{name}" for name in ("rank_0000", "rank_0001", "rank_0002", "reduced_0000")
    }


def test_ranks_agree_on_a_run_where_an_earlier_one_was(tmp_path: Path) -> None:
    for offset in (0.0, 100.0):

        def rank(number: int, offset: float = offset) -> float:
            reduce = at(tmp_path, number, 3, run_id=None)
            return reduce.allreduce(torch.tensor([number + offset])).item()

        assert in_threads(3, rank) == [1.0 + offset] * 3
    assert len({name.split("/")[0] for name in files(tmp_path)}) == 2


def test_two_runs_in_one_place_do_not_meet(tmp_path: Path) -> None:
    def rank(number: int) -> float:
        run, inside = divmod(number, 2)
        reduce = at(tmp_path, inside, 2, run_id=f"run-{run}")
        return [reduce.allreduce(torch.tensor([100.0 * run + inside])).item() for _ in range(3)][-1]

    assert in_threads(4, rank) == [0.5, 0.5, 100.5, 100.5]


def test_tokens_weigh(tmp_path: Path) -> None:
    def rank(number: int) -> float:
        tensor = torch.tensor([float(number)])
        at(tmp_path, number, 2, averaging="tokens").allreduce_many([tensor], tokens=[30, 10][number], steps=1)
        return tensor.item()

    assert in_threads(2, rank) == [0.25, 0.25]


@pytest.mark.parametrize("count", [2, 5])
def test_decoupled_is_radial_and_directional_however_it_is_cut(tmp_path: Path, count: int) -> None:
    names = ["layer.weight", "embed_tokens.weight"]

    def rank(number: int) -> list[torch.Tensor]:
        tensors = [vector(number, 300), vector(100 + number, 200)]
        reduce = at(tmp_path, number, count, averaging="decoupled", min_participants=count)
        reduce.allreduce_many(tensors, names=names, tokens=100 * (number + 1), steps=10)
        return tensors

    got = in_threads(count, rank)
    raw = torch.tensor([(100.0 * (number + 1)) ** 2 / 10 for number in range(count)], dtype=torch.float64)
    weights = raw / raw.sum()
    layers = torch.stack([vector(number, 300).double() for number in range(count)])
    lengths = layers.norm(dim=1)
    direction = (weights / lengths) @ layers
    expected = (weights @ lengths) * direction / direction.norm()
    embeddings = weights @ torch.stack([vector(100 + number, 200).double() for number in range(count)])
    torch.testing.assert_close(got[0][0], expected.float())
    torch.testing.assert_close(got[0][1], embeddings.float())
    assert all(torch.equal(one[index], got[0][index]) for one in got for index in range(2))


@pytest.mark.parametrize("codec", ["bfloat16", "int8", "int4", "auto"])
def test_lossy_codecs_lose_nothing_over_rounds(tmp_path: Path, codec: str) -> None:
    """The sum over rounds is off by what the last residuals hold, however many rounds there are."""

    def rank(number: int) -> tuple[list[float], torch.Tensor]:
        reduce = at(tmp_path, number, 2, codec=codec)
        total, errors = torch.zeros(256), []
        for turn in range(24):
            total += reduce.allreduce(vector(number, 256))
            exact = (turn + 1) * (vector(0, 256) + vector(1, 256)) / 2
            errors.append((total - exact).abs().max().item())
        return errors, total

    (errors, first), (_, second) = in_threads(2, rank)
    assert torch.equal(first, second)
    assert errors[0] > 0
    assert max(errors) < 4 * errors[0]


def test_the_missing_ranks_are_named(tmp_path: Path) -> None:
    messages = errors_of(2, lambda number: at(tmp_path, number, 4, timeout_s=0.3).allreduce(torch.ones(999)))
    for number, message in enumerate(messages):
        assert message.startswith(f"TimeoutError: rank {number} of 4, round 0, run run in {tmp_path}: waited 0.3 s")
        assert message.endswith("for ranks 2, 3")


def test_one_look_at_a_time_is_made_for_all_who_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pausing: list[int] = []
    at_once: list[int] = []

    def pause(*_: object) -> None:
        pausing.append(1)
        at_once.append(len(pausing))
        time.sleep(0.01)
        pausing.pop()

    monkeypatch.setattr(Pauses, "pause", pause)
    with pytest.raises(TimeoutError, match="for ranks 1, 2, 3"):
        at(tmp_path, 0, 4, timeout_s=0.3).allreduce(torch.ones(999))
    assert set(at_once) == {1}


def test_a_tensor_is_as_it_was_after_an_error(tmp_path: Path) -> None:
    tensor = vector(0)
    reduce = at(tmp_path, 0, 2, timeout_s=0.05)
    with pytest.raises(TimeoutError, match="for rank 1"):
        reduce.allreduce(tensor)
    assert torch.equal(tensor, vector(0))
    assert reduce.round_id == 0


@pytest.mark.parametrize(
    ("other", "settings", "message"),
    [
        (torch.ones(4, 3), {}, r"tensor '0' is float32 \(4, 3\) there and float32 \(3, 4\) here"),
        (torch.ones(3, 4, dtype=torch.bfloat16), {}, r"tensor '0' is bfloat16 \(3, 4\) there"),
        (torch.ones(3, 4), {"codec": "int8"}, "rank 1 has codec 'int8' and this one 'float32'"),
        (torch.ones(3, 4), {"averaging": "tokens"}, "rank 1 has averaging 'tokens' and this one 'mean'"),
        (torch.ones(3, 4), {"world_size": 4}, "rank 1 has world_size 4 and this one 3"),
    ],
)
def test_ranks_that_differ_are_told(
    tmp_path: Path, other: torch.Tensor, settings: dict[str, Any], message: str
) -> None:
    def rank(number: int) -> None:
        # Nobody waits here for one that has failed: the third rank never comes.
        reduce = at(tmp_path, number, **{"world_size": 3, **(settings if number else {})})
        reduce.allreduce_many([other if number else torch.ones(3, 4)], tokens=1, steps=1)

    for number, error in enumerate(errors_of(2, rank)):
        of = settings.get("world_size", 3) if number else 3
        assert error.startswith(f"ValueError: rank {number} of {of}, round 0, run run")
    with pytest.raises(ValueError, match=message):
        at(tmp_path, 0, 3).allreduce(torch.ones(3, 4))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((2, 2), "rank is 2: it must be from 0 to 1"),
        ((-1, 2), "rank is -1"),
        ((True, 2), "rank is True"),
        ((0, 0), "world_size must be"),
    ],
)
def test_ranks_out_of_range_are_refused(tmp_path: Path, arguments: tuple[int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ObjectStoreAllReduce(str(tmp_path), *arguments)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"codec": "int3"}, "codec"),
        ({"averaging": "median"}, "averaging"),
        ({"min_participants": 3}, "min_participants is 3, more than world_size 2"),
        ({"min_participants": 0}, "min_participants"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"poll_interval_s": 0}, "poll_interval_s"),
        ({"run_id": "../other"}, "run_id is '../other'"),
        ({"round_id": -1}, "round_id"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ObjectStoreAllReduce(str(tmp_path), 0, 2, **settings)


def test_a_store_without_conditional_creation_needs_everyone() -> None:
    with pytest.raises(ValueError, match="hf:// cannot create objects conditionally"):
        ObjectStoreAllReduce("hf://datasets/me/run", 0, 2, min_participants=1)
    with pytest.raises(ValueError, match="hf:// cannot create"):
        ObjectStoreAllReduce("hf://datasets/me/run", 0, 2, averaging="decoupled")


def test_values_that_are_not_finite_are_refused_before_they_travel(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^rank 0 of 2, round 0.*value 1 of 3 is nan"):
        at(tmp_path, 0, 2).allreduce(torch.tensor([1.0, math.nan, 2.0]))
    assert files(tmp_path) == set()


def test_weights_need_tokens(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"weighs by tokens and rank 0 reports 0 in round 0"):
        at(tmp_path, 0, 2, averaging="tokens").allreduce(torch.ones(3))


def test_a_store_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StoreError, match=r"^rank 0 of 2, round 0.*file"):
        at(tmp_path / "file", 0, 2, retry_s=0.1).allreduce(torch.ones(3))


def damaged(data: bytes) -> bytes:
    return data[:-5] + bytes([data[-5] ^ 1]) + data[-4:]


@pytest.mark.parametrize("damage", [damaged, lambda data: data[:-7], lambda _: b"", lambda data: data[:100]])
@pytest.mark.parametrize("kind", ["rank_0001", "reduced_0001"])
def test_a_damaged_object_is_never_averaged(tmp_path: Path, kind: str, damage: Callable[[bytes], bytes]) -> None:
    """Rank 1 wrote what is there, and its disk damaged it."""
    in_threads(2, lambda number: at(tmp_path, number, 2).allreduce(vector(number)))
    broken = tmp_path / "run/r000000" / kind
    broken.write_bytes(damage(broken.read_bytes()))
    tensor = vector(0)
    with pytest.raises((ValueError, StoreError), match=f"^rank 0 of 2, round 0.*{kind}"):
        at(tmp_path, 0, 2, retry_s=0.1).allreduce(tensor)
    assert torch.equal(tensor, vector(0))
