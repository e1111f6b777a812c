"""Codecs for outer gradients, and error feedback."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.diloco.serverless.codecs import Encoded, ErrorFeedback, decode, encode
from composer_replication.diloco.serverless.packing import BLOCK, shard_bounds

LOSSY = ("bfloat16", "int8", "int4")
CHUNK = 2048 * BLOCK  # so many values are worked on at a time
SIZES = (0, 1, 63, 64, 65, 128, 129, 1000, CHUNK - 1, CHUNK + 1, 2 * CHUNK + 130, 4 * CHUNK + 70)


def values(numel: int, seed: int = 0, scale: float = 1e-4) -> torch.Tensor:
    """Values whose sizes differ from block to block, as those of tensors do."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randn(numel // BLOCK + 1, generator=generator).mul(2).exp().repeat_interleave(BLOCK)[:numel]
    return torch.randn(numel, generator=generator) * sizes * scale


def bits(flat: torch.Tensor) -> list[int]:
    values: list[int] = flat.view(torch.int32).tolist()
    return values


def blocks_of(flat: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(flat, (0, -flat.numel() % BLOCK)).view(-1, BLOCK)


@pytest.mark.parametrize("numel", SIZES)
@pytest.mark.parametrize("codec", ["int8", "int4"])
def test_a_value_is_off_by_at_most_half_a_scale_which_is_the_least_bfloat16_that_reaches(
    codec: str, numel: int
) -> None:
    levels = {"int8": 127, "int4": 7}[codec]
    flat = values(numel)
    encoded = encode(flat, codec)
    decoded = decode(encoded)
    assert decoded.shape == flat.shape
    scales = encoded.parts["scales"].float()
    needed = blocks_of(flat).abs().amax(1) / levels
    assert bool((scales >= needed).all())
    assert bool((scales <= needed * (1 + 2**-7)).all())
    errors = (blocks_of(flat) - blocks_of(decoded)).abs()
    assert bool((errors <= scales[:, None] * 0.5 * (1 + 1e-5)).all())


@pytest.mark.parametrize("numel", SIZES)
def test_bfloat16_is_what_torch_makes_of_it(numel: int) -> None:
    flat = values(numel)
    assert torch.equal(decode(encode(flat, "bfloat16")), flat.bfloat16().float())


def test_int4_codes_are_where_the_docstring_says() -> None:
    flat = torch.zeros(2 * BLOCK)
    flat[0], flat[1], flat[2] = 7.0, -7.0, 2.6
    flat[BLOCK], flat[BLOCK + 1] = 3.5, -0.5
    encoded = encode(flat, "int4")
    assert encoded.parts["scales"].tolist() == [1.0, 0.5]
    codes = encoded.parts["codes"]
    assert (codes & 15).sub(8, alpha=1).view(torch.int8)[:4].tolist() == [7, -7, 3, 0]
    assert (codes >> 4).sub(8, alpha=1).view(torch.int8)[:4].tolist() == [7, -1, 0, 0]
    assert decode(encoded)[[0, 1, 2, BLOCK, BLOCK + 1]].tolist() == [7.0, -7.0, 3.0, 3.5, -0.5]


@pytest.mark.parametrize(
    ("codec", "most"), [("float32", 4), ("bfloat16", 2), ("int8", 1.0313), ("int4", 0.5313), ("auto", 0.5313)]
)
def test_bytes_per_value(codec: str, most: float) -> None:
    flat = values(10_000 * BLOCK)
    encoded = encode(flat, codec)
    assert encoded.nbytes == sum(part.numel() * part.element_size() for part in encoded.parts.values())
    assert encoded.nbytes / flat.numel() <= most


@pytest.mark.parametrize("size", [1e-40, 1e-37, 1e-30, 1e-12, 1.0, 1e30])
@pytest.mark.parametrize("codec", ["int8", "int4"])
def test_small_and_large_vectors_keep_their_relative_precision(codec: str, size: float) -> None:
    flat = values(500, scale=1.0).clamp(-100, 100) * size
    encoded = encode(flat, codec)
    decoded = decode(encoded)
    errors = (blocks_of(flat) - blocks_of(decoded)).abs()
    # Blocks with denormal scales become 0.
    rounded = encoded.parts["scales"].float()[:, None] > 0
    assert bool((blocks_of(decoded) == 0)[~rounded.expand_as(errors)].all())
    assert bool((errors <= 0.08 * blocks_of(flat).abs().amax(1, keepdim=True))[rounded.expand_as(errors)].all())
    if size >= 1e-30:
        assert torch.dist(decoded.double(), flat.double()) <= 0.2 * flat.double().norm()


def test_the_largest_values_stay_finite() -> None:
    for codec in LOSSY:
        assert bool(decode(encode(torch.tensor([2.0**127, -(2.0**127), 1.0]), codec)).isfinite().all())


@given(
    st.lists(
        st.one_of(st.just(0.0), st.just(-0.0), st.floats(-(2.0**127), 2.0**127, width=32)),
        max_size=300,
    )
)
def test_sparse_is_exact_to_the_bit(given_values: list[float]) -> None:
    flat = torch.tensor(given_values, dtype=torch.float32)
    encoded = encode(flat, "sparse")
    assert bits(decode(encoded)) == bits(flat)
    assert encoded.parts["values"].numel() == sum(bit != 0 for bit in bits(flat))


@pytest.mark.parametrize("density", [0.0, 0.001, 0.05, 0.08, 0.5, 1.0])
@pytest.mark.parametrize("numel", [1, 64, 65_536, 65_537, 200_001])
def test_sparse_is_exact_with_a_bitmap_and_with_offsets(numel: int, density: float) -> None:
    generator = torch.Generator().manual_seed(3)
    flat = torch.where(torch.rand(numel, generator=generator) < density, values(numel), 0.0)
    encoded = encode(flat, "sparse")
    assert torch.equal(decode(encoded), flat)
    if numel > 65_535:
        assert ("offsets" in encoded.parts) == (density <= 0.05)


def test_sparse_values_that_are_bfloat16_take_two_bytes_and_stay_exact() -> None:
    flat = torch.where(torch.arange(70_000) % 50 == 0, values(70_000).bfloat16().float(), 0.0)
    encoded = encode(flat, "sparse")
    assert encoded.parts["values"].dtype == torch.bfloat16
    assert torch.equal(decode(encoded), flat)
    for other in (0.1, 1 + 2**-8):
        flat[0] = other
        assert encode(flat, "sparse").parts["values"].dtype == torch.float32
        assert torch.equal(decode(encode(flat, "sparse")), flat)


@given(numel=st.integers(0, 70_000), changed=st.floats(0, 1), halves=st.booleans())
def test_auto_is_the_smaller_of_sparse_and_int4(numel: int, changed: float, halves: bool) -> None:
    generator = torch.Generator().manual_seed(numel)
    flat = torch.where(torch.rand(numel, generator=generator) < changed, values(numel), 0.0)
    flat = flat.bfloat16().float() if halves else flat
    chosen, sparse, int4 = (encode(flat, codec) for codec in ("auto", "sparse", "int4"))
    assert chosen.nbytes == min(sparse.nbytes, int4.nbytes)
    assert chosen.codec == ("sparse" if sparse.nbytes <= int4.nbytes else "int4")


@pytest.mark.parametrize("count", [1, 2, 3, 7, 40])
@pytest.mark.parametrize("codec", ["float32", "bfloat16", "int8", "int4", "sparse"])
def test_cuts_into_shards_do_not_change_what_is_decoded(codec: str, count: int) -> None:
    flat = values(30 * BLOCK + 17)
    whole = decode(encode(flat, codec))
    cut = [decode(encode(flat[start:stop], codec)) for start, stop in shard_bounds(flat.numel(), count)]
    assert torch.equal(torch.cat(cut), whole)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2e38])
