"""Averaging through a store, round after round: each rank reduces one shard, and all read the reduced shards.

1. Every rank encodes its vector in shards, one for each rank, and publishes them as one object (`rank_k`).
2. Rank j reads shard j of all others, averages them in the order of ranks and publishes the result (`reduced_j`).
3. Every rank reads all reduced shards. The reducer too takes what its published bytes decode to, so all have the same
   bits.

Up and down that is (3 - 2/N)·P bytes for N ranks and vectors of P bytes. Where ranks may be absent, each also publishes
its own shard, and the next one reduces what a silent reducer owes.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

import torch

from composer_replication.diloco.serverless.codecs import ErrorFeedback
from composer_replication.diloco.serverless.one_round import Gradient, Round, Terms
from composer_replication.diloco.serverless.participants import Members
from composer_replication.diloco.serverless.store import StoreError
from composer_replication.diloco.serverless.threads import run_all

# Objects of a round that was not finished by all, such as one whose leader died, may remain for so many rounds.
_LEFTOVER_ROUNDS = 3


class Exchange:
    """The rounds of one rank of a run, one after the other.

    `waits_for` are the ranks without which the round under way cannot go on, for whoever looks from another thread.
    """

    def __init__(self, terms: Terms) -> None:
        self._terms, self.place = terms, terms.place
        self.waits_for: frozenset[int] = frozenset()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._feedback: dict[str, ErrorFeedback] = {}

    def run(self, round_id: int, gradient: Gradient) -> tuple[list[torch.Tensor], Members]:
        """Average the gradients of a round; return the average in pieces and whose gradients are in it.

        Raises:
            TimeoutError: ranks are missing.
            ValueError: another rank's tensors or settings differ, or an object stays damaged.
            RoundClosedError: the round is over, and its average is gone.
            StoreError: the store fails for good.
        """
        self._stop = threading.Event()
        here = self.place.here(round_id)
        members: Members | None = None
        try:
            average, members = Round(
                self._terms, round_id, gradient, self._feedback_of, self._set_waits_for, self._stop
            ).run()
        except (ValueError, StoreError) as error:
            raise error if here in str(error) else type(error)(f"{here}: {error}") from error
        finally:
            self._set_waits_for(set())
            for name, feedback in self._feedback.items():
                # The gradient of a rank that was left out is lost as a whole.
                is_mine = members is not None and self.place.rank in members.ranks
                feedback.settle(was_used=is_mine or (members is not None and not name.startswith("up.")))
        self._tidy(round_id, members)
        return average, members

    def stop(self) -> None:
        """End the round that another thread is in."""
        self._stop.set()

    def leave(self, round_id: int) -> None:
        """Remove what this rank published for a round that it does not finish."""
        self.place.store.delete([self.place.name("rank", self.place.rank, round_id=round_id)])

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return what the codecs still owe to later rounds."""
        with self._lock:  # a round may be under way
            feedbacks = dict(self._feedback)
        return {
            f"{name}/{key}": residual
            for name, feedback in feedbacks.items()
            for key, residual in feedback.state_dict().items()
        }

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take over what `state_dict` returned."""
        self._feedback = {}
        for name in {key.rpartition("/")[0] for key in state}:
            residuals = {key.rpartition("/")[2]: one for key, one in state.items() if key.rpartition("/")[0] == name}
            self._feedback_of(name).load_state_dict(residuals)

    def _feedback_of(self, name: str) -> ErrorFeedback:
        with self._lock:
            return self._feedback.setdefault(name, ErrorFeedback(self._terms.codec))

    def _set_waits_for(self, ranks: set[int]) -> None:
        self.waits_for = frozenset(ranks)

    def _tidy(self, round_id: int, members: Members) -> None:
        """Remove the last round's objects: whoever is in this one has read them."""
        place = self.place
        mine = [place.name(kind, place.rank, round_id=round_id - 1) for kind in ("rank", "reduced")]
        if self._terms.quorum is not None and place.rank == members.leader:
            place.write(place.name("head"), round_id)
            mine += [place.name("members", round_id=round_id - 1)]
            if round_id >= _LEFTOVER_ROUNDS:
                mine += place.names_of(round_id - _LEFTOVER_ROUNDS)
        if round_id > 0:
            run_all(lambda name: place.store.delete([name]), mine, threading.Event(), at_most=len(mine))
