"""A round under way: publishing a rank's gradient, reducing a shard, reading the reduced ones."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import xxhash

from composer_replication.diloco.serverless.averaging import (
    learner_weights,
    mean_direction,
    partial_squares,
    scale_to_radius,
    weighted_mean,
)
from composer_replication.diloco.serverless.codecs import Encoded, ErrorFeedback, decode
from composer_replication.diloco.serverless.membership import say_late
from composer_replication.diloco.serverless.messages import DamagedError, Header, MessageReader, seal
from composer_replication.diloco.serverless.packing import Layout, shard_bounds
from composer_replication.diloco.serverless.participants import Members, Quorum, RoundClosedError
from composer_replication.diloco.serverless.place import Pauses, Place, listed
from composer_replication.diloco.serverless.threads import run_all

Found = TypeVar("Found")


@dataclass(frozen=True)
class Gradient:
    """What a rank brings to a round: a flat vector, its layout, and what it was trained on."""

    flat: torch.Tensor
    layout: Layout
    tokens: float
    steps: float


@dataclass(frozen=True)
class Reduced:
    """A shard of the average; for "decoupled" with the sum of squares of each tensor's values in it."""

    values: torch.Tensor
    squares: list[float]


@dataclass(frozen=True)
class Terms:
    """What is the same in all rounds of a run, on all ranks."""

    place: Place
    codec: str
    averaging: str
    quorum: Quorum | None


