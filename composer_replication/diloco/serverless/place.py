"""A run's objects in a store, as one rank sees them: their names, small JSON objects, and waiting for the others.

RUN/r000007/rank_0002     rank 2's outer gradient of round 7, in shards
RUN/r000007/reduced_0001  shard 1 of the average
RUN/r000007/members       the ranks whose gradients are in it (only if some may be absent)
RUN/head                  the last round that is complete (likewise)
RUN/hello_0002, opened    how a run begins
RUN/join_0002, welcome_*  a rank that wants to catch up, and the state that it is given; or one that is only late
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from composer_replication.diloco.serverless.store import ObjectStore

Found = TypeVar("Found")

_FIRST_PAUSE_S = 0.005


class Pauses:
    """Pauses between looks, short at first: whoever waits for ranks that are about as fast does not wait long."""

    def __init__(self, longest_s: float) -> None:
        self._next_s, self._longest_s = min(_FIRST_PAUSE_S, longest_s), longest_s

    def pause(self, *_: int) -> None:
        """Sleep, a little longer than the last time."""
        time.sleep(self._next_s)
        self._next_s = min(self._next_s * 1.5, self._longest_s)


@dataclass(frozen=True)
class Place:
    """Where a rank of a run meets the others."""

    store: ObjectStore
    run_id: str
    rank: int
    world_size: int
    timeout_s: float
    poll_interval_s: float

    @property
    def others(self) -> list[int]:
        """Every rank but this one."""
        return [rank for rank in range(self.world_size) if rank != self.rank]

    def name(self, kind: str, number: int | str | None = None, *, round_id: int | None = None) -> str:
        """The name of an object of this run."""
        folder = self.run_id if round_id is None else f"{self.run_id}/r{round_id:06d}"
        suffix = "" if number is None else f"_{number:04d}" if isinstance(number, int) else f"_{number}"
        return f"{folder}/{kind}{suffix}"

    def names_of(self, round_id: int) -> list[str]:
        """All names that objects of a round can have."""
        numbered = [
            self.name(kind, k, round_id=round_id) for kind in ("rank", "reduced") for k in range(self.world_size)
        ]
        return [*numbered, self.name("members", round_id=round_id)]

    def read(self, name: str) -> Any:
        """A small JSON object; None if there is none, or only half of one."""
        data = self.store.get(name)
        try:
            return None if data is None else json.loads(data)
        except ValueError:
            return None

    def write(self, name: str, value: Any) -> None:
        """Write a small JSON object."""
        self.store.put(name, json.dumps(value).encode())

    def pauses(self) -> Pauses:
        """Pauses for one wait."""
        return Pauses(self.poll_interval_s)

    def wait_for(
        self, look: Callable[[], Found | None], missing: Callable[[], str], round_id: int | None = None
    ) -> Found:
        """Look until something is found.

        Raises:
            TimeoutError: nothing was; `missing` says what.
        """
        deadline, pauses = time.monotonic() + self.timeout_s, self.pauses()
        while (found := look()) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.here(round_id)}: waited {self.timeout_s:g} s for {missing()}")
            pauses.pause()
        return found

    def here(self, round_id: int | None = None) -> str:
        """The beginning of an error: the rank, the round and the store."""
        in_round = "" if round_id is None else f", round {round_id}"
        return f"rank {self.rank} of {self.world_size}{in_round}, run {self.run_id} in {self.store.uri}"


def listed(ranks: Iterable[int]) -> str:
    """Ranks as a message names them."""
    several = sorted(ranks)
    return f"rank{'s' if len(several) != 1 else ''} {', '.join(map(str, several))}"