@pytest.mark.parametrize("codec", ["float32", "bfloat16", "int8", "int4", "sparse", "auto"])
def test_what_is_not_finite_is_refused(codec: str, value: float) -> None:
    flat = values(200)
    flat[130] = value
    with pytest.raises(
        ValueError, match=rf"value 130 of 200 is {re.escape(format(value, 'g'))}.*restart it from a checkpoint"
    ):
        encode(flat, codec)


def test_what_is_no_flat_float32_vector_is_refused() -> None:
    for wrong in (torch.zeros(2, 2), torch.zeros(2).double(), torch.zeros(4)[::2]):
        with pytest.raises(ValueError, match="flat contiguous float32 vector"):
            encode(wrong, "int4")
    with pytest.raises(ValueError, match=r"codec must be one of .*'int4'.*got 'int5'"):
        encode(torch.zeros(2), "int5")
    with pytest.raises(ValueError, match="got 'int5'"):
        ErrorFeedback("int5")


@pytest.mark.parametrize("codec", ["float32", "bfloat16", "int8", "int4", "sparse"])
def test_damaged_parts_are_refused(codec: str) -> None:
    flats = [values(1000)]
    if codec == "sparse":
        flats.append(torch.where(torch.arange(1000) == 5, 1.0, 0.0))  # offsets instead of a bitmap
    for flat in flats:
        encoded = encode(flat, codec)
        for name, part in encoded.parts.items():
            with pytest.raises(ValueError, match="it is damaged"):
                decode(replace(encoded, parts={**encoded.parts, name: part[:-1]}))
            with pytest.raises(ValueError, match="it is damaged"):
                decode(
                    replace(encoded, parts={other: encoded.parts[other] for other in encoded.parts if other != name})
                )
    with pytest.raises(ValueError, match="got 'auto'"):
        decode(Encoded("auto", 0, {}))


class Settled(ErrorFeedback):
    """Rounds of one vector that all succeed."""

    def encode(self, key: int, flat: torch.Tensor) -> tuple[Encoded, torch.Tensor]:
        made = super().encode(key, flat)
        self.settle(was_used=True)
        return made