class Round:
    """One rank's side of a round.

    Args:
        terms: of the run.
        round_id: its number.
        gradient: what this rank brings.
        feedback: the error feedback by direction and layout.
        waits_for: is told without which ranks the round cannot go on.
        stop: ends all waiting when set.
    """

    def __init__(
        self,
        terms: Terms,
        round_id: int,
        gradient: Gradient,
        feedback: Callable[[str], ErrorFeedback],
        waits_for: Callable[[set[int]], None],
        stop: threading.Event,
    ) -> None:
        self._place, self._quorum, self._averaging = terms.place, terms.quorum, terms.averaging
        self._feedback, self._waits_for, self._stop = feedback, waits_for, stop
        self._round_id, self._gradient, self._layout = round_id, gradient, gradient.layout
        bounds = shard_bounds(self._layout.numel, self._place.world_size)
        self._bounds = {shard: span for shard, span in enumerate(bounds) if span[0] < span[1]}
        self._layout_text = self._layout.to_json().encode()
        self._layout_sum = xxhash.xxh3_64_hexdigest(self._layout_text)
        # What everybody's messages of this round have to agree in.
        self._terms = {
            "run": self._place.run_id,
            "round": round_id,
            "world_size": self._place.world_size,
            "codec": terms.codec,
            "averaging": terms.averaging,
            "layout": self._layout_sum,
        }
        self._own: dict[int, torch.Tensor] = {}
        self._facts: dict[int, dict[str, Any]] = {}
        self._headers: dict[int, Header] = {}

    def run(self) -> tuple[list[torch.Tensor], Members]:
        """Return the average in consecutive pieces and whose gradients are in it. Raises as `Exchange.run`."""
        self._publish()
        members = self._members()
        reduced: dict[int, Reduced | None] = dict.fromkeys(self._bounds)
        mine = [shard for shard in reduced if members.reducers(shard)[0] == self._place.rank]
        for shard in mine:
            reduced[shard] = self._reduce(shard, members)
        if not mine:
            # Also a rank without a shard of its own learns who is missing or differs.
            self._wait_for(members)
        others = [shard for shard, mine in reduced.items() if mine is None]
        shards: dict[int, Reduced] = {**reduced, **self._others_reduced(others, members)}  # type: ignore[dict-item]
        pieces = [one.values for one in shards.values()]
        if self._averaging == "decoupled" and shards:
            pieces = [torch.cat(pieces)]
            squares_T = torch.tensor([one.squares for one in shards.values()], dtype=torch.float64).sum(0)
            scale_to_radius(pieces[0], self._layout, self._weights(members), self._norms(members), squares_T)
        return pieces, members

    def _publish(self) -> None:
        up = self._feedback(f"up.{self._layout_sum}")
        parts = {"layout": {"json": torch.frombuffer(bytearray(self._layout_text), dtype=torch.uint8)}}
        codecs: dict[int, Any] = {}
        for shard, (start, stop) in self._bounds.items():
            encoded, self._own[shard] = up.encode(shard, self._gradient.flat[start:stop])
            if shard != self._place.rank or self._quorum is not None:
                codecs[shard] = [encoded.codec, encoded.numel]
                parts[str(shard)] = encoded.parts
        facts = {
            **self._terms,
            "rank": self._place.rank,
            "codecs": codecs,
            "tokens": self._gradient.tokens,
            "steps": self._gradient.steps,
        }
        if self._averaging == "decoupled":
            squares = [partial_squares(self._own[shard], self._layout, *span) for shard, span in self._bounds.items()]
            facts["norms"] = torch.stack(squares).sum(0).sqrt().tolist()
        self._facts[self._place.rank] = facts
        self._place.store.put(self._name("rank", self._place.rank), *seal(facts, parts))

    def _members(self) -> Members:
        if self._quorum is None:
            return Members(tuple(range(self._place.world_size)))
        others = self._place.others

        def present() -> set[int]:
            there = run_all(lambda rank: (rank, self._look(rank)), others, self._stop, at_most=len(others))
            return {rank for rank, is_there in there if is_there}

        members = self._quorum.close(self._round_id, present, self._waits_for)
        if self._place.rank not in members.ranks:
            say_late(self._place)
        return members

    def _look(self, rank: int) -> bool:
        """Whether a rank's gradient is there; its header is checked when it is first seen."""
        if rank not in self._headers:
            header = self._header("rank", rank)
            if header is None:
                return False
            self._check(rank, header)
            self._facts[rank], self._headers[rank] = header.facts, header
        return True

    def _reduce(self, shard: int, members: Members) -> Reduced | None:
        """Average a shard over the members and publish it; None if another rank was first."""
        read = self._wait_for(members, lambda rank: self._decoded("rank", rank, self._headers[rank], shard))
        parts = {self._place.rank: self._own[shard], **read}
        ordered = [parts[rank] for rank in members.ranks]
        span, weights = self._bounds[shard], self._weights(members)
        if self._averaging == "decoupled":
            mean = mean_direction(ordered, weights, self._norms(members), self._layout, *span)
        else:
            mean = weighted_mean(ordered, weights)
        down = self._feedback(f"down.{self._layout_sum}")
        encoded, decoded = down.encode(shard, mean)
        squares: list[float] = []
        if self._averaging == "decoupled":
            squares = partial_squares(decoded, self._layout, *span).tolist()
        facts = {**self._terms, "shard": shard, "by": self._place.rank, "members": members.ranks, "squares": squares}
        message = seal({**facts, "codecs": {shard: [encoded.codec, encoded.numel]}}, {str(shard): encoded.parts})
        if self._quorum is None:
            self._place.store.put(self._name("reduced", shard), *message)
        elif not self._place.store.create(self._name("reduced", shard), *message):
            down.forget(shard)
            return None
        return Reduced(decoded, squares)

    def _wait_for(self, members: Members, then: Callable[[int], Any] = bool) -> dict[int, Any]:
        """Wait for the gradients of the other members, and do something with each as soon as it is there."""
        ranks = [rank for rank in members.ranks if rank != self._place.rank]

        arrivals = self._arrivals(ranks, lambda rank: self._look(rank) or None, listed)
        return dict(run_all(lambda one: (one[0], then(one[0])), arrivals, self._stop, at_most=len(ranks)))

    def _others_reduced(self, shards: list[int], members: Members) -> dict[int, Reduced]:
        """Read the shards that others reduce; reduce one in the stead of a rank that is silent for too long."""
        began = time.monotonic()
        order = {shard: members.reducers(shard) for shard in shards}

        def is_my_turn(shard: int) -> bool:
            if self._quorum is None or self._place.rank not in order[shard]:
                return False
            turn = order[shard].index(self._place.rank)
            return time.monotonic() > began + self._quorum.grace_s * turn

        def look(shard: int) -> tuple[Header | None] | None:
            header = self._header("reduced", shard)
            return (header,) if header is not None or is_my_turn(shard) else None

        def missing(shards: Iterable[int]) -> str:
            return ", ".join(f"{listed(order[shard][:1])} to reduce shard {shard}" for shard in shards)

        def use(arrival: tuple[int, tuple[Header | None]]) -> tuple[int, Reduced]:
            shard, (header,) = arrival
            if header is None:
                if (mine := self._reduce(shard, members)) is not None:
                    return shard, mine
                ((_, header),) = self._arrivals([shard], lambda shard: self._header("reduced", shard), missing)
            if header.facts.get("members") != list(members.ranks) or header.facts.get("shard") != shard:
                raise ValueError(f"{self._place.here(self._round_id)}: shard {shard} is the average of other ranks")
            return shard, Reduced(self._decoded("reduced", shard, header, shard), header.facts["squares"])

        return dict(run_all(use, self._arrivals(shards, look, missing), self._stop, at_most=len(shards)))

    def _arrivals(
        self, numbers: list[int], look: Callable[[int], Found | None], missing: Callable[[Iterable[int]], str]
    ) -> Iterator[tuple[int, Found]]:
        """Yield numbers and what was found of them, as it is found; one request at a time looks for all of them.

        Numbers are ranks, or shards, which have those of their reducers where everyone is waited for. A rank that died
        comes back if it is let in, and it is not while something of it in this round is used.
        """
        waiting, pauses, deadline = deque(numbers), self._place.pauses(), time.monotonic() + self._place.timeout_s
        without_pause, absent = len(waiting), set[int]()
        while waiting:
            number = waiting.popleft()
            found = look(number)
            if found is None:
                absent.add(number)
            else:
                absent.discard(number)
            if self._quorum is None:
                self._waits_for(set(absent))
            if found is not None:
                without_pause = len(waiting)  # the others may be there by now too
                yield number, found
                continue
            waiting.append(number)
            without_pause -= 1
            if without_pause < 0:
                if time.monotonic() > deadline:
                    raise self._timed_out(missing(sorted(waiting)))
                self._pause(pauses)

    def _pause(self, pauses: Pauses) -> None:
        if self._quorum is not None:
            self._quorum.check_open(self._round_id)
        if self._stop.is_set():
            raise RuntimeError(f"{self._place.here(self._round_id)}: stopped")
        pauses.pause()

    def _timed_out(self, missing: str) -> TimeoutError:
        return TimeoutError(f"{self._place.here(self._round_id)}: waited {self._place.timeout_s:g} s for {missing}")

    def _decoded(self, kind: str, number: int, header: Header, shard: int) -> torch.Tensor:
        name = self._name(kind, number)
        try:
            parts = self._reader(kind, number).part(header, str(shard))
            if parts is None:
                if self._quorum is not None:
                    raise RoundClosedError(f"{self._place.here(self._round_id)}: the others have finished the round")
                raise ValueError(f"{self._place.here(self._round_id)}: {name} has gone: does somebody delete objects?")
            codec, numel = header.facts["codecs"][str(shard)]
            if numel != self._bounds[shard][1] - self._bounds[shard][0]:
                raise DamagedError(f"its shard {shard} has {numel} values")
            return decode(Encoded(codec, numel, parts))
        except (DamagedError, KeyError) as error:
            raise self._damaged(name, error) from error

    def _header(self, kind: str, number: int) -> Header | None:
        try:
            return self._reader(kind, number).header()
        except DamagedError as error:
            raise self._damaged(self._name(kind, number), error) from error

    def _damaged(self, name: str, error: Exception) -> ValueError:
        return ValueError(
            f"{self._place.here(self._round_id)}: {name} stays damaged ({error}): it is not averaged; restart the rank "
            "that wrote it"
        )

    def _check(self, rank: int, header: Header) -> None:
        """Raise a ValueError if a rank's message does not fit this one's."""
        facts, here = header.facts, self._place.here(self._round_id)
        if facts.get("layout") != self._layout_sum:
            layout = self._reader("rank", rank).part(header, "layout")
            text = None if layout is None else bytes(layout["json"].numpy()).decode()
            differs = None if text is None else self._layout.difference(Layout.from_json(text))
            raise ValueError(f"{here}: rank {rank} sends other tensors: {differs}; give all ranks the same model")
        for term, mine in self._terms.items():
            if facts.get(term) != mine:
                raise ValueError(
                    f"{here}: rank {rank} has {term} {facts.get(term)!r} and this one {mine!r}: set all ranks alike"
                )

    def _weights(self, members: Members) -> list[float]:
        facts = [self._fact(rank) for rank in members.ranks]
        tokens, steps = ([float(one[key]) for one in facts] for key in ("tokens", "steps"))
        return learner_weights(self._averaging, tokens, steps, members.ranks)

    def _norms(self, members: Members) -> torch.Tensor:
        return torch.tensor([self._fact(rank)["norms"] for rank in members.ranks], dtype=torch.float64)

    def _fact(self, rank: int) -> dict[str, Any]:
        if rank not in self._facts:
            self._look(rank)
        if rank not in self._facts:
            raise ValueError(f"{self._place.here(self._round_id)}: {self._name('rank', rank)} has gone")
        return self._facts[rank]

    def _reader(self, kind: str, number: int) -> MessageReader:
        return MessageReader(self._place.store, self._name(kind, number), self._place.pauses().pause)

    def _name(self, kind: str, number: int) -> str:
        return self._place.name(kind, number, round_id=self._round_id)
