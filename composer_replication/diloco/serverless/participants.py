"""Who takes part in a round: every rank, or those that are there when it is closed.

Where some may be absent, a round is closed by one conditional creation of its `members`: the first one counts, for all
ranks. It lists the ranks whose gradients were there, and those who asked to take part in the next round.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass

from composer_replication.diloco.serverless.membership import who_asks
from composer_replication.diloco.serverless.place import Place, listed


class RoundClosedError(RuntimeError):
    """The others are rounds ahead, and what they exchanged is gone: this rank has to take over their state."""


@dataclass(frozen=True)
class Members:
    """The ranks whose gradients are in a round's average, and those that the next round will wait for too."""

    ranks: tuple[int, ...]
    joining: tuple[int, ...] = ()

    @property
    def leader(self) -> int:
        """The rank that keeps the run's books."""
        return self.ranks[0]

    def reducers(self, shard: int) -> list[int]:
        """The rank that reduces a shard, and those that do so in its stead, in order."""
        first = self.ranks.index(shard) if shard in self.ranks else shard % len(self.ranks)
        return [*self.ranks[first:], *self.ranks[:first]]


class Quorum:
    """Closes rounds without those that are absent.

    A round is closed when all who took part in the last one are there; or when `min_participants` are, and `grace_s`
    has passed since. Who is left out follows by reading the average, and says that it will be late.
    """

    def __init__(self, place: Place, min_participants: int, grace_s: float) -> None:
        self.min_participants, self.grace_s = min_participants, grace_s
        self._place = place
        self._expected: set[int] = set()
        self.expect_all()

    def expect_all(self) -> None:
        """Wait for every rank in the next round, within the grace: as one that does not know who is there."""
        self._expected = set(range(self._place.world_size))

    def close(self, round_id: int, present: Callable[[], set[int]], waits_for: Callable[[set[int]], None]) -> Members:
        """Close a round, or learn how it was closed.

        Args:
            round_id: the round, for which this rank's gradient is there already.
            present: finds the ranks whose gradients are there.
            waits_for: is told without whom it cannot be closed, after each look.

        Raises:
            RoundClosedError: the round is over, and its average is gone.
            TimeoutError: too few came.
        """
        place, enough_since = self._place, 0.0
        everyone, here = set(range(place.world_size)), {place.rank}

        def look() -> Members | None:
            nonlocal here, enough_since
            if (closed := self._closed(round_id)) is not None:
                return closed
            here = present() | {place.rank}
            is_enough = len(here) >= self.min_participants
            waits_for(set() if is_enough else everyone - here)
            if not is_enough:
                return None
            enough_since = enough_since or time.monotonic()
            if self._expected <= here or time.monotonic() >= enough_since + self.grace_s:
                members = {"ranks": sorted(here), "joining": who_asks(place, everyone - here), "by": place.rank}
                place.store.create(place.name("members", round_id=round_id), json.dumps(members).encode())
            return None

        members = place.wait_for(
            look,
            lambda: (
                f"{self.min_participants - len(here)} more of {listed(everyone - here)} (min_participants is "
                f"{self.min_participants})"
            ),
            round_id,
        )
        waits_for(set())
        self._expected = {*members.ranks, *members.joining}
        return members

    def check_open(self, round_id: int) -> None:
        """Raise a RoundClosedError if the objects of a round may have been collected."""
        head = self._place.read(self._place.name("head"))
        if head is not None and head > round_id:
            raise RoundClosedError(f"{self._place.here(round_id)}: the others have finished round {head}")

    def _closed(self, round_id: int) -> Members | None:
        found = self._place.read(self._place.name("members", round_id=round_id))
        if found is not None:
            return Members(tuple(found["ranks"]), tuple(found["joining"]))
        self.check_open(round_id)
        return None