def test_a_round_that_is_tried_again_sends_the_same_bytes() -> None:
    feedback, once = ErrorFeedback("int4"), Settled("int4")
    for step in range(4):
        flat = values(300, seed=step)
        if step == 2:
            before = feedback.state_dict()
            feedback.encode(0, flat)
            feedback.settle(was_used=False)
            assert torch.equal(feedback.state_dict()["residual.0"], before["residual.0"])
        encoded, decoded = feedback.encode(0, flat)
        feedback.settle(was_used=True)
        expected, expected_decoded = once.encode(0, flat)
        assert torch.equal(encoded.parts["codes"], expected.parts["codes"])
        assert torch.equal(decoded, expected_decoded)


@pytest.mark.parametrize("codec", [*LOSSY, "float32", "sparse", "auto"])
def test_over_rounds_nothing_is_lost_but_the_last_residual(codec: str) -> None:
    """Exact arithmetic: all numbers are multiples of 2^-20 below 8, so float32 sums of them do not round.

    (A block's largest magnitude is at least 1/2, so that its scale, with 8 significant bits, is such a multiple.)
    """
    feedback = Settled(codec)
    generator = torch.Generator().manual_seed(1)
    sent = received = torch.zeros(5 * BLOCK + 10)
    for _ in range(20):
        flat = torch.randint(-(2**10), 2**10, sent.shape, generator=generator) / 2**11
        flat[::BLOCK] = 0.75
        encoded, decoded = feedback.encode(0, flat.clone())
        assert torch.equal(decoded, decode(encoded))
        sent, received = sent + flat, received + decoded
        residual = feedback.state_dict().get("residual.0", torch.zeros(()))
        assert torch.equal(received + residual, sent)
    assert bool((sent - received).abs().max() <= 0.2)
    assert (codec in ("float32", "sparse")) == torch.equal(sent, received)


def test_without_feedback_small_values_never_arrive_and_with_it_they_do() -> None:
    flat = torch.full((BLOCK,), 0.04)
    flat[0] = 1.0
    feedback = Settled("int4")
    plain = sum(decode(encode(flat, "int4")) for _ in range(50))
    fed = sum(feedback.encode(0, flat)[1] for _ in range(50))
    assert isinstance(plain, torch.Tensor)
    assert isinstance(fed, torch.Tensor)
    assert plain[1:].abs().max() == 0
    assert torch.allclose(fed[1:], torch.tensor(50 * 0.04), atol=0.08)


def test_each_key_has_its_own_residual() -> None:
    together = Settled("int4")
    alone = [Settled("int4"), Settled("int4")]
    for step in range(4):
        for key in (0, 1):
            flat = values(100 + key, seed=2 * step + key)
            assert torch.equal(together.encode(key, flat)[1], alone[key].encode(0, flat)[1])


@pytest.mark.parametrize("codec", [*LOSSY, "auto"])
def test_a_saved_and_restored_state_goes_on_as_if_uninterrupted(codec: str) -> None:
    uninterrupted, first, second = (Settled(codec) for _ in range(3))
    for step in range(6):
        flat = values(300, seed=step)
        if step == 3:
            state = first.state_dict()
            first.encode(0, flat)  # what is saved does not change any more
            second.load_state_dict(state)
            first = second
        assert torch.equal(uninterrupted.encode(0, flat)[1], first.encode(0, flat)[1])
    with pytest.raises(ValueError, match="'momentum' is not a saved residual"):
        first.load_state_dict({"momentum": torch.zeros(1)})


def test_auto_sends_a_sparse_input_exactly_while_a_residual_waits() -> None:
    feedback = Settled("auto")
    dense, sparse = values(640), torch.where(torch.arange(640) == 7, 1.0, 0.0)
    assert feedback.encode(0, dense)[0].codec == "int4"
    waiting = feedback.state_dict()["residual.0"]
    encoded, decoded = feedback.encode(0, sparse)
    assert encoded.codec == "sparse"
    assert torch.equal(decoded, sparse)
    assert torch.equal(feedback.state_dict()["residual.0"], waiting)
    assert torch.equal(feedback.encode(0, dense)[1], decode(encode(dense + waiting, "int4")))


@pytest.mark.parametrize("codec", [*LOSSY, "auto"])
def test_a_refused_vector_leaves_the_residual_and_the_input_as_they_were(codec: str) -> None:
    feedback = Settled(codec)
    first = values(100)
    feedback.encode(0, first)
    assert torch.equal(first, values(100))
    before = feedback.state_dict()
    broken = values(100)
    broken[3] = math.nan
    with pytest.raises(ValueError, match="value 3 of 100 is nan"):
        feedback.encode(0, broken)
    sparse = torch.zeros(100).index_fill(0, torch.tensor([8]), math.inf)
    with pytest.raises(ValueError, match="value 8 of 100 is inf"):
        feedback.encode(0, sparse)
    with pytest.raises(ValueError, match=r"shard 0 has 99 values and its residual has 100"):
        feedback.encode(0, values(99))
    assert torch.equal(feedback.state_dict()["residual.0"], before["residual.0"])
